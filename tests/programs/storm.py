"""Forks many short children at a steady rate while exports go on; says what is left of them, as lines of JSON.

Arguments: whose provider (`ours` or `foreign`), seconds, children in a second, and seconds that each lives.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time

CHILDREN_AT_ONCE = 100


def say(**facts: object) -> None:
    """Say facts in one line."""
    sys.stdout.write(f"{json.dumps(facts)}\n")
    sys.stdout.flush()


def held() -> dict[str, int]:
    """Return what this process holds."""
    return {"threads": threading.active_count(), "files": len(os.listdir("/proc/self/fd"))}


def reap(children: set[int], most: int) -> list[int]:
    """Wait until no more than so many children live; return the statuses of those that did not end well."""
    failed = []
    while children:
        pid, status = os.waitpid(-1, 0 if len(children) > most else os.WNOHANG)
        if pid == 0:
            break
        children.discard(pid)
        if status:
            failed.append(status)
    return failed


def storm(seconds: float, rate: int, lives: float) -> tuple[int, list[int]]:
    """Fork; return how many children there were, and the bad statuses."""
    children: set[int] = set()
    failed: list[int] = []
    due = time.monotonic()
    for _ in range(int(seconds * rate)):
        child = os.fork()
        if child == 0:
            time.sleep(lives)
            os._exit(0)
        children.add(child)
        failed += reap(children, CHILDREN_AT_ONCE)
        due += 1 / rate
        time.sleep(max(0.0, due - time.monotonic()))
    return int(seconds * rate), failed + reap(children, 0)


def instrument(whose: str) -> None:
    """Begin to report."""
    from otel_sysmetrics import SysMetricsInstrumentor, configure

    if whose == "ours":
        configure()
        return
    from opentelemetry import metrics
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    metrics.set_meter_provider(MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())]))
    SysMetricsInstrumentor().instrument()


def main() -> None:
    """Report, let the storm pass, and report on."""
    whose, seconds, rate, lives = sys.argv[1:]
    instrument(whose)
    time.sleep(2)
    before = held()
    begun = time.time_ns()
    forked, failed = storm(float(seconds), int(rate), float(lives))
    ended = time.time_ns()
    time.sleep(1)
    after = held()
    say(before=before, after=after, forked=forked, failed=failed, begun=begun, ended=ended)


if __name__ == "__main__":
    main()
