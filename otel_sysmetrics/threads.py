"""Threads and time, as the sampler uses them: replaceable, and harmless to the application around us."""

from __future__ import annotations

import logging
import sys
import threading
import time
from contextvars import copy_context
from itertools import chain, repeat
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_log: Final = logging.getLogger("otel_sysmetrics")

_T = TypeVar("_T")

FIRST_GAPS: Final = (1.0, 1.0, 2.0, 4.0)


class Clock(Protocol):
    """Where time comes from, so that tests need not wait."""

    def now(self) -> float:
        """Return seconds of a clock that never steps."""

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait for the event at most so long; tell whether it is set."""


class MonotonicClock:
    """The system's monotonic clock: a stepped wall clock changes no rhythm."""

    def now(self) -> float:
        """Return seconds of the monotonic clock."""
        return time.monotonic()

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait for the event at most so long."""
        return event.wait(seconds)


def rhythm(interval: float, first_gaps: Sequence[float] = FIRST_GAPS) -> Iterator[float]:
    """Yield the gaps between samples in seconds: the first ones, none longer than the interval, then the interval."""
    return chain((min(gap, interval) for gap in first_gaps), repeat(interval))


class Lanes:
    """One thread per part for the life of the process.

    A part that hangs in a driver keeps its lane through uninstrument() and instrument(): whoever comes next waits in
    that lane, so that a hung driver never collects threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next: dict[str, Callable[[], None]] = {}
        self._busy: set[str] = set()

    def run(self, name: str, body: Callable[[], None]) -> None:
        """Run `body` in the lane's thread, after what runs there now; it replaces whatever still waits.

        Raises RuntimeError where the interpreter, being at its end, starts no thread any more.
        """
        with self._lock:
            self._next[name] = body
            if name in self._busy:
                return
            self._busy.add(name)
        try:
            threading.Thread(target=self._drain, args=(name,), name=f"otel-sysmetrics {name}", daemon=True).start()
        except RuntimeError:
            with self._lock:
                self._busy.discard(name)
            raise

    def _drain(self, name: str) -> None:
        while True:
            with self._lock:
                body = self._next.pop(name, None)
                if body is None:
                    self._busy.discard(name)
                    return
            try:
                body()
            except Exception:  # noqa: BLE001 - logged, and whoever comes next finds the lane free
                _log.exception("otel-sysmetrics: %s ended", name)


def natively(call: Callable[[], _T]) -> _T:
    """Call in a native thread where gevent has made threads into greenlets: a driver call would stop them all."""
    # Another thread may be importing it just now.
    is_patched = getattr(sys.modules.get("gevent.monkey"), "is_module_patched", None)
    if is_patched is None or not is_patched("threading"):
        return call()
    import gevent

    result: list[_T] = []
    error = gevent.get_hub().threadpool.apply(copy_context().run, (_caught, lambda: result.append(call())))
    if error is not None:
        raise error
    return result[0]


def _caught(call: Callable[[], None]) -> BaseException | None:
    """Return what a call raises: what leaves one of its threads, gevent prints with its traceback each time."""
    try:
        call()
    except BaseException as error:  # noqa: BLE001 - raised again where the call belongs
        return error
    return None
