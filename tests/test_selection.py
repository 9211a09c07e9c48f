from __future__ import annotations

from typing import Final

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from otel_sysmetrics.catalog import host
from otel_sysmetrics.selection import Selection
from otel_sysmetrics.spec import MetricSpec

ON: Final = host.MEMORY_PERCENT
OFF: Final = host.LOAD_1
TEMPLATE: Final = host.DISK_USAGE_PERCENT  # disk.{path}.usagePercent, on
TEMPLATE_OFF: Final = host.CPU_CORE_PERCENT  # cpu.{cpu}.cpu_percent, off


def spec_of(tag: str, *, on: bool = False) -> MetricSpec:
    return MetricSpec(tag=tag, unit="1", brief="X.", collectors=(), on=on)


@pytest.mark.parametrize(
    ("included", "excluded", "sent"),
    [
        (["default"], [], {ON}),
        ([], [], set()),
        (["*"], [], {ON, OFF}),
        (["default", "system.*"], [], {ON, OFF}),
        (["system.load1"], [], {OFF}),
        (["system.load?"], [], {OFF}),
        (["system.load[12]"], [], {OFF}),
        (["system.load[!2-9]"], [], {OFF}),
        (["system.load"], [], set()),
        (["SYSTEM.LOAD1"], [], set()),
        (["default"], ["memory_percent"], set()),
        (["default"], ["memory*"], set()),
        (["*"], ["memory_percent"], {OFF}),
        (["system.load1"], ["*"], set()),
        (["*"], ["default"], {ON, OFF}),
    ],
)
def test_default_stands_for_the_rows_that_are_on_and_what_is_excluded_wins(
    included: list[str], excluded: list[str], sent: set[MetricSpec]
) -> None:
    selection = Selection(included, excluded)

    assert {spec for spec in (ON, OFF) if selection.tag(spec, spec.tag)} == sent
    assert {spec for spec in (ON, OFF) if selection.spec(spec)} == sent


@pytest.mark.parametrize(
    ("included", "excluded", "path", "sent"),
    [
        (["default"], [], "/", True),
        (["disk.*"], [], "/mnt/a.b", True),
        (["disk./.usagePercent"], [], "/", True),
        (["disk./.usagePercent"], [], "/data", False),
        (["default"], ["disk./data*"], "/data/x", False),
        (["default"], ["disk./data*"], "/", True),
        (["disk./mnt/my_disk.*"], [], "/mnt/my disk", True),
    ],
)
def test_globs_are_matched_with_filled_tags(included: list[str], excluded: list[str], path: str, *, sent: bool) -> None:
    assert Selection(included, excluded).tag(TEMPLATE, TEMPLATE.fill({"path": path})) is sent


@pytest.mark.parametrize(
    ("glob", "possible"),
    [
        ("*", True),
        ("cpu.*", True),
        ("cpu.0.cpu_percent", True),
        ("cpu.[0-3].cpu_percent", True),
        ("cpu.?.cpu_percent", True),
        ("*percent", True),
        ("cpu.cpu_percent", False),
        ("gpu.*", False),
        ("cpu.0.cpu_percen", False),
        ("c[a-q]u.3.*", True),
        ("", False),
    ],
)
def test_a_costly_query_is_left_out_only_where_no_glob_can_choose_what_it_gives(glob: str, *, possible: bool) -> None:
    assert Selection([glob], []).spec(TEMPLATE_OFF) is possible


def test_a_set_of_characters_counts_as_any_character_when_a_template_is_looked_at() -> None:
    assert Selection(["[x]pu.0.cpu_percent"], []).spec(TEMPLATE_OFF)
    assert not Selection(["[x]pu.0.cpu_percent"], []).tag(TEMPLATE_OFF, "cpu.0.cpu_percent")


def test_a_long_glob_of_many_stars_is_decided_at_once() -> None:
    assert not Selection([100 * "*a" + "b"], []).spec(spec_of(20 * "{x}." + "z"))


PIECES: Final = st.lists(st.sampled_from(["{a}", "{b}", "a", "b", ".", "a.b", "usage"]), min_size=1, max_size=5)
TEMPLATES: Final = PIECES.map(lambda pieces: "t" + "".join(pieces))
GLOB_PIECES: Final = [*"*?ab.t[]!{_", "[ab]", "[!a]", "[]a]", "[!]a]", "{a}", "usage"]
GLOBS: Final = st.lists(st.sampled_from(GLOB_PIECES), max_size=7).map("".join)
LABELS: Final = st.text(alphabet="ab.*?[]{}_ é", max_size=4)


@given(
    template=TEMPLATES,
    included=st.lists(GLOBS, max_size=3),
    excluded=st.lists(GLOBS, max_size=2),
    on=st.booleans(),
    a=LABELS,
    b=LABELS,
)
@example(template="t{a}.b", included=["t*.[]b]"], excluded=[], on=False, a="b", b="")
@example(template="t{a}.b", included=["t*.[!]a]"], excluded=[], on=False, a="b", b="")
def test_a_spec_is_never_left_out_where_one_of_its_tags_would_be_sent(  # noqa: PLR0913 - each is drawn by itself
    template: str,
    included: list[str],
    excluded: list[str],
    *,
    on: bool,
    a: str,
    b: str,
) -> None:
    spec = spec_of(template, on=on)
    name = spec.fill({"a": a, "b": b})
    selection = Selection([*included, "default"] if on else included, excluded)
    assume(selection.tag(spec, name))

    assert selection.spec(spec)
