"""CPU: the watched process's share of what it may use, the machine's busy share, threads, throttling, temperature."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from otel_sysmetrics.catalog import host
from otel_sysmetrics.collector import NotHere, Part
from otel_sysmetrics.reading import Reading
from otel_sysmetrics.sources.cgroup import Cgroups
from otel_sysmetrics.sources.files import whole
from otel_sysmetrics.sources.portable import ask, portable
from otel_sysmetrics.sources.process_time import cpu_seconds_between
from otel_sysmetrics.sources.temperatures import cpu_temperature

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import ModuleType

    from otel_sysmetrics.collector import Context
    from otel_sysmetrics.sources.cgroup import CpuControl
    from otel_sysmetrics.sources.files import Files
    from otel_sysmetrics.sources.processes import ProcessSample, Walk

_SPECS: Final = (
    host.CPU,
    host.CPU_PERCENT,
    host.CPU_CORE_PERCENT,
    host.CPU_TEMPERATURE,
    host.LOAD_1,
    host.LOAD_5,
    host.LOAD_15,
    host.PROCESS_THREADS,
    host.PROCESS_THROTTLED,
)
_LOADS: Final = (host.LOAD_1, host.LOAD_5, host.LOAD_15)

# The columns of /proc/stat and psutil's names for them. Guest time is left out: user and nice contain it.
_COLUMNS: Final = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
_IDLE: Final = (3, 4)
# The oldest kernels have the first four.
_MIN_COLUMNS: Final = 4
# No kernel has CPUs of more digits: a longer number would be a list of millions.
_CPU_SPAN: Final = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")
_MAX_THREADS: Final = 256

CpuTimes = tuple[float, ...]


def parts(context: Context) -> tuple[Part, ...]:
    """Return the one part."""
    return (Part("cpu", None, _SPECS, lambda: probe(context)),)


def probe(context: Context) -> CpuCollector:
    """Return the collector; raises NotHere where neither a CPU nor a watched process is shown."""
    if not _cpu_times(context.files) and not context.watched.processes():
        raise NotHere(f"no CPU is shown in {context.files.path('proc/stat')}")
    return CpuCollector(context)


class CpuCollector:
    """CPU time, always as the difference between this sample and the one before: the first one is the baseline."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._cgroups = Cgroups(context.files, "cpu", context.clock)
        self._walk: Walk | None = None
        self._times: Mapping[int | None, CpuTimes] = {}
        self._control: CpuControl | None = None

    def sample(self) -> tuple[Reading, ...]:
        """Read the process, its cgroup and the machine once."""
        walk, times = self._context.watched.walk(), _cpu_times(self._context.files)
        control = self._control_of(walk)
        readings = (
            Reading(host.CPU, self._share(walk, usable_cpus(self._context.files, walk, control, times))),
            Reading(host.PROCESS_THREADS, _threads(walk.processes)),
            Reading(host.PROCESS_THROTTLED, _throttled(self._control, control)),
            *self._machine(times),
        )
        self._walk, self._times, self._control = walk, times, control
        return readings

    def describe(self) -> str:
        """Say how many CPUs there are, and how many of them the watched process may use."""
        walk, times = self._context.watched.walk(), _cpu_times(self._context.files)
        usable = usable_cpus(self._context.files, walk, self._control_of(walk), times)
        present = _counted(times)
        total = f"{present} logical CPUs" if present else "CPUs that the machine does not show"
        return f"{total}, {usable:g} of them for process {walk.processes[0].pid}" if usable else total

    def close(self) -> None:
        """Nothing is held."""

    def _control_of(self, walk: Walk) -> CpuControl | None:
        if self._context.settings.no_cgroup or not walk.processes:
            return None
        return self._cgroups.cpu(walk.processes[0].pid)

    def _share(self, walk: Walk, usable: float | None) -> float | None:
        if self._walk is None or walk.time <= self._walk.time or not usable:
            return None
        used = cpu_seconds_between(self._walk, walk, reaped=self._context.watched.covers_descendants)
        return None if used is None else min(100.0, 100 * used / (walk.time - self._walk.time) / usable)

    def _machine(self, times: Mapping[int | None, CpuTimes]) -> Iterator[Reading]:
        context = self._context
        for number, now in times.items():
            share = busy_share(self._times.get(number, now), now)
            if number is None:
                yield Reading(host.CPU_PERCENT, share)
            elif context.wants(host.CPU_CORE_PERCENT):
                yield Reading(host.CPU_CORE_PERCENT, share, {"cpu": number})
        if context.wants(host.CPU_TEMPERATURE):
            yield Reading(host.CPU_TEMPERATURE, cpu_temperature(context.files))
        if any(map(context.wants, _LOADS)):
            yield from map(Reading, _LOADS, _loads(context.files))


