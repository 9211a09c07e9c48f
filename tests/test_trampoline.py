from __future__ import annotations

import logging
import math
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.metrics import CallbackOptions, Observation

from otel_sysmetrics.catalog import health as health_catalog
from otel_sysmetrics.instruments import HISTORY_SECONDS
from otel_sysmetrics.reading import Reading
from otel_sysmetrics.spec import Kind, MetricSpec
from otel_sysmetrics.trampoline import Trampoline
from tests.fakes import COUNT, PER_DEVICE, PER_PATH, SHARE, TOTAL, Desk, Point, all_points, values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SOURCES_OWN: Final = MetricSpec(
    tag="fake.ownTotal", unit="1", brief="X.", collectors=("cpu",), kind=Kind.COUNTER, from_zero=False
)
SUCCESS: Final = health_catalog.SUCCESS.tag
DURATION: Final = health_catalog.DURATION.tag


@contextmanager
def asker(desk: Desk) -> Iterator[Callable[[MetricSpec], float | None]]:
    """Give what asks in a reader's own thread, which is the same at each of its collections."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        yield lambda spec: thread.submit(desk.value, spec).result()


def in_a_new_thread(ask: Callable[[], float | None]) -> float | None:
    """Ask as Prometheus' HTTP server does, in a thread that nobody has seen before."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(ask).result()


def health_of(desk: Desk) -> dict[str, float]:
    return {
        point.name: point.value
        for point in all_points(desk.reader.get_metrics_data())
        if point.name.startswith("sysmetrics.")
    }


class TestMean:
    def test_it_is_the_mean_of_the_samples_since_the_same_thread_last_asked(self) -> None:
        desk = Desk()
        for value in (10, 20, 60):
            desk.give(Reading(SHARE, value))

        assert desk.value(SHARE) == 30.0
        desk.give(Reading(SHARE, 1))
        desk.give(Reading(SHARE, 2))
        assert desk.value(SHARE) == 1.5

    def test_two_readers_at_different_rhythms_both_get_the_whole_truth(self) -> None:
        """A spike in every fifth sample: the mean of each second is 2.0, whoever else asks in between."""
        desk = Desk()
        desk.give(Reading(SHARE, 0))
        with asker(desk) as fast, asker(desk) as slow:
            fast(SHARE)
            slow(SHARE)
            for _ in range(4):
                seen = []
                for value in (0, 0, 10, 0, 0):
                    desk.give(Reading(SHARE, value))
                    seen.append(fast(SHARE))
                assert seen == [0, 0, 10, 0, 0]
                assert slow(SHARE) == 2.0

    @given(st.lists(st.integers(0, 1000) | st.sampled_from("ab"), max_size=30))
    def test_whatever_the_order_of_samples_and_asks_each_reader_gets_the_exact_mean(
        self, script: list[int | str]
    ) -> None:
        desk = Desk()
        desk.give(Reading(SHARE, 5))
        last = 5
        with asker(desk) as a, asker(desk) as b:
            readers = {"a": a, "b": b}
            for reader in readers.values():
                reader(SHARE)
            unasked: dict[str, list[int]] = {"a": [], "b": []}
            for step in script:
                if isinstance(step, int):
                    desk.give(Reading(SHARE, step))
                    last = step
                    for samples in unasked.values():
                        samples.append(step)
                    continue
                samples = unasked[step] or [last]
                assert readers[step](SHARE) == sum(samples) / len(samples)
                unasked[step] = []

    def test_threads_never_seen_before_share_one_position(self) -> None:
        desk = Desk()
        with asker(desk) as periodic:
            for value in (1, 3):
                desk.give(Reading(SHARE, value))
            assert in_a_new_thread(lambda: desk.value(SHARE)) == 2.0
            for value in (5, 7):
                desk.give(Reading(SHARE, value))
            assert in_a_new_thread(lambda: desk.value(SHARE)) == 6.0
            for value in (9, 11):
                desk.give(Reading(SHARE, value))
            assert periodic(SHARE) == 10.0
            desk.give(Reading(SHARE, 13))
            assert in_a_new_thread(lambda: desk.value(SHARE)) == 13.0
            assert periodic(SHARE) == 13.0

    def test_it_is_the_last_value_where_none_is_newer_and_it_is_fresh(self) -> None:
        desk = Desk()
        for value in (1, 2, 6):
            desk.give(Reading(SHARE, value))

        assert [desk.value(SHARE) for _ in range(3)] == [3.0, 6.0, 6.0]

    def test_it_is_always_a_float(self) -> None:
        desk = Desk()
        desk.give(Reading(SHARE, 4))

        assert [type(desk.value(SHARE)) for _ in range(2)] == [float, float]

    def test_one_that_passes_what_a_float_can_hold_is_absent(self) -> None:
        desk = Desk()
        desk.give(Reading(SHARE, 1e308))
        desk.give(Reading(SHARE, 1e308))

        assert desk.value(SHARE) is None

    def test_what_is_remembered_for_a_reader_that_never_comes_is_bounded(self) -> None:
        desk = Desk(interval=60)
        for value in range(1000):
            desk.give(Reading(SHARE, value))

        kept = math.ceil(HISTORY_SECONDS / 60)
        assert desk.value(SHARE) == sum(range(1000 - kept, 1000)) / kept

    def test_a_sample_in_between_that_is_absent_does_not_count(self) -> None:
        desk = Desk()
        desk.give(Reading(SHARE, 10))
        desk.give(Reading(SHARE, None))
        desk.give(Reading(SHARE, 20))

        assert desk.value(SHARE) in {15.0, 20.0}

    def test_a_reader_that_is_slower_than_the_sampler_still_hears_of_a_device_that_is_gone_by_then(self) -> None:
        desk = Desk()
        desk.give(Reading(SHARE, 10))
        desk.give(Reading(SHARE, 30))
        desk.give()

        assert [desk.value(SHARE) for _ in range(2)] == [20.0, None]


