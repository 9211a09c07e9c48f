"""What is measured of GPUs, of any vendor: one row per tag."""

from functools import partial
from typing import Final

from otel_sysmetrics.spec import Fold, Kind, MetricSpec, Scope

_device: Final = partial(
    MetricSpec,
    collectors=("nvidia", "openmetrics"),
    labels=(("gpu", "gpu.index"),),
    attributes=("hw.id", "hw.name", "host.name"),  # the node, where a dcgm-exporter shows it
)
_POWERED: Final = ("nvidia", "amd", "openmetrics")
_EVERY: Final = ("nvidia", "amd", "apple", "openmetrics")
_own: Final = partial(_device, collectors=("nvidia",), attributes=("hw.id", "hw.name"))
_amd: Final = partial(_own, collectors=("amd",))
_process: Final = partial(_own, scope=Scope.PROCESS)
_instance: Final = partial(_device, labels=(("gpu", "gpu.index"), ("mig", "gpu.mig.id")))

UTILIZATION: Final = _device(
    tag="gpu.{gpu}.gpu",
    collectors=_EVERY,
    unit="%",
    brief="Share of time in which a kernel ran.",
)
MEMORY: Final = _device(
    tag="gpu.{gpu}.memory",
    unit="%",
    brief="Share of time in which the memory controller was busy.",
)
MEMORY_ALLOCATED: Final = _device(
    tag="gpu.{gpu}.memoryAllocated",
    collectors=_EVERY,
    unit="%",
    brief="Device memory in use, as a share of all of it.",
)
MEMORY_ALLOCATED_BYTES: Final = _device(
    tag="gpu.{gpu}.memoryAllocatedBytes",
    collectors=_EVERY,
    unit="By",
    brief="Device memory in use.",
)
TEMPERATURE: Final = _device(
    tag="gpu.{gpu}.temp",
    collectors=_EVERY,
    attributes=("hw.id", "hw.name", "hw.sensor_location", "host.name"),
    unit="Cel",
    brief="Temperature of the GPU.",
)
POWER: Final = _device(
    tag="gpu.{gpu}.powerWatts",
    collectors=_EVERY,
    unit="W",
    brief="Power drawn.",
)
POWER_LIMIT: Final = _device(
    tag="gpu.{gpu}.enforcedPowerLimitWatts",
    collectors=_POWERED,
    unit="W",
    brief="Power limit in force.",
    fold=Fold.LAST,
)
POWER_PERCENT: Final = _device(
    tag="gpu.{gpu}.powerPercent",
    collectors=_EVERY,
    unit="%",
    brief="Power drawn, as a share of the limit in force.",
)
ENERGY: Final = _device(
    tag="gpu.{gpu}.energyJoules",
    collectors=_POWERED,
    unit="J",
    brief="Energy used since start.",
    kind=Kind.COUNTER,
)
SM_CLOCK: Final = _device(
    tag="gpu.{gpu}.smClock",
    unit="MHz",
    brief="Clock of the streaming multiprocessors.",
)
MEMORY_CLOCK: Final = _device(
    tag="gpu.{gpu}.memoryClock",
    unit="MHz",
    brief="Clock of the memory.",
)
GRAPHICS_CLOCK: Final = _own(
    tag="gpu.{gpu}.graphicsClock",
    unit="MHz",
    brief="Clock of the graphics engine.",
)
CORRECTED_ERRORS: Final = _device(
    tag="gpu.{gpu}.correctedMemoryErrors",
    unit="{error}",
    brief="Corrected ECC errors of the device memory since the driver was loaded.",
)
UNCORRECTED_ERRORS: Final = _device(
    tag="gpu.{gpu}.unCorrectedMemoryErrors",
    unit="{error}",
    brief="Uncorrected ECC errors of the device memory since the driver was loaded.",
)
ENCODER: Final = _device(
    tag="gpu.{gpu}.encoderUtilization",
    unit="%",
    brief="Busy share of the video encoder.",
)
FAN_SPEED: Final = _device(
    tag="gpu.{gpu}.fanSpeed",
    unit="%",
    brief="Speed of the fastest fan, as a share of its maximum, which it may pass.",
)
SM_ACTIVE: Final = _device(
    tag="gpu.{gpu}.smActive",
    unit="%",
    brief="Share of time in which a multiprocessor had a warp assigned, over all of them.",
)
SM_OCCUPANCY: Final = _device(
    tag="gpu.{gpu}.smOccupancy",
    unit="%",
    brief="Resident warps, as a share of what the multiprocessors can hold.",
)
DRAM_ACTIVE: Final = _device(
    tag="gpu.{gpu}.dramActive",
    unit="%",
    brief="Memory bandwidth in use, as a share of all of it.",
)
PIPE_TENSOR_ACTIVE: Final = _device(
    tag="gpu.{gpu}.pipeTensorActive",
    unit="%",
    brief="Busy share of the tensor pipes.",
)
PIPE_TENSOR_HMMA_ACTIVE: Final = _device(
    tag="gpu.{gpu}.pipeTensorHmmaActive",
    unit="%",
    brief="Busy share of the tensor pipes with HMMA instructions.",
)
PIPE_FP64_ACTIVE: Final = _device(
    tag="gpu.{gpu}.pipeFp64Active",
    unit="%",
    brief="Busy share of the FP64 pipes.",
)
PIPE_FP32_ACTIVE: Final = _device(
    tag="gpu.{gpu}.pipeFp32Active",
    unit="%",
    brief="Busy share of the FP32 pipes.",
)
PIPE_FP16_ACTIVE: Final = _device(
    tag="gpu.{gpu}.pipeFp16Active",
    unit="%",
    brief="Busy share of the FP16 pipes.",
)
# On, but read without GPM only where a pattern of the user's asks for them: each such read blocks for 20 ms.
PCIE_SENT: Final = _device(
    tag="gpu.{gpu}.pcieTxBytes",
    unit="By/s",
    brief="Bytes that the GPU sent over PCIe.",
)
PCIE_RECEIVED: Final = _device(
    tag="gpu.{gpu}.pcieRxBytes",
    unit="By/s",
    brief="Bytes that the GPU received over PCIe.",
)
NVLINK_SENT: Final = _device(
    tag="gpu.{gpu}.nvlinkTxBytes",
    unit="By/s",
    brief="Bytes that the GPU sent over all NVLinks.",
)
NVLINK_RECEIVED: Final = _device(
    tag="gpu.{gpu}.nvlinkRxBytes",
    unit="By/s",
    brief="Bytes that the GPU received over all NVLinks.",
)
PCIE_GENERATION: Final = _own(
    tag="gpu.{gpu}.pcieLinkGen",
    unit="{generation}",
    brief="Generation that the PCIe link runs at.",
    on=False,
)
PCIE_WIDTH: Final = _own(
    tag="gpu.{gpu}.pcieLinkWidth",
    unit="{lane}",
    brief="Lanes that the PCIe link uses.",
    on=False,
)
PCIE_SPEED: Final = _own(
    tag="gpu.{gpu}.pcieLinkSpeed",
    unit="bit/s",
    brief="Speed of one lane of the PCIe link.",
    on=False,
    fold=Fold.LAST,
)
MAX_PCIE_GENERATION: Final = _own(
    tag="gpu.{gpu}.maxPcieLinkGen",
    unit="{generation}",
    brief="Highest generation that the PCIe link can run at.",
    on=False,
)
MAX_PCIE_WIDTH: Final = _own(
    tag="gpu.{gpu}.maxPcieLinkWidth",
    unit="{lane}",
    brief="Most lanes that the PCIe link can use.",
    on=False,
)
INSTANCE_MEMORY_ALLOCATED: Final = _instance(
    tag="gpu.{gpu}.mig.{mig}.memoryAllocated",
    unit="%",
    brief="Memory of a MIG instance in use, as a share of all of it.",
)
INSTANCE_MEMORY_ALLOCATED_BYTES: Final = _instance(
    tag="gpu.{gpu}.mig.{mig}.memoryAllocatedBytes",
    unit="By",
    brief="Memory of a MIG instance in use.",
)
PROCESS_UTILIZATION: Final = _process(
    tag="gpu.process.{gpu}.gpu",
    unit="%",
    brief="The device's share of time in which a kernel ran, while the watched process or a descendant uses it.",
)
PROCESS_MEMORY: Final = _process(
    tag="gpu.process.{gpu}.memory",
    unit="%",
    brief="The device's busy memory controller, while the watched process or a descendant uses it.",
)
PROCESS_MEMORY_ALLOCATED: Final = _process(
    tag="gpu.process.{gpu}.memoryAllocated",
    unit="%",
    brief="The device's memory in use by anyone, while the watched process or a descendant uses it.",
)
PROCESS_MEMORY_ALLOCATED_BYTES: Final = _process(
    tag="gpu.process.{gpu}.memoryAllocatedBytes",
    unit="By",
    brief="The device's memory in use by anyone, while the watched process or a descendant uses it.",
)
PROCESS_TEMPERATURE: Final = _process(
    tag="gpu.process.{gpu}.temp",
    unit="Cel",
    brief="The device's temperature, while the watched process or a descendant uses it.",
)
PROCESS_POWER: Final = _process(
    tag="gpu.process.{gpu}.powerWatts",
    unit="W",
    brief="The device's power, while the watched process or a descendant uses it.",
)
PROCESS_POWER_LIMIT: Final = _process(
    tag="gpu.process.{gpu}.enforcedPowerLimitWatts",
    unit="W",
    brief="The device's power limit, while the watched process or a descendant uses it.",
    fold=Fold.LAST,
)
PROCESS_POWER_PERCENT: Final = _process(
    tag="gpu.process.{gpu}.powerPercent",
    unit="%",
    brief="The device's power as a share of its limit, while the watched process or a descendant uses it.",
)
PROCESS_HELD_BYTES: Final = _process(
    tag="gpu.process.{gpu}.processMemoryBytes",
    unit="By",
    brief="Device memory that the watched process and its descendants themselves hold.",
)
READ_WRITE_ACTIVITY: Final = _amd(
    tag="gpu.{gpu}.memoryReadWriteActivity",
    unit="%",
    brief="Share of time in which the memory was read or written.",
)
OVERDRIVE: Final = _amd(
    tag="gpu.{gpu}.memoryOverDrive",
    unit="%",
    brief="How far the memory clock may go above its default.",
    on=False,
)
