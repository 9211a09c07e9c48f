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


def pci(root: Path, *states: str, control: str = "auto", driver: str = "nvidia", slept: int = 777) -> str:
    """Write a /sys with one NVIDIA GPU per state (`active`, `suspended`), its audio, and a GPU of another vendor.

    `slept` are the milliseconds that each was suspended so far.
    """
    files, links = _pci_device("0000:00:02.0", "0x8086", "0x030000", driver="i915")
    for bus, state in enumerate(states, 1):
        address = f"0000:{bus:02x}:00"
        for more in (
            _pci_device(f"{address}.0", "0x10de", "0x030000", driver=driver, state=state, control=control, slept=slept),
            _pci_device(f"{address}.1", "0x10de", "0x040300", driver="snd_hda_intel"),
        ):
            files, links = files | more[0], links | more[1]
    write_tree(root, files, links)
    return str(root)


def _pci_device(  # noqa: PLR0913 - the files of a device
    address: str, vendor: str, kind: str, *, driver: str, state: str = "active", control: str = "on", slept: int = 0
) -> tuple[dict[str, str], dict[str, str]]:
    place = f"sys/bus/pci/devices/{address}"
    files = {
        "vendor": vendor,
        "class": kind,
        "power/control": control,
        "power/runtime_status": state,
        "power/runtime_suspended_time": str(slept),
    }
    written = {f"{place}/{name}": f"{text}\n" for name, text in files.items()}
    return written, {f"{place}/driver": f"/sys/bus/pci/drivers/{driver}"}


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