class TestLast:
    @pytest.mark.parametrize("value", [7, 7.5, 0, -3])
    def test_a_number_that_is_not_averaged_is_answered_as_it_was_last_given(self, value: float) -> None:
        desk = Desk()
        for given_value in (1, 100, value):
            desk.give(Reading(COUNT, given_value))

        answers = [desk.value(COUNT), desk.value(COUNT)]
        assert answers == [value, value]
        assert {type(answer) for answer in answers} == {type(value)}


class TestAbsence:
    @pytest.mark.parametrize("spec", [SHARE, COUNT, TOTAL])
    def test_a_value_that_is_not_given_any_more_is_gone_and_can_return(self, spec: MetricSpec) -> None:
        desk = Desk()
        desk.give(Reading(spec, 3))
        assert desk.value(spec) is not None

        desk.give(Reading(spec, None))
        assert desk.value(spec) is None
        desk.give()
        assert desk.value(spec) is None
        desk.give(Reading(spec, 4))
        assert desk.value(spec) is not None

    @pytest.mark.parametrize("spec", [SHARE, COUNT, TOTAL])
    def test_what_a_hung_part_gave_is_served_until_it_is_stale(self, spec: MetricSpec) -> None:
        desk = Desk(interval=15)
        desk.give(Reading(spec, 3))

        desk.clock.time = 31.0
        assert desk.value(spec) is not None
        desk.clock.time = 31.1
        assert desk.value(spec) is None

    def test_one_series_that_vanishes_leaves_the_others(self) -> None:
        desk = Desk()
        desk.give(Reading(PER_PATH, 1, {"path": "/a"}), Reading(PER_PATH, 2, {"path": "/b"}))
        desk.give(Reading(PER_PATH, 1, {"path": "/a"}))

        assert desk.ask() == [Point("fake./a.usageGB", {"fake.path": "/a"}, 1)]

    def test_one_part_that_is_stale_leaves_the_others(self) -> None:
        desk = Desk()
        desk.give(Reading(PER_PATH, 1, {"path": "/a"}), name="/a")
        desk.clock.time = 20
        desk.give(Reading(PER_PATH, 2, {"path": "/b"}), name="/b")
        desk.clock.time = 40

        assert desk.ask() == [Point("fake./b.usageGB", {"fake.path": "/b"}, 2)]

    def test_a_reader_that_comes_after_hours_of_failure_gets_nothing_from_before(self) -> None:
        desk = Desk(interval=15)
        with asker(desk) as periodic:
            desk.give(Reading(SHARE, 3))
            assert periodic(SHARE) == 3
            desk.give(Reading(SHARE, 4))
            for _ in range(240):
                desk.clock.time += 15
                desk.give(well=False)

            assert in_a_new_thread(lambda: desk.value(SHARE)) is None


