"""The GPU of Apple silicon, which shares its memory with the processors: there is one, and its index is 0."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_sysmetrics.catalog import CATALOG, gpu
from otel_sysmetrics.collector import NotHere, Part, Unavailable
from otel_sysmetrics.collectors.apple.accelerator import Accelerator
from otel_sysmetrics.collectors.apple.listener import Listener, door
from otel_sysmetrics.collectors.apple.registry import Registry, locate, machine
from otel_sysmetrics.collectors.apple.told import Told
from otel_sysmetrics.reading import Reading
from otel_sysmetrics.sources.tools import ToolError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_sysmetrics.collector import Context
    from otel_sysmetrics.spec import MetricSpec

_SPECS: Final = tuple(spec for spec in CATALOG.values() if "apple" in spec.collectors)
_OF_THE_DOOR: Final = (gpu.UTILIZATION, gpu.TEMPERATURE, gpu.POWER, gpu.POWER_PERCENT)
_INDEX: Final = 0
_GIB: Final = 1 << 30


def parts(context: Context) -> tuple[Part, ...]:
    """Return the one part."""
    return (Part("apple", None, _SPECS, lambda: probe(context)),)


def probe(context: Context) -> AppleCollector:
    """Ask ioreg for a GPU of Apple's; raises NotHere, also on Intel Macs, or Unavailable where ioreg fails."""
    path = locate("ioreg", context.files)
    if path is None:
        raise NotHere("no ioreg, which every Mac has")
    ids = context.settings.gpu_device_ids
    if ids is not None and str(_INDEX) not in ids:
        raise NotHere("gpu_device_ids does not name GPU 0")
    registry = Registry(path, context.clock)
    try:
        found = registry.read()
    except ToolError as error:
        raise Unavailable(str(error), "run it by hand and see what it says") from None
    if found is None:
        raise NotHere(f"{path} shows no GPU of Apple's")
    period = context.settings.sampling_interval
    listens = any(map(context.wants, _OF_THE_DOOR))
    listener = Listener(door(period) if listens else None, period, context.clock)
    memory, chip = machine(locate("sysctl", context.files))
    return AppleCollector(registry, found, listener, memory, chip, context.settings.apple_gpu_power_limit)


class AppleCollector:
    """The GPU as ioreg shows it, and what the door tells where there is one."""

    def __init__(  # noqa: PLR0913 - made in one place only
        self,
        registry: Registry,
        found: Accelerator,
        listener: Listener,
        memory: int | None,
        chip: str | None,
        limit: float | None,
    ) -> None:
        self._registry = registry
        self._newest: Accelerator | None = found
        self._seen = found
        self._listener = listener
        self._memory = memory
        self._chip = chip
        self._limit = limit

    def sample(self) -> tuple[Reading, ...]:
        """Read both; raises ToolError where ioreg fails and the door tells nothing."""
        told = self._listener.newest()
        try:
            # Each run of the tool is dear, so the first sample takes what the probe has read.
            shown, self._newest = self._newest or self._registry.read(), None
        except ToolError:
            if told == Told():
                raise
            shown = None
        self._seen = shown or self._seen
        attributes = {"hw.name": self._name()}
        readings = values(shown or Accelerator(), told, self._memory, self._limit)
        return tuple(Reading(spec, value, {"gpu": _INDEX}, attributes) for spec, value in readings)

    def describe(self) -> str:
        """Say what was found, and what is missing."""
        for _ in range(2):  # the first look starts the door, the second waits for what it says
            self._listener.newest()
        words = [f"{_INDEX}: {self._name() or 'Apple GPU'}"]
        if self._seen.cores:
            words.append(f"{self._seen.cores} cores")
        words.append(f"{self._memory / _GIB:.0f} GiB of shared memory" if self._memory else "memory of unknown size")
        if self._listener.trouble:
            words.append(f"no power and no temperature: {self._listener.trouble}")
        return ", ".join(words)

    def close(self) -> None:
        """End both programs."""
        self._listener.close()
        self._registry.close()

    def _name(self) -> str | None:
        return self._seen.model or self._chip


def values(
    shown: Accelerator, told: Told, memory: int | None, limit: float | None
) -> Iterator[tuple[MetricSpec, float | None]]:
    """Yield what is known of each metric.

    Residencies are exact where the driver's own share is an average over a window of its own choice: 80 for 98.
    More can be allocated than there is memory, since it can be paged out.
    """
    share = None if shown.allocated is None or not memory else min(100.0, 100 * shown.allocated / memory)
    yield gpu.UTILIZATION, shown.load if told.load is None else told.load
    yield gpu.MEMORY_ALLOCATED, share
    yield gpu.MEMORY_ALLOCATED_BYTES, shown.allocated
    yield gpu.TEMPERATURE, told.celsius
    yield gpu.POWER, told.watts
    yield gpu.POWER_PERCENT, None if told.watts is None or not limit else 100 * told.watts / limit
