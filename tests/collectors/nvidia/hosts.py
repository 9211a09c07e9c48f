"""What surrounds NVIDIA GPUs: the processes of a host, its PCI devices, and the binding in Python."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Final

from tests.trees import stat, write_tree

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tests.nvml import Device, Says

WATCHED: Final = 100
CHILD: Final = 101
INITIAL: Final = "pid:[4026531836]"
FOREIGN: Final = "pid:[4026532999]"

EIGHT: Final = (
    "gpu",
    "memory",
    "memoryAllocated",
    "memoryAllocatedBytes",
    "temp",
    "powerWatts",
    "enforcedPowerLimitWatts",
    "powerPercent",
)
"""What is copied to gpu.process.{gpu}."""


def but(device: Device, changes: Mapping[str, Says]) -> Device:
    """Return a device that answers otherwise in some respects."""
    calls = {place.split()[0] for place in changes}
    return {**{place: says for place, says in device.items() if place.split()[0] not in calls}, **changes}


def tags(values: Mapping[str, object], device: int) -> set[str]:
    """Return the tags of a device, without their beginning."""
    start = f"gpu.{device}."
    return {tag.removeprefix(start) for tag in values if tag.startswith(start)}


def processes(root: Path, *, namespace: str = INITIAL, others: Sequence[int] = (), links: bool = True) -> str:
    """Write a /proc with the watched process, a child of it, and others, and return its root."""
    files = {f"proc/{pid}/stat": stat(pid) for pid in others}
    files[f"proc/{WATCHED}/stat"] = stat(WATCHED)
    files[f"proc/{CHILD}/stat"] = stat(CHILD, parent=WATCHED)
    files[f"proc/{WATCHED}/task/{WATCHED}/children"] = f"{CHILD} "
    files["proc/self/status"] = ""
    write_tree(root, files, {"proc/self/ns/pid": namespace} if links else {})
    return str(root)


def pci(root: Path, *states: str, control: str = "auto") -> str:
    """Write a /sys with one NVIDIA GPU per state (`active`, `suspended`) and a device of another vendor."""
    device = "sys/bus/pci/devices/0000"
    files = {f"{device}:00:02.0/vendor": "0x8086\n", f"{device}:00:02.0/class": "0x030000\n"}
    for bus, state in enumerate(states, 1):
        place = f"{device}:{bus:02x}:00"
        files |= {f"{place}.0/vendor": "0x10de\n", f"{place}.0/class": "0x030000\n"}
        files |= {f"{place}.1/vendor": "0x10de\n", f"{place}.1/class": "0x040300\n"}
        files |= {f"{place}.0/power/control": f"{control}\n", f"{place}.0/power/runtime_status": f"{state}\n"}
    write_tree(root, files)
    return str(root)


# The real binding under another name, for a module `pynvml` that stands in front of it and changes it.
BINDING: Final = """
import importlib.util, sys, sysconfig
spec = importlib.util.spec_from_file_location("real_pynvml", sysconfig.get_path("purelib") + "/pynvml.py")
real = importlib.util.module_from_spec(spec)
sys.modules["real_pynvml"] = real
spec.loader.exec_module(real)
globals().update({name: value for name, value in vars(real).items() if not name.startswith("__")})
"""


def binding(folder: Path, changes: str, *, before: str = BINDING) -> str:
    """Write a module `pynvml` and return its folder."""
    (folder / "pynvml.py").write_text(before + textwrap.dedent(changes), encoding="utf-8")
    return str(folder)
