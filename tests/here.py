"""What this machine can show, found out without the code under test: tags to expect, and why others are missing."""

from __future__ import annotations

import os
from itertools import product
from typing import TYPE_CHECKING

import psutil

from otel_sysmetrics.catalog import health, host
from otel_sysmetrics.spec import MetricSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HOST_TABLE = tuple(spec for spec in vars(host).values() if isinstance(spec, MetricSpec))
HEALTH_TABLE = (health.SUCCESS, health.DURATION)
HOST_KINDS = tuple(dict.fromkeys(kind for spec in HOST_TABLE for kind in spec.collectors))
ONLY_HOST = {"OTEL_PYTHON_SYSMETRICS_COLLECTORS": ",".join(HOST_KINDS)}
"""Variables that leave out all other kinds, of which nothing is known here."""

_CPU_CHIPS = {"coretemp", "k10temp", "zenpower", "cpu_thermal", "x86_pkg_temp", "soc_thermal"}


def missing() -> dict[MetricSpec, str]:
    """Look at the sources for what this machine does not have, and say why its tags cannot be there."""
    found: dict[MetricSpec, str] = {}
    if not _CPU_CHIPS & set(psutil.sensors_temperatures()):
        found[host.CPU_TEMPERATURE] = "no CPU sensor"
    if not any(_is_quota(text) for text in _cgroup_files("cpu.max", "cpu.cfs_quota_us")):
        found[host.PROCESS_THROTTLED] = "no cgroup of ours has a CPU quota"
    if not any("oom_kill " in text for text in _cgroup_files("memory.events", "memory.oom_control")):
        found[host.OOM_KILLS] = "no cgroup of ours counts OOM kills"
    if not psutil.swap_memory().total:
        found[host.SWAP_PERCENT] = "no swap space to have a share of"
    if not any(os.path.exists(f"/sys/block/{name}/device") for name in os.listdir("/sys/block")):
        found |= dict.fromkeys((host.DISK_IN, host.DISK_OUT), "no physical disk")
    if root_device() is None:
        found |= dict.fromkeys((host.DISK_DEVICE_IN, host.DISK_DEVICE_OUT), "no block device behind /")
    if set(psutil.net_io_counters(pernic=True)) <= {"lo"}:
        found |= dict.fromkeys((host.NETWORK_SENT, host.NETWORK_RECEIVED), "no network interface but loopback")
    return found


def expected(wanted: Callable[[MetricSpec], bool]) -> dict[str, MetricSpec]:
    """Return the tags of the host's table that this machine has, filled, by a choice of specs; and our own health's."""
    absent = missing()
    fillings: dict[tuple[str, ...], list[dict[str, str | int]]] = {
        (): [{}],
        ("cpu",): [{"cpu": number} for number in online_cpus()],
        ("path",): [{"path": "/"}],
        ("dev",): [{"dev": root_device() or ""}],
    }
    specs = [spec for spec in HOST_TABLE if wanted(spec) and spec not in absent]
    filled = {spec.fill(labels): spec for spec in specs for labels in fillings[spec.placeholders]}
    return {**filled, **{spec.tag: spec for spec in HEALTH_TABLE}}


def attribute_keys(spec: MetricSpec) -> set[str]:
    """Return the keys that the catalogue promises on each point."""
    return {attribute for _, attribute in spec.labels} | set(spec.attributes)


def online_cpus() -> list[int]:
    """Return the numbers of the logical CPUs."""
    with open("/proc/stat", encoding="ascii") as stat:
        names = [line.split()[0] for line in stat if line.startswith("cpu")]
    return [int(name.removeprefix("cpu")) for name in names if name != "cpu"]


def root_device() -> str | None:
    """Return the block device that / lies on, None where it lies on none (overlay, tmpfs)."""
    number = os.stat("/").st_dev
    link = f"/sys/dev/block/{os.major(number)}:{os.minor(number)}"
    return os.path.basename(os.path.realpath(link)) if os.path.exists(link) else None


def _is_quota(text: str) -> bool:
    first, *_ = text.split()
    return first.isdecimal() and first != "0"


def _cgroup_files(*names: str) -> Iterator[str]:
    """Yield the texts of such files in our cgroups and in all above them, wherever the hierarchies are mounted."""
    with open("/proc/self/cgroup", encoding="utf-8") as memberships:
        for _, controllers, path in (line.rstrip("\n").split(":", 2) for line in memberships):
            steps = path.strip("/").split("/")
            ancestors = ["/".join(steps[:depth]) for depth in range(len(steps) + 1)]
            mounts = {"", "unified", controllers, *controllers.split(",")}
            for mount, ancestor, name in product(mounts, ancestors, names):
                file = os.path.join("/sys/fs/cgroup", mount, ancestor, name)
                if os.path.isfile(file):
                    with open(file, encoding="utf-8") as content:
                        yield content.read()
