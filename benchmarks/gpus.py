"""CPU time of one cycle on a host with 8 NVIDIA GPUs, beside what the SDK alone needs for the same points.

Sampled, collected and exported as in cycle.py, which says how that is measured. The GPUs are the tests' stand-in of
libnvidia-ml.so.1 behind the real binding; the watched process, which is this one and its children, is on two of them.
Ours pays for the stand-in's own C code as it would for a driver's.

`the SDK alone` is a MeterProvider with the same instruments: names, units, kinds, attributes and values are those that
ours exported once at the beginning. Its callbacks return observations that were made before.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from opentelemetry.metrics import Observation
from opentelemetry.sdk.metrics.export import Gauge, Sum
from side_by_side import OURS, THEIRS, measure, ratio, report, table
from side_by_side.cycles import CYCLES, SECONDS, TIMES, WARM_UP, measured
from side_by_side.pipeline import provide, sink, start, tick

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opentelemetry.metrics import CallbackOptions
    from side_by_side.pipeline import Exporter

ROOT = Path(__file__).resolve().parents[1]
ALONE = "the SDK alone"
POINTS = "the points of ours"
ROUNDS = 5
DEVICES = 8
USED = 2


def main() -> None:
    """Measure the three sides and print the table."""
    sys.path.insert(0, str(ROOT))
    from tests.nvml import H100, NvmlMachine, Process, why_not

    if reason := why_not():
        print(f"skipped: {reason}")
        return
    used = {**H100, "nvmlDeviceGetComputeRunningProcesses_v3": [Process(os.getpid(), 2**30)]}
    with tempfile.TemporaryDirectory() as folder, sink() as endpoint:
        machine = NvmlMachine(Path(folder), devices=[used] * USED + [H100] * (DEVICES - USED)).environment
        points = os.path.join(folder, "points.json")
        measure(__file__, (POINTS,), endpoint, points, rounds=1, environment=machine)
        sides = measure(__file__, (OURS, ALONE, THEIRS), endpoint, points, rounds=ROUNDS, environment=machine)
    ours, alone, theirs = sides[OURS], sides[ALONE], sides[THEIRS]
    rows = [
        (name, *(f"{side[name]:.2f} ms" for side in (ours, alone, theirs)), ratio(ours[name], alone[name]))
        for name in TIMES
    ]
    counts = [f"{side['points']:.0f}" for side in (ours, alone, theirs)]
    head = (f"medians of {ROUNDS} x {CYCLES} cycles", f"{OURS}, {DEVICES} GPUs", ALONE, THEIRS, "ours / SDK")
    table(head, [*rows, ("points", *counts, ratio(ours["points"], alone["points"]))])


def child(side: str, endpoint: str, points: str) -> None:
    """Measure one side in this process, or write down what ours exports."""
    if side == ALONE:
        report(measured(replay(endpoint, points)))
    elif side == THEIRS:
        report(measured(start(side, endpoint, SECONDS)))
    else:
        # The stand-in does not know which pid namespace it is in.
        exporter = start(OURS, endpoint, SECONDS, pid=os.getppid(), shared_pid_namespace=True)
        if side == POINTS:
            exporter.wait(WARM_UP)
            write(exporter, points)
        report(measured(exporter))


def write(exporter: Exporter, path: str) -> None:
    """Write down the instruments and points of the last export."""
    metrics = [
        {
            "counts": isinstance(metric.data, Sum),
            "name": metric.name,
            "unit": metric.unit,
            "description": metric.description,
            "points": [(point.value, dict(point.attributes or {})) for point in metric.data.data_points],
        }
        for metric in exporter.metrics()
        if isinstance(metric.data, Sum | Gauge)
    ]
    with open(path, "w", encoding="utf-8") as file:
        json.dump(metrics, file)


def replay(endpoint: str, path: str) -> Exporter:
    """Start the SDK alone, with the instruments and points that were written down."""
    provider, reader, exporter = provide(endpoint)
    meter = provider.get_meter("benchmark")
    with open(path, encoding="utf-8") as file:
        metrics = json.load(file)
    for metric in metrics:
        create = meter.create_observable_counter if metric["counts"] else meter.create_observable_gauge
        observations = [Observation(value, attributes) for value, attributes in metric["points"]]
        create(metric["name"], [answer(observations)], metric["unit"], metric["description"])
    tick(reader, SECONDS)
    return exporter


def answer(observations: Sequence[Observation]) -> Callable[[CallbackOptions], Sequence[Observation]]:
    """Return a callback that has its answer ready."""
    return lambda _options: observations


if __name__ == "__main__":
    if sys.argv[1:]:
        child(*sys.argv[1:])
    else:
        main()
