"""Google TPUs: what the runtimes on this host serve while a workload runs."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from otel_sysmetrics import values
from otel_sysmetrics.catalog import tpu
from otel_sysmetrics.collector import NotHere, Part
from otel_sysmetrics.collectors.tpu import chips
from otel_sysmetrics.collectors.tpu.http2 import connect
from otel_sysmetrics.collectors.tpu.service import ask
from otel_sysmetrics.reading import Reading, sane_value
from otel_sysmetrics.settings import SettingsError, tpu_ports

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from otel_sysmetrics.collector import Context
    from otel_sysmetrics.spec import MetricSpec

_log: Final = logging.getLogger("otel_sysmetrics")

_DEFAULT_PORTS: Final = (8431,)
_CONNECT_SECONDS: Final = 0.5
_PORT_SECONDS: Final = 2.0
_SAMPLE_SECONDS: Final = 4.0
_CORES: Final = 2
_FULL: Final = 100.0

_USED: Final = "tpu.runtime.hbm.memory.usage.bytes"
_DUTY: Final = "tpu.runtime.tensorcore.dutycycle.percent"
_TOTAL: Final = "tpu.runtime.hbm.memory.total.bytes"
_SERVED: Final[tuple[tuple[MetricSpec, str], ...]] = (
    (tpu.MEMORY_USAGE_BYTES, _USED),
    (tpu.MEMORY_CAPACITY, _TOTAL),
    (tpu.DUTY_CYCLE, _DUTY),
    (tpu.MEMORY_UTILIZATION, "tpu.runtime.hbm.utilization.percent"),
    (tpu.IDLE_DURATION, "tpu.runtime.tensorcore.idle_duration.seconds"),
)
_MEMORY: Final = (tpu.MEMORY_USAGE, tpu.MEMORY_USAGE_BYTES, tpu.MEMORY_CAPACITY)
_NAMES: Final = tuple(name for _, name in _SERVED)
_SPECS: Final = (tpu.MEMORY_USAGE, *(spec for spec, _ in _SERVED))


def parts(context: Context) -> tuple[Part, ...]:
    """Return the one part."""
    return (Part("tpu", None, _SPECS, lambda: probe(context)),)


def probe(context: Context) -> TpuCollector:
    """Look for a TPU, or for a service on a port that the user named; raises NotHere."""
    generation = chips.find(context.files)
    ports, trouble = context.settings.tpu_runtime_ports, ""
    if not ports:
        ports, trouble = _ports_of_google()
    if generation is None and not any(map(_answers, ports)):
        raise NotHere(f"no TPU on the PCI bus and no /dev/accel0{trouble}")
    if trouble:
        _log.warning("otel-sysmetrics: tpu: port %d is asked%s", *_DEFAULT_PORTS, trouble)
    return TpuCollector(generation or chips.UNKNOWN, ports or _DEFAULT_PORTS, trouble)


class TpuCollector:
    """The TPUs of the host, under the runtime's own ids."""

    def __init__(self, generation: chips.Generation, ports: tuple[int, ...], trouble: str = "") -> None:
        self._generation = generation
        self._ports = ports
        self._trouble = trouble
        self._devices = 0

    def sample(self) -> list[Reading]:
        """Return what is served; nothing while no workload runs, which is no failure."""
        end = time.monotonic() + _SAMPLE_SECONDS
        served: list[list[Reading]] = []
        for count, port in enumerate(self._ports):
            # A port that never answers may not take the time of those after it.
            seconds = min(_PORT_SECONDS, (end - time.monotonic()) / (len(self._ports) - count))
            served.append(list(readings(ask(port, _NAMES, seconds), self._generation)))
        found = fullest(served)
        self._devices = len({reading.labels["tpu"] for reading in found})
        return found

    def describe(self) -> str:
        """Say what was found."""
        name = self._generation.name or "of an unknown generation"
        where = f"port{'s' * (len(self._ports) != 1)} {', '.join(map(str, self._ports))}"
        if not self._devices:
            return (
                f"TPU {name}: no metrics on {where}, where a runtime serves them while its workload runs{self._trouble}"
            )
        return f"TPU {name}: {self._devices} device{'s' * (self._devices != 1)} on {where}{self._trouble}"

    def close(self) -> None:
        """Do nothing: no connection outlives a sample."""


