"""What a process holds, and whether that has grown."""

from __future__ import annotations

import gc
import os
from mmap import PAGESIZE
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.parts import children_of
from tests.soak.turns import ours

if TYPE_CHECKING:
    from collections.abc import Sequence

LOOKS: Final = 30
"""How often it is looked, in any number of cycles."""
NOISE: Final = 6 * 2**20
PER_CYCLE: Final = 64
"""What resident memory may grow after the warm-up, in bytes: so much in any case, and so much for each cycle."""


class Held(NamedTuple):
    """What is held after so many cycles: memory in bytes, descriptors, threads of ours, child processes."""

    cycles: int
    memory: int
    descriptors: int
    threads: int
    children: int

    def __str__(self) -> str:
        """Say it in a line."""
        words = f"{self.memory / 2**20:.1f} MiB, {self.descriptors} descriptors, {self.threads} threads"
        return f"{self.cycles} cycles: {words}, {self.children} children"


def held(cycles: int) -> Held:
    """Look at this process."""
    gc.collect()
    memory = int(Path("/proc/self/statm").read_text().split()[1]) * PAGESIZE
    return Held(cycles, memory, len(os.listdir("/proc/self/fd")), len(ours()), len(children_of(os.getpid())))


def grown(looks: Sequence[Held]) -> list[str]:
    """Say what has grown from the second tenth of the looks, the first being the warm-up, to the last.

    Memory is compared by its median. Of what is counted the least at the end may not be more than the most then.
    """
    tenth = max(1, len(looks) // 10)
    early, late = looks[tenth : 2 * tenth], looks[-tenth:]
    cycles = late[0].cycles - early[0].cycles
    before, after = (median(look.memory for look in part) for part in (early, late))
    found = []
    if after - before > NOISE + PER_CYCLE * cycles:
        found.append(f"memory by {(after - before) / 2**20:.1f} MiB in {cycles} cycles")
    for name in ("descriptors", "threads", "children"):
        most, least = max(getattr(look, name) for look in early), min(getattr(look, name) for look in late)
        if least > most:
            found.append(f"{name} from {most} to {least}")
    return found
