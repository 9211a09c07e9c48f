"""File trees that stand in for a machine's /proc and /sys."""

from __future__ import annotations

import os
from mmap import PAGESIZE
from typing import TYPE_CHECKING, Final

from otel_sysmetrics.collector import Context
from otel_sysmetrics.settings import Settings
from otel_sysmetrics.sources.files import Files
from otel_sysmetrics.sources.processes import WatchedProcess

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

TICKS: Final = os.sysconf("SC_CLK_TCK")


def write_tree(root: Path, files: Mapping[str, str], links: Mapping[str, str] | None = None) -> Files:
    """Write files and symbolic links by their path below `root`, and return the door to them."""
    for name, text in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", errors="surrogateescape")
    for name, target in (links or {}).items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)
    return Files(str(root))


class Clock:
    """A clock that stands still until a test sets it."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        """Return the seconds that the test chose."""
        return self.now


class WithoutProc(Files):
    """The door to a machine that is our own and has no /proc and no /sys, such as a Mac."""

    def __init__(self, empty: Path) -> None:
        super().__init__("/")
        self._empty = empty

    def path(self, *parts: str) -> str:
        """Return a path below an empty folder."""
        return os.path.join(self._empty, *(part.lstrip("/") for part in parts))


class CountingFiles(Files):
    """Files that remember which of them were read."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.read: list[str] = []

    def text(self, *parts: str) -> str | None:
        """Return a file's text and note its name."""
        self.read.append("/".join(parts))
        return super().text(*parts)


def stat(  # noqa: PLR0913 - the columns of a line
    pid: int,
    *,
    parent: int = 1,
    name: str = "python",
    state: str = "S",
    cpu: float = 0.0,
    reaped: float = 0.0,
    threads: int = 1,
    start: float = 0.0,
    rss: int = PAGESIZE,
) -> str:
    """Write /proc/<pid>/stat; times are in seconds, `rss` in bytes."""
    times = f"{round(cpu * TICKS)} 0 {round(reaped * TICKS)} 0"
    head = f"{pid} ({name}) {state} {parent} {pid} {pid} 0 -1 4194560 9 9 0 0"
    return (
        f"{head} {times} 20 0 {threads} 0 {round(start * TICKS)} 99999 {rss // PAGESIZE} 18446744073709551615 1 1 0\n"
    )


def cgroup2(directory: str, **files: str) -> dict[str, str]:
    """Write files of a v2 cgroup; in their names `__` stands for the dot."""
    place = f"sys/fs/cgroup/{directory}".rstrip("/")
    return {f"{place}/{name.replace('__', '.')}": f"{text}\n" for name, text in files.items()}


def in_cgroup2(pid: int, path: str) -> dict[str, str]:
    """Write that a process is in a v2 cgroup, and that v2 is mounted where it usually is."""
    mount = "30 24 0:27 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
    return {f"proc/{pid}/cgroup": f"0::{path}\n", "proc/1/mountinfo": mount}


def context(  # noqa: PLR0913 - what a test may choose
    files: Files, pid: int | None, clock: Clock, *, tree: bool = False, no_cgroup: bool = False, off: Iterable[str] = ()
) -> Context:
    """Return what a collector is given; `off` are tags that are chosen although they are off by default."""
    chosen = frozenset(off)
    return Context(
        settings=Settings(track_process_tree=tree, no_cgroup=no_cgroup),
        files=files,
        watched=WatchedProcess(files, lambda: pid, tree=tree, clock=clock),
        wants=lambda spec: spec.on or spec.tag in chosen,
        clock=clock,
    )
