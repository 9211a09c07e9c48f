"""One part of a kind on a machine that a test made, sampled by hand."""

from __future__ import annotations

import os
import stat
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from otel_sysmetrics.collector import Context, parts
from otel_sysmetrics.settings import Settings
from otel_sysmetrics.sources.files import Files
from otel_sysmetrics.sources.processes import WatchedProcess
from tests.fakes import ScriptedClock

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from otel_sysmetrics.collector import Collector
    from otel_sysmetrics.reading import Reading

SHARED: Final = Path(__file__).parents[2] / "shared"
CAPTURES: Final = Path(__file__).parent / "captures"


class Bench:
    """One kind on a machine below `root`; `pid` is watched with its tree."""

    def __init__(self, kind: str, root: Path, *, pid: int | None = None, **settings: Any) -> None:  # noqa: ANN401 - of any setting
        self.clock = ScriptedClock()
        files = Files(str(root))
        context = Context(
            settings=Settings(root_path=str(root), **settings),
            files=files,
            watched=WatchedProcess(files, lambda: pid, tree=True, clock=self.clock.now),
            wants=lambda _: True,
            clock=self.clock.now,
        )
        (self.part,) = parts(kind, context)
        self._collector: Collector | None = None

    @property
    def collector(self) -> Collector:
        """Probe where that has not been done; raises what the probe raises."""
        if self._collector is None:
            self._collector = self.part.probe()
        return self._collector

    def readings(self, after: float = 0) -> list[Reading]:
        """Take a sample after so many seconds, and keep what has a value."""
        self.clock.spend(after)
        return [reading for reading in self.collector.sample() if reading.value is not None]

    def tags(self, after: float = 0) -> dict[str, float]:
        """Take a sample and return its values by tag."""
        return values(self.readings(after))

    def close(self) -> None:
        """Close what was probed."""
        if self._collector is not None:
            self._collector.close()


def values(readings: list[Reading]) -> dict[str, float]:
    """Return values by filled tag, each of which may come once."""
    found: dict[str, float] = {}
    for reading in readings:
        tag = reading.spec.fill(reading.labels)
        assert tag not in found, tag
        assert set(reading.attributes) <= set(reading.spec.attributes)
        if reading.value is not None:
            found[tag] = reading.value
    return found


def program(folder: Path, name: str, text: str) -> Path:
    """Put a program into a folder; a text without `#!` is a shell script."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    text = textwrap.dedent(text)
    path.write_text(text if text.startswith("#!") else f"#!/bin/sh\n{text}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def tree(root: Path, files: Mapping[str, str]) -> Path:
    """Write files below a root."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def children_of(pid: int) -> set[int]:
    """Return the processes that a process has started and that run."""
    found = set()
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            fields = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found.add(int(name))
    return found


def until(condition: Callable[[], bool], patience: float = 20) -> bool:
    """Wait for what happens in another process."""
    import time

    deadline = time.monotonic() + patience
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
