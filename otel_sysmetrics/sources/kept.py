"""A program that ends when we do, started so that neither threads, forks nor gevent are in its way."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_KEEPER: Final = os.path.join(os.path.dirname(os.path.abspath(__file__)), "keeper.py")
_PYTHON: Final = re.compile(r"(python|pypy)[\d.]*t?")
_MOST_STDIN: Final = 60_000  # what any pipe takes at once
_LOOK: Final = 0.01


class StartFailed(Exception):
    """A program that does not start; the argument says why."""


class Kept:
    """A program that a keeper runs and ends when we are gone, where there is a Python to run the keeper.

    `output` is the descriptor of its standard output, which never blocks; `words` that of the keeper's last words.
    Belongs to the process that started it: a forked child must not end what its parent uses.
    Not `subprocess`: under gevent that waits in the hub of the main thread, and we are in another.
    """

    def __init__(self, arguments: Sequence[str], stdin: bytes, environment: Mapping[str, str]) -> None:
        if len(stdin) > _MOST_STDIN:
            raise StartFailed(f"cannot be given more than {_MOST_STDIN} bytes to read")
        self._owner = os.getpid()
        self._gone = False
        _collect()
        python = interpreter()
        self._is_kept = python is not None
        command = [python, "-I", "-S", _KEEPER, str(self._owner), str(len(stdin)), *arguments] if python else arguments
        source, self._control = os.pipe()
        self.output, sink = os.pipe()
        self.words, last = os.pipe()
        actions = [(os.POSIX_SPAWN_DUP2, end, number) for number, end in enumerate((source, sink, last))]
        group = {} if python else {"setpgroup": 0}  # the keeper makes a session of its own
        try:
            self._pid: int = unpatched("os", "posix_spawn")(
                command[0], command, environment, file_actions=actions, setsigmask=[], **group
            )
        except OSError as error:
            self._gone = True
            self._close_pipes()
            raise StartFailed(f"cannot be started: {error.strerror}") from None
        finally:
            for end in (source, sink, last):
                os.close(end)
        os.set_blocking(self.output, False)
        os.set_blocking(self.words, False)
        with suppress(OSError):  # it ended at once
            os.write(self._control, stdin)

    def gone(self) -> bool:
        """Tell whether the program is over and nothing of it is left.

        Whoever waits for any child at all (gunicorn's master) may have collected it before us.
        """
        if not self._gone and os.getpid() == self._owner:
            try:
                self._gone = unpatched("os", "waitpid")(self._pid, os.WNOHANG)[0] != 0
            except ChildProcessError:
                self._gone = True
        return self._gone

    def fate(self) -> str:
        """Say what became of the program; waits a moment for the keeper's last words."""
        self._wait(0.5)
        if not self._is_kept or not self.gone():
            return "ended"
        try:
            words = os.read(self.words, 4096).decode("utf-8", "replace")
        except OSError:
            return "ended"
        return next((line for line in reversed(words.splitlines()) if line.strip()), "ended")

    def close(self, seconds: float) -> None:
        """Order the program's end and wait so long for it; harmless when it is over, and in a forked child."""
        if os.getpid() != self._owner:
            return
        if not self.gone():
            # A signal is heard also where a forked worker holds the other end of standard input.
            with suppress(OSError):
                if self._is_kept:
                    os.kill(self._pid, signal.SIGTERM)
                else:
                    os.killpg(self._pid, signal.SIGKILL)
            self._wait(seconds)
        if self.gone():
            self._close_pipes()
        elif self not in _lingering:
            _lingering.append(self)

    def _wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self.gone() and time.monotonic() < deadline:
            time.sleep(_LOOK)

    def _close_pipes(self) -> None:
        for name in ("_control", "output", "words"):
            descriptor: int = getattr(self, name)
            setattr(self, name, -1)  # first, so that nobody closes a number that is somebody else's by now
            if descriptor >= 0:
                os.close(descriptor)


# What took longer to end than anybody waited; nobody else would collect it, and a zombie would stay.
_lingering: Final[list[Kept]] = []


def _collect() -> None:
    for kept in tuple(_lingering):
        if kept.gone():
            kept._close_pipes()  # noqa: SLF001 - our own
            with suppress(ValueError):  # another thread was faster
                _lingering.remove(kept)


def interpreter() -> str | None:
    """Return a Python that runs the keeper; in a frozen application or under uWSGI `sys.executable` is none."""
    path = sys.executable
    if not path or getattr(sys, "frozen", False) or not os.path.isfile(_KEEPER):
        return None
    return path if os.path.isabs(path) and _PYTHON.fullmatch(os.path.basename(path)) else None


def unpatched(module: str, name: str) -> Any:  # noqa: ANN401 - whatever the standard library has under that name
    """Return what the standard library has under a name, also where gevent has put its own in that place."""
    original = getattr(sys.modules.get("gevent.monkey"), "get_original", None)
    return original(module, name) if original is not None else getattr(sys.modules[module], name)
