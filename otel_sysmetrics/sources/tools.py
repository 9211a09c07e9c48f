"""Vendors' programs, run once per sample or writing lines for long: none outlives us, none is waited for in vain."""

from __future__ import annotations

import os
import select
import shutil
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from otel_sysmetrics.settings import tool_environment
from otel_sysmetrics.sources.kept import Kept, StartFailed, unpatched

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_BYTES: Final = 64 * 2**20
_MOST_LINES: Final = 8
_MOST_AT_ONCE: Final = 2**20
_TURN: Final = 0.5
_GOOD: Final = ("ended with status 0", "ended")
_LINGER: Final = 0.6  # what a program that is told to end may take, in seconds: the keeper kills it after 0.3


class ToolError(Exception):
    """A program that cannot be started, does not answer, writes too much or has ended; the argument says which."""


class ToolFailed(ToolError):
    """A program that has failed and written nothing."""


def find(name: str, path: str | None = None) -> str | None:
    """Return the absolute path of a program on PATH, or in the folders of `path`; never in the current directory."""
    if os.name == "nt":  # where none of them is made for
        return None
    folders = (path or tool_environment().get("PATH", "")).split(os.pathsep)
    return shutil.which(name, path=os.pathsep.join(filter(os.path.isabs, folders)) or os.devnull)


class Tool:
    """A program that is run once per sample; never twice at a time."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._running: _Running | None = None
        self.failure: str | None = None  # how the last run failed, None where it did not

    def output(self, arguments: Sequence[str], seconds: float) -> str:
        """Return what it writes to standard output, whatever its status; raises ToolError, ToolFailed for nothing.

        Standard input and error are empty. At the deadline it is killed with all that it started.
        """
        if self._running is not None:
            self._running.close(0.0)
            if not self._running.gone():
                raise ToolError(f"{self._path} still hangs since an earlier sample")
        running = self._running = _Running((self._path, *arguments))
        try:
            text = running.all(seconds).decode("utf-8", "replace")
            self.failure = running.failure()
            if self.failure is not None and not text.strip():
                raise ToolFailed(f"{self._path} {self.failure}")
            return text
        finally:
            running.close(_LINGER)

    def close(self) -> None:
        """End what is running; harmless from any thread, and in a forked child."""
        if (running := self._running) is not None:
            running.close(_LINGER)


class Feed:
    """A program that runs for long and writes lines; `stdin` is what it is given to read."""

    def __init__(self, arguments: Sequence[str], stdin: str = "") -> None:
        self._running = _Running(arguments, stdin)
        self._rest = bytearray()

    def lines(self, seconds: float) -> list[str]:
        """Return the newest whole lines that came since the last call; waits at most so long for a first one.

        Raises ToolError when the program has ended or writes a line without end.
        """
        running = self._running
        deadline = time.monotonic() + seconds
        found = self._split(running.read(deadline))
        while not found and not running.over and (left := deadline - time.monotonic()) > 0:
            running.wait(left)
            found = self._split(running.read(deadline))
        if not found and running.over:
            fate = running.fate()
            self.close()
            raise ToolError(f"{running.name} {fate}")
        if len(self._rest) > MOST_BYTES:
            self.close()
            raise ToolError(f"{running.name} writes a line of more than {MOST_BYTES >> 20} MiB")
        return found

    def close(self) -> None:
        """End the program; harmless from any thread, and in a forked child."""
        self._running.close(_LINGER)

    def _split(self, data: bytes) -> list[str]:
        self._rest += data
        end = self._rest.rfind(b"\n")
        if end < 0:
            return []
        lines = bytes(self._rest[:end]).rsplit(b"\n", _MOST_LINES)[-_MOST_LINES:]
        del self._rest[: end + 1]
        return [line.decode("utf-8", "replace") for line in lines]


class _Running:
    """One program that runs, and the pipe that it writes to."""

    def __init__(self, arguments: Sequence[str], stdin: str = "") -> None:
        self.name = arguments[0]
        self.over = False
        try:
            self._kept = Kept(arguments, stdin.encode(), tool_environment())
        except StartFailed as error:
            raise ToolError(f"{self.name} {error}") from None

    def all(self, seconds: float) -> bytes:
        """Return everything that it writes."""
        deadline = time.monotonic() + seconds
        found = bytearray(self.read(deadline))
        while not self.over:
            if (left := deadline - time.monotonic()) <= 0:
                raise ToolError(f"{self.name} did not answer within {round(seconds, 1):g} s")
            self.wait(left)
            found += self.read(deadline)
            if len(found) > MOST_BYTES:
                raise ToolError(f"{self.name} wrote more than {MOST_BYTES >> 20} MiB")
        return bytes(found)

    def read(self, deadline: float) -> bytes:
        """Return what is there to read, without waiting; sees the end."""
        gone = self.gone()  # looked at first: what it wrote before its end is in the pipe by then
        found = bytearray()
        while not self.over and len(found) <= MOST_BYTES:
            try:
                more = os.read(self._kept.output, _MOST_AT_ONCE)
            except BlockingIOError:
                self.over = gone  # somebody that it started may hold the pipe for ever
                break
            except OSError:  # closed by another thread
                self.over = True
                break
            self.over = not more
            found += more
            if time.monotonic() > deadline + _TURN:
                break
        return bytes(found)

    def wait(self, seconds: float) -> None:
        """Wait until there is something to read or the program is over, at most so long.

        In turns: a fork at a bad moment leaves a copy of the pipe's other end in a worker, and no end is ever seen.
        """
        poll = unpatched("select", "poll")()
        for descriptor in (self._kept.output, self._kept.words):
            poll.register(descriptor, select.POLLIN)
        with suppress(OSError):
            poll.poll(max(1, round(min(seconds, _TURN) * 1000)))

    def gone(self) -> bool:
        """Tell whether the program and its keeper are over."""
        return self._kept.gone()

    def fate(self) -> str:
        """Say what became of the program."""
        return self._kept.fate()

    def failure(self) -> str | None:
        """Say how the program failed, None where it did not or nobody knows."""
        fate = self.fate()
        return None if fate in _GOOD else fate

    def close(self, seconds: float) -> None:
        """Have the program ended, and wait so long for it."""
        self._kept.close(seconds)
