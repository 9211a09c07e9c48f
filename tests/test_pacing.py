"""Long stretches of ours leave the interpreter to others in between."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from otel_sysmetrics.pacing import MOST_SECONDS, paced

if TYPE_CHECKING:
    import pytest


def test_a_long_loop_pauses() -> None:
    """The pauses are seen as time in which this thread used no CPU."""

    def idle(loops: int, spin: float) -> float:
        wall, used = time.perf_counter(), time.thread_time()
        for _ in paced(range(loops)):
            end = time.thread_time() + spin
            while time.thread_time() < end:
                pass
        return (time.perf_counter() - wall) - (time.thread_time() - used)

    assert idle(100, MOST_SECONDS) > 100 * 0.00005
    assert list(paced("abc")) == ["a", "b", "c"]


def test_where_gevent_is_loaded_nothing_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """To sleep is to let greenlets run there."""
    monkeypatch.setitem(sys.modules, "gevent", sys)
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    for _ in paced(range(3)):
        end = time.perf_counter() + MOST_SECONDS
        while time.perf_counter() < end:
            pass
    assert slept == []
