"""What was found, in words, for `doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from otel_sysmetrics.collectors.nvidia import calls
from otel_sysmetrics.collectors.nvidia.nvml import CallFailed

if TYPE_CHECKING:
    from otel_sysmetrics.collectors.nvidia.device import Device
    from otel_sysmetrics.collectors.nvidia.nvml import Call, Nvml

Answer = TypeVar("Answer")


def about_driver(nvml: Nvml) -> str:
    """Name the driver and the CUDA version that it brings."""
    number = _first(nvml, *calls.CUDA)
    cuda = f"{number // 1000}.{number % 1000 // 10}" if number else "of unknown version"
    return f"driver {_first(nvml, calls.DRIVER) or 'of unknown version'}, CUDA {cuda}"


def about(device: Device) -> str:
    """Name a GPU, and say whether it is divided by MIG and has GPM; raises CallFailed where it is gone."""
    words = [device.name or "of unknown name"]
    if device.uuid:
        words.append(device.uuid)
    if device.instances.enabled:
        words.append(f"MIG with {sum(1 for _ in device.instances.read())} instances")
    words.append("GPM" if device.gpm.supported else "no GPM")
    return ", ".join(words)


def _first(nvml: Nvml, *questions: Call[Answer]) -> Answer | None:
    for question in questions:
        try:
            return nvml.call(question)
        except CallFailed:
            continue
    return None
