from __future__ import annotations

import logging
import threading
import time
from contextvars import ContextVar
from typing import TYPE_CHECKING

import pytest

from otel_sysmetrics.threads import Lanes, MonotonicClock, natively, rhythm
from tests.fakes import PATIENCE, run_script, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PLACE: ContextVar[str] = ContextVar("PLACE", default="nowhere")


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """Return an event that holds threads up until the test is over."""
    event = threading.Event()
    yield event
    event.set()


def note(names: list[str], name: str) -> Callable[[], None]:
    return lambda: names.append(f"{name} in {threading.current_thread().name}")


def holding(release: threading.Event) -> tuple[Callable[[], None], threading.Event]:
    """Return a body that hangs until it is released, and what tells that it hangs."""
    begun = threading.Event()

    def body() -> None:
        begun.set()
        assert release.wait(PATIENCE)

    return body, begun


def lanes_named(name: str) -> int:
    return sum(thread.name == f"otel-sysmetrics {name}" for thread in threading.enumerate())


def test_a_body_runs_in_a_daemon_thread_that_bears_its_lanes_name() -> None:
    found: list[tuple[str, bool]] = []
    Lanes().run("cpu", lambda: found.append((threading.current_thread().name, threading.current_thread().daemon)))

    until(lambda: found == [("otel-sysmetrics cpu", True)])


def test_whoever_comes_next_waits_behind_a_body_that_hangs_and_gets_no_second_thread(release: threading.Event) -> None:
    lanes, done = Lanes(), list[str]()
    body, begun = holding(release)
    lanes.run("nvidia", body)
    assert begun.wait(PATIENCE)

    lanes.run("nvidia", note(done, "second"))

    assert lanes_named("nvidia") == 1
    assert done == []
    release.set()
    until(lambda: done == ["second in otel-sysmetrics nvidia"])


def test_who_waits_in_a_lane_is_replaced_by_who_comes_later(release: threading.Event) -> None:
    lanes, done = Lanes(), list[str]()
    body, begun = holding(release)
    lanes.run("amd", body)
    assert begun.wait(PATIENCE)

    lanes.run("amd", note(done, "second"))
    lanes.run("amd", note(done, "third"))
    release.set()

    until(lambda: done == ["third in otel-sysmetrics amd"])


def test_another_lane_does_not_wait(release: threading.Event) -> None:
    lanes, done = Lanes(), list[str]()
    body, begun = holding(release)
    lanes.run("tpu", body)
    assert begun.wait(PATIENCE)

    lanes.run("memory", note(done, "free"))

    until(lambda: done == ["free in otel-sysmetrics memory"])


def test_a_lane_whose_bodies_are_over_holds_no_thread_and_can_be_used_again() -> None:
    lanes, done = Lanes(), list[str]()
    for turn in ("first", "second"):
        lanes.run("ipu", note(done, turn))
        until(lambda: lanes_named("ipu") == 0)

    assert done == ["first in otel-sysmetrics ipu", "second in otel-sysmetrics ipu"]


def test_a_body_that_raises_is_logged_and_leaves_its_lane_free(caplog: pytest.LogCaptureFixture) -> None:
    lanes, done = Lanes(), list[str]()

    def broken() -> None:
        raise RuntimeError("a bug")

    lanes.run("disk", broken)
    until(lambda: lanes_named("disk") == 0)
    lanes.run("disk", note(done, "after"))

    until(lambda: done == ["after in otel-sysmetrics disk"])
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (logging.ERROR, "otel-sysmetrics: disk ended")
    ]


def test_a_thread_that_cannot_be_started_is_told_and_leaves_the_lane_free() -> None:
    lanes, done = Lanes(), list[str]()
    before = threading.stack_size(1 << 62)  # no machine has that much memory, so no thread starts
    try:
        with pytest.raises(RuntimeError):
            lanes.run("network", note(done, "never"))
    finally:
        threading.stack_size(before)

    lanes.run("network", note(done, "then"))

    until(lambda: done == ["then in otel-sysmetrics network"])


@pytest.mark.parametrize(
    ("interval", "gaps"),
    [
        (15, [1, 1, 2, 4, 15, 15, 15]),
        (4, [1, 1, 2, 4, 4, 4, 4]),
        (3, [1, 1, 2, 3, 3, 3, 3]),
        (1, [1, 1, 1, 1, 1, 1, 1]),
        (0.1, [0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1]),
    ],
)
def test_the_first_gaps_are_short_and_none_is_longer_than_the_interval(interval: float, gaps: list[float]) -> None:
    found = rhythm(interval)

    assert [next(found) for _ in gaps] == gaps


def test_the_monotonic_clock_waits_for_the_event_or_the_time() -> None:
    clock, event = MonotonicClock(), threading.Event()

    begun = clock.now()
    assert not clock.wait(event, 0.01)
    assert 0.01 <= clock.now() - begun < PATIENCE
    event.set()
    assert clock.wait(event, PATIENCE)
    assert abs(clock.now() - time.monotonic()) < PATIENCE


def test_without_gevent_a_call_is_made_where_one_is() -> None:
    PLACE.set("here")

    assert natively(lambda: (threading.get_ident(), PLACE.get())) == (threading.get_ident(), "here")


NATIVELY = """
    from gevent import monkey

    monkey.patch_all()

    import json
    from contextvars import ContextVar

    import gevent
    from gevent.monkey import get_original

    from otel_sysmetrics.threads import natively

    ident = get_original("_thread", "get_ident")
    place = ContextVar("place")
    place.set("here")
    found = {"thread": natively(lambda: ident()) != ident(), "context": natively(place.get)}
    for error in (ValueError, SystemExit, KeyboardInterrupt):
        def fail():
            raise error("no")
        try:
            natively(fail)
        except BaseException as caught:
            found[error.__name__] = type(caught) is error
    turns = []
    other = gevent.spawn(turns.append, "other greenlet")
    pause = get_original("time", "sleep")
    natively(lambda: pause(0.2))
    found["turns"] = turns
    print(json.dumps(found))
"""


def test_under_gevent_a_call_is_made_in_a_native_thread_with_its_context_and_its_errors() -> None:
    assert run_script(NATIVELY) == {
        "thread": True,
        "context": "here",
        "turns": ["other greenlet"],
        **dict.fromkeys(("ValueError", "SystemExit", "KeyboardInterrupt"), True),
    }
