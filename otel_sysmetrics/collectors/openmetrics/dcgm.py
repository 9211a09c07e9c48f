"""DCGM's fields as the tags of a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from otel_sysmetrics.catalog import gpu

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from otel_sysmetrics.spec import MetricSpec


class Row(NamedTuple):
    """A tag: the fields that can give it, the first of which counts, and what their value is multiplied by."""

    spec: MetricSpec
    fields: tuple[str, ...]
    factor: float = 1


_ROWS: Final = (
    Row(gpu.TEMPERATURE, ("DEV_GPU_TEMP",)),
    Row(gpu.POWER, ("DEV_POWER_USAGE",)),
    Row(gpu.POWER_LIMIT, ("DEV_ENFORCED_POWER_LIMIT", "DEV_POWER_MGMT_LIMIT")),
    Row(gpu.UTILIZATION, ("DEV_GPU_UTIL",)),
    Row(gpu.MEMORY, ("DEV_MEM_COPY_UTIL",)),
    Row(gpu.SM_CLOCK, ("DEV_SM_CLOCK",)),
    Row(gpu.MEMORY_CLOCK, ("DEV_MEM_CLOCK",)),
    Row(gpu.ENCODER, ("DEV_ENC_UTIL",)),
    Row(gpu.FAN_SPEED, ("DEV_FAN_SPEED",)),
    Row(gpu.MEMORY_ALLOCATED_BYTES, ("DEV_FB_USED",), 2**20),
    Row(gpu.ENERGY, ("DEV_TOTAL_ENERGY_CONSUMPTION",), 1e-3),
    Row(gpu.CORRECTED_ERRORS, ("DEV_ECC_SBE_VOL_TOTAL",)),
    Row(gpu.UNCORRECTED_ERRORS, ("DEV_ECC_DBE_VOL_TOTAL",)),
    Row(gpu.SM_ACTIVE, ("PROF_SM_ACTIVE",), 100),
    Row(gpu.SM_OCCUPANCY, ("PROF_SM_OCCUPANCY",), 100),
    Row(gpu.DRAM_ACTIVE, ("PROF_DRAM_ACTIVE",), 100),
    Row(gpu.PIPE_TENSOR_ACTIVE, ("PROF_PIPE_TENSOR_ACTIVE",), 100),
    Row(gpu.PIPE_FP64_ACTIVE, ("PROF_PIPE_FP64_ACTIVE",), 100),
    Row(gpu.PIPE_FP32_ACTIVE, ("PROF_PIPE_FP32_ACTIVE",), 100),
    Row(gpu.PIPE_FP16_ACTIVE, ("PROF_PIPE_FP16_ACTIVE",), 100),
    Row(gpu.PIPE_TENSOR_HMMA_ACTIVE, ("PROF_PIPE_TENSOR_HMMA_ACTIVE",), 100),
    Row(gpu.PCIE_SENT, ("PROF_PCIE_TX_BYTES",)),
    Row(gpu.PCIE_RECEIVED, ("PROF_PCIE_RX_BYTES",)),
    Row(gpu.NVLINK_SENT, ("PROF_NVLINK_TX_BYTES",)),
    Row(gpu.NVLINK_RECEIVED, ("PROF_NVLINK_RX_BYTES",)),
)
_INSTANCE_ROWS: Final = (Row(gpu.INSTANCE_MEMORY_ALLOCATED_BYTES, ("DEV_FB_USED",), 2**20),)
_TOTAL: Final = "DEV_FB_TOTAL"
_TOTAL_PARTS: Final = ("DEV_FB_USED", "DEV_FB_FREE", "DEV_FB_RESERVED")

PREFIX: Final = "DCGM_FI_"
FIELDS: Final = frozenset(
    PREFIX + field for field in (_TOTAL, *_TOTAL_PARTS, *(field for row in _ROWS for field in row.fields))
)
SPECS: Final = (
    *(row.spec for row in (*_ROWS, *_INSTANCE_ROWS)),
    gpu.POWER_PERCENT,
    gpu.MEMORY_ALLOCATED,
    gpu.INSTANCE_MEMORY_ALLOCATED,
)

_POSSIBLE: Final = {"%": (0.0, 100.0), "Cel": (-50.0, 200.0), "W": (0.0, 100_000.0)}
_COUNTABLE: Final = (0.0, float(2**62))


def values(fields: Mapping[str, float], *, instance: bool) -> Iterator[tuple[MetricSpec, float | None]]:
    """Yield the tags of a GPU, or of a MIG instance, from DCGM's fields without their prefix."""
    found: dict[MetricSpec, float | None] = {}
    for row in _INSTANCE_ROWS if instance else _ROWS:
        value = next((fields[field] for field in row.fields if field in fields), None)
        found[row.spec] = _possible(row.spec, None if value is None else value * row.factor)
    yield from found.items()
    share = gpu.INSTANCE_MEMORY_ALLOCATED if instance else gpu.MEMORY_ALLOCATED
    yield share, _possible(share, _share(fields.get("DEV_FB_USED"), _total(fields)))
    if not instance:
        power = _share(found[gpu.POWER], found[gpu.POWER_LIMIT])
        yield gpu.POWER_PERCENT, power


def _total(fields: Mapping[str, float]) -> float | None:
    """Return the memory of a GPU: the default set of dcgm-exporter has only its parts, and old ones no reserve."""
    if _TOTAL in fields:
        return fields[_TOTAL]
    if "DEV_FB_USED" not in fields or "DEV_FB_FREE" not in fields:
        return None
    return sum(fields.get(part, 0.0) for part in _TOTAL_PARTS)


def _share(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole or whole < 0 else part / whole * 100


def _possible(spec: MetricSpec, value: float | None) -> float | None:
    """Return what a GPU can show, None for what it cannot: DCGM is off by millions once in a while.

    https://github.com/NVIDIA/dcgm-exporter/issues/418; a fan may pass its maximum.
    """
    low, high = _POSSIBLE.get(spec.unit, _COUNTABLE) if spec is not gpu.FAN_SPEED else (0.0, 1000.0)
    return value if value is not None and low <= value <= high else None
