"""The table of mounted file systems, and the mount that a path lies on."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from otel_sysmetrics.sources.files import Files

_ESCAPE: Final = re.compile(r"\\([0-7]{3})")
_MAX_LINKS: Final = 40


@dataclass(frozen=True, slots=True)
class Mount:
    """One mounted file system.

    `source` is what was mounted: `/dev/sda1`, `server:/export`, `rpool/home`, `overlay`.
    `number` is the device's `major:minor`, or None where the system does not say.
    """

    point: str
    kind: str
    source: str
    number: str | None = None


def mounts(files: Files) -> list[Mount]:
    """Return the mounted file systems, later ones last; none where the system does not show them.

    Where the host's file system lies below a root, its mounts are those of its process 1. If that is hidden, our own
    mounts below the root stand for them. Reading the table touches no file system, so a dead NFS server is harmless.
    """
    if not files.exists("/proc"):
        return _mounts_of_psutil()
    if files.root == "/":
        return parse_mountinfo(files.text("/proc/self/mountinfo")) or parse_mounts(files.text("/proc/mounts"))
    return parse_mountinfo(files.text("/proc/1/mountinfo")) or _below(
        files.root, parse_mountinfo(files.text("/proc/self/mountinfo"))
    )


def parse_mountinfo(text: str | None) -> list[Mount]:
    """Read the text of `/proc/PID/mountinfo`; lines that are none of its kind are left out."""
    found = []
    for line in (text or "").split("\n"):
        # Any number of optional columns stands before the dash. An empty source leaves two blanks in a row, so
        # splitting at any white space would shift what follows.
        head, _, tail = line.partition(" - ")
        match (head.split(" "), tail.split(" ")):
            case ([_, _, number, _, point, _, *_], [kind, source, *_]):
                found.append(Mount(_unescape(point), kind, _unescape(source), number))
    return found


def parse_mounts(text: str | None) -> list[Mount]:
    """Read the text of `/proc/mounts`, which gives no device numbers."""
    found = []
    for line in (text or "").split("\n"):
        match line.split(" "):
            case [source, point, kind, _, *_]:
                found.append(Mount(_unescape(point), kind, _unescape(source)))
    return found


def mount_of(path: str, table: Iterable[Mount]) -> Mount | None:
    """Return the mount that an absolute path without symbolic links lies on, by its names alone.

    `/data` holds `/data/x` and not `/database`; of several mounts at one point the latest covers the others.
    """
    wanted = os.path.normcase(os.path.normpath(path))
    best, depth = None, 0
    for mount in table:
        prefix = os.path.normcase(mount.point).rstrip(os.sep) + os.sep
        if len(prefix) >= depth and (wanted + os.sep).startswith(prefix):
            best, depth = mount, len(prefix)
    return best


def resolve(files: Files, path: str) -> str:
    """Follow symbolic links as the host itself would and return its name for the path.

    Below a moved root an absolute link starts at that root again; the kernel would follow it out of there.
    May block where the path's file system does.
    """
    if files.root == "/":
        return os.path.realpath(path)
    steps, done, links = path.split("/")[::-1], list[str](), 0
    while steps:
        step = steps.pop()
        if step in ("", "."):
            continue
        if step == "..":
            del done[-1:]
            continue
        target = _link(files.path(*done, step)) if links < _MAX_LINKS else None
        if target is None:
            done.append(step)
            continue
        links += 1
        if target.startswith("/"):
            done.clear()
        steps.extend(reversed(target.split("/")))
    return "/" + "/".join(done)


def _link(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None


def _below(root: str, table: list[Mount]) -> list[Mount]:
    prefix = os.path.normpath(root)
    return [
        Mount(mount.point[len(prefix) :] or "/", mount.kind, mount.source, mount.number)
        for mount in table
        if (mount.point + "/").startswith(prefix + "/")
    ]


def _mounts_of_psutil() -> list[Mount]:
    import psutil

    try:
        return [Mount(row.mountpoint, row.fstype, row.device) for row in psutil.disk_partitions()]
    except (OSError, RuntimeError):
        return []


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)
