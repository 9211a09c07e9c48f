"""AMD GPUs, as rocm-smi, amd-smi or the amdgpu driver's files report them."""

from otel_sysmetrics.collectors.amd.collector import parts

__all__ = ["parts"]
