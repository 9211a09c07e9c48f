"""Forks in every way that applications do, one way a run; says what it knows as lines of JSON."""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING

from otel_sysmetrics import SysMetricsInstrumentor, configure

if TYPE_CHECKING:
    from collections.abc import Callable

MIB = 2**20
CHILD_MIB = 150
HELD: list[bytes] = []  # to the very end: the last sample may come after the last line


def say(**facts: object) -> None:
    """Say facts about this process in one line, whole even where several processes speak."""
    os.write(1, f"{json.dumps({'pid': os.getpid(), **facts})}\n".encode())


def live(seconds: float, mebibytes: int = CHILD_MIB, *, busy: float = 0.0) -> None:
    """Hold memory and keep a share of a CPU busy for some seconds, and say what /proc shows of it."""
    HELD.append(b"\xa5" * (mebibytes * MIB))
    with open("/proc/self/statm", encoding="ascii") as statm:
        resident = int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE") / MIB
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        spin = time.monotonic() + 0.02 * busy
        while time.monotonic() < spin:
            pass
        time.sleep(0.02 * (1 - busy))
    say(resident=resident)


def fork(body: Callable[[], None]) -> int:
    """Run `body` in a child, which then comes to the end of the script like its parent."""
    child = os.fork()
    if child == 0:
        body()
        sys.exit(0)
    return child


def wait(*children: int) -> None:
    """Wait for children, which have to end well."""
    for child in children:
        _, status = os.waitpid(child, 0)
        say(child=child, status=os.waitstatus_to_exitcode(status))


def leave_at_once(number: int) -> float:
    """Fork a child that leaves at once, every second one without any clean-up; return the seconds until it is gone."""
    begun = time.monotonic()
    child = os.fork()
    if child == 0:
        if number % 2 == 0:
            os._exit(0)
        sys.exit(0)
    os.waitpid(child, 0)
    return time.monotonic() - begun


def generations() -> None:
    """Fork a child that forks at once itself; all three live on."""

    def child() -> None:
        grandchild = fork(lambda: live(3, 2 * CHILD_MIB))
        live(3, busy=0.5)
        wait(grandchild)

    configure()
    time.sleep(0.7)
    forked = fork(child)
    live(3.5, 0)
    wait(forked)


def stuck() -> None:
    """Fork while an export waits for an answer that never comes; the child's own endpoint is a good one."""
    good = os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"]
    with socket.create_server(("127.0.0.1", 0)) as silent:
        os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{silent.getsockname()[1]}"
        configure()
        connection, _ = silent.accept()
        connection.recv(1)

        def child() -> None:
            os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = good
            live(2.5)

        wait(fork(child))
        say(seconds=[leave_at_once(0), leave_at_once(1), leave_at_once(3)])


def short_lived() -> None:
    """Fork children that are gone at once, one after the other, each way to go half of the times."""
    configure()
    while not any(thread.name == "otel-sysmetrics cpu" for thread in threading.enumerate()):
        time.sleep(0.01)  # a fork waits for imports, which may take long on a busy machine
    seconds = [leave_at_once(number) for number in range(20)]
    live(1.5, 0)
    say(seconds=seconds)


def twice() -> None:
    """Fork after configure() was called twice."""
    configure()
    configure()
    wait(fork(lambda: live(2.5)))


def silenced() -> None:
    """Fork after uninstrument()."""
    provider = configure()
    live(1.5, 0)
    provider.force_flush()
    SysMetricsInstrumentor().uninstrument()
    wait(fork(lambda: live(2.5)))


def silenced_in_the_child() -> None:
    """Fork a child that is uninstrumented at once, before it has begun to report, and one that configures at once."""

    def quiet() -> None:
        SysMetricsInstrumentor().uninstrument()
        live(2.5)

    def anew() -> None:
        configure()
        live(2.5)

    configure()
    children = [fork(quiet), fork(anew)]
    live(1.5, 0)
    wait(*children)


def of_multiprocessing(method: str) -> None:
    """Start a multiprocessing child; a forked one reports by itself, others configure."""
    configure()
    multiprocessing.set_start_method(method)
    process = multiprocessing.Process(target=work, args=(method,))
    process.start()
    process.join()
    say(child=process.pid, status=process.exitcode)


def work(method: str) -> None:
    """Be the multiprocessing child."""
    if method != "fork":
        configure()
    live(2.5)


def foreign(service: dict[str, str] | None) -> None:
    """Fork under a MeterProvider of the application's own."""
    from opentelemetry import metrics
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import Resource

    resource = Resource.create() if service is None else Resource(service)
    provider = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())], resource)
    metrics.set_meter_provider(provider)
    SysMetricsInstrumentor().instrument(sampling_interval=0.5)
    time.sleep(0.3)
    provider.force_flush()  # the SDK's locks are free for a while

    child = os.fork()
    if child == 0:
        live(3)
        os._exit(0)
    live(3, 0)
    wait(child)


WAYS: dict[str, Callable[[], None]] = {
    "generations": generations,
    "stuck": stuck,
    "short-lived": short_lived,
    "twice": twice,
    "silenced": silenced,
    "silenced-in-the-child": silenced_in_the_child,
    "fork": lambda: of_multiprocessing("fork"),
    "spawn": lambda: of_multiprocessing("spawn"),
    "forkserver": lambda: of_multiprocessing("forkserver"),
    "foreign": lambda: foreign(None),
    "foreign-without-id": lambda: foreign({"service.name": os.environ["OTEL_SERVICE_NAME"]}),
}

if __name__ == "__main__":
    WAYS[sys.argv[1]]()
