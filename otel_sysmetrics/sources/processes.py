"""The watched process and its descendants: who they are and what they have used."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from mmap import PAGESIZE
from typing import TYPE_CHECKING, Any, Final

from otel_sysmetrics.pacing import paced
from otel_sysmetrics.sources.files import whole
from otel_sysmetrics.sources.portable import ask, portable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import ModuleType

    from otel_sysmetrics.sources.files import Files

MAX_TREE: Final = 4096
"""More processes than this are not looked at: a runaway fork must not make its observer run away too."""

# Not longer than the shortest sampling interval: a part that is handed its own last walk again has no window.
_SHARED_FOR: Final = 0.1
# Whoever has waited so often for another thread's walk takes its own.
_TURNS: Final = 50
_TURN: Final = 0.002
# ppid, utime, stime, cutime, cstime, num_threads, starttime, rss, counted from behind the name (proc(5)).
_STAT_FIELDS: Final = (1, 11, 12, 13, 14, 17, 19, 21)


def _ticks_per_second() -> int:
    try:
        return os.sysconf("SC_CLK_TCK")
    except (AttributeError, OSError, ValueError):
        return 100


_TICKS: Final = _ticks_per_second()


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """What one process had used when it was looked at; what could not be read is None.

    `start_time` is in seconds since the machine's start (elsewhere: since 1970). With the pid it is the identity of
    the process, as pids are used again.
    `cpu_seconds` is its own user and system time, `reaped_cpu_seconds` that of the children that it has waited for,
    and theirs.
    A process that has ended and was not waited for yet (a zombie) is still listed among the descendants, as its CPU
    time is nowhere else; it has neither memory nor threads.
    """

    pid: int
    parent: int
    start_time: float
    age_seconds: float | None
    cpu_seconds: float | None
    reaped_cpu_seconds: float
    rss_bytes: int | None
    threads: int | None
    ended: bool = False

    @property
    def identity(self) -> tuple[int, float]:
        """Tell this process from a later one under the same pid."""
        return self.pid, self.start_time


@dataclass(frozen=True, slots=True)
class Walk:
    """The watched process, first, and with it what else was looked at, at one moment of the clock.

    `processes` is empty where no process is watched or the watched one is gone.
    """

    time: float
    processes: tuple[ProcessSample, ...]


class WatchedProcess:
    """The process that the process-scoped metrics speak of.

    `pid` is asked at each sample, since a fork changes it; None means that no process is watched.
    `tree` makes `walk()` and `processes()` cover the descendants too.
    `clock` is monotonic and counts seconds.
    Several parts sample at about the same moment, each in its own thread: they share one walk.
    """

    def __init__(self, files: Files, pid: Callable[[], int | None], *, tree: bool, clock: Callable[[], float]) -> None:
        self.covers_descendants = tree
        self._files = files
        self._ask_pid = pid
        self._clock = clock
        self._walks: dict[bool, tuple[tuple[int, int], Walk]] = {}
        self._walking: dict[bool, tuple[int, int]] = {}

    def is_asked_for(self) -> bool:
        """Tell whether a process is to be watched, whether or not it is there."""
        return self._ask_pid() is not None

    def pid(self) -> int | None:
        """Return the watched pid, or None where there is none or its process has ended."""
        processes = self.processes()
        return processes[0].pid if processes else None

    def tree(self) -> frozenset[int]:
        """Return the watched pid and those of all its descendants, whether or not `processes()` covers them."""
        return frozenset(process.pid for process in self._shared(tree=True).processes)

    def processes(self) -> tuple[ProcessSample, ...]:
        """Return the watched process, and behind it its descendants where they are covered."""
        return self.walk().processes

    def walk(self) -> Walk:
        """Return the same with the moment at which it was seen, which may lie a tenth of a second back."""
        return self._shared(tree=self.covers_descendants)

    def _shared(self, *, tree: bool) -> Walk:
        pid = self._ask_pid()
        if pid is None or pid <= 0:
            return Walk(self._clock(), ())
        key = (os.getpid(), pid)
        # No lock: a fork would inherit it locked, and gevent's hang between native threads. At worst two walk at once.
        for _ in range(_TURNS):
            walk = self._recent(key, tree=tree)
            if walk is not None:
                return walk
            if self._walking.get(tree) != key:
                break
            time.sleep(_TURN)
        self._walking[tree] = key
        try:
            walk = Walk(self._clock(), _look(self._files, pid, tree=tree))
            self._walks[tree] = (key, walk)
        finally:
            self._walking.pop(tree, None)
        return walk

    def _recent(self, key: tuple[int, int], *, tree: bool) -> Walk | None:
        known, walk = self._walks.get(tree, (None, None))
        if walk is None or known != key:
            return None
        return walk if 0 <= self._clock() - walk.time < _SHARED_FOR else None


def parse_stat(pid: int, text: str, uptime: float | None) -> ProcessSample | None:
    """Read the text of /proc/<pid>/stat; anything else is None.

    The name in it is free text (spaces, parentheses, line ends), so the fields count from the last parenthesis.
    """
    fields = text.rpartition(")")[2].split()
    try:
        numbers = [int(fields[index]) for index in _STAT_FIELDS]
    except (IndexError, ValueError):
        return None
    if min(numbers) < 0 or max(numbers) >= 1 << 64:
        return None
    parent, user, system, reaped_user, reaped_system, threads, start, pages = numbers
    # A main thread that ended before the others is shown as a zombie, too, and then the process lives on.
    ended = fields[0] in {"Z", "X", "x"} and threads <= 1
    return ProcessSample(
        pid=pid,
        parent=parent,
        start_time=start / _TICKS,
        age_seconds=None if uptime is None else uptime - start / _TICKS,
        cpu_seconds=(user + system) / _TICKS,
        reaped_cpu_seconds=(reaped_user + reaped_system) / _TICKS,
        rss_bytes=None if ended or not pages else pages * PAGESIZE,
        threads=None if ended or not threads else threads,
        ended=ended,
    )


def _look(files: Files, pid: int, *, tree: bool) -> tuple[ProcessSample, ...]:
    psutil = portable(files)
    if psutil is not None:
        return tuple(_portable_processes(psutil, pid, tree=tree))
    uptime = _uptime(files) if tree else None
    first = _stat(files, pid, uptime)
    if first is None or first.ended:
        return ()
    if not tree:
        return (first,)
    if files.exists(f"proc/{pid}/task/{pid}/children"):
        return _descend(first, lambda parent: _children(files, parent, uptime))
    return _descend(first, _scan(files, uptime))


def _descend(first: ProcessSample, children: Callable[[int], Iterable[ProcessSample]]) -> tuple[ProcessSample, ...]:
    found = {first.pid: first}
    waiting = [first.pid]
    for parent in waiting:
        for child in children(parent):
            if len(found) >= MAX_TREE:
                return tuple(found.values())
            if child.pid not in found:
                found[child.pid] = child
                waiting.append(child.pid)
    return tuple(found.values())


def _children(files: Files, parent: int, uptime: float | None) -> Iterator[ProcessSample]:
    # The children that a thread started stand in that thread's file and in no other.
    for thread in files.names(f"proc/{parent}/task"):
        for word in paced((files.text(f"proc/{parent}/task/{thread}/children") or "").split()):
            pid = whole(word)
            child = None if pid is None else _stat(files, pid, uptime)
            # The pid may have got a new owner since the list was read.
            if child is not None and child.parent == parent:
                yield child


def _scan(files: Files, uptime: float | None) -> Callable[[int], Iterable[ProcessSample]]:
    """Look at every process of the machine: kernels built without CONFIG_PROC_CHILDREN have no list of children."""
    by_parent: dict[int, list[ProcessSample]] = {}
    for name in paced(files.names("proc")):
        process = _stat(files, int(name), uptime) if name.isdecimal() else None
        if process is not None:
            by_parent.setdefault(process.parent, []).append(process)
    return lambda parent: by_parent.get(parent, ())


def _stat(files: Files, pid: int, uptime: float | None) -> ProcessSample | None:
    text = files.text(f"proc/{pid}/stat")
    return None if text is None else parse_stat(pid, text, uptime)


def _uptime(files: Files) -> float | None:
    try:
        return float((files.text("proc/uptime") or "").split()[0])
    except (IndexError, ValueError):
        return None


def _portable_processes(psutil: ModuleType, pid: int, *, tree: bool) -> Iterator[ProcessSample]:
    first = ask(psutil, psutil, "Process", pid)
    if first is None or ask(psutil, first, "status") == "zombie":
        return
    descendants = ask(psutil, first, "children", recursive=True) if tree else None
    for process in [first, *(descendants or ())][:MAX_TREE]:
        sample = _portable_sample(psutil, process)
        if sample is not None:
            yield sample
        elif process is first:
            return


def _portable_sample(psutil: ModuleType, process: Any) -> ProcessSample | None:  # noqa: ANN401 - psutil is loaded late
    started = ask(psutil, process, "create_time")
    if started is None:
        return None
    times = ask(psutil, process, "cpu_times")
    return ProcessSample(
        pid=process.pid,
        parent=ask(psutil, process, "ppid") or 0,
        start_time=started,
        age_seconds=time.time() - started,
        cpu_seconds=None if times is None else times.user + times.system,
        reaped_cpu_seconds=getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0),
        rss_bytes=getattr(ask(psutil, process, "memory_info"), "rss", None),
        threads=ask(psutil, process, "num_threads"),
    )
