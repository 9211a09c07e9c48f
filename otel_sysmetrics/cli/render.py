"""Tables and numbers for people."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from otel_sysmetrics.reading import shown_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_UNBOUNDED: Final = 10_000
_GAP: Final = "  "
_LEAST_ROOM: Final = 24


# How many decimals from which size up.
_DECIMALS: Final = ((1.0, 2), (0.001, 4))


def print_table(
    columns: Sequence[str], rows: Iterable[tuple[Sequence[str], Sequence[str]]], *, right: Sequence[str] = ()
) -> None:
    """Print rows to stdout under their columns: cells that stay whole, and the pieces of the last one.

    The last cell is wrapped between its pieces, and stands below its row where the terminal has no room beside it.
    Where nobody looks at a terminal each row is one line.
    """
    console = Console(width=None if sys.stdout.isatty() else _UNBOUNDED, highlight=False)
    heads, last = columns[:-1], columns[-1]
    shown = [([*map(shown_text, cells)], [*map(shown_text, pieces)]) for cells, pieces in rows]
    rows = [(heads, (last,)), *shown]
    widths = [max(map(cell_len, cells)) for cells in zip(*(cells for cells, _ in rows), strict=True)]
    rights = [head in right for head in heads]
    starts = (_GAP.join(map(_pad, cells, widths, rights)) for cells, _ in rows)
    blocks = [
        [line.rstrip() for line in _lines(start, pieces, console.width)]
        for start, (_, pieces) in zip(starts, rows, strict=True)
    ]
    rule = "-" if console.options.ascii_only else "─"
    widest = max(cell_len(line) for block in blocks for line in block)
    head = Text("\n".join(blocks[0]), "bold")
    body = ["", rule * min(widest, console.width), *(line for block in blocks[1:] for line in block)]
    console.print(head.append("\n".join(body), "not bold"), soft_wrap=True)


def number(value: float) -> str:
    """Write a number for people: whole ones whole, others with two decimals, below 1 with as many as tell something."""
    if value == int(value):
        return str(int(value))
    decimals = next((decimals for least, decimals in _DECIMALS if abs(value) >= least), 6)
    return f"{value:.{decimals}f}"


def _pad(text: str, width: int, right: bool) -> str:  # noqa: FBT001 - called by map
    blanks = " " * (width - cell_len(text))
    return blanks + text if right else text + blanks


def _lines(start: str, pieces: Sequence[str], width: int) -> Iterator[str]:
    """Yield the lines of one row, whose last cell stands beside `start` or below it."""
    beside = cell_len(start) + len(_GAP)
    room = width - beside
    if room >= _LEAST_ROOM and all(cell_len(piece) <= room for piece in pieces):
        first, *others = _wrapped(pieces, room) or [""]
        yield start + _GAP + first
        yield from (" " * beside + line for line in others)
    else:
        yield start
        yield from (_GAP + line for line in _wrapped(pieces, width - len(_GAP)))


def _wrapped(pieces: Sequence[str], width: int) -> list[str]:
    lines: list[str] = []
    for piece in pieces:
        if lines and cell_len(lines[-1]) + 1 + cell_len(piece) <= width:
            lines[-1] += f" {piece}"
        else:
            lines.append(piece)
    return lines
