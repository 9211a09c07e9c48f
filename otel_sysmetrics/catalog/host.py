"""What is measured of the host and of the watched process: one row per tag."""

from typing import Final

from otel_sysmetrics.spec import Kind, MetricSpec, Scope

CPU: Final = MetricSpec(
    tag="cpu",
    unit="%",
    brief="CPU time of the watched process over the window, as a share of the CPUs that it may use.",
    collectors=("cpu",),
    scope=Scope.PROCESS,
)
CPU_PERCENT: Final = MetricSpec(
    tag="cpu.cpu_percent",
    unit="%",
    brief="Busy share of all logical CPUs of the machine.",
    collectors=("cpu",),
)
CPU_CORE_PERCENT: Final = MetricSpec(
    tag="cpu.{cpu}.cpu_percent",
    unit="%",
    brief="Busy share of one logical CPU.",
    collectors=("cpu",),
    on=False,
    labels=(("cpu", "cpu.logical_number"),),
)
CPU_TEMPERATURE: Final = MetricSpec(
    tag="cpu.avg_temp",
    unit="Cel",
    brief="Mean of the best available class of CPU temperature sensors.",
    collectors=("cpu",),
    on=False,
)
LOAD_1: Final = MetricSpec(
    tag="system.load1",
    unit="{thread}",
    brief="Load average over one minute.",
    collectors=("cpu",),
    on=False,
)
LOAD_5: Final = MetricSpec(
    tag="system.load5",
    unit="{thread}",
    brief="Load average over five minutes.",
    collectors=("cpu",),
    on=False,
)
LOAD_15: Final = MetricSpec(
    tag="system.load15",
    unit="{thread}",
    brief="Load average over fifteen minutes.",
    collectors=("cpu",),
    on=False,
)
PROCESS_THREADS: Final = MetricSpec(
    tag="proc.cpu.threads",
    unit="{thread}",
    brief="Threads of the watched process.",
    collectors=("cpu",),
    scope=Scope.PROCESS,
)
PROCESS_THROTTLED: Final = MetricSpec(
    tag="proc.cpu.throttledPercent",
    unit="%",
    brief="Share of scheduling periods in which the cgroup of the watched process was throttled.",
    collectors=("cpu",),
)
PROCESS_RSS: Final = MetricSpec(
    tag="proc.memory.rssMB",
    unit="MiBy",
    brief="Resident memory of the watched process.",
    collectors=("memory",),
    scope=Scope.PROCESS,
)
PROCESS_MEMORY_PERCENT: Final = MetricSpec(
    tag="proc.memory.percent",
    unit="%",
    brief="Resident memory of the watched process, as a share of the memory available to it.",
    collectors=("memory",),
    scope=Scope.PROCESS,
)
MEMORY_PERCENT: Final = MetricSpec(
    tag="memory_percent",
    unit="%",
    brief="Memory in use, of the cgroup where a limit holds, else of the host.",
    collectors=("memory",),
)
MEMORY_AVAILABLE: Final = MetricSpec(
    tag="proc.memory.availableMB",
    unit="MiBy",
    brief="Memory still available, in the cgroup where a limit holds, else on the host.",
    collectors=("memory",),
)
OOM_KILLS: Final = MetricSpec(
    tag="proc.memory.oomKills",
    unit="{kill}",
    brief="Processes of the cgroup that were killed for want of memory, since start.",
    collectors=("memory",),
    kind=Kind.COUNTER,
)
SWAP_USED: Final = MetricSpec(
    tag="swap.used",
    unit="By",
    brief="Swap space in use.",
    collectors=("memory",),
    on=False,
)
SWAP_PERCENT: Final = MetricSpec(
    tag="swap.used_percent",
    unit="%",
    brief="Swap space in use, as a share of all swap space.",
    collectors=("memory",),
    on=False,
)
DISK_USAGE_PERCENT: Final = MetricSpec(
    tag="disk.{path}.usagePercent",
    unit="%",
    brief="Used space of the path's file system, as a share of what ordinary users can have.",
    collectors=("disk",),
    labels=(("path", "disk.path"),),
    attributes=("system.filesystem.mountpoint", "system.device"),
)
DISK_USAGE: Final = MetricSpec(
    tag="disk.{path}.usageGB",
    unit="GiBy",
    brief="Used space of the path's file system.",
    collectors=("disk",),
    labels=(("path", "disk.path"),),
    attributes=("system.filesystem.mountpoint", "system.device"),
)
DISK_IN: Final = MetricSpec(
    tag="disk.in",
    unit="MiBy",
    brief="Read from all physical disks since start.",
    collectors=("disk",),
    kind=Kind.COUNTER,
)
DISK_OUT: Final = MetricSpec(
    tag="disk.out",
    unit="MiBy",
    brief="Written to all physical disks since start.",
    collectors=("disk",),
    kind=Kind.COUNTER,
)
DISK_DEVICE_IN: Final = MetricSpec(
    tag="disk.{dev}.in",
    unit="MiBy",
    brief="Read from a block device behind the watched paths since start.",
    collectors=("disk",),
    kind=Kind.COUNTER,
    labels=(("dev", "system.device"),),
)
DISK_DEVICE_OUT: Final = MetricSpec(
    tag="disk.{dev}.out",
    unit="MiBy",
    brief="Written to a block device behind the watched paths since start.",
    collectors=("disk",),
    kind=Kind.COUNTER,
    labels=(("dev", "system.device"),),
)
NETWORK_SENT: Final = MetricSpec(
    tag="network.sent",
    unit="By",
    brief="Bytes sent over the network since start.",
    collectors=("network",),
    kind=Kind.COUNTER,
)
NETWORK_RECEIVED: Final = MetricSpec(
    tag="network.recv",
    unit="By",
    brief="Bytes received over the network since start.",
    collectors=("network",),
    kind=Kind.COUNTER,
)
NETWORK_TCP_RETRANSMITS: Final = MetricSpec(
    tag="network.tcpRetransmits",
    unit="{segment}",
    brief="TCP segments that had to be sent again, since start.",
    collectors=("network",),
    kind=Kind.COUNTER,
)
