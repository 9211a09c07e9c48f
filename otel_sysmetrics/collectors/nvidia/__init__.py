"""NVIDIA GPUs, read through NVML in this process."""

from otel_sysmetrics.collectors.nvidia.collector import parts

__all__ = ["parts"]
