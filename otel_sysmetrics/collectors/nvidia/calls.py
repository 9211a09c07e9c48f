"""Every question that is put to NVML, and how its answer is read.

https://docs.nvidia.com/deploy/nvml-api/ has the functions; the binding raises what they return as an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from otel_sysmetrics.collectors.nvidia.nvml import Call, CallFailed, NotOnThisDevice, Nvml, Outcome

# NVML_VALUE_NOT_AVAILABLE is -1 in whatever width the answer has.
_NOTHING: Final = frozenset({-1, 0xFFFF_FFFF, 0xFFFF_FFFF_FFFF_FFFF})
_MAX: Final = 1 << 63
_MANY: Final = 4096  # of what is counted, more is garbage


@dataclass(frozen=True, slots=True)
class Busy:
    """Busy shares of the GPU and of its memory controller, in percent."""

    gpu: int | None
    memory: int | None


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory in bytes."""

    used: int
    total: int


@dataclass(frozen=True, slots=True)
class Holding:
    """A process on a GPU, where it is (which MIG instances), and the bytes that it holds, None where unknown."""

    pid: int
    place: tuple[int, int]
    held: int | None


def _same(answer: object) -> object:
    return answer


def _nothing(_: object) -> None:
    return None


def _number(answer: Any) -> int | None:  # noqa: ANN401 - what the binding returns has no types
    number = int(answer)
    return None if number in _NOTHING or not -_MAX <= number < _MAX else number


def _count(answer: Any) -> int:  # noqa: ANN401
    count = int(answer)
    if not 0 <= count <= _MANY:
        raise ValueError(f"a count of {count}")
    return count


def _first(answer: Any) -> int | None:  # noqa: ANN401
    return _number(answer[0])


def _text(answer: Any) -> str | None:  # noqa: ANN401
    # Bytes up to nvidia-ml-py 11.450 (https://github.com/rossumai/nvgpu/issues/29).
    text = answer.decode("utf-8", "replace") if isinstance(answer, bytes) else str(answer)
    return text.strip() or None


def _busy(answer: Any) -> Busy:  # noqa: ANN401
    return Busy(_number(answer.gpu), _number(answer.memory))


def _memory(answer: Any) -> Memory | None:  # noqa: ANN401
    used, total = int(answer.used), int(answer.total)
    # Unified memory is answered with zeros by some drivers (https://github.com/wookayin/gpustat/pull/179).
    return Memory(used, total) if 0 < total < _MAX and 0 <= used <= total else None


def _address(answer: Any) -> str:  # noqa: ANN401
    return f"{answer.domain:04x}:{answer.bus:02x}:{answer.device:02x}.0"


def _supported(answer: Any) -> bool:  # noqa: ANN401
    if not answer.isSupportedDevice:
        raise NotOnThisDevice
    return True


def _holdings(answer: Any) -> tuple[Holding, ...]:  # noqa: ANN401
    return tuple(
        Holding(
            int(process.pid),
            (getattr(process, "gpuInstanceId", 0), getattr(process, "computeInstanceId", 0)),
            None if process.usedGpuMemory is None else _number(process.usedGpuMemory),
        )
        for process in answer
    )


INIT: Final = Call("nvmlInit", _nothing)
SHUTDOWN: Final = Call("nvmlShutdown", _nothing)
COUNT: Final = Call("nvmlDeviceGetCount", _count)
HANDLE: Final = Call("nvmlDeviceGetHandleByIndex", _same)
DRIVER: Final = Call("nvmlSystemGetDriverVersion", _text)
CUDA: Final = (
    Call("nvmlSystemGetCudaDriverVersion_v2", _number),
    Call("nvmlSystemGetCudaDriverVersion", _number),
)

NAME: Final = Call("nvmlDeviceGetName", _text)
UUID: Final = Call("nvmlDeviceGetUUID", _text)
PCI: Final = Call("nvmlDeviceGetPciInfo", _address)