class TestCounter:
    def test_it_starts_at_0(self) -> None:
        desk = Desk()
        desk.give(Reading(TOTAL, 10**12))

        assert desk.value(TOTAL) == 0

    def test_it_never_falls_when_its_source_is_reset(self) -> None:
        desk = Desk()
        seen = []
        for value in (100, 150, None, 170, 30, 60):
            desk.give(Reading(TOTAL, value))
            seen.append(desk.value(TOTAL))

        assert seen == [0, 50, None, 70, 100, 130]

    @given(st.lists(st.none() | st.integers(0, 2**62), max_size=20))
    def test_delta_is_never_negative_and_adds_up_whatever_the_source_does(self, given_values: list[int | None]) -> None:
        desk = Desk(delta=True)
        found: list[float] = []
        expected, last = 0, None
        for value in given_values:
            desk.give(Reading(TOTAL, value))
            delta = desk.value(TOTAL)
            found.append(delta or 0)
            if value is not None:
                expected += 0 if last is None else value if value < last else value - last
                last = value
            if expected >= 2**63:
                return

        assert min(found, default=0) >= 0
        assert sum(found) == expected

    def test_a_total_that_a_mad_source_drives_beyond_64_bits_is_absent(self) -> None:
        """OTLP cannot encode it, and would lose the whole export."""
        desk = Desk()
        seen = []
        for value in (2**62, 0, 2**62, 0, 2**62, 0, 2**62):
            desk.give(Reading(TOTAL, value))
            seen.append(desk.value(TOTAL))

        assert seen == [0, 0, 2**62, 2**62, None, None, None]

    def test_each_series_counts_for_itself(self) -> None:
        desk = Desk()
        for a, b in ((5, 100), (6, 200)):
            desk.give(Reading(PER_DEVICE, a, {"dev": "sda"}), Reading(PER_DEVICE, b, {"dev": "sdb"}))

        assert values_of(desk) == {"fake.sda.in": 1, "fake.sdb.in": 100}

    def test_one_that_keeps_its_sources_total_begins_with_it_and_goes_on_over_resets(self) -> None:
        desk = Desk()
        seen = []
        for value in (500, 520, 20, 30):
            desk.give(Reading(SOURCES_OWN, value))
            seen.append(desk.value(SOURCES_OWN))

        assert seen == [500, 520, 540, 550]

    def test_a_series_that_returns_goes_on_from_where_it_was(self) -> None:
        desk = Desk()
        seen = []
        for value in (10, 20, None, None, 25):
            desk.give(Reading(TOTAL, value))
            seen.append(desk.value(TOTAL))

        assert seen == [0, 10, None, None, 15]


class TestLabelsThatChurn:
    def test_what_stays_is_served_and_counted_on_however_many_series_came_and_went(self) -> None:
        desk = Desk(delta=True)
        for turn in range(5_000):
            desk.give(Reading(SHARE, turn), Reading(TOTAL, turn), Reading(PER_PATH, 1, {"path": "/a"}, {"turn": turn}))
            if turn % 100 == 0:
                told = {point.name: point.value for point in desk.ask()}
                assert (told[SHARE.tag], told[TOTAL.tag]) == (expected_mean(turn), 0 if turn == 0 else 100)

    def test_what_is_gone_costs_no_memory(self) -> None:
        """The SDK keeps what it has seen, our own share is what is measured: nobody asks."""
        desk = Desk(excluded=["fake.*.usageGB"])
        held = []
        tracemalloc.start()
        for turn in range(20_001):
            desk.give(Reading(COUNT, turn), Reading(PER_PATH, 1, {"path": f"/{turn}"}))
            if turn % 5_000 == 0:
                held.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()

        assert held[-1] - held[1] < 1_000_000, held


