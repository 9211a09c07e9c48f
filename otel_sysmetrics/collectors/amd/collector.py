"""AMD GPUs from the first source that lists any; it is kept, so that indices never move."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_sysmetrics.catalog import CATALOG, gpu
from otel_sysmetrics.collector import NotHere, Part
from otel_sysmetrics.collectors.amd.sources import Sources
from otel_sysmetrics.reading import Reading
from otel_sysmetrics.sources.tools import ToolError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from otel_sysmetrics.collector import Context
    from otel_sysmetrics.collectors.amd.gpu import Gpu
    from otel_sysmetrics.collectors.amd.sources import Source
    from otel_sysmetrics.spec import MetricSpec

_TABLE: Final[tuple[tuple[MetricSpec, Callable[[Gpu], float | None]], ...]] = (
    (gpu.UTILIZATION, lambda of: of.use),
    (gpu.MEMORY_ALLOCATED, lambda of: of.allocated_share),
    (gpu.MEMORY_ALLOCATED_BYTES, lambda of: of.allocated_bytes),
    (gpu.READ_WRITE_ACTIVITY, lambda of: of.activity),
    (gpu.OVERDRIVE, lambda of: of.overdrive),
    (gpu.POWER, lambda of: of.power),
    (gpu.POWER_LIMIT, lambda of: of.limit),
    (gpu.POWER_PERCENT, lambda of: of.power_share),
    (gpu.ENERGY, lambda of: of.energy),
)
PATIENCE: Final = 300.0
_SPECS: Final = tuple(spec for spec in CATALOG.values() if "amd" in spec.collectors)


def parts(context: Context) -> tuple[Part, ...]:
    """Return the one part."""
    sources = Sources(context)
    return (Part("amd", None, _SPECS, lambda: probe(context, sources)),)


def probe(context: Context, sources: Sources) -> AmdCollector:
    """Take the first source that lists a GPU; raises NotHere.

    One that fails is passed over, since a slow tool must not cost the numbers that the driver's files have.
    A tool that fails on a machine whose driver shows no AMD GPU is no reason to warn anybody.
    """
    ids = context.settings.gpu_device_ids
    if ids is not None and not ids:
        raise NotHere("gpu_device_ids names no GPU")
    tried = []
    failures = []
    for source, seconds in sources.looks():
        tried.append(source.name)
        try:
            found = source.read(seconds)
        except ToolError as error:
            failures.append(str(error))
            continue
        if found:
            return AmdCollector(source, found, ids, context.clock, failures)
    raise NotHere(f"no AMD GPU in {', '.join(tried)}" + (f" ({', '.join(failures)})" if failures else ""))


class AmdCollector:
    """The GPUs that one source lists; `passed_over` says why others were not asked."""

    def __init__(
        self,
        source: Source,
        found: Sequence[Gpu],
        ids: Sequence[str] | None,
        clock: Callable[[], float],
        passed_over: Sequence[str] = (),
    ) -> None:
        self._source = source
        self._newest: Sequence[Gpu] | None = found
        self._seen = found
        self._ids = ids
        self._clock = clock
        self._passed_over = passed_over
        self._failing_since: float | None = None

    def sample(self) -> tuple[Reading, ...]:
        """Return what the source says now; raises ToolError where it fails, which does not change the source.

        Raises NotHere where it has failed for long: it may have been removed, and another may be here.
        """
        try:
            self._seen = self._read()
        except ToolError as error:
            now = self._clock()
            if self._failing_since is None:
                self._failing_since = now
            if now - self._failing_since >= PATIENCE:
                raise NotHere(str(error)) from None
            raise
        self._failing_since = None
        return tuple(readings(self._chosen()))

    def describe(self) -> str:
        """Say what was found."""
        names = [f"{each.index}: {each.name or 'AMD GPU'}" for each in self._chosen()]
        said = [*(names or ["none of the named GPUs"]), f"through {self._source.name}", *self._passed_over]
        return ", ".join(said)

    def close(self) -> None:
        """End the tool where it runs."""
        self._source.close()

    def _read(self) -> Sequence[Gpu]:
        # Each run of the tool is dear (case 72), so the first sample takes what the probe has read.
        found, self._newest = self._newest or self._source.read(), None
        if not found:
            raise ToolError(f"{self._source.name} lists no GPU")
        return found

    def _chosen(self) -> list[Gpu]:
        return [each for each in self._seen if self._ids is None or each.named(self._ids)]


def readings(gpus: Iterable[Gpu]) -> Iterator[Reading]:
    """Yield what GPUs say."""
    for of in gpus:
        labels = {"gpu": of.index}
        attributes = {"hw.id": of.unique_id or of.pci, "hw.name": of.name}
        for spec, value in _TABLE:
            yield Reading(spec, value(of), labels, attributes)
        if of.temperature is not None:
            place, celsius = of.temperature
            yield Reading(gpu.TEMPERATURE, celsius, labels, {**attributes, "hw.sensor_location": place})
