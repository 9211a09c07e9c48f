"""Which devices a collector of this process reports, for another one that could report them too.

A collector never imports another; a GPU that NVML shows here is also on the page of this host's dcgm-exporter.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

# By collector: the process that said so, since a forked child inherits what its parent reports, and the identifiers.
_said: Final[dict[str, tuple[int, frozenset[str]]]] = {}


def report(collector: str, identifiers: Iterable[str]) -> None:
    """Say which devices `collector` reports from now on."""
    _said[collector] = (os.getpid(), frozenset(identifier.lower() for identifier in identifiers))


def reported(identifier: str) -> bool:
    """Tell whether a collector of this process reports the device of this identifier."""
    mine = os.getpid()
    return any(pid == mine and identifier.lower() in found for pid, found in tuple(_said.values()))