def expected_mean(turn: int) -> float:
    """Return what a reader that comes at each hundredth sample gets: the mean of as many as are kept."""
    kept = min(math.ceil(HISTORY_SECONDS / 15), turn + 1)
    return sum(range(turn + 1 - kept, turn + 1)) / kept


class TestHealth:
    def test_a_part_that_was_never_here_says_nothing(self) -> None:
        desk = Desk()
        desk.part("nvidia")

        assert health_of(desk) == {}

    def test_success_is_0_where_a_part_is_ill_from_the_start(self) -> None:
        """An endpoint that was never up, a driver that is broken: what an alert is for."""
        desk = Desk()
        desk.part("nvidia").here = True

        assert health_of(desk) == {SUCCESS: 0}

    def test_success_is_1_while_a_part_answers_and_0_once_its_last_attempt_failed(self) -> None:
        desk = Desk()
        desk.give(Reading(SHARE, 1))
        assert health_of(desk) == {SUCCESS: 1, DURATION: 0.0}

        desk.give(well=False)
        assert health_of(desk) == {SUCCESS: 0, DURATION: 0.0}

    def test_success_is_0_once_a_hung_part_is_stale(self) -> None:
        desk = Desk()
        desk.give(Reading(SHARE, 1))
        desk.clock.time = 31
        assert health_of(desk)[SUCCESS] == 1

        desk.clock.time = 32
        assert health_of(desk)[SUCCESS] == 0

    def test_parts_are_told_apart_by_attributes(self) -> None:
        desk = Desk()
        desk.give(kind="cpu")
        desk.give(kind="disk", name="/donn\udce9es", well=True)

        found = [point for point in all_points(desk.reader.get_metrics_data()) if point.name == SUCCESS]
        assert found == [
            Point(SUCCESS, {"collector": "cpu"}, 1),
            Point(SUCCESS, {"collector": "disk", "part": "/donn?es"}, 1),
        ]

    @pytest.mark.parametrize(
        ("excluded", "sent"),
        [((SUCCESS,), [DURATION]), ((DURATION,), [SUCCESS]), (("sysmetrics.*",), []), ((), [SUCCESS, DURATION])],
    )
    def test_it_is_silent_where_it_is_excluded_and_the_readers_ask_all_the_same(
        self, excluded: tuple[str, ...], sent: list[str]
    ) -> None:
        asked = threading.Event()
        desk = Desk(excluded=excluded, on_ask=asked.set)
        desk.give(Reading(SHARE, 1))

        assert sorted(health_of(desk)) == sorted(sent)
        assert asked.is_set()


@pytest.fixture
def silence(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail the test when anything is logged from warning on, by us or by the SDK."""
    yield
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.usefixtures("silence")
def test_case_122_a_part_that_fails_at_each_pass_costs_itself_only_and_no_line_of_the_sdk() -> None:
    desk = Desk()
    for turn in range(3):
        desk.give(Reading(COUNT, turn), kind="memory")
        desk.give(kind="nvidia", well=False)

        assert values_of(desk) == {COUNT.tag: turn}


@pytest.mark.parametrize("spec", [SHARE, COUNT, TOTAL])
def test_case_127_a_callback_answers_with_a_fresh_list_of_observations_with_numbers(spec: MetricSpec) -> None:
    desk = Desk()
    trampoline = Trampoline(spec)
    assert trampoline(CallbackOptions()) == []

    trampoline.owner = desk.instruments
    assert trampoline(CallbackOptions()) == []

    desk.give(Reading(spec, 1))
    known = desk.instruments._entry.trampoline(spec, spec.tag)
    first, second = known(CallbackOptions()), known(CallbackOptions())
    assert isinstance(first, list)
    assert first is not second
    assert [(type(observation), type(observation.value)) for observation in first] in (
        [(Observation, int)],
        [(Observation, float)],
    )


def values_of(desk: Desk) -> dict[str, float]:
    return values(desk.reader.get_metrics_data())
