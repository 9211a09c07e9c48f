"""CPU time of the look for hardware, kind by kind, in fresh processes: the collector's import and its probe.

It happens after instrument() in threads of its own, here one after the other; what several kinds import is counted with
the first. The machine is the one that this runs on: where it has none of the hardware, the sum over the kinds that may
be missing is to stay under 50 ms. Returns 1 where it does not.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Final

from side_by_side import measure, report, table

from otel_sysmetrics.catalog import KINDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from side_by_side import Numbers

ROUNDS: Final = 9
MOST: Final = 50.0
SURE: Final = ("cpu", "memory", "disk", "network")
"""Kinds that every machine has."""
CASE: Final = "all kinds"


def main() -> int:
    """Measure, print the table, and tell whether it took too long."""
    found = measure(__file__, (CASE,), rounds=ROUNDS)[CASE]
    others = [kind for kind in KINDS if kind not in SURE]
    groups = [
        *((kind, [kind], "here" if found[f"{kind} here"] else "not here") for kind in KINDS),
        ("those every machine has", SURE, ""),
        ("those that may be missing", others, f"at most {MOST:.0f} ms"),
    ]
    rows = [(name, *(f"{each:.1f} ms" for each in _milliseconds(found, of)), note) for name, of, note in groups]
    table((f"medians of {ROUNDS} processes", "import", "probe", "both", ""), rows)
    missing = not any(found[f"{kind} here"] for kind in others)
    return int(missing and _milliseconds(found, others)[2] > MOST)


def child() -> None:
    """Measure every kind in this process, once what the sampler itself needs is loaded."""
    import otel_sysmetrics.instrumentor  # noqa: F401 - loaded by then
    from otel_sysmetrics.collector import Context, parts
    from otel_sysmetrics.selection import Selection
    from otel_sysmetrics.settings import Settings
    from otel_sysmetrics.sources.files import Files
    from otel_sysmetrics.sources.processes import WatchedProcess

    settings, files = Settings(), Files("/")
    watched = WatchedProcess(files, os.getpid, tree=False, clock=time.monotonic)
    wants = Selection(settings.metrics_included, settings.metrics_excluded).spec
    context = Context(settings, files, watched, wants, time.monotonic)
    found: dict[str, float] = {}
    for kind in KINDS:
        begun = time.process_time()
        of_kind = tuple(parts(kind, context))
        imported = time.process_time()
        collectors = []
        for part in of_kind:
            try:
                collectors.append(part.probe())
            except Exception:  # noqa: BLE001, S112 - not here, or ill
                continue
        probed = time.process_time()
        found[f"{kind} import"] = 1000 * (imported - begun)
        found[f"{kind} probe"] = 1000 * (probed - imported)
        found[f"{kind} here"] = float(bool(collectors))
        for collector in collectors:
            collector.close()
    report(found)


def _milliseconds(found: Numbers, kinds: Sequence[str]) -> tuple[float, float, float]:
    imports, probes = (sum(found[f"{kind} {step}"] for kind in kinds) for step in ("import", "probe"))
    return imports, probes, imports + probes


if __name__ == "__main__":
    if sys.argv[1:]:
        child()
    else:
        sys.exit(main())
