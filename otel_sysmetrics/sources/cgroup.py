"""What the control group of a process allows it: memory, CPU time, and how often that was not enough."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from otel_sysmetrics.sources.files import counted, fields
from otel_sysmetrics.sources.remembered import Remembered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from otel_sysmetrics.sources.files import Files

_ESCAPE: Final = re.compile(r"\\([0-7]{3})")
# v1 writes "no limit" as the highest whole page below 2^63, which depends on the size of a page.
_NO_LIMIT: Final = 1 << 60
_DEFAULT_PERIOD: Final = 100_000


@dataclass(frozen=True, slots=True)
class Membership:
    """One line of /proc/<pid>/cgroup: v1 names its controllers, v2 has none there."""

    controllers: frozenset[str]
    path: str


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted hierarchy: `root` is the cgroup that is seen at `point`; v2 has no controllers here."""

    root: str
    point: str
    controllers: frozenset[str]
    unified: bool


@dataclass(frozen=True, slots=True)
class Lineage:
    """The directories of a process's cgroup (first) and of its ancestors, as far up as they are mounted here."""

    directories: tuple[str, ...]
    unified: bool


@dataclass(frozen=True, slots=True)
class MemoryControl:
    """The memory that may be used, and is used, in bytes, and the kills for want of it.

    `limit` is the tightest of the process's cgroup and its ancestors, None where none is set; `used` belongs to the
    cgroup that carries it, without the file cache that the kernel can drop at once.
    `oom_kills` is the kernel's count for the process's own cgroup, and `kills_of` names that cgroup.
    """

    limit: int | None
    used: int | None
    oom_kills: int | None
    kills_of: str


@dataclass(frozen=True, slots=True)
class CpuControl:
    """The CPUs that may be used, a fraction, and the kernel's counts of periods, and of those that were cut short.

    `quota` is the tightest of the process's cgroup and its ancestors, None where none is set; `periods` and
    `throttled` belong to the nearest cgroup that has a quota, `periods_of`: no other counts periods.
    """

    quota: float | None
    periods: int | None
    throttled: int | None
    periods_of: str


@dataclass(frozen=True, slots=True)
class _MemoryFiles:
    limit: str
    usage: str
    cache: str
    kills: str


