"""What the parsers' real inputs look like: our own captures, and the recordings in shared/ where they are present."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any, Final

from tests.parts import CAPTURES, SHARED
from tests.trees import stat

if TYPE_CHECKING:
    from collections.abc import Mapping

_MOST: Final = 10_000  # longer recordings make the inputs fewer, and not more different


def texts(folder: str, pattern: str) -> list[str]:
    """Return our captures of a kind that match a pattern."""
    return [path.read_text() for path in sorted((CAPTURES / folder).glob(pattern))]


def recorded(folder: str, *patterns: str) -> list[str]:
    """Return the recordings of a kind that match patterns, none where there are none."""
    found = sorted({path for pattern in patterns for path in (SHARED / "samples" / folder).glob(pattern)})
    return [path.read_text() for path in found if path.stat().st_size <= _MOST]


def parts_of(folder: str, key: str, pattern: str = "*.json") -> list[str]:
    """Return a document that stands under a key of our captures, each as a text."""
    found = [json.loads(text) for text in texts(folder, pattern)]
    return [json.dumps(each[key]) for each in found if each.get(key)]


def amd(source: str) -> list[str]:
    """Return the documents that our captures have from a tool."""
    found = [json.loads(text) for text in texts("amd", "*.json")]
    return [json.dumps(each["document"]) for each in found if each["source"] == source]


def served() -> list[Mapping[str, Mapping[int, float]]]:
    """Return what TPU runtimes serve, by metric and device."""
    found: list[dict[str, Any]] = [json.loads(text)["served"] for text in texts("tpu", "*.json")]
    return [
        {name: {int(device): value for device, value in rows.items()} for name, rows in each.items()} for each in found
    ]


GPU_PAGE: Final = """\
# HELP DCGM_FI_DEV_GPU_TEMP GPU temperature (in C).
# TYPE DCGM_FI_DEV_GPU_TEMP gauge
DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-1",device="nvidia0",modelName="H100",Hostname="a"} 41
DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-1",device="nvidia0",modelName="H100",Hostname="a"} 71.25
DCGM_FI_DEV_POWER_MGMT_LIMIT{gpu="0",UUID="GPU-1",device="nvidia0",modelName="H100",Hostname="a"} 700
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-1",device="nvidia0",modelName="H100",Hostname="a"} 12
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-1",device="nvidia0",modelName="H100",Hostname="a"} 1024
DCGM_FI_DEV_FB_FREE{gpu="0",UUID="GPU-1",device="nvidia0",modelName="H100",Hostname="a"} 3072
DCGM_FI_DEV_FB_USED{gpu="1",UUID="GPU-2",device="nvidia1",GPU_I_ID="7",instance="[::1]:9400"} 10
DCGM_FI_DEV_FB_FREE{gpu="1",UUID="GPU-2",device="nvidia1",GPU_I_ID="7",instance="[::1]:9400"} 30
DCGM_FI_PROF_SM_ACTIVE{gpu="1",UUID="GPU-2",device="nvidia1",instance="node-b:9400"} 0.25
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu="1",UUID="GPU-2",device="nvidia1",instance="node-b:9400"} 123456
"""
PAGE: Final = """\
# TYPE jobs gauge
# UNIT wait_seconds seconds
jobs{queue="a",host="x\\"y"} 3
wait_seconds{queue="a"} 1.5e-3 1700000000000
# TYPE sent counter
sent_total{dev="eth0"} 42 # {trace="1"} 1
{"quoted.name",le="1"} 7
# TYPE took histogram
took_bucket{le="+Inf"} 3
took_sum 2.5
took_count 3
# EOF
"""
LABELS: Final = {"gpu": "0", "UUID": "GPU-1", "modelName": "H100", "instance": "node-b:9400"}
REPLY: Final = json.dumps(
    {
        "status": "success",
        "data": {
            "resultType": "vector",
            "result": [
                {"metric": {"__name__": f"DCGM_FI_DEV_{field}", **LABELS}, "value": [1700000000.5, value]}
                for field, value in (("GPU_TEMP", "41"), ("FB_USED", "1024"), ("FB_FREE", "3072"), ("GPU_UTIL", "12"))
            ],
        },
    }
)
SYSCTL: Final = "hw.memsize: 17179869184\nmachdep.cpu.brand_string: Apple M1\n"
PATTERNS: Final = (r"^node1\.gpu_.*", r"a|b", r"(temp|power)_\d+$", r"[a-z]+[^0-9]{2,3}", r"(?i)cpu", r"\.gpu\.", "")
ZIPPED: Final = gzip.compress(PAGE.encode(), mtime=0)


def machine(step: int) -> dict[str, str]:
    """Return the files of a machine with a limited process 7, a GPU of AMD's and a TPU, after so many seconds."""
    amdgpu = "sys/class/drm/renderD128/device"
    cgroup = "sys/fs/cgroup/job"
    return {
        "proc/stat": f"cpu {10 + step} 1 {5 + step} {80 + 9 * step} 2 1 1 0 0 0\n"
        f"cpu0 {5 + step} 0 2 {40 + step} 1 0 0 0\n"
        f"cpu1 {5 + step} 0 2 {40 + step} 1 0 0 0\nintr 12 3\nbtime 1700000000\n",
        "proc/meminfo": "MemTotal: 1048576 kB\nMemFree: 100000 kB\nMemAvailable: 262144 kB\nBuffers: 1000 kB\n"
        "Cached: 50000 kB\nSwapTotal: 2048 kB\nSwapFree: 1024 kB\n",
        "proc/loadavg": "0.10 0.20 0.30 1/100 1234\n",
        "proc/uptime": f"{1000 + step}.5 900.1\n",
        "proc/7/stat": stat(7, name="a (b) c", cpu=10 + step / 2, reaped=3, threads=5, start=200, rss=64 << 20),
        "proc/7/status": "Name:\tx\nCpus_allowed:\t3\nCpus_allowed_list:\t0-1\nMems_allowed_list:\t0\n",
        "proc/7/task/7/children": "",
        "proc/7/cgroup": "4:cpu,cpuacct:/old\n0::/job\n",
        "proc/1/mountinfo": "30 24 0:27 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
        "20 1 8:1 / / rw - ext4 /dev/sda1 rw\n31 24 0:28 / /mnt/my\\040disk rw - nfs4 server:/export rw\n",
        f"{cgroup}/memory.max": "536870912\n",
        f"{cgroup}/memory.current": "268435456\n",
        f"{cgroup}/memory.stat": "anon 1000\nfile 2000\ninactive_file 1048576\n",
        f"{cgroup}/memory.events": "low 0\nhigh 0\nmax 3\noom 2\noom_kill 2\n",
        f"{cgroup}/cpu.max": "150000 100000\n",
        f"{cgroup}/cpu.stat": f"usage_usec 5\nnr_periods {100 + 10 * step}\nnr_throttled {10 + step}\n",
        "proc/diskstats": f"   8       0 sda {9 + step} 0 {800 + 80 * step} 5 {9 + step} 0 {400 + 40 * step} 6 0 7 8\n"
        f"   8       1 sda1 9 0 {700 + 70 * step} 5 9 0 {300 + 30 * step} 6 0 7 8 0 0 0 0\n",
        "sys/class/block/sda/size": "9\n",
        "sys/class/block/sda1/partition": "1\n",
        "proc/1/net/dev": "Inter-| Receive | Transmit\n face |bytes packets errs\n"
        f"    lo: 9 1 0 0 0 0 0 0 9 1 0 0 0 0 0 0\n  eth0:{5000 + 9 * step} 1 0 0 0 0 0 0 {700 + step} 1 0 0 0 0 0 0\n",
        "proc/1/net/snmp": f"Ip: Forwarding\nIp: 1\nTcp: RtoMin RetransSegs InErrs\nTcp: 200 {17 + step} 0\n",
        "sys/class/net/eth0/flags": "0x1003\n",
        "sys/class/net/lo/flags": "0x9\n",
        "sys/class/hwmon/hwmon0/name": "coretemp\n",
        "sys/class/hwmon/hwmon0/temp1_label": "Package id 0\n",
        "sys/class/hwmon/hwmon0/temp1_input": "45000\n",
        "sys/class/thermal/thermal_zone0/type": "x86_pkg_temp\n",
        "sys/class/thermal/thermal_zone0/temp": "44000\n",
        f"{amdgpu}/vendor": "0x1002\n",
        f"{amdgpu}/uevent": "DRIVER=amdgpu\nPCI_SLOT_NAME=0000:63:00.0\n",
        f"{amdgpu}/unique_id": "a1b2c3d4e5f60708\n",
        f"{amdgpu}/gpu_busy_percent": "37\n",
        f"{amdgpu}/mem_busy_percent": "12\n",
        f"{amdgpu}/mem_info_vram_total": "8589934592\n",
        f"{amdgpu}/mem_info_vram_used": "1073741824\n",
        f"{amdgpu}/hwmon/hwmon3/temp1_label": "edge\n",
        f"{amdgpu}/hwmon/hwmon3/temp1_input": "45000\n",
        f"{amdgpu}/hwmon/hwmon3/power1_average": "35000000\n",
        f"{amdgpu}/hwmon/hwmon3/power1_cap": "220000000\n",
        "sys/bus/pci/devices/0000:00:04.0/vendor": "0x1ae0\n",
        "sys/bus/pci/devices/0000:00:04.0/device": "0x005e\n",
        "sys/bus/pci/devices/0000:00:04.0/subsystem_device": "0x0001\n",
    }


def older_machine(step: int) -> dict[str, str]:
    """Return the same with cgroups of the first version, and without the list of children."""
    files = {
        name: text
        for name, text in machine(step).items()
        if not name.startswith(("sys/fs/cgroup", "proc/7/task")) and name != "proc/7/cgroup"
    }
    mount = "3{0} 24 0:3{0} / /sys/fs/cgroup/{1} rw - cgroup cgroup rw,{1}\n"
    return {
        **files,
        "proc/7/cgroup": "4:memory:/job\n5:cpu,cpuacct:/job\n",
        "proc/1/mountinfo": mount.format(1, "memory") + mount.format(2, "cpu,cpuacct"),
        "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "536870912\n",
        "sys/fs/cgroup/memory/job/memory.usage_in_bytes": "268435456\n",
        "sys/fs/cgroup/memory/job/memory.stat": "cache 5\nhierarchical_memory_limit 9223372036854771712\n"
        "total_inactive_file 1048576\n",
        "sys/fs/cgroup/memory/job/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
        "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "150000\n",
        "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/cpu,cpuacct/job/cpu.stat": f"nr_periods {100 + 10 * step}\nnr_throttled {10 + step}\n",
    }


def below(*contents: Mapping[str, str], prefixes: tuple[str, ...]) -> list[dict[str, str]]:
    """Return of each machine the files whose names begin in one of these ways."""
    return [{name: text for name, text in each.items() if name.startswith(prefixes)} for each in contents]
