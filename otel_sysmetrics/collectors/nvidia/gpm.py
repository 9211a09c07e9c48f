"""GPM, what Hopper and later GPUs count themselves, over the whole time between two samples.

https://docs.nvidia.com/deploy/nvml-api/group__nvmlGpmFunctions.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_sysmetrics.catalog import gpu
from otel_sysmetrics.collectors.nvidia import calls
from otel_sysmetrics.collectors.nvidia.nvml import CallFailed
from otel_sysmetrics.collectors.nvidia.queries import sane

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_sysmetrics.collectors.nvidia.target import Target
    from otel_sysmetrics.spec import MetricSpec

_MIB: Final = float(1 << 20)
_SHORTEST: Final = 0.1
"""Seconds that must lie between two samples."""

METRICS: Final[tuple[tuple[MetricSpec, int, float], ...]] = (
    (gpu.SM_ACTIVE, 2, 1),
    (gpu.SM_OCCUPANCY, 3, 1),
    (gpu.PIPE_TENSOR_ACTIVE, 5, 1),
    (gpu.PIPE_TENSOR_HMMA_ACTIVE, 7, 1),
    (gpu.DRAM_ACTIVE, 10, 1),
    (gpu.PIPE_FP64_ACTIVE, 11, 1),
    (gpu.PIPE_FP32_ACTIVE, 12, 1),
    (gpu.PIPE_FP16_ACTIVE, 13, 1),
    (gpu.PCIE_SENT, 20, _MIB),
    (gpu.PCIE_RECEIVED, 21, _MIB),
    (gpu.NVLINK_RECEIVED, 60, _MIB),
    (gpu.NVLINK_SENT, 61, _MIB),
)
"""Spec, GPM's number for it, and the factor: GPM gives shares in percent and rates in MiB/s."""
SPECS: Final = tuple(spec for spec, _, _ in METRICS)
_NUMBERS: Final = tuple(number for _, number, _ in METRICS)


class Gpm:
    """The samples of one GPU: the last one, and a buffer for the next."""

    def __init__(self, target: Target, clock: Callable[[], float]) -> None:
        self._target = target
        self._clock = clock
        self._before: object | None = None
        self._taken = 0.0
        self._spare: object | None = None

    @property
    def supported(self) -> bool:
        """Whether the GPU has GPM; raises CallFailed where the GPU or NVML is gone."""
        has = self._before is not None or bool(self._target.ask(calls.GPM_SUPPORT))
        return has and self._target.supports(calls.GPM_SAMPLE)

    def answers(self) -> list[tuple[MetricSpec, float]]:
        """Take a sample and return what happened since the last one; the first gives nothing."""
        now = self._clock()
        if self._before is not None and now - self._taken < _SHORTEST:
            return []
        sample = self._sample()
        if sample is None:
            return []
        before, self._before, self._taken = self._before, sample, now
        self._spare = before
        return [] if before is None else self._between(before, sample)

    def free(self) -> None:
        """Give the buffers back."""
        buffers, self._before, self._spare = (self._before, self._spare), None, None
        for buffer in buffers:
            if buffer is not None:
                try:
                    self._target.nvml.call(calls.GPM_FREE, buffer)
                except CallFailed:
                    return

    def _sample(self) -> object | None:
        try:
            buffer = self._spare or self._target.nvml.call(calls.GPM_ALLOCATE)
        except CallFailed:
            return None
        # Kept before it is filled, so that a device that is lost here costs no buffer.
        self._spare = buffer
        handle = self._target.handle
        try:
            self._target.nvml.call(calls.GPM_SAMPLE, handle, buffer)
        except CallFailed as failure:
            self._target.note(calls.GPM_SAMPLE, failure)
            return None
        return buffer

    def _between(self, before: object, after: object) -> list[tuple[MetricSpec, float]]:
        try:
            values = self._target.nvml.gpm(before, after, _NUMBERS)
        except CallFailed:
            return []
        return [
            (spec, known)
            for (spec, _, factor), value in zip(METRICS, values, strict=True)
            if value is not None and (known := sane(spec, value * factor)) is not None
        ]
