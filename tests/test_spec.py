from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.metrics import MeterProvider

from otel_sysmetrics.spec import MAX_NAME_LENGTH, Fold, Kind, MetricSpec

NAME = re.compile(r"[a-zA-Z][-_./a-zA-Z0-9]{0,254}")  # the SDK's rule


def disk(tag: str = "disk.{path}.usageGB") -> MetricSpec:
    return MetricSpec(tag=tag, unit="GiBy", brief="Used.", collectors=("disk",))


def gauge(unit: str, fold: Fold | None = None) -> MetricSpec:
    return MetricSpec(tag="x", unit=unit, brief="X.", collectors=(), fold=fold)


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("/", "disk./.usageGB"),
        ("/System/Volumes/Data", "disk./System/Volumes/Data.usageGB"),
        ("/mnt/My Data", "disk./mnt/My_Data.usageGB"),
        ("/mnt/My  Data", "disk./mnt/My__Data.usageGB"),
        ("C:\\", "disk.C__.usageGB"),
        ("/données", "disk./donn_es.usageGB"),
        ("/{path}", "disk./_path_.usageGB"),
        ("a\n", "disk.a_.usageGB"),
        ("\udcff", "disk._.usageGB"),
        ("a-b_c.d/e", "disk.a-b_c.d/e.usageGB"),
        ("", "disk..usageGB"),
        (7, "disk.7.usageGB"),
    ],
)
def test_a_filled_name_keeps_what_is_legal_and_has_an_underscore_for_each_other_character(
    label: str | int, name: str
) -> None:
    assert disk().fill({"path": label}) == name


@given(st.text(alphabet=st.characters(exclude_categories=()), max_size=600))
def test_any_label_becomes_a_name_that_the_sdk_accepts(label: str) -> None:
    name = disk().fill({"path": label})

    assert NAME.fullmatch(name)


def test_a_name_of_the_longest_length_is_created_by_the_real_sdk() -> None:
    meter = MeterProvider(shutdown_on_exit=False).get_meter("names")

    meter.create_observable_gauge(disk().fill({"path": "/" + 400 * "é"}))


def test_a_name_of_255_characters_is_left_whole_and_one_of_256_is_cut_to_255() -> None:
    beside = len("disk..usageGB")
    whole = disk().fill({"path": (MAX_NAME_LENGTH - beside) * "x"})
    cut = disk().fill({"path": (MAX_NAME_LENGTH - beside + 1) * "x"})

    assert whole.endswith("x.usageGB")
    assert len(whole) == MAX_NAME_LENGTH
    assert len(cut) == MAX_NAME_LENGTH
    assert re.search(r"x_[0-9a-f]{8}$", cut)


def test_a_cut_name_is_the_same_in_every_process_and_release() -> None:
    assert disk().fill({"path": 300 * "x"}) == "disk." + 241 * "x" + "_5938a288"


@given(st.text(min_size=280, max_size=320), st.text(min_size=280, max_size=320))
def test_two_long_originals_do_not_merge(one: str, other: str) -> None:
    assert (disk().fill({"path": one}) == disk().fill({"path": other})) == (one == other)


def test_long_originals_that_differ_only_in_illegal_characters_do_not_merge() -> None:
    names = {disk().fill({"path": 300 * "x" + end}) for end in (" ", ":", "é", "?", "\udcff", "\udcfe", "_")}

    assert len(names) == 7


def test_a_label_that_is_missing_is_an_error() -> None:
    with pytest.raises(KeyError, match="path"):
        disk().fill({"dev": "sda"})


def test_the_placeholders_are_found_in_the_tag() -> None:
    assert disk("gpu.{gpu}.mig.{mig}.memory").placeholders == ("gpu", "mig")
    assert disk("memory_percent").placeholders == ()


@pytest.mark.parametrize("unit", ["%", "W", "Cel", "MHz", "By/s", "bit/s", "{packet}/s"])
def test_shares_watts_temperatures_frequencies_and_rates_are_averaged(unit: str) -> None:
    assert gauge(unit).fold is Fold.MEAN


@pytest.mark.parametrize("unit", ["By", "MiBy", "GiBy", "{thread}", "s", "{success}", "", "1"])
def test_other_gauges_answer_with_the_last_value(unit: str) -> None:
    assert gauge(unit).fold is Fold.LAST


def test_a_counter_is_never_averaged() -> None:
    assert MetricSpec(tag="x", unit="%", brief="X.", collectors=(), kind=Kind.COUNTER).fold is Fold.LAST


def test_a_fold_that_is_given_holds() -> None:
    assert gauge("%", Fold.LAST).fold is Fold.LAST
    assert gauge("By", Fold.MEAN).fold is Fold.MEAN


def test_case_132_the_names_that_stopped_other_packages_are_created_by_the_real_sdk() -> None:
    """Paths, W&B's IPU keys, a recording rule, 300 characters, a leading underscore or digit."""
    meter = MeterProvider(shutdown_on_exit=False).get_meter("case 132")
    labels = ("/", "/mnt/My Data", "C:\\", "/données", "average board temp (C)", "up:rate5m", 300 * "a", "_x", "1x")

    for label in labels:
        meter.create_observable_gauge(disk("disk.{path}.usagePercent").fill({"path": label}))
