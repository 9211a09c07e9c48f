"""Pauses in long stretches of Python, so that a thread of the application that wakes up has its turn soon.

CPython's interpreter lock changes hands when its holder sleeps, or after 5 ms (`sys.getswitchinterval()`, which is the
application's). A system call that is over before the waiting thread has woken up does not hand it over:
https://bugs.python.org/issue7946
"""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_T = TypeVar("_T")

MOST_SECONDS: Final = 0.0005
_PAUSE: Final = 0.00005

_ran = threading.local()


def give_way() -> None:
    """Sleep for a moment if this thread has not done so for a while; cheap enough for any loop."""
    now = time.perf_counter()
    if now - getattr(_ran, "since", 0.0) < MOST_SECONDS:
        return
    if "gevent" not in sys.modules:  # there, to sleep is to let greenlets run, in the midst of who knows what
        time.sleep(_PAUSE)
    _ran.since = time.perf_counter()


def paced(items: Iterable[_T]) -> Iterator[_T]:
    """Yield the same, with pauses."""
    for item in items:
        give_way()
        yield item