UTILIZATION: Final = Call("nvmlDeviceGetUtilizationRates", _busy)
# What version 2 counts as reserved by the driver, version 1 counts as used.
MEMORY: Final = (
    Call("nvmlDeviceGetMemoryInfo", _memory, (0x0200_0028,)),
    Call("nvmlDeviceGetMemoryInfo", _memory),
)
# The older one leaves with CUDA 14.
TEMPERATURE: Final = (
    Call("nvmlDeviceGetTemperatureV", _number, (0,)),
    Call("nvmlDeviceGetTemperature", _number, (0,)),
)
POWER: Final = Call("nvmlDeviceGetPowerUsage", _number)
POWER_LIMIT: Final = Call("nvmlDeviceGetEnforcedPowerLimit", _number)
ENERGY: Final = Call("nvmlDeviceGetTotalEnergyConsumption", _number)
GRAPHICS_CLOCK: Final = Call("nvmlDeviceGetClockInfo", _number, (0,))
SM_CLOCK: Final = Call("nvmlDeviceGetClockInfo", _number, (1,))
MEMORY_CLOCK: Final = Call("nvmlDeviceGetClockInfo", _number, (2,))
# Kind of error, since the driver was loaded, in device memory.
CORRECTED_ERRORS: Final = Call("nvmlDeviceGetMemoryErrorCounter", _number, (0, 0, 2))
UNCORRECTED_ERRORS: Final = Call("nvmlDeviceGetMemoryErrorCounter", _number, (1, 0, 2))
ENCODER: Final = Call("nvmlDeviceGetEncoderUtilization", _first)
FANS: Final = Call("nvmlDeviceGetNumFans", _count)
FAN_SPEED: Final = Call("nvmlDeviceGetFanSpeed", _number)
PCIE_SENT: Final = Call("nvmlDeviceGetPcieThroughput", _number, (0,))
PCIE_RECEIVED: Final = Call("nvmlDeviceGetPcieThroughput", _number, (1,))
PCIE_GENERATION: Final = Call("nvmlDeviceGetCurrPcieLinkGeneration", _number)
PCIE_WIDTH: Final = Call("nvmlDeviceGetCurrPcieLinkWidth", _number)
PCIE_SPEED: Final = Call("nvmlDeviceGetPcieSpeed", _number)
MAX_PCIE_GENERATION: Final = Call("nvmlDeviceGetMaxPcieLinkGeneration", _number)
MAX_PCIE_WIDTH: Final = Call("nvmlDeviceGetMaxPcieLinkWidth", _number)

# Without a version the binding raises where the driver has not the newest one.
COMPUTE: Final = tuple(
    Call(f"nvmlDeviceGetComputeRunningProcesses{version}", _holdings) for version in ("_v3", "_v2", "")
)
GRAPHICS: Final = tuple(
    Call(f"nvmlDeviceGetGraphicsRunningProcesses{version}", _holdings) for version in ("_v3", "_v2", "")
)
MPS: Final = tuple(
    Call(f"nvmlDeviceGetMPSComputeRunningProcesses{version}", _holdings) for version in ("_v3", "_v2", "")
)

MIG_MODE: Final = Call("nvmlDeviceGetMigMode", _first)
MIG_SLOTS: Final = Call("nvmlDeviceGetMaxMigDeviceCount", _count)
MIG_HANDLE: Final = Call("nvmlDeviceGetMigDeviceHandleByIndex", _same)
MIG_ID: Final = Call("nvmlDeviceGetGpuInstanceId", _number)

GPM_SUPPORT: Final = Call("nvmlGpmQueryDeviceSupport", _supported)
GPM_ALLOCATE: Final = Call("nvmlGpmSampleAlloc", _same)
GPM_SAMPLE: Final = Call("nvmlGpmSampleGet", _nothing)
GPM_FREE: Final = Call("nvmlGpmSampleFree", _nothing)


def closed(nvml: Nvml, failure: CallFailed) -> bool:
    """Tell whether a failed call means that NVML is not open any more.

    Where it was opened anew for such an answer already, and still counts its devices, the answer is that one call's.
    """
    if failure.outcome is not Outcome.CLOSED or not nvml.reopened:
        return failure.outcome is Outcome.CLOSED
    try:
        nvml.call(COUNT)
    except CallFailed as other:
        return other.outcome is Outcome.CLOSED
    return False


@cache
def fan_speed(fan: int) -> Call[int | None]:
    """Return the question for the speed of one of several fans."""
    return Call("nvmlDeviceGetFanSpeed_v2", _number, (fan,))
