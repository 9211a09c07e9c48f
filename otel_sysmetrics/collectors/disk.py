"""Disks: how full the watched paths are, and what the block devices have read and written."""

from __future__ import annotations

import os
import shutil
from functools import partial
from typing import TYPE_CHECKING, Final

from otel_sysmetrics.catalog import host
from otel_sysmetrics.collector import NotHere, Part
from otel_sysmetrics.reading import Reading
from otel_sysmetrics.sources.disks import Disk, device_of, disks, label_of, physical
from otel_sysmetrics.sources.mounts import mount_of, mounts, resolve
from otel_sysmetrics.sources.remembered import Remembered
from otel_sysmetrics.sources.totals import Total

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from otel_sysmetrics.collector import Context

_MIB: Final = 2**20
_GIB: Final = 2**30
_SPACE: Final = (host.DISK_USAGE_PERCENT, host.DISK_USAGE)
_TRAFFIC: Final = (host.DISK_IN, host.DISK_OUT, host.DISK_DEVICE_IN, host.DISK_DEVICE_OUT)

Places = dict[str, "str | None"]
"""Where each watched path really lies, None where it is missing: told by the path's part, heard by the devices'.

The devices' part may not look for itself: asking for anything of a path on a dead NFS server never returns.
"""


def parts(context: Context) -> tuple[Part, ...]:
    """Return one part for each watched path and one for the block devices."""
    paths = context.settings.disk_paths
    places: Places = {}
    spaces = (Part("disk", path, _SPACE, partial(Space, context, path, places)) for path in paths)
    return (*spaces, Part("disk", "devices", _TRAFFIC, partial(Traffic, context, paths, places)))


class Space:
    """The space of the file system that one watched path lies on."""

    def __init__(self, context: Context, path: str, places: Places) -> None:
        self._files = context.files
        self._path = path
        self._places = places
        self._origin = Remembered[dict[str, str | None]](context.clock)

    def sample(self) -> Iterable[Reading]:
        """Read the space once; nothing for a file system without blocks; OSError when the path cannot be read."""
        real = resolve(self._files, self._path)
        try:
            used, available, mark = _space(self._files.path(real))
        except FileNotFoundError:
            self._places[self._path] = None
            raise
        self._places[self._path] = real
        if used < 0 or used + available <= 0:
            return
        origin = self._origin.get((real, mark), lambda: self._find_origin(real))
        labels = {"path": self._path}
        yield Reading(host.DISK_USAGE_PERCENT, used / (used + available) * 100, labels, origin)
        yield Reading(host.DISK_USAGE, used / _GIB, labels, origin)

    def describe(self) -> str:
        """Name the path."""
        return f"space of {self._path}"

    def close(self) -> None:
        """Nothing is held."""

    def _find_origin(self, real: str) -> dict[str, str | None]:
        mount = mount_of(real, mounts(self._files))
        if mount is None:
            return {}
        device = device_of(self._files, mount, disks(self._files))
        return {"system.filesystem.mountpoint": mount.point, "system.device": label_of(mount, device)}


class Traffic:
    """What the block devices have read and written.

    Raises NotHere where the system shows no block device.
    """

    def __init__(self, context: Context, paths: tuple[str, ...], places: Places) -> None:
        self._files = context.files
        self._paths = paths
        self._places = places
        self._physical = Remembered[frozenset[str]](context.clock)
        self._behind = Remembered[tuple[str, ...]](context.clock)
        self._read = Total()
        self._written = Total()
        self._find_disks()

    def sample(self) -> Iterator[Reading]:
        """Read all counters once."""
        known = self._find_disks()
        names = frozenset(known)
        counted = self._physical.get(names, lambda: physical(self._files, known))
        if counted:
            read = self._read.advance({name: known[name].read for name in counted})
            written = self._written.advance({name: known[name].written for name in counted})
            yield Reading(host.DISK_IN, read / _MIB)
            yield Reading(host.DISK_OUT, written / _MIB)
        places = tuple(self._places.get(path, path) for path in self._paths)
        for name in self._behind.get((names, places), lambda: self._find_behind(known, places)):
            if not known[name].counts:
                continue
            yield Reading(host.DISK_DEVICE_IN, known[name].read / _MIB, {"dev": name})
            yield Reading(host.DISK_DEVICE_OUT, known[name].written / _MIB, {"dev": name})

    def describe(self) -> str:
        """Name the disks."""
        return "disks: " + (", ".join(sorted(physical(self._files, disks(self._files)))) or "none")

    def close(self) -> None:
        """Nothing is held."""

    def _find_disks(self) -> dict[str, Disk]:
        known = disks(self._files)
        if not known:
            message = "no block devices in /proc/diskstats, and none known to psutil"
            raise NotHere(message)
        return known

    def _find_behind(self, known: dict[str, Disk], places: Iterable[str | None]) -> tuple[str, ...]:
        table = mounts(self._files)
        found = [mount_of(place, table) for place in places if place is not None]
        devices = [device_of(self._files, mount, known) for mount in found if mount is not None]
        return tuple(dict.fromkeys(device for device in devices if device is not None))


def _space(path: str) -> tuple[int, int, object]:
    """Return the bytes used, the bytes that ordinary users can still have, and what tells file systems apart."""
    if not hasattr(os, "statvfs"):
        usage = shutil.disk_usage(path)
        return usage.used, usage.free, None
    space = os.statvfs(path)
    unit = space.f_frsize or space.f_bsize
    return (space.f_blocks - space.f_bfree) * unit, space.f_bavail * unit, space.f_fsid
