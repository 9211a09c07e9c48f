"""Time that goes on when it is told to, for threads that really run."""

from __future__ import annotations

import threading
import time
from typing import Final

_OURS: Final = "otel-sysmetrics"


class Turns:
    """A clock whose waits end when time was told to pass; `pass_on` then waits for all threads to wait again."""

    def __init__(self) -> None:
        self._now = 0.0
        lock = threading.Lock()
        self._turn = threading.Condition(lock)  # for those that wait for time to pass
        self._arrived = threading.Condition(lock)  # for whoever lets it pass
        self._until: dict[int, float] = {}

    def now(self) -> float:
        """Return the seconds that have passed."""
        return self._now

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait for the event at most so long."""
        me = threading.get_ident()
        with self._turn:
            until = self._until[me] = self._now + seconds
            self._arrived.notify_all()
            while not event.is_set() and self._now < until:
                self._turn.wait(0.5)
            del self._until[me]
        return event.is_set()

    def pass_on(self, seconds: float, patience: float) -> bool:
        """Let time pass and tell whether every thread has done its turn, for which it waits so many real seconds."""
        deadline = time.monotonic() + patience
        with self._turn:
            self._now += seconds
            self._turn.notify_all()
            while self._is_busy():
                if time.monotonic() > deadline:
                    return False
                self._arrived.wait(0.01)
        return True

    def wake(self) -> None:
        """Let those look whose event may be set."""
        with self._turn:
            self._turn.notify_all()

    def _is_busy(self) -> bool:
        if any(until <= self._now for until in self._until.values()):
            return True
        return any(self._until.get(thread.ident or 0, 0.0) <= self._now for thread in ours())


def ours() -> list[threading.Thread]:
    """Return the threads of the package that run."""
    return [thread for thread in threading.enumerate() if thread.name.startswith(_OURS)]
