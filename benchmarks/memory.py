"""Resident memory after import and instrument(), after 50 cycles, and after 1,000.

Each process runs the same pipeline as in cycle.py, a cycle every 40 ms; the sampler's clock runs faster by the same
factor, so that ours keeps as much history as it does at 15 s. `the SDK alone` is the floor: SDK, OTLP/HTTP exporter,
reader, and one counter. Memory is that of the whole process; all of them run beside each other, as it is no timing.
"""

from __future__ import annotations

import os
import sys

from side_by_side import OURS, THEIRS, measure, ratio, report, table
from side_by_side.pipeline import sink, start

ALONE = "the SDK alone"
ROUNDS = 2
SECONDS = 0.04
FIRST = 50
LAST = 1000


def main() -> None:
    """Measure and print the table."""
    cases = (OURS, THEIRS, ALONE)
    with sink() as endpoint:
        sides = measure(__file__, cases, endpoint, rounds=ROUNDS, at_once=len(cases) * ROUNDS)
    rows = [
        (
            name,
            *(f"{sides[case][name]:.1f} MiB" for case in cases),
            ratio(sides[OURS][name], sides[THEIRS][name]) if name in MOMENTS else "",
        )
        for name in (*MOMENTS, GROWTH)
    ]
    table((f"medians of {ROUNDS} processes", *cases, "ours / theirs"), rows)


MOMENTS = ("after instrument()", f"after {FIRST} cycles", f"after {LAST:,} cycles")
GROWTH = f"  grown since {FIRST} cycles"


def child(case: str, endpoint: str) -> None:
    """Measure one case in this process."""
    # Side by side they are one job to an election, and only one would have something to do.
    exporter = start(case, endpoint, SECONDS, host_metrics="always")
    sizes = [_resident()]
    for cycles in (FIRST, LAST):
        exporter.wait(cycles)
        sizes.append(_resident())
    report({**dict(zip(MOMENTS, sizes, strict=True)), GROWTH: sizes[-1] - sizes[-2]})


def _resident() -> float:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


if __name__ == "__main__":
    if sys.argv[1:]:
        child(*sys.argv[1:])
    else:
        main()
