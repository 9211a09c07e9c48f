"""Which TPU a machine has, as its files say: to import libtpu or jax to find out could take the TPU's lock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from otel_sysmetrics.sources.files import Files

_GOOGLE: Final = 0x1AE0
_ANY: Final = -1


class Generation(NamedTuple):
    """A generation of TPUs: its name, and for how many devices one row of the duty cycle speaks (None: not known)."""

    name: str
    devices_per_duty: int | None


# PCI device and subsystem, as in tpu-info's table of chips. v2 and v3 have two cores per chip and one duty cycle;
# 7x has two devices per chip and a duty cycle of each.
_GENERATIONS: Final = {
    (0x0027, 0x004E): Generation("v2", 2),
    (0x0027, 0x004F): Generation("v3", 2),
    (0x005E, _ANY): Generation("v4", 1),
    (0x0063, _ANY): Generation("v5e", 1),
    (0x0062, _ANY): Generation("v5p", 1),
    (0x006F, _ANY): Generation("v6e", 1),
    (0x0076, _ANY): Generation("7x", 1),
}
UNKNOWN: Final = Generation("", None)


def find(files: Files) -> Generation | None:
    """Return the generation of the machine's TPUs, UNKNOWN where only a device is there, None without one."""
    is_passed = False
    for address in files.names("sys/bus/pci/devices"):
        folder = f"sys/bus/pci/devices/{address}"
        if _number(files, folder, "vendor") != _GOOGLE:
            continue
        device = _number(files, folder, "device")
        subsystem = _number(files, folder, "subsystem_device")
        found = _GENERATIONS.get((device, subsystem)) or _GENERATIONS.get((device, _ANY))
        if found is not None:
            return found
        # Google makes network cards and disks too, but none that vfio hands to a process.
        is_passed = is_passed or files.resolve(folder, "driver").endswith("/vfio-pci")
    is_accelerator = any(name.startswith("accel") and name[5:].isdecimal() for name in files.names("dev"))
    is_tpu = is_passed or (is_accelerator and not files.exists("dev/accel"))
    return UNKNOWN if is_tpu else None


def _number(files: Files, *parts: str) -> int:
    try:
        return int((files.text(*parts) or "").strip(), 16)
    except ValueError:
        return -2
