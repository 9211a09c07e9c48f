from hypothesis import given
from hypothesis import strategies as st

from otel_sysmetrics.sources.remembered import SECONDS, Remembered
from otel_sysmetrics.sources.totals import Total

COUNTERS = st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(0, 2**64))


def test_it_starts_at_0_and_counts_on() -> None:
    total = Total()
    assert [total.advance({"a": count}) for count in (100, 100, 130, 131)] == [0, 0, 30, 31]


def test_a_new_device_adds_nothing_of_its_past() -> None:
    total = Total()
    total.advance({"a": 100})
    assert total.advance({"a": 101, "b": 5000}) == 1
    assert total.advance({"a": 101, "b": 5002}) == 3


def test_a_device_that_went_and_came_adds_nothing_of_its_past() -> None:
    total = Total()
    total.advance({"a": 100, "b": 10})
    assert total.advance({"b": 11}) == 1
    assert total.advance({"a": 900, "b": 11}) == 1
    assert total.advance({"a": 901, "b": 11}) == 2


def test_case_018_a_wrap_of_32_bits_adds_what_the_counter_shows_now() -> None:
    total = Total()
    sent = [total.advance({"eth0": count}) for count in (4287347239, 4288453273, 2345855, 4557891)]
    assert sent == [0, 1106034, 1106034 + 2345855, 1106034 + 4557891]


@given(st.lists(COUNTERS))
def test_it_never_falls_and_never_grows_by_more_than_is_shown(passes: list[dict[str, int]]) -> None:
    total = Total()
    before = 0
    for counters in passes:
        now = total.advance(counters)
        assert before <= now <= before + sum(counters.values())
        before = now


@given(st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 2**40)), min_size=1))
def test_without_resets_it_is_the_difference_to_the_first_look(steps: list[tuple[int, int]]) -> None:
    total, a, b, value = Total(), 7, 9, 0
    for grown_a, grown_b in steps:
        a, b = a + grown_a, b + grown_b
        value = total.advance({"a": a, "b": b})
    first_a, first_b = steps[0]
    assert value == (a - 7 - first_a) + (b - 9 - first_b)


def test_a_fact_is_found_again_for_another_key_and_after_half_a_minute() -> None:
    now = 0.0
    found: list[str] = []

    def find() -> int:
        found.append("again")
        return len(found)

    fact = Remembered[int](lambda: now)
    assert [fact.get("a", find), fact.get("a", find), fact.get("b", find), fact.get("b", find)] == [1, 1, 2, 2]
    now = SECONDS
    assert fact.get("b", find) == 3
    assert SECONDS <= 60, "a NIC that joins a bond is noticed within a minute"
