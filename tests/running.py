"""Programs that tests start: with a clean environment, and with everything they say kept with its time."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any, TypeVar

from tests.otelcol import Otelcol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from typing_extensions import Self

PROGRAMS = os.path.join(os.path.dirname(__file__), "programs")
SCRIPTS = os.path.dirname(sys.executable)
COMMAND = (sys.executable, "-m", "otel_sysmetrics")

_T = TypeVar("_T")
_OURS = ("OTEL_", "SLURM_", "PYTHON")
_RANKS = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}


def clean_environment(**variables: str) -> dict[str, str]:
    """Return our environment without what steers OpenTelemetry, Python or a distributed job, and with `variables`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OURS) and name not in _RANKS}
    return {**kept, **variables}


def over(protocol: str, endpoint: str, milliseconds: int = 500) -> dict[str, str]:
    """Return the variables that have metrics exported to an endpoint."""
    return {
        "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_METRIC_EXPORT_INTERVAL": str(milliseconds),
    }


class Running:
    """A program that was started; it is killed with its children when the block that it is used in is left."""

    def __init__(self, *command: str, environment: Mapping[str, str] | None = None, cwd: str | None = None) -> None:
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environment) if environment is not None else clean_environment(),
            text=True,
            cwd=cwd,
            start_new_session=True,  # away from the terminal, whose Ctrl-C is ours
        )
        self.ended: float | None = None
        self._said: list[tuple[float, str]] = []
        self._errors: list[tuple[float, str]] = []
        self._threads = [
            threading.Thread(target=self._read, args=(self.process.stdout, self._said), daemon=True),
            threading.Thread(target=self._read, args=(self.process.stderr, self._errors), daemon=True),
            threading.Thread(target=self._wait, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Kill what is still running, of its children too."""
        kill_group(self.process)
        for thread in self._threads:
            thread.join(10)

    def _read(self, stream: IO[str], lines: list[tuple[float, str]]) -> None:
        with stream:
            for line in stream:
                lines.append((time.monotonic(), line.rstrip("\n")))  # noqa: PERF401 - seen as soon as it is said

    def _wait(self) -> None:
        self.process.wait()
        self.ended = time.monotonic()

    @property
    def lines(self) -> list[str]:
        """What it has said on stdout so far."""
        return [line for _, line in self._said]

    @property
    def errors(self) -> list[str]:
        """What it has said on stderr so far."""
        # Releases before 1.40 say this themselves, at each provider.
        return [line for _, line in self._errors if line != "SDK is disabled."]

    def wait_for_line(self, start: str, timeout: float = 60) -> str:
        """Return the first line on stdout that starts so, as soon as it is there."""
        return _wait_for_line(lambda: self.lines, start, timeout, self.tell)

    def wait_for_error(self, start: str, timeout: float = 60) -> str:
        """Return the first line on stderr that starts so, as soon as it is there."""
        return _wait_for_line(lambda: self.errors, start, timeout, self.tell)

    def send(self, number: int) -> float:
        """Send a signal and return the time of that."""
        now = time.monotonic()
        self.process.send_signal(number)
        return now

    def finish(self, timeout: float = 60) -> int:
        """Wait for the end and return the exit status."""
        until(lambda: self.ended is not None, timeout, self.tell)
        for thread in self._threads:
            thread.join(5)
        return int(self.process.returncode)

    def seconds_since(self, moment: float) -> float:
        """Return the seconds from a moment to the end."""
        assert self.ended is not None
        return self.ended - moment

    @property
    def seconds_after_last_line(self) -> float:
        """How long the program lived on after its last line on stdout."""
        return self.seconds_since(self._said[-1][0])

    def tell(self) -> str:
        """Return all that is known, for a failure."""
        return "\n".join([f"status {self.process.poll()}, stdout:", *self.lines, "stderr:", *self.errors])


def kill_group(leader: subprocess.Popen[Any]) -> None:
    """Kill a process that was started in a session of its own, and those that it has left behind there."""
    if os.name == "nt":
        leader.kill()
        return
    with suppress(ProcessLookupError, PermissionError):  # macOS refuses where only zombies are left
        os.killpg(leader.pid, signal.SIGKILL)


def python(name: str, *arguments: str, environment: Mapping[str, str] | None = None) -> Running:
    """Start one of the programs of tests/programs."""
    return Running(sys.executable, os.path.join(PROGRAMS, name), *arguments, environment=environment)


def command(*arguments: str, environment: Mapping[str, str] | None = None, cwd: str | None = None) -> Running:
    """Start `otel-sysmetrics` with these arguments."""
    return Running(*COMMAND, *arguments, environment=environment, cwd=cwd)


def _wait_for_line(lines: Callable[[], list[str]], start: str, timeout: float, tell: Callable[[], str]) -> str:
    return until(lambda: next((line for line in lines() if line.startswith(start)), None), timeout, tell)


def until(ask: Callable[[], _T | None], timeout: float, tell: Callable[[], str] = str) -> _T:
    """Return the first answer that is neither None nor false; fail with what `tell` says when the time is up."""
    deadline = time.monotonic() + timeout
    while True:
        answer = ask()
        if answer:
            return answer
        if time.monotonic() > deadline:
            message = f"not so after {timeout} s: {tell()}"
            raise AssertionError(message)
        time.sleep(0.02)


@contextmanager
def refusing_port() -> Iterator[int]:
    """Reserve a local port that refuses every connection."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield reserved.getsockname()[1]


class Silent:
    """A local port where every connection is accepted and nothing is ever answered."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._connections: list[socket.socket] = []
        self.port = self._listening.getsockname()[1]
        self.endpoint = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close everything."""
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for connection in self._connections:
            connection.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            self._connections.append(connection)

    @property
    def callers(self) -> int:
        """How many have called so far."""
        return len(self._connections)


@contextmanager
def receiving(binary: str, folder: str, *, prometheus: bool = False) -> Iterator[Otelcol]:
    """Run an otelcol that several tests share."""
    backend = Otelcol(binary, folder, prometheus=prometheus)
    backend.start()
    try:
        yield backend
    finally:
        backend.stop()
