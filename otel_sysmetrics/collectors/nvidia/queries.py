"""What a GPU is asked in each sample, as a table, and what its answers may be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from otel_sysmetrics.catalog import gpu
from otel_sysmetrics.collectors.nvidia import calls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from otel_sysmetrics.collectors.nvidia.calls import Memory
    from otel_sysmetrics.collectors.nvidia.nvml import Call
    from otel_sysmetrics.collectors.nvidia.target import Target
    from otel_sysmetrics.spec import MetricSpec

    Value = float | None
    Values = tuple[Value, ...]


class Query(NamedTuple):
    """Specs that are answered together, and how: one value for each, None where there is none."""

    specs: tuple[MetricSpec, ...]
    ask: Callable[[Target], Values]


def memory(target: Target) -> Values:
    """Return the used share in percent and the used bytes of a GPU or a MIG instance."""
    newer, older = calls.MEMORY
    answer: Memory | None = target.ask(newer)
    if answer is None and target.lacks(newer):
        answer = target.ask(older)
    return (None, None) if answer is None else (100 * answer.used / answer.total, answer.used)


def _load(target: Target) -> Values:
    busy, (share, used) = target.ask(calls.UTILIZATION), memory(target)
    if busy is None:
        return None, None, share, used
    # Without memory of its own the 0 of a GPU (GB10, Thor) is no measurement: its controller is the CPU's.
    own = used is not None or bool(busy.memory)
    return busy.gpu, busy.memory if own else None, share, used


def _power(target: Target) -> Values:
    power = sane(gpu.POWER, _scaled(target.ask(calls.POWER), 0.001))
    limit = sane(gpu.POWER_LIMIT, _scaled(target.ask(calls.POWER_LIMIT), 0.001))
    return power, limit, 100 * power / limit if power and limit else None


def _fans(target: Target) -> Values:
    count = target.ask(calls.FANS)
    if count is None:
        return (target.ask(calls.FAN_SPEED),)
    asked = (sane(gpu.FAN_SPEED, target.ask(calls.fan_speed(fan))) for fan in range(count))
    return (max((speed for speed in asked if speed is not None), default=None),)


def _temperature(target: Target) -> Values:
    newer, older = calls.TEMPERATURE
    answer = target.ask(newer)
    # Some drivers have the newer function and fail in it; a GPU that is lost is not asked more than it must be.
    return (target.ask(older) if answer is None and target.loss is None else answer,)


def _one(call: Call[int | None], scale: float | None = None) -> Callable[[Target], Values]:
    if scale is None:
        return lambda target: (target.ask(call),)
    return lambda target: (_scaled(target.ask(call), scale),)


def _scaled(value: Value, scale: float) -> Value:
    return None if value is None else value * scale


QUERIES: Final = (
    Query((gpu.UTILIZATION, gpu.MEMORY, gpu.MEMORY_ALLOCATED, gpu.MEMORY_ALLOCATED_BYTES), _load),
    Query((gpu.TEMPERATURE,), _temperature),
    Query((gpu.POWER, gpu.POWER_LIMIT, gpu.POWER_PERCENT), _power),
    Query((gpu.ENERGY,), _one(calls.ENERGY, 0.001)),
    Query((gpu.SM_CLOCK,), _one(calls.SM_CLOCK)),
    Query((gpu.MEMORY_CLOCK,), _one(calls.MEMORY_CLOCK)),
    Query((gpu.GRAPHICS_CLOCK,), _one(calls.GRAPHICS_CLOCK)),
    Query((gpu.CORRECTED_ERRORS,), _one(calls.CORRECTED_ERRORS)),
    Query((gpu.UNCORRECTED_ERRORS,), _one(calls.UNCORRECTED_ERRORS)),
    Query((gpu.ENCODER,), _one(calls.ENCODER)),
    Query((gpu.FAN_SPEED,), _fans),
    Query((gpu.PCIE_GENERATION,), _one(calls.PCIE_GENERATION)),
    Query((gpu.PCIE_WIDTH,), _one(calls.PCIE_WIDTH)),
    Query((gpu.PCIE_SPEED,), _one(calls.PCIE_SPEED, 1e6)),
    Query((gpu.MAX_PCIE_GENERATION,), _one(calls.MAX_PCIE_GENERATION)),
    Query((gpu.MAX_PCIE_WIDTH,), _one(calls.MAX_PCIE_WIDTH)),
)

# For GPUs without GPM; each blocks for 20 ms. In units of 1024 bytes per second.
BLOCKING: Final = (
    Query((gpu.PCIE_SENT,), _one(calls.PCIE_SENT, 1024)),
    Query((gpu.PCIE_RECEIVED,), _one(calls.PCIE_RECEIVED, 1024)),
)

COPIES: Final[Mapping[str, MetricSpec]] = {
    gpu.UTILIZATION.tag: gpu.PROCESS_UTILIZATION,
    gpu.MEMORY.tag: gpu.PROCESS_MEMORY,
    gpu.MEMORY_ALLOCATED.tag: gpu.PROCESS_MEMORY_ALLOCATED,
    gpu.MEMORY_ALLOCATED_BYTES.tag: gpu.PROCESS_MEMORY_ALLOCATED_BYTES,
    gpu.TEMPERATURE.tag: gpu.PROCESS_TEMPERATURE,
    gpu.POWER.tag: gpu.PROCESS_POWER,
    gpu.POWER_LIMIT.tag: gpu.PROCESS_POWER_LIMIT,
    gpu.POWER_PERCENT.tag: gpu.PROCESS_POWER_PERCENT,
}
"""What is sent of the device while the watched process uses it, by the tag of the original."""

# The least and the most that a reading can be, by unit. A GPU that runs draws power and has a clock, an idle one less
# of each, so a 0 there is an answer of a driver that does not know.
_LIMITS: Final[Mapping[str, tuple[float, float]]] = {
    "%": (0, 100),
    "Cel": (-50, 200),
    "W": (0.001, 100_000),
    "MHz": (1, 100_000),
    "J": (0.001, float(1 << 63)),
    "{generation}": (1, 100),
    "{lane}": (1, 1000),
}
_UNLIMITED: Final = (0, float(1 << 63))
# Shares that may pass 100.
_MAY_PASS: Final[Mapping[str, tuple[float, float]]] = {gpu.FAN_SPEED.tag: (0, 1000), gpu.POWER_PERCENT.tag: _UNLIMITED}


def sane(spec: MetricSpec, value: Value) -> Value:
    """Return the value where it can be one."""
    if value is None:
        return None
    least, most = _MAY_PASS.get(spec.tag) or _LIMITS.get(spec.unit, _UNLIMITED)
    return value if least <= value <= most else None


def answers(target: Target, queries: Iterable[Query]) -> list[tuple[MetricSpec, float]]:
    """Ask a device and return what it said; raises CallFailed where the device or NVML is gone."""
    return [
        (spec, known)
        for query in queries
        for spec, value in zip(query.specs, query.ask(target), strict=True)
        if (known := sane(spec, value)) is not None
    ]


def hollow(values: Iterable[tuple[MetricSpec, float]]) -> bool:
    """Tell whether a device answers with nothing but zeros, its temperature too.

    Integrated GPUs under some drivers do so (https://github.com/wentbackward/nv-monitor/pull/17).
    """
    tags = set()
    for spec, value in values:
        if value:
            return False
        tags.add(spec.tag)
    return gpu.TEMPERATURE.tag in tags
