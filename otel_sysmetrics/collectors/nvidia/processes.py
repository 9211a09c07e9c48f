"""Which processes use a GPU, and what they hold of its memory."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, NamedTuple

from otel_sysmetrics.collectors.nvidia import calls

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from otel_sysmetrics.collectors.nvidia.calls import Holding
    from otel_sysmetrics.collectors.nvidia.target import Target
    from otel_sysmetrics.sources.files import Files
    from otel_sysmetrics.sources.processes import WatchedProcess

# PROC_PID_INIT_INO of the kernel, in include/linux/proc_ns.h.
_INITIAL_NAMESPACE: Final = "pid:[4026531836]"


class Use(NamedTuple):
    """How a process tree uses a GPU: whether at all, and the bytes that it holds, None where that is unknown.

    `known` tells that NVML listed processes.
    """

    used: bool
    held: int | None
    known: bool


NOT_ASKED: Final = Use(used=False, held=None, known=False)


def pids_are_the_hosts(files: Files) -> bool:
    """Tell whether the pids that we see are those that NVML names: it knows the initial namespace only.

    In another one a number that both know is chance (https://github.com/NVIDIA/nvidia-docker/issues/179).
    """
    if not files.exists("proc/self"):
        return not files.exists("proc")  # there are no namespaces where there is no /proc
    try:
        namespace = os.readlink(files.path("proc/self/ns/pid"))
    except OSError:
        namespace = ""
    # A mounted /proc of the host shows its pids to us in another namespace, too, and with them its kernel's threads.
    return namespace == _INITIAL_NAMESPACE or (
        files.root != "/" and (files.text("proc/2/comm") or "").strip() == "kthreadd"
    )


class Tree:
    """The pids of the watched process and its descendants.

    The descendants are looked for once NVML names another process: each thread of a process has to be asked for its
    children, and a training job has hundreds.
    """

    def __init__(self, watched: WatchedProcess, pid: int) -> None:
        self._watched = watched
        self._pid = pid
        self._pids: frozenset[int] | None = None

    def __contains__(self, pid: object) -> bool:
        if pid == self._pid:
            return True
        if self._pids is None:
            self._pids = self._watched.tree()
        return pid in self._pids


def use_of(target: Target, tree: Container[int]) -> Use:
    """Return how a GPU is used by the processes of a tree; raises CallFailed where the GPU or NVML is gone."""
    asked = [target.first(*chain) for chain in (calls.COMPUTE, calls.GRAPHICS, calls.MPS)]
    lists = [found for found in asked if found is not None]
    ours = [holding for found in lists for holding in found if holding.pid in tree]
    return Use(used=bool(ours), held=_held(ours) if ours else None, known=bool(lists))


def computes(target: Target) -> bool:
    """Tell whether any process computes on a GPU, or may; raises CallFailed where the GPU or NVML is gone."""
    found = target.first(*calls.COMPUTE)
    return found is None or bool(found)


def _held(ours: Iterable[Holding]) -> int | None:
    # One that computes and draws stands in both lists with the same bytes; on MIG one stands there once per instance.
    held: dict[tuple[int, tuple[int, int]], int | None] = {}
    for holding in ours:
        key = (holding.pid, holding.place)
        known = held.get(key)
        held[key] = holding.held if known is None else max(known, holding.held or 0)
    total = 0
    for amount in held.values():
        if amount is None:  # Windows (WDDM) does not say
            return None
        total += amount
    return total
