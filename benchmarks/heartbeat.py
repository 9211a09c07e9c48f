"""What a thread of the application that wakes up every millisecond loses to the package, at worst.

One process has such a thread and a MeterProvider with a periodic reader that exports over OTLP/HTTP. Periods without
the package, with it, and with it below a root of its own take turns, so that a slow minute of the machine meets all
of them. With the package are 8 NVIDIA GPUs, the tests' stand-in behind the real binding, and a watched tree of 100
processes among 5,000, all of them real and asleep. The other root holds copies of their files without the kernel's
lists of children (CONFIG_PROC_CHILDREN), so that every process of the machine has to be looked at.

`the SDK alone` has the points that ours exported, made before: the rest of what is lost is its encoder's.

Sampled and exported is every second in place of every 15. A beat sleeps in C, which notes when it woke up: what comes
late until then is the machine's doing, and from then on it waits for the interpreter. `worst` is over all periods,
`a period's worst` the median of each period's: on a busy machine the former says more of the machine.
"""

from __future__ import annotations

import ctypes
import gc
import os
import shutil
import subprocess  # noqa: TID251 - starts the processes among which the watched ones are
import sys
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from itertools import chain, cycle, islice
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final, TypeAlias

from opentelemetry.metrics import Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import Gauge, PeriodicExportingMetricReader, Sum
from side_by_side import table
from side_by_side.pipeline import Exporter, sink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from opentelemetry.metrics import CallbackOptions
    from opentelemetry.sdk.metrics.export import Metric

Beat: TypeAlias = "tuple[float, float]"

ROOT: Final = Path(__file__).resolve().parents[1]
BEAT: Final = 0.001
INTERVAL: Final = 1.0
PERIOD: Final = 5.0
ROUNDS: Final = 6
DEVICES: Final = 8
TREE: Final = 100
PIDS: Final = 5_000
WITHOUT, ALONE, WITH, SCANNED = "without", "the SDK alone", "with", "with, no lists"
FILES: Final = ("stat", "status", "cgroup")

BEAT_C: Final = """
#include <time.h>

double beat(double seconds) {
    struct timespec pause = {0, (long)(seconds * 1e9)}, now;
    nanosleep(&pause, 0);
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}
"""

CROWD: Final = """
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

int main(int argc, char **argv) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (int left = argc > 1 ? atoi(argv[1]) : 0; left > 0; left--)
        if (fork() == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            for (;;) pause();
        }
    puts("here");
    fclose(stdout);
    for (;;) pause();
}
"""


def main() -> None:
    """Measure in a process that finds the stand-in, and print the table."""
    sys.path.insert(0, str(ROOT))
    from tests.nvml import H100, NvmlMachine, why_not

    if reason := why_not():
        print(f"skipped: {reason}")
        return
    with tempfile.TemporaryDirectory() as folder, sink() as endpoint:
        program = build(folder, "crowd", CROWD)
        build(folder, "beat.so", BEAT_C, "-shared", "-fPIC")
        machine = NvmlMachine(Path(folder), devices=[H100] * DEVICES)
        with crowd(program, PIDS - TREE):
            subprocess.run(
                [sys.executable, __file__, program, endpoint, folder],
                env={**os.environ, **machine.environment},  # noqa: TID251 - with the stand-in on top
                check=True,
            )


def build(folder: str, name: str, text: str, *options: str) -> str:
    """Compile a C program or library, and return its path."""
    source, built = Path(folder, f"{name}.c"), os.path.join(folder, name)
    source.write_text(text)
    subprocess.run(["cc", "-O1", *options, "-o", built, source], check=True)  # noqa: S607 - as the stand-in is built
    return built


@contextmanager
def crowd(program: str, processes: int) -> Iterator[None]:
    """Have so many processes asleep, which are one and its children."""
    parent = subprocess.Popen([program, str(processes - 1)], stdout=subprocess.PIPE)
    try:
        if parent.stdout is not None:
            parent.stdout.readline()
        yield
    finally:
        parent.kill()
        parent.communicate()


