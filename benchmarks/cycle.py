"""CPU time of one cycle: sampling everything once, collecting, and exporting over OTLP/HTTP (protobuf) to a sink.

Both sides run as in an application: a MeterProvider with nothing set, a PeriodicExportingMetricReader, the default
configuration. The CPU time is that of the whole process, all threads, from one export to the next; the sink is in
another process. Ours samples in its own threads, once per export; theirs samples in its callbacks.

A cycle takes 15 s by default and 0.1 s here. The sampler's clock runs faster by the same factor, since some of what it
looks up holds for 30 s: with a mere interval of 0.1 s it would be looked up every 300 cycles and not every other one,
which would flatter us. Caches of the CPU are warmer than after 15 s of other work, on both sides.

Under a provider that has no service.instance.id ours puts host.name and process.pid on each point, which costs more
than anything else in encoding them: this is the dear case.
"""

from __future__ import annotations

import sys

from side_by_side import OURS, THEIRS, measure, ratio, report, table
from side_by_side.cycles import CYCLES, SECONDS, TIMES, measured
from side_by_side.pipeline import sink, start

ROUNDS = 5


def main() -> None:
    """Measure both sides and print the table."""
    with sink() as endpoint:
        sides = measure(__file__, (OURS, THEIRS), endpoint, rounds=ROUNDS)
    ours, theirs = sides[OURS], sides[THEIRS]
    rows = [
        (name, *(f"{side[name]:.2f} ms" for side in (ours, theirs)), ratio(ours[name], theirs[name])) for name in TIMES
    ]
    points = ("points", f"{ours['points']:.0f}", f"{theirs['points']:.0f}", ratio(ours["points"], theirs["points"]))
    table((f"medians of {ROUNDS} x {CYCLES} cycles", OURS, THEIRS, "ratio"), [*rows, points])


def child(side: str, endpoint: str) -> None:
    """Measure one side in this process."""
    report(measured(start(side, endpoint, SECONDS)))


if __name__ == "__main__":
    if sys.argv[1:]:
        child(*sys.argv[1:])
    else:
        main()
