"""How much CPU time a tree of processes used between two looks at it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from otel_sysmetrics.sources.processes import ProcessSample, Walk

# How much older than the window a process may seem that was born in it: two clocks, each cut to 10 ms.
_BIRTH_SLACK: Final = 0.05
# A reaped child's time is cut to ticks anew in its parent, once for user and once for system time.
_TICK_SLACK: Final = 0.03


def cpu_seconds_between(before: Walk, after: Walk, *, reaped: bool) -> float | None:
    """Return the CPU seconds that the processes used from one walk to the other.

    None where the watched process is another one, or its times are unknown. Never negative.
    `reaped` adds what ended children used. Their time moves into the parent when it waits for them, whole: what is
    known of it from the earlier walk is taken off again. It stays lost where nobody in the tree waits (the parent
    died first, or ignores SIGCHLD).
    A process that is new to the tree but older than the window (adopted) starts from what it has used so far.
    """
    if not before.processes or not after.processes or before.processes[0].identity != after.processes[0].identity:
        return None
    if after.processes[0].cpu_seconds is None:
        return None
    gone = {process.identity: process for process in before.processes}
    oldest = after.time - before.time + _BIRTH_SLACK
    used = 0.0
    inherited: dict[int, float] = {}
    for now in after.processes:
        then = gone.pop(now.identity, None)
        if then is not None:
            used += max(0.0, (now.cpu_seconds or 0.0) - (then.cpu_seconds or 0.0))
            inherited[now.pid] = max(0.0, now.reaped_cpu_seconds - then.reaped_cpu_seconds)
        elif now.age_seconds is not None and now.age_seconds <= oldest:
            used += _lifetime(now)
    if not reaped:
        return used
    _take_off_known(inherited, before, gone.values())
    return used + sum(inherited.values())


def _take_off_known(inherited: dict[int, float], before: Walk, gone: Iterable[ProcessSample]) -> None:
    parents = {process.pid: process.parent for process in before.processes}
    for process in sorted(gone, key=_lifetime, reverse=True):
        heir = _heir(process.parent, parents, inherited)
        known, received = _lifetime(process), inherited.get(heir, 0.0)
        # More than the heir received in all: this process was not waited for in the tree, and took its time with it.
        if known <= received + _TICK_SLACK:
            inherited[heir] = max(0.0, received - known)


def _heir(parent: int, parents: Mapping[int, int], inherited: Mapping[int, float]) -> int:
    """Return the nearest ancestor that is still there; a loop in the links ends the search."""
    for _ in parents:
        if parent in inherited or parent not in parents:
            break
        parent = parents[parent]
    return parent


def _lifetime(process: ProcessSample) -> float:
    return (process.cpu_seconds or 0.0) + process.reaped_cpu_seconds
