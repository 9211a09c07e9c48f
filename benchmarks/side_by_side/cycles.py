"""The CPU time of one cycle of a side, from one export to the next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from side_by_side import Numbers
    from side_by_side.pipeline import Exporter

SECONDS: Final = 0.1
WARM_UP: Final = 10  # the exports have to be aligned by then
CYCLES: Final = 30
TIMES: Final = ("CPU per cycle", "  sampling threads", "  collect", "  encode and send")


def measured(exporter: Exporter) -> Numbers:
    """Return the milliseconds of one cycle, whole and in its parts, and the number of its points."""
    first, last = exporter.wait(WARM_UP), exporter.wait(WARM_UP + CYCLES)
    cycles, *seconds = (end - begin for begin, end in zip(first, last, strict=True))
    process, reader, export = (1000 * used / cycles for used in seconds)
    parts = (process, process - reader, reader - export, export)
    return {**dict(zip(TIMES, parts, strict=True)), "points": exporter.points()}