def parse_cpu_times(text: str) -> dict[int | None, CpuTimes]:
    """Read the text of /proc/stat: the times of all CPUs together under None, and of each under its number.

    Numbers have holes where CPUs are switched off. Times are in clock ticks.
    """
    found: dict[int | None, CpuTimes] = {}
    for line in text.split("\n"):
        name, *columns = line.split() or [""]
        number = name.removeprefix("cpu")
        times = _numbers(columns[: len(_COLUMNS)])
        if name.startswith("cpu") and len(times) >= _MIN_COLUMNS and (not number or whole(number) is not None):
            found[whole(number)] = times
    return found


def busy_share(before: CpuTimes, now: CpuTimes) -> float | None:
    """Return the busy share of a CPU between two looks, in percent, None where no time has passed.

    Idle and iowait may run backwards (https://github.com/giampaolo/psutil/issues/645): a fall counts as nothing.
    """
    passed = [max(0, later - earlier) for earlier, later in zip(before, now, strict=False)]
    idle = sum(passed[column] for column in _IDLE if column < len(passed))
    busy = sum(time for column, time in enumerate(passed) if column not in _IDLE)
    return min(100.0, 100 * busy / (busy + idle)) if busy + idle > 0 else None


def parse_cpu_list(text: str) -> frozenset[int]:
    """Read a list of CPUs such as `0-3,8`; empty where it is not one."""
    found: set[int] = set()
    end = -1
    for span in text.strip().split(","):
        match = _CPU_SPAN.fullmatch(span)
        if match is None or int(match[1]) <= end:  # the kernel lists each CPU once, in order
            return frozenset()
        first, end = int(match[1]), int(match[2] or match[1])
        found.update(range(first, end + 1))
    return frozenset(found)


def usable_cpus(
    files: Files, walk: Walk, control: CpuControl | None, times: Mapping[int | None, CpuTimes]
) -> float | None:
    """Return how many CPUs the watched process can keep busy: the least of affinity, quota and logical CPUs."""
    if not walk.processes:
        return None
    psutil, pid = portable(files), walk.processes[0].pid
    present = _counted(times) or _counted_by_python(files)
    allowed = _affinity(files, pid, present) if psutil is None else _affinity_of_psutil(psutil, pid)
    quota = control.quota if control else None
    return min((count for count in (allowed, quota, present) if count), default=None)


def _affinity(files: Files, pid: int, present: int | None) -> int:
    allowed = _allowed(files, f"proc/{pid}/status")
    if len(allowed) < (present or 0):
        # The main thread alone may be bound (OMP_PROC_BIND, KMP_AFFINITY give each thread a CPU of its own).
        for thread in files.names(f"proc/{pid}/task")[:_MAX_THREADS]:
            allowed |= _allowed(files, f"proc/{pid}/task/{thread}/status")
    return len(allowed)


def _allowed(files: Files, status: str) -> frozenset[int]:
    _, _, rest = (files.text(status) or "").partition("\nCpus_allowed_list:")
    return parse_cpu_list(rest.partition("\n")[0])


def _affinity_of_psutil(psutil: ModuleType, pid: int) -> int:
    process = ask(psutil, psutil, "Process", pid)
    return len(ask(psutil, process, "cpu_affinity") or ())


def _counted(times: Mapping[int | None, CpuTimes]) -> int:
    return sum(number is not None for number in times)


def _counted_by_python(files: Files) -> int | None:
    # A hardened machine may hide /proc/stat (https://github.com/giampaolo/psutil/issues/2191).
    return os.cpu_count() if files.root == "/" else None


def _cpu_times(files: Files) -> dict[int | None, CpuTimes]:
    psutil = portable(files)
    if psutil is None:
        return parse_cpu_times(files.text("proc/stat") or "")
    total = ask(psutil, psutil, "cpu_times")
    each = ask(psutil, psutil, "cpu_times", percpu=True) or ()
    rows = ([] if total is None else [(None, total)], enumerate(each))
    return {number: tuple(getattr(row, name, 0.0) for name in _COLUMNS) for group in rows for number, row in group}


def _loads(files: Files) -> CpuTimes:
    loads = _numbers((files.text("proc/loadavg") or "").split()[: len(_LOADS)], float)
    if loads or files.root != "/":
        return loads
    try:
        return os.getloadavg()
    except (AttributeError, OSError):
        return ()


def _numbers(words: list[str], kind: type[float] = int) -> CpuTimes:
    try:
        numbers = [kind(word) for word in words]
    except ValueError:
        return ()
    return tuple(numbers) if all(0 <= number < 1 << 64 for number in numbers) else ()


def _threads(processes: tuple[ProcessSample, ...]) -> int | None:
    if not processes or processes[0].threads is None:
        return None
    return sum(process.threads or 0 for process in processes)


def _throttled(before: CpuControl | None, now: CpuControl | None) -> float | None:
    if before is None or now is None or before.periods_of != now.periods_of:
        return None
    if before.periods is None or before.throttled is None or now.periods is None or now.throttled is None:
        return None
    periods, throttled = now.periods - before.periods, now.throttled - before.throttled
    return min(100.0, 100 * throttled / periods) if periods > 0 and throttled >= 0 else None
