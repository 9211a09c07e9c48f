"""Memory: of the watched process, of its cgroup where a limit holds, else of the host; and swap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from otel_sysmetrics.catalog import host
from otel_sysmetrics.collector import NotHere, Part
from otel_sysmetrics.reading import Reading
from otel_sysmetrics.sources.cgroup import Cgroups
from otel_sysmetrics.sources.files import fields, whole
from otel_sysmetrics.sources.portable import ask, portable
from otel_sysmetrics.sources.totals import Total

if TYPE_CHECKING:
    from types import ModuleType

    from otel_sysmetrics.collector import Context
    from otel_sysmetrics.sources.cgroup import MemoryControl
    from otel_sysmetrics.sources.processes import ProcessSample

_SPECS: Final = (
    host.PROCESS_RSS,
    host.PROCESS_MEMORY_PERCENT,
    host.MEMORY_PERCENT,
    host.MEMORY_AVAILABLE,
    host.OOM_KILLS,
    host.SWAP_USED,
    host.SWAP_PERCENT,
)
_MIB: Final = 1 << 20
_GIB: Final = 1 << 30
_KIB: Final = 1 << 10


@dataclass(frozen=True, slots=True)
class HostMemory:
    """The memory and the swap space of the machine, in bytes; None where it does not say."""

    total: int | None = None
    available: int | None = None
    swap_total: int | None = None
    swap_used: int | None = None


def parts(context: Context) -> tuple[Part, ...]:
    """Return the one part."""
    return (Part("memory", None, _SPECS, lambda: probe(context)),)


def probe(context: Context) -> MemoryCollector:
    """Return the collector; raises NotHere where neither memory nor a watched process is shown."""
    collector = MemoryCollector(context)
    if all(reading.value is None for reading in collector.sample()):
        raise NotHere(f"no memory is shown in {context.files.path('proc/meminfo')}")
    return collector


class MemoryCollector:
    """Memory as the kernel counts it.

    Of a process tree, resident memory is the sum over its processes: pages that several share are counted in each.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._cgroups = Cgroups(context.files, "memory", context.clock)
        self._kills = Total()

    def sample(self) -> tuple[Reading, ...]:
        """Read the process, its cgroup and the machine once."""
        machine = self._machine()
        processes = self._context.watched.processes()
        control = self._control(processes, machine)
        limit = control.limit if control else None
        used, available = machine.total, machine.available
        if used is not None:
            used = None if available is None else used - available
        if control and limit:
            used = control.used
            available = None if used is None else max(0, limit - used)
        resident, capacity = _resident(processes), limit or machine.total
        return (
            Reading(host.PROCESS_RSS, None if resident is None else resident / _MIB),
            Reading(host.PROCESS_MEMORY_PERCENT, _percent(resident, capacity)),
            Reading(host.MEMORY_PERCENT, _at_most_100(_percent(used, capacity))),
            Reading(host.MEMORY_AVAILABLE, None if available is None else available / _MIB),
            Reading(host.OOM_KILLS, self._kills_so_far(control)),
            Reading(host.SWAP_USED, machine.swap_used),
            Reading(host.SWAP_PERCENT, _at_most_100(_percent(machine.swap_used, machine.swap_total))),
        )

    def describe(self) -> str:
        """Say how much memory the machine has, and what of it the cgroup of the watched process may use."""
        machine = self._machine()
        control = self._control(self._context.watched.processes(), machine)
        total = "memory of unknown size" if machine.total is None else f"{machine.total / _GIB:.1f} GiB of memory"
        return f"{total}, {control.limit / _GIB:.1f} GiB of it for this cgroup" if control and control.limit else total

    def close(self) -> None:
        """Nothing is held."""

    def _machine(self) -> HostMemory:
        context = self._context
        psutil = portable(context.files)
        if psutil is None:
            return parse_meminfo(context.files.text("proc/meminfo") or "")
        return _of_psutil(psutil, swap=context.wants(host.SWAP_USED) or context.wants(host.SWAP_PERCENT))

    def _control(self, processes: tuple[ProcessSample, ...], machine: HostMemory) -> MemoryControl | None:
        if self._context.settings.no_cgroup or not processes:
            return None
        return self._cgroups.memory(processes[0].pid, machine.total)

    def _kills_so_far(self, control: MemoryControl | None) -> int | None:
        if control is None or control.oom_kills is None:
            return None
        # A process that moves to another cgroup does not bring along what was killed there before.
        return self._kills.advance({control.kills_of: control.oom_kills})


def parse_meminfo(text: str) -> HostMemory:
    """Read the text of /proc/meminfo; a line that is missing or spoilt costs what depends on it.

    Kernels before 3.14 do not say what is available; then free, buffers and cached stand for it, as they did for
    `free`. It is an estimate on the high side, since shared memory counts as cached and cannot be dropped.
    """
    found = fields(text.split("\n"), ":")

    def size(key: str) -> int | None:
        number = whole(found.get(key, "").removesuffix("kB"))
        return number * _KIB if number is not None and 0 <= number < 1 << 53 else None

    total, available = size("MemTotal"), size("MemAvailable")
    parts_of_it = [size(key) for key in ("MemFree", "Buffers", "Cached")]
    if available is None and None not in parts_of_it:
        available = sum(filter(None, parts_of_it))
    if total and available is not None:
        available = min(total, available)
    swap_total, swap_free = size("SwapTotal"), size("SwapFree")
    swap_used = None if swap_total is None or swap_free is None else max(0, swap_total - swap_free)
    return HostMemory(total or None, available, swap_total, swap_used)


def _of_psutil(psutil: ModuleType, *, swap: bool) -> HostMemory:
    memory = ask(psutil, psutil, "virtual_memory")
    space = ask(psutil, psutil, "swap_memory") if swap else None
    return HostMemory(
        total=getattr(memory, "total", None) or None,
        available=getattr(memory, "available", None),
        swap_total=getattr(space, "total", None),
        swap_used=getattr(space, "used", None),
    )


def _resident(processes: tuple[ProcessSample, ...]) -> int | None:
    if not processes or processes[0].rss_bytes is None:
        return None
    return sum(process.rss_bytes or 0 for process in processes)


def _percent(part: int | None, capacity: int | None) -> float | None:
    return 100 * part / capacity if part is not None and capacity else None


def _at_most_100(percent: float | None) -> float | None:
    return None if percent is None else min(100.0, percent)
