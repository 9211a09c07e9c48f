"""What a backend can tell of the processes of a job: which streams came of late, and who reports the host."""

from __future__ import annotations

import os
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

from tests.fakes import PATIENCE
from tests.parts import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from tests.otelcol import Otelcol, Point

HOST_TAGS: Final = ("memory_percent", "cpu.cpu_percent", "network.tcpRetransmits")
PROCESS_TAGS: Final = ("proc.memory.rssMB", "proc.cpu.threads")
HEALTH: Final = "sysmetrics.collector.success"


def stream(point: Point) -> tuple[object, ...]:
    """Return what a backend tells streams apart by."""
    return (
        point.resource.get("service.instance.id"),
        point.resource.get("process.pid"),
        point.attributes.get("process.pid"),
        point.attributes.get("collector"),
        point.attributes.get("part"),
    )


class Watch:
    """What a backend received, of the processes with these attributes on their Resource."""

    def __init__(self, backend: Otelcol, **resource: object) -> None:
        self.backend = backend
        self._resource = resource

    def points(self, tag: str, since: int = 0) -> list[Point]:
        """Return the points of a tag that were measured after a moment."""
        return [
            point
            for point in self.backend.points()
            if point.name == tag and point.time_ns > since and self._resource.items() <= point.resource.items()
        ]

    def streams(self, tag: str, since: int = 0) -> Counter[tuple[object, ...]]:
        """Return how often each stream of a tag came."""
        return Counter(map(stream, self.points(tag, since)))

    def first(self, tag: str) -> Mapping[tuple[object, ...], Point]:
        """Return the first point of each stream of a tag."""
        return {stream(point): point for point in reversed(self.points(tag))}

    def counts(self, since: int, tags: Iterable[str]) -> set[int]:
        """Return how many streams each of the tags has."""
        return {len(self.streams(tag, since)) for tag in tags}

    def is_job(self, since: int, *, hosts: int, processes: int) -> bool:
        """Tell whether so many processes report the host and so many themselves; all of them more than once."""
        seen = [count for tag in PROCESS_TAGS for count in self.streams(tag, since).values()]
        return (
            self.counts(since, HOST_TAGS) == {hosts}
            and self.counts(since, PROCESS_TAGS) == {processes}
            and min(seen) > 1
        )

    def becomes_job(self, seconds: float, *, hosts: int, processes: int, patience: float = 2 * PATIENCE) -> bool:
        """Wait until so many processes have reported the host and so many themselves, for so many seconds."""
        return until(
            lambda: self.is_job(time.time_ns() - int(seconds * 1e9), hosts=hosts, processes=processes), patience
        )

    def settles(self, condition: Callable[[int], bool], seconds: float, patience: float = PATIENCE / 2) -> bool:
        """Wait until the condition holds for what came within so many seconds; looked at after each such time."""
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            since = time.time_ns()
            time.sleep(seconds)
            if condition(since):
                return True
        return False


def lock_holder(folder: str | None = None) -> int | None:
    """Return the pid of who holds the one lock by which the processes of the test agree."""
    place = folder or os.environ["XDG_RUNTIME_DIR"]
    (file,) = (name for name in os.listdir(place) if name.endswith(".lock"))
    inode = os.stat(os.path.join(place, file)).st_ino
    with open("/proc/locks", encoding="ascii") as table:
        held = [line.split() for line in table if line.split()[5].endswith(f":{inode}")]
    return next((int(fields[4]) for fields in held if "->" not in fields), None)
