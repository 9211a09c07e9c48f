from __future__ import annotations

import math
from enum import Enum, IntEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from otel_sysmetrics.reading import Snapshot, sane_attributes, sane_value
from tests.fakes import encoded_names

ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.binary(),
    st.complex_numbers(),
    st.text(alphabet=st.characters(exclude_categories=())),
    st.lists(st.integers()),
    st.dictionaries(st.text(), st.integers()),
)


class Bandwidth(float):
    """A float of a class of its own, as numpy's are."""


class Width(int):
    """An int of a class of its own."""


class State(IntEnum):
    IDLE = 3


class Word(str, Enum):
    IDLE = "idle"


def export(value: float, attributes: dict[str, Any]) -> list[str]:
    """Send one point through the real SDK and its OTLP encoder."""

    def callback(_: CallbackOptions) -> list[Observation]:
        return [Observation(value, attributes)]

    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    provider.get_meter("export").create_observable_gauge("probe", callbacks=[callback])
    return encoded_names(reader.get_metrics_data())


@pytest.mark.parametrize(
    ("value", "sane"),
    [
        (0, 0),
        (-1, -1),
        (2**63 - 1, 2**63 - 1),
        (-(2**63), -(2**63)),
        (0.0, 0.0),
        (1.5, 1.5),
        (1e308, 1e308),
        (Bandwidth(2.5), 2.5),
        (Width(7), 7),
        (State.IDLE, 3),
    ],
)
def test_a_finite_number_passes_as_a_plain_one(value: float, sane: float) -> None:
    found = sane_value(value)

    assert found == sane
    assert type(found) in {int, float}


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, False),
        *(math.nan, math.inf, -math.inf, Bandwidth("nan")),
        *(2**63, -(2**63) - 1, 2**64 - 1, 17131960503145336928, Width(2**63)),
        *("7", b"7", [7], {"7": 7}, 7j, object()),
    ],
)
def test_what_an_exporter_cannot_encode_is_no_value(value: object) -> None:
    assert sane_value(value) is None


@given(ANYTHING, st.dictionaries(st.text(alphabet=st.characters(exclude_categories=()), min_size=1), ANYTHING))
def test_whatever_passes_is_encoded_as_otlp(value: object, attributes: dict[str, object]) -> None:
    sane = sane_value(value)

    assert export(1 if sane is None else sane, dict(sane_attributes(attributes))) == ["probe"]


@pytest.mark.parametrize(
    ("value", "sane"),
    [
        ("text", "text"),
        ("", ""),
        ("/donn\udce9es", "/donn?es"),
        ("\ud800", "?"),
        (Word.IDLE, "idle"),
        (True, True),
        (False, False),
        (3, 3),
        (2.5, 2.5),
        (State.IDLE, 3),
        (Bandwidth(2.5), 2.5),
    ],
)
def test_an_attribute_of_text_bool_or_number_is_kept_in_plain_form(value: object, sane: object) -> None:
    found = sane_attributes({"key": value})

    assert found == {"key": sane}
    assert type(found["key"]) is type(sane)


@pytest.mark.parametrize("value", [None, b"bytes", [1], (1, 2), {"a": 1}, object(), math.nan, math.inf, 2**63])
def test_an_attribute_that_cannot_be_encoded_costs_itself_only(value: object) -> None:
    assert sane_attributes({"bad": value, "good": "yes"}) == {"good": "yes"}


def test_a_key_keeps_what_can_be_read_of_it() -> None:
    assert sane_attributes({"te\udcffam": "vision"}) == {"te?am": "vision"}


def test_case_130_no_attribute_makes_the_exporter_log_or_lose_a_point(caplog: pytest.LogCaptureFixture) -> None:
    bad: dict[str, object] = {
        "none": None,
        "list": ["a"],
        "bytes": b"a",
        "enum": State.IDLE,
        "surrogate": "\udcff",
        "dict": {},
        "k\ud800": "v",
    }

    assert export(1, dict(sane_attributes(bad))) == ["probe"]
    assert not caplog.records


@pytest.mark.parametrize(
    ("interval", "duration", "age", "fresh"),
    [
        (15, 0, 31.0, True),
        (15, 0, 31.1, False),
        (15, 20, 41.0, True),
        (15, 20, 41.1, False),
        (1, 0, 3.0, True),
        (1, 0, 3.1, False),
        (0.25, 0, 1.5, True),
        (0.25, 0, 1.6, False),
    ],
)
def test_a_snapshot_is_served_for_twice_its_interval_or_duration_and_a_second(
    interval: float, duration: float, age: float, *, fresh: bool
) -> None:
    assert Snapshot((), 100.0, duration, interval).fresh(100.0 + age) is fresh
