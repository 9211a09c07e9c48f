"""Files of /proc and /sys below a root that can be moved."""

from __future__ import annotations

import errno
import os
from typing import Final

_READ: Final = os.O_RDONLY | getattr(os, "O_BINARY", 0)
_CHUNK: Final = 1 << 14
USED_UP: Final = frozenset({errno.EMFILE, errno.ENFILE})
"""The errors of a process or a machine that has no descriptor left."""


class Files:
    """The host's file system as seen from `root`, the place where it is mounted.

    A file that is missing, unreadable or not text is `None`: the kernel leaves out what a platform, a container
    or a hardened /proc does not show, and that costs only what stands in it. Where no file at all can be opened,
    since descriptors are used up, OSError is raised: of this file that says nothing.
    """

    def __init__(self, root: str = "/") -> None:
        self.root = root
        self._prefix = os.path.join(root, "")

    def path(self, *parts: str) -> str:
        """Return where an absolute path of the host is found."""
        return self._prefix + "/".join([part.lstrip("/") for part in parts])

    def text(self, *parts: str) -> str | None:
        """Return a file's text, or None; undecodable bytes (a process's name) are kept as surrogates."""
        try:
            # A file object would make twice as many system calls, and this is most of what sampling costs.
            descriptor = os.open(self.path(*parts), _READ)
            try:
                text = os.read(descriptor, _CHUNK)
                while more := os.read(descriptor, _CHUNK):
                    text += more
                return text.decode("utf-8", "surrogateescape")
            finally:
                os.close(descriptor)
        except OSError as error:
            if error.errno in USED_UP:
                raise
            return None
        except ValueError:
            return None

    def lines(self, *parts: str) -> list[str]:
        """Return a file's lines, none where there is no file."""
        return (self.text(*parts) or "").splitlines()

    def number(self, *parts: str) -> int | None:
        """Return the one whole number that a file holds, or None (also for cgroup's `max`)."""
        return whole(self.text(*parts))

    def names(self, *parts: str) -> list[str]:
        """Return the names in a directory, sorted, none where there is no directory."""
        try:
            return sorted(os.listdir(self.path(*parts)))
        except OSError as error:
            if error.errno in USED_UP:
                raise
            return []

    def exists(self, *parts: str) -> bool:
        """Tell whether something is there."""
        return os.path.exists(self.path(*parts))

    def resolve(self, *parts: str) -> str:
        """Follow symbolic links and return the real path, as the machine we run on sees it."""
        return os.path.realpath(self.path(*parts))


def whole(text: str | None) -> int | None:
    """Return the whole number that a text holds, or None."""
    try:
        return int(text) if text is not None else None
    except ValueError:
        return None


def counted(text: str | None) -> int | None:
    """Return what a kernel has counted, in at most 64 bits, or None."""
    number = whole(text)
    return number if number is not None and 0 <= number < 1 << 64 else None


def fields(lines: list[str], separator: str | None = None) -> dict[str, str]:
    """Read lines of a key and its value (`VmRSS:  12 kB`, `nr_periods 3`) into a dictionary."""
    pairs = (line.split(separator, 1) for line in lines)
    return {pair[0].strip().rstrip(":"): pair[1].strip() for pair in pairs if len(pair) > 1}
