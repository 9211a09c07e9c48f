"""Google TPUs: what the runtimes on this host serve while a workload runs."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Final

from otel_sysmetrics import values
from otel_sysmetrics.catalog import tpu
from otel_sysmetrics.collector import NotHere, Part
from otel_sysmetrics.collectors.tpu import chips
from otel_sysmetrics.collectors.tpu.service import Down, Refused, Service
from otel_sysmetrics.collectors.tpu.wire import Malformed
from otel_sysmetrics.reading import Reading, sane_value
from otel_sysmetrics.settings import tpu_ports

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from otel_sysmetrics.collector import Context
    from otel_sysmetrics.spec import MetricSpec

_DEFAULT_PORTS: Final = (8431,)
_CONNECT_SECONDS: Final = 0.5
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
_SPECS: Final = (tpu.MEMORY_USAGE, *(spec for spec, _ in _SERVED))

Served = dict[str, dict[int, float]]


def parts(context: Context) -> tuple[Part, ...]:
    """Return the one part."""
    return (Part("tpu", None, _SPECS, lambda: probe(context)),)


def probe(context: Context) -> TpuCollector:
    """Look for a TPU, or for a service on a port that the user named; raises NotHere."""
    generation = chips.find(context.files)
    ports = context.settings.tpu_runtime_ports or _ports_of_google()
    if generation is None and not any(map(_answers, ports or ())):
        raise NotHere("no TPU on the PCI bus and no /dev/accel0")
    return TpuCollector(generation or chips.UNKNOWN, ports or _DEFAULT_PORTS)


class TpuCollector:
    """The TPUs of the host, under the runtime's own ids."""

    def __init__(self, generation: chips.Generation, ports: tuple[int, ...]) -> None:
        self._generation = generation
        self._ports = ports
        self._state = "no workload serves metrics"

    def sample(self) -> tuple[Reading, ...]:
        """Return what is served; nothing while no workload runs, which is no failure."""
        served: Served = {}
        listening = 0
        for port in self._ports:
            found = _ask(port)
            if found is not None:
                listening += 1
                for name, by_device in found.items():
                    # Each port may answer for all chips of the host: the first that speaks of a device is believed.
                    served[name] = {**by_device, **served.get(name, {})}
        where = f"port{'s' * (len(self._ports) != 1)} {', '.join(map(str, self._ports))}"
        self._state = f"{listening} of {len(self._ports)} serve metrics on {where}"
        return tuple(readings(served, self._generation))

    def describe(self) -> str:
        """Say what was found."""
        return f"TPU {self._generation.name or 'of an unknown generation'}: {self._state}"

    def close(self) -> None:
        """Do nothing: no connection outlives a sample."""


def readings(served: Mapping[str, Mapping[int, float]], generation: chips.Generation) -> Iterator[Reading]:
    """Yield what the runtime's metrics, each by device, are under our tags."""
    attributes = {"hw.name": f"TPU {generation.name}"} if generation.name else {}
    used, total = served.get(_USED, {}), served.get(_TOTAL, {})
    for device in sorted(used):
        yield Reading(tpu.MEMORY_USAGE, _share_of(used[device], total.get(device)), {"tpu": device}, attributes)
    for spec, name in _SERVED:
        rows = served.get(name, {})
        if spec is tpu.DUTY_CYCLE:
            rows = _by_device(rows, len({*used, *total}), generation.devices_per_duty)
        for device, value in sorted(rows.items()):
            yield Reading(spec, _sane(spec, value), {"tpu": device}, attributes)


def _by_device(duty: Mapping[int, float], devices: int, per_row: int) -> Mapping[int, float]:
    """Give a chip's duty cycle to each of its cores, where the rows are fewer than the devices."""
    if per_row == 1 or devices == len(duty):
        return duty
    return {chip * per_row + core: value for chip, value in duty.items() for core in range(per_row)}


def _ask(port: int) -> Served | None:
    """Return what is served on a port, None where nobody does; one metric that fails costs itself."""
    if not _answers(port):
        return None
    service = Service(port)
    try:
        return _ask_all(service)
    except Down:
        return None
    finally:
        service.close()


def _ask_all(service: Service) -> Served | None:
    try:
        names = service.supported()
    except (Refused, Malformed):
        names = frozenset(name for _, name in _SERVED)
    found: Served = {}
    for name in (name for _, name in _SERVED if name in names):
        try:
            found[name] = service.values(name)
        except (Refused, Malformed):
            continue
    return found


def _answers(port: int) -> bool:
    """Tell whether anybody listens on a port of this host; gRPC would go on trying in threads of its own."""
    try:
        socket.create_connection(("127.0.0.1", port), _CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


def _ports_of_google() -> tuple[int, ...] | None:
    try:
        return values.ports(tpu_ports()) or None
    except values.Unreadable:
        return None


def _share_of(used: float, total: float | None) -> float | None:
    if total is None or total <= 0 or not 0 <= used <= total:
        return None
    return used / total * _FULL


def _sane(spec: MetricSpec, value: float) -> float | None:
    found = sane_value(value)
    if found is None or found < 0 or (spec.unit == "%" and found > _FULL):
        return None
    return found
