"""What the benchmarks share: fresh processes that take turns, medians over them, and a table with the ratio."""

from __future__ import annotations

import compileall
import json
import os
import subprocess  # noqa: TID251 - each number comes from a process of its own
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from statistics import median
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

OURS: Final = "otel-sysmetrics"
THEIRS: Final = "system-metrics"

Numbers = dict[str, float]


def measure(
    program: str,
    cases: Sequence[str],
    *arguments: str,
    rounds: int,
    at_once: int = 1,
    environment: Mapping[str, str] | None = None,
) -> dict[str, Numbers]:
    """Run a program `rounds` times for each case, and return for each case the medians of what it printed.

    The program gets the case as its first argument and prints a JSON object of numbers. The cases take turns, so that
    a slow minute of the machine meets all of them; `at_once` processes run beside each other, each with the variables
    of `environment` besides ours.
    """
    _compile("otel_sysmetrics")
    turns = [case for _ in range(rounds) for case in cases]
    with ThreadPoolExecutor(at_once) as pool:
        printed = list(pool.map(lambda case: _fresh([program, case, *arguments], environment or {}), turns))
    return {case: _medians([row for turn, row in zip(turns, printed, strict=True) if turn == case]) for case in cases}


def report(numbers: Mapping[str, float]) -> None:
    """Print what one process measured, for the process that started it."""
    json.dump(numbers, sys.stdout)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows of text in columns: the first flush left, the others flush right."""
    lines = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for first, *others in lines:
        cells = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))]
        print("  ".join(cells).rstrip())


def ratio(ours: float, theirs: float) -> str:
    """Say ours as a share of theirs."""
    return f"{ours / theirs:.2f}" if theirs else "-"


def _compile(package: str) -> None:
    """Write the bytecode of an editable installation, as pip does for what it installs."""
    found = find_spec(package)
    for folder in (found and found.submodule_search_locations) or ():
        compileall.compile_dir(folder, quiet=1)


def _fresh(arguments: Sequence[str], environment: Mapping[str, str]) -> Numbers:
    ours = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}  # noqa: TID251
    command, variables = [sys.executable, *arguments], {**ours, **environment}
    ended = subprocess.run(command, env=variables, stdout=subprocess.PIPE, check=True, timeout=300, text=True)
    numbers: Numbers = json.loads(ended.stdout)
    return numbers


def _medians(rows: Sequence[Numbers]) -> Numbers:
    return {name: median(row[name] for row in rows) for name in rows[0]}