_MEMORY_FILES: Final = {
    True: _MemoryFiles("memory.max", "memory.current", "inactive_file", "memory.events"),
    False: _MemoryFiles("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "memory.oom_control"),
}


class Cgroups:
    """The cgroup of a process: v2, v1, or some controllers on each.

    Limits are read again at each call, since orchestrators change them; where the process's cgroup lies is found
    again when /proc/<pid>/cgroup says something else. `clock` counts seconds. Used by one thread only.
    """

    def __init__(self, files: Files, controller: str, clock: Callable[[], float]) -> None:
        self._files = files
        self._controller = controller
        self._found = Remembered[Lineage | None](clock)

    def memory(self, pid: int, ram: int | None) -> MemoryControl | None:
        """Return what the memory controller says, None where there is none; `ram` bytes or more are no limit."""
        lineage = self._lineage(pid)
        if lineage is None:
            return None
        names = _MEMORY_FILES[lineage.unified]
        limit, carrier = self._memory_limit(lineage, names)
        if limit is None or limit >= (ram or _NO_LIMIT):
            limit, used = None, None
        else:
            used = self._memory_used(carrier, names)
        kills, kills_of = self._first_count(lineage, names.kills, "oom_kill")
        return MemoryControl(limit, used, kills, kills_of)

    def cpu(self, pid: int) -> CpuControl | None:
        """Return what the CPU controller says, None where there is none."""
        lineage = self._lineage(pid)
        if lineage is None:
            return None
        quotas = [
            (quota, directory)
            for directory in lineage.directories
            if (quota := self._cpu_quota(directory, unified=lineage.unified)) is not None
        ]
        if not quotas:
            return CpuControl(None, None, None, "")
        nearest = quotas[0][1]
        counts = fields(self._files.lines(nearest, "cpu.stat"))
        periods, throttled = counted(counts.get("nr_periods")), counted(counts.get("nr_throttled"))
        return CpuControl(min(quotas)[0], periods, throttled, nearest)

    def _lineage(self, pid: int) -> Lineage | None:
        text = self._files.text(f"proc/{pid}/cgroup")
        if text is None:
            return None
        return self._found.get((pid, text), lambda: self._find(pid, parse_memberships(text)))

    def _find(self, pid: int, memberships: Iterable[Membership]) -> Lineage | None:
        found = lineages(memberships, self._mounts(pid), self._controller)
        # One hierarchy may be mounted several times, as a whole and in part: the widest view that has the cgroup.
        return max(
            found,
            key=lambda lineage: (self._files.exists(lineage.directories[0]), len(lineage.directories)),
            default=None,
        )

    def _mounts(self, pid: int) -> tuple[Mount, ...]:
        # Below a moved root the mount points are those of the host, and only its own processes name them so.
        readers = ("self", str(pid)) if self._files.root == "/" else ("1", "self", str(pid))
        for reader in readers:
            mounts = parse_mounts(self._files.text(f"proc/{reader}/mountinfo") or "")
            if mounts:
                return mounts
        return ()

    def _memory_limit(self, lineage: Lineage, names: _MemoryFiles) -> tuple[int | None, str]:
        tightest, carrier = None, lineage.directories[-1]
        for directory in lineage.directories:
            limit = parse_limit(self._files.text(directory, names.limit))
            # Of two equal limits the outer one is reached first: its cgroup holds more.
            if limit is not None and (tightest is None or limit <= tightest):
                tightest, carrier = limit, directory
        if lineage.unified:
            return tightest, carrier
        # A container sees its own cgroup and none above; v1 tells here what the hidden ones allow.
        stat = fields(self._files.lines(lineage.directories[0], "memory.stat"))
        hidden = parse_limit(stat.get("hierarchical_memory_limit"))
        if hidden is not None and (tightest is None or hidden < tightest):
            return hidden, lineage.directories[-1]
        return tightest, carrier

    def _memory_used(self, directory: str, names: _MemoryFiles) -> int | None:
        usage = counted(self._files.text(directory, names.usage))
        if usage is None:
            return None
        # A sandbox such as gVisor does not say how much of it is cache; then all of it counts.
        stat = fields(self._files.lines(directory, "memory.stat"))
        return max(0, usage - (counted(stat.get(names.cache)) or 0))

    def _first_count(self, lineage: Lineage, name: str, key: str) -> tuple[int | None, str]:
        # In v2 a cgroup without the controller leaves its processes to the next one above, which keeps the count.
        for directory in lineage.directories:
            count = counted(fields(self._files.lines(directory, name)).get(key))
            if count is not None:
                return count, directory
        return None, ""

    def _cpu_quota(self, directory: str, *, unified: bool) -> float | None:
        if unified:
            return parse_cpu_max(self._files.text(directory, "cpu.max"))
        quota = counted(self._files.text(directory, "cpu.cfs_quota_us"))
        period = counted(self._files.text(directory, "cpu.cfs_period_us")) if quota else None
        return quota / period if quota and period else None


def parse_memberships(text: str) -> tuple[Membership, ...]:
    """Read the text of /proc/<pid>/cgroup; lines that are none of its kind are left out."""
    lines = (line.split(":", 2) for line in text.split("\n"))
    return tuple(
        Membership(frozenset(filter(None, controllers.split(","))), path)
        for _, controllers, path in (line for line in lines if len(line) == 3)  # noqa: PLR2004 - number:controllers:path
    )


def parse_mounts(text: str) -> tuple[Mount, ...]:
    """Read the cgroup mounts in the text of /proc/<pid>/mountinfo; other lines are left out."""
    found = []
    for line in text.split("\n"):
        # Any number of optional fields stands before the dash.
        head, _, tail = line.partition(" - cgroup")
        match (head.split(" "), f"cgroup{tail}".split(" ")):
            case ([_, _, _, root, point, _, *_], [("cgroup" | "cgroup2") as kind, _, options, *_]):
                unified = kind == "cgroup2"
                controllers = frozenset() if unified else frozenset(options.split(","))
                found.append(Mount(_unescape(root), _unescape(point), controllers, unified))
    return tuple(found)


def lineages(memberships: Iterable[Membership], mounts: Iterable[Mount], controller: str) -> list[Lineage]:
    """Return where a controller's cgroup of the process may be seen, one lineage per mount.

    A controller is on v1 or on v2, never on both: v1 is asked first, as v2 does not name its controllers here.
    """
    members, places = tuple(memberships), tuple(mounts)
    for unified in (False, True):
        found = [
            Lineage(directories, unified)
            for member in members
            if (not member.controllers if unified else controller in member.controllers)
            for mount in places
            if mount.unified is unified and (unified or controller in mount.controllers)
            if (directories := visible(member.path, mount))
        ]
        if found:
            return found
    return []


def visible(path: str, mount: Mount) -> tuple[str, ...]:
    """Return the directories of a cgroup and its ancestors that a mount shows, innermost first; else none.

    Both the path and the mount's root are written as seen from the cgroup namespace of whoever reads them: a container
    may find itself at `/`, at the path that is also the mount's root (Docker on v1), or, on a mount from outside, below
    a root of `/../..`. Of the last the names in between are unknown, and only the top of the mount is an ancestor.
    """
    wanted, top = _steps(path), _steps(mount.root)
    if wanted[: len(top)] == top:
        below = wanted[len(top) :]
        if ".." in below:
            return ()
        return tuple("/".join([mount.point.rstrip("/"), *below[:depth]]) for depth in range(len(below), -1, -1))
    outside = set(top) == {".."} and wanted.count("..") < len(top)
    return (mount.point,) if outside else ()


def parse_limit(text: str | None) -> int | None:
    """Read a memory limit in bytes; `max`, -1 and v1's huge number are no limit, as is anything else."""
    limit = counted(text)
    return limit if limit and limit < _NO_LIMIT else None


def parse_cpu_max(text: str | None) -> float | None:
    """Read `cpu.max` (a quota and a period, in µs) as a number of CPUs; `max` is no limit, as is anything else."""
    words = (text or "").split()
    quota = counted(words[0]) if words else None
    period = counted(words[1]) if len(words) > 1 else _DEFAULT_PERIOD
    return quota / period if quota and period else None


def _steps(path: str) -> list[str]:
    return [step for step in path.split("/") if step]


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)