def fullest(served: Sequence[Sequence[Reading]]) -> list[Reading]:
    """Return, of what several ports say, each device's memory, duty cycle and so on from that which says most of it.

    Each port may answer for all chips of the host, or only for some, or be cut short. Of those that say as much the
    first is believed, and alone: use and size of two runtimes, mixed, would be a device that nobody has.
    """
    best: dict[tuple[str | int, str], list[Reading]] = {}
    for of_port in served:
        groups: dict[tuple[str | int, str], list[Reading]] = {}
        for reading in of_port:
            if reading.value is not None:
                groups.setdefault((reading.labels["tpu"], _group(reading.spec)), []).append(reading)
        for key, group in groups.items():
            if len(group) > len(best.get(key, ())):
                best[key] = group
    return [reading for group in best.values() for reading in group]


def _group(spec: MetricSpec) -> str:
    return "memory" if spec in _MEMORY else spec.tag


def readings(served: Mapping[str, Mapping[int, float]], generation: chips.Generation) -> Iterator[Reading]:
    """Yield what the runtime's metrics, each by device, are under our tags."""
    attributes = {"hw.name": f"TPU {generation.name}"} if generation.name else {}
    used, total = served.get(_USED, {}), served.get(_TOTAL, {})
    for device in sorted(used):
        yield Reading(tpu.MEMORY_USAGE, _share_of(used[device], total.get(device)), {"tpu": device}, attributes)
    for spec, name in _SERVED:
        rows = served.get(name, {})
        if spec is tpu.DUTY_CYCLE:
            rows = _by_device(rows, sorted({*used, *total}), generation.devices_per_duty)
        for device, value in sorted(rows.items()):
            is_sane = spec is not tpu.MEMORY_USAGE_BYTES or _fits(value, total.get(device))
            yield Reading(spec, _sane(spec, value) if is_sane else None, {"tpu": device}, attributes)


def _by_device(duty: Mapping[int, float], devices: Sequence[int], per_row: int | None) -> Mapping[int, float]:
    """Give a chip's duty cycle to each of its cores; nothing while the rows do not fit the devices."""
    if per_row is None:  # only old generations have fewer rows than devices
        per_row = _CORES if len(devices) == _CORES * len(duty) else 1
    if per_row == 1 or len(devices) == len(duty):
        return duty
    if not devices:
        return {chip * per_row + core: value for chip, value in duty.items() for core in range(per_row)}
    if len(devices) != per_row * len(duty):
        return {}
    # By their order, as tpu-info has it: neither the chips of one process nor those of one host need begin at 0.
    return {device: duty[chip] for chip, device in zip(_repeated(sorted(duty), per_row), devices, strict=True)}


def _repeated(chips_in_order: list[int], times: int) -> Iterator[int]:
    return (chip for chip in chips_in_order for _ in range(times))


def _answers(port: int) -> bool:
    """Tell whether anybody listens on a port of this host."""
    try:
        connect(port, _CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


def _ports_of_google() -> tuple[tuple[int, ...], str]:
    """Return the ports that Google's variable names, and what is wrong with it."""
    text = tpu_ports()
    try:
        return values.ports(text) or (), ""
    except values.Unreadable as error:
        return (), f"; {SettingsError('TPU_RUNTIME_METRICS_PORTS', text, str(error))}"


def _share_of(used: float, total: float | None) -> float | None:
    if total is None or total <= 0 or not 0 <= used <= total:
        return None
    return used / total * _FULL


def _fits(used: float, total: float | None) -> bool:
    """Tell whether so much can be in use; a runtime that says 0 of 0 knows neither."""
    if total is None:
        return True
    return used <= total if total > 0 else used > 0


def _sane(spec: MetricSpec, value: float) -> float | None:
    found = sane_value(value)
    if found is None or found < 0 or (spec.unit == "%" and found > _FULL):
        return None
    if spec is tpu.MEMORY_CAPACITY and not found:
        return None
    return found
