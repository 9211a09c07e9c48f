"""Starts programs; the only module that does."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_TURN: Final = 0.5


class Child:
    """A program that shares our terminal and environment, for `exec`.

    Raises OSError when it cannot be started.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        self._process = subprocess.Popen(arguments)  # noqa: S603 - running what the user asks for is the purpose
        self.pid = self._process.pid

    def ended(self) -> bool:
        """Tell whether the program is over, without taking its status from who waits for it."""
        if self._process.returncode is not None:
            return True
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True
        except AttributeError:  # Windows has no waitid, and lets anybody ask
            return self._process.poll() is not None

    def send(self, number: int) -> None:
        """Pass a signal on; harmless when the program is over."""
        self._process.send_signal(number)

    def wait(self) -> int:
        """Wait for the end and return the status as a shell has it: 128 + n for a program that died of signal n."""
        over = threading.Event()
        threading.Thread(target=self._wait_for, args=(over,), name="otel-sysmetrics command", daemon=True).start()
        patiently(over)
        status = self._process.wait()
        return status if status >= 0 else 128 - status

    def _wait_for(self, over: threading.Event) -> None:
        self._process.wait()
        over.set()


def patiently(event: threading.Event) -> None:
    """Wait for an event in the main thread, and have signals handled meanwhile.

    In turns: a signal that comes while Python is about to wait does not end that wait, and its handler would never run.
    """
    while not event.wait(_TURN):
        pass


def terminal_signals_reach_children() -> bool:
    """Tell whether Ctrl-C goes to our children by itself: the terminal sends it to its whole foreground group."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)  # stdin may be a file
    except (OSError, AttributeError):
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


FORWARDED = tuple(
    getattr(signal, name)
    for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGBREAK")
    if hasattr(signal, name)
)
