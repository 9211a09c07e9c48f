"""Many processes of one job on one host, seen from the backend."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Final

import pytest

from tests.fakes import PATIENCE
from tests.parts import until
from tests.running import kill_group
from tests.streams import HEALTH, HOST_TAGS, PROCESS_TAGS, Watch, lock_holder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.conftest import StartOtelcol
    from tests.otelcol import Otelcol

pytestmark = [pytest.mark.otelcol, pytest.mark.skipif(os.name == "nt", reason="gunicorn is a program for POSIX")]

INTERVAL: Final = 0.5
MOST_RELOADS: Final = 4


APPLICATION: Final = """
def app(environ, start):
    start("200 OK", [])
    return [b""]
"""
CONFIGURED: Final = f"from otel_sysmetrics import configure\n\nconfigure()\n{APPLICATION}"


class Gunicorn:
    """A gunicorn with four workers, under opentelemetry-instrument or with an application that configures us itself."""

    def __init__(self, folder: Path, backend: Otelcol, *arguments: str, configured: bool) -> None:
        (folder / "service.py").write_text(CONFIGURED if configured else APPLICATION)
        scripts = os.path.dirname(sys.executable)
        environment = {
            **os.environ,
            "OTEL_SERVICE_NAME": "web",
            "OTEL_EXPORTER_OTLP_ENDPOINT": backend.http_endpoint,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_TRACES_EXPORTER": "none",
            "OTEL_LOGS_EXPORTER": "none",
            "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "system_metrics",  # its slow callbacks hold the SDK's locks
            "OTEL_METRIC_EXPORT_INTERVAL": str(INTERVAL * 1000),
            "OTEL_PYTHON_SYSMETRICS_SAMPLING_INTERVAL": str(INTERVAL),
        }
        self.log = folder / "gunicorn.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *([] if configured else [os.path.join(scripts, "opentelemetry-instrument")]),
                    os.path.join(scripts, "gunicorn"),
                    "--workers=4",
                    "--bind=127.0.0.1:0",
                    "--graceful-timeout=3",  # a mute worker does not end by itself
                    *arguments,
                    "service:app",
                ],
                cwd=folder,
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def workers(self) -> set[int]:
        """Return the pids of the workers."""
        found = subprocess.run(
            ["/bin/ps", "-o", "pid=", "--ppid", str(self.process.pid)], stdout=subprocess.PIPE, check=False
        )
        return {int(pid) for pid in found.stdout.split()}

    def stop(self) -> None:
        """End it with its workers."""
        self.process.terminate()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            kill_group(self.process)
            self.process.wait()


@pytest.fixture
def backend(otelcol: StartOtelcol) -> Otelcol:
    return otelcol()


@pytest.fixture(params=["auto", "auto preloaded", "configured", "configured preloaded"])
def gunicorn(backend: Otelcol, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Gunicorn]:
    arguments = ["--preload"] if "preloaded" in request.param else []
    server = Gunicorn(tmp_path, backend, *arguments, configured="configured" in request.param)
    yield server
    server.stop()


def test_case_139_four_workers_of_gunicorn_are_one_host_and_themselves(backend: Otelcol, gunicorn: Gunicorn) -> None:
    """One stream of each host tag, one of each process tag per worker; also after kill -9 and a reload."""
    watch = Watch(backend)

    def is_one_host_and_every_process(since: int) -> bool:
        hosts = [watch.streams(tag, since) for tag in HOST_TAGS]
        healths = watch.streams(HEALTH, since)
        parts = {stream[3:] for stream in healths}
        processes = [watch.streams(tag, since) for tag in PROCESS_TAGS]
        return (
            [len(streams) for streams in hosts] == [1] * len(hosts)
            and len(healths) == len(parts) > 0
            and [len(streams) for streams in processes] == [4] * len(processes)
        )

    def comes_true(condition: Callable[[int], bool]) -> bool:
        """Wait for it; a worker that was forked during an export of the master's may be mute, and is replaced.

        The SDK's exporter then keeps a lock for ever that nobody holds, which README tells how to avoid.
        """
        for _ in range(MOST_RELOADS):
            if watch.settles(condition, 6 * INTERVAL):
                return True
            gunicorn.process.send_signal(signal.SIGHUP)
        return False

    assert comes_true(is_one_host_and_every_process)
    assert until(lambda: len(gunicorn.workers()) == 4), "one that was replaced has not ended"
    workers = gunicorn.workers()

    reporter = lock_holder()
    assert reporter in workers
    os.kill(reporter, signal.SIGKILL)
    assert comes_true(lambda since: lock_holder() != reporter and is_one_host_and_every_process(since))
    workers = gunicorn.workers()

    gunicorn.process.send_signal(signal.SIGHUP)
    assert comes_true(lambda since: not workers & gunicorn.workers() and is_one_host_and_every_process(since))
