"""Block devices: what they have counted, which of them are disks, and which one a mount lies on."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from otel_sysmetrics.sources.files import counted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_sysmetrics.sources.files import Files
    from otel_sysmetrics.sources.mounts import Mount

_SECTOR: Final = 512  # of /proc/diskstats, whatever the disk's own sectors are
_READ, _WRITTEN = 5, 9  # the columns of the sectors
_STACKED: Final = re.compile(r"(dm-|md|loop|ram|zram|zd|drbd|bcache)[\d_]|(sr|fd|scd)\d")
_PARTITION: Final = re.compile(r"(.*\d)p\d+|(.*\D)\d+")
_NVME_PATH: Final = re.compile(r"(nvme\d+)c\d+(n\d+)")


@dataclass(frozen=True, slots=True)
class Disk:
    """What a block device has read and written since it came, in bytes.

    `number` is its `major:minor`, or None where the system does not say.
    """

    read: int
    written: int
    number: str | None = None

    @property
    def counts(self) -> bool:
        """Tell whether it counts at all: where statistics are switched off, everything stays at 0."""
        return bool(self.read or self.written)


def disks(files: Files) -> dict[str, Disk]:
    """Return every block device by name, partitions and stacked ones too; none where the system hides them."""
    if files.root != "/" or files.exists("/proc"):  # another machine's root is not psutil's machine
        return parse_diskstats(files.text("/proc/diskstats"))
    import psutil

    try:
        # nowrap would keep state that the application's own calls of psutil share.
        found = psutil.disk_io_counters(perdisk=True, nowrap=False)
    except (OSError, RuntimeError):
        return {}
    return {name: Disk(io.read_bytes, io.write_bytes) for name, io in (found or {}).items()}


def parse_diskstats(text: str | None) -> dict[str, Disk]:
    """Read the text of `/proc/diskstats`; lines that are none of its kind are left out."""
    rows = (line.split() for line in (text or "").splitlines())
    return {row[2]: disk for row in rows if (disk := _disk(row)) is not None}


def physical(files: Files, known: Mapping[str, Disk]) -> frozenset[str]:
    """Return the names of the disks: devices that are no part of another and lie on no other.

    Decided from /sys; by name for a device that /sys does not show, as in a container that hides it.
    Network block devices (nbd, rbd) are disks; each path of a dm-multipath disk counts what went over it.
    """
    whole = {name for name in known if not _STACKED.match(name) and _is_whole(files, name, known)}
    return frozenset(whole - _uncounted_nvme(whole, known))


def device_of(files: Files, mount: Mount, known: Mapping[str, Disk]) -> str | None:
    """Return the name of the block device that a mount lies on, or None for a network or memory file system."""
    for name, disk in known.items():
        if mount.number is not None and disk.number == mount.number:
            return name
    # btrfs and others have a number of their own (0:xx), and their source names the device.
    if not mount.source.startswith("/dev/"):
        return None
    name = mount.source.removeprefix("/dev/")
    if name in known:
        return name
    if name.startswith("mapper/"):
        return _mapped(files, name.removeprefix("mapper/"), known)
    return _linked(files, mount.source, known)


def label_of(mount: Mount, device: str | None) -> str | None:
    """Return how a mount's device is called on a point: `nvme0n1p1`, `server:/export`, `rpool/home`.

    None for the sources that say nothing, such as `tmpfs`, `overlay` and `/dev/root`.
    """
    if device is not None:
        return device
    source = mount.source.removeprefix("/dev/")
    telling = source != "root" and any(mark in mount.source for mark in "/:\\")
    return source if telling else None


def _disk(row: list[str]) -> Disk | None:
    # A partition before Linux 2.6.25 had fewer columns, of another meaning.
    read, written = (counted(row[_READ]), counted(row[_WRITTEN])) if len(row) > _WRITTEN else (None, None)
    if read is None or written is None:
        return None
    return Disk(read * _SECTOR, written * _SECTOR, f"{row[0]}:{row[1]}")


def _is_whole(files: Files, name: str, known: Mapping[str, Disk]) -> bool:
    home = f"/sys/class/block/{name}"
    facts = files.names(home)
    if facts:
        return "partition" not in facts and not files.names(home, "slaves")
    # xvda1 without an xvda is how some clouds name a disk; 1 of nvme0n1 is a namespace and there is no nvme0n.
    match = _PARTITION.fullmatch(name)
    return match is None or (match[1] or match[2]) not in known


def _uncounted_nvme(whole: set[str], known: Mapping[str, Disk]) -> set[str]:
    """Find what would count an NVMe namespace twice: nvme0n1, or its hidden paths nvme0c0n1, nvme0c1n1.

    Before Linux 6.3 only the paths count, and the namespace stands at 0 for ever
    (https://github.com/Atoptool/atop/pull/157).
    """
    uncounted = set()
    for match in filter(None, map(_NVME_PATH.fullmatch, whole)):
        head = match[1] + match[2]
        if head in known:
            uncounted.add(match[0] if known[head].counts else head)
    return uncounted


def _mapped(files: Files, name: str, known: Mapping[str, Disk]) -> str | None:
    """Find dm-N by the name it was given, which /dev/mapper shows only where /dev is the host's."""
    for device in known:
        if device.startswith("dm-") and (files.text(f"/sys/block/{device}/dm/name") or "").strip() == name:
            return device
    return _linked(files, f"/dev/mapper/{name}", known)


def _linked(files: Files, path: str, known: Mapping[str, Disk]) -> str | None:
    """Follow a link in /dev; what leads to no file right in /dev is no link (bcachefs: `/dev/sda:/dev/sdb`)."""
    folder, name = os.path.split(files.resolve(path))
    return name if folder == files.resolve("/dev") and name in known else None