def child(program: str, endpoint: str, folder: str) -> None:
    """Measure all periods in this process, and print the table."""
    from otel_sysmetrics import SysMetricsInstrumentor

    with suppress(OSError):  # ahead of what else runs on the machine, which is not what is measured
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    exporter = Exporter(endpoint)
    provider = exporting(exporter)
    instrumentor = SysMetricsInstrumentor()
    root = os.path.join(folder, "root")
    sides = {WITHOUT: None, WITH: {}, ALONE: None, SCANNED: {"root_path": root, "pid": os.getpid()}}
    library = ctypes.CDLL(os.path.join(folder, "beat.so"))
    library.beat.restype, library.beat.argtypes = ctypes.c_double, [ctypes.c_double]
    periods: dict[str, list[list[Beat]]] = {side: [] for side in sides}
    points: list[Metric] = []
    with crowd(program, TREE - 1):
        copy_processes(root)
        for side in islice(cycle(sides), ROUNDS * len(sides)):
            keywords = sides[side]
            alone = replay(points, endpoint) if side == ALONE else None
            if keywords is not None:
                instrumentor.instrument(
                    meter_provider=provider, sampling_interval=INTERVAL, track_process_tree=True, **keywords
                )
            time.sleep(2)  # imports and probes are start-up's, which startup.py measures
            periods[side].append(beats(library.beat, PERIOD))
            if alone is not None:
                alone.shutdown()
            if keywords is not None:
                instrumentor.uninstrument()
                points = exporter.metrics()
    rows = [
        (
            f"{what}: {name}",
            *(f"{value:.2f}" for value in found.values()),
            f"{worse - found[WITHOUT]:+.2f}",
            f"{worse - found[ALONE]:+.2f}",
        )
        for part, what in enumerate(("in all", "for the interpreter"))
        for name, find in STATISTICS.items()
        for found in [{each: 1000 * find([[beat[part] for beat in one] for one in periods[each]]) for each in sides}]
        for worse in [max(found[WITH], found[SCANNED])]
    ]
    count = sum(map(len, periods[WITHOUT]))
    table((f"delay of {count} beats of 1 ms, in ms", *sides, "more than without", "than the SDK"), rows)


def exporting(exporter: Exporter) -> MeterProvider:
    """Return a provider whose reader exports in the rhythm of the sampler."""
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=INTERVAL * 1000)
    return MeterProvider([reader], shutdown_on_exit=False)


def replay(metrics: Iterable[Metric], endpoint: str) -> MeterProvider:
    """Export the points of instruments again and again, without any of our code."""
    provider = exporting(Exporter(endpoint))
    meter = provider.get_meter("benchmark")
    for metric in metrics:
        if isinstance(metric.data, Sum | Gauge):
            create = meter.create_observable_counter if isinstance(metric.data, Sum) else meter.create_observable_gauge
            found = [Observation(point.value, point.attributes) for point in metric.data.data_points]
            create(metric.name, [answer(found)], metric.unit or "", metric.description or "")
    return provider


def answer(observations: Sequence[Observation]) -> Callable[[CallbackOptions], Sequence[Observation]]:
    """Return a callback that has its answer ready."""
    return lambda _options: observations


def beats(beat: Callable[[float], float], seconds: float) -> list[Beat]:
    """Return by how much each beat of a thread of its own came late, in all and for the interpreter alone."""
    late: list[Beat] = []

    def run() -> None:
        end = time.monotonic() + seconds
        while (begun := time.monotonic()) < end:
            woken = beat(BEAT)
            now = time.monotonic()
            late.append((now - begun - BEAT, now - woken))

    gc.collect()
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return late


def quantile(share: float) -> Callable[[list[list[float]]], float]:
    """Return what finds the value that such a share of all does not exceed."""

    def find(periods: list[list[float]]) -> float:
        values = sorted(chain.from_iterable(periods))
        return values[max(0, int(len(values) * share) - 1)]

    return find


STATISTICS: Final[dict[str, Callable[[list[list[float]]], float]]] = {
    "worst": quantile(1),
    "a period's worst": lambda periods: median(map(max, periods)),
    "99.9 %": quantile(0.999),
    "99 %": quantile(0.99),
    "median": quantile(0.5),
}


def copy_processes(root: str) -> None:
    """Copy what is read of each process below another root."""
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        folder = os.path.join(root, "proc", pid)
        os.makedirs(folder)
        for name in FILES:
            try:
                shutil.copyfile(f"/proc/{pid}/{name}", os.path.join(folder, name))
            except OSError:
                continue
    for name in ("stat", "meminfo", "uptime", "loadavg", "vmstat"):
        shutil.copyfile(f"/proc/{name}", os.path.join(root, "proc", name))


if __name__ == "__main__":
    if sys.argv[1:]:
        child(*sys.argv[1:])
    else:
        main()
