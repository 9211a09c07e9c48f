"""Tables and numbers for people."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_UNBOUNDED: Final = 10_000


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = ()) -> None:
    """Print rows under their columns to stdout, as wide as they need to be where nobody looks at a terminal."""
    console = Console(width=None if sys.stdout.isatty() else _UNBOUNDED, highlight=False)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)


def number(value: float) -> str:
    """Write a number for people: whole ones whole, others with two decimals or three digits that count."""
    if isinstance(value, int):
        return str(value)
    return f"{value:.2f}" if abs(value) >= 1 or value == 0 else f"{value:.3g}"
