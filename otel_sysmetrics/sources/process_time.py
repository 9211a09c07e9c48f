"""How much CPU time a tree of processes used between two looks at it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection

    from otel_sysmetrics.sources.processes import ProcessSample, Walk

# How much older than the window a process may seem that was born in it: two clocks, each cut to 10 ms.
_BIRTH_SLACK: Final = 0.05
# A reaped child's time is cut to ticks anew in its parent, once for user and once for system time.
_TICK_SLACK: Final = 0.03


def cpu_seconds_between(before: Walk, after: Walk, *, reaped: bool) -> float | None:
    """Return the CPU seconds that the processes used from one walk to the other.

    None where the watched process is another one, or its times are unknown. Never negative.
    `reaped` adds what ended children used. Their time moves into the parent when it waits for them, whole: what is
    known of it from the earlier walk is taken off again. It is lost where nobody in the tree waits (a daemon, or a
    parent that ignores SIGCHLD).
    A process that is new to the tree but older than the window (adopted) starts from what it has used so far.
    """
    if not before.processes or not after.processes or before.processes[0].identity != after.processes[0].identity:
        return None
    if after.processes[0].cpu_seconds is None:
        return None
    gone = {process.identity: process for process in before.processes}
    oldest = after.time - before.time + _BIRTH_SLACK
    used = 0.0
    inherited = 0.0
    for now in after.processes:
        then = gone.pop(now.identity, None)
        if then is not None:
            used += max(0.0, (now.cpu_seconds or 0.0) - (then.cpu_seconds or 0.0))
            inherited += max(0.0, now.reaped_cpu_seconds - then.reaped_cpu_seconds)
        elif now.age_seconds is not None and now.age_seconds <= oldest:
            used += _lifetime(now)
    return used + _unknown_part(inherited, gone.values()) if reaped else used


def _unknown_part(inherited: float, gone: Collection[ProcessSample]) -> float:
    """Take off what the processes that are gone had used at the earlier walk: it was counted then."""
    slack = _TICK_SLACK * len(gone)
    for known in sorted(map(_lifetime, gone), reverse=True):
        # More than all that was inherited: nobody here waited for this process, and it took its time along.
        if known <= inherited + slack:
            inherited = max(0.0, inherited - known)
    return inherited


def _lifetime(process: ProcessSample) -> float:
    return (process.cpu_seconds or 0.0) + process.reaped_cpu_seconds
