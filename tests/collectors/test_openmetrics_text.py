"""What the text formats say, read line by line."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from otel_sysmetrics.collectors.openmetrics.exposition import NotMetrics
from otel_sysmetrics.collectors.openmetrics.filters import Kept
from otel_sysmetrics.collectors.openmetrics.scrape import read_text
from otel_sysmetrics.endpoints import Filters, filters

if TYPE_CHECKING:
    from otel_sysmetrics.collectors.openmetrics.exposition import Exposition

SAMPLES: Final = Path(__file__).parents[2].parent / "shared" / "samples" / "openmetrics"


def scraped(body: str | bytes, chosen: Filters = (), *, limit: int = 10_000, step: int = 7) -> Exposition:
    """Read a body in small pieces."""
    content = body.encode() if isinstance(body, str) else body
    pieces = [content[start : start + step] for start in range(0, len(content), step)]
    return read_text(Kept("ep", chosen), limit, pieces)


def values(body: str | bytes, chosen: object = ()) -> dict[str, float]:
    """Return the series as `name{label=value}` with their values."""
    found = scraped(body, filters(chosen)).series
    return {
        series.name + "".join(f"{{{key}={value}}}" for key, value in series.labels): value
        for series, value in found.items()
    }


def test_case_098_a_last_line_needs_no_line_feed() -> None:
    assert values("a 1\nb 2") == {"a": 1, "b": 2}
    assert values("# TYPE a gauge\na 1\n# EOF") == {"a": 1}


def test_case_099_a_missing_end_costs_nothing() -> None:
    assert values("# TYPE a counter\na_total 3\n") == {"a_total": 3}


def test_case_101_the_value_is_the_first_number_and_the_time_stamp_is_left_out() -> None:
    body = 'a {w="x"} 0 0\nb {w="x"} 5 1.5\na {w="y"} 0 0\nm 42 1637604687818\nt\t42 123\n'

    assert values(body) == {"a{w=x}": 0, "b{w=x}": 5, "a{w=y}": 0, "m": 42, "t": 42}


def test_case_102_a_bad_line_costs_that_line_and_is_counted() -> None:
    """A backslash before any other letter is itself, as it is for Prometheus."""
    body = (
        'before{id="1"} 1\n'
        'days{name="Laptop 14" registry R/W",id="218"} -794\n'
        'conn{app="NODE20\\APP"} 7\n'
        'disk{l="Disk Usage C:\\", country="xx"} 1\n'
        'after{id="2"} 2\n'
    )

    assert scraped(body).bad == 2
    assert values(body) == {"before{id=1}": 1, "conn{app=NODE20\\APP}": 7, "after{id=2}": 2}


def test_case_107_comments_and_odd_types_make_no_series() -> None:
    lines = ("\ufeff#HELP x text", "# TYPE x counter", "# TYPE x counter", "x 1", "", "#", "# free", "y 2")
    body = "\r\n".join([*lines, "# TYPE y counter", ""])

    assert {series.name: series.counts for series in scraped(body).series} == {"x": True, "y": False}


def test_case_109_a_label_set_is_the_same_in_any_order() -> None:
    assert scraped('a{x="1",y="2"} 1\n').series.keys() == scraped('a{y="2",x="1",z=""} 1\n').series.keys()


def test_case_110_a_page_of_html_gives_nothing() -> None:
    with pytest.raises(NotMetrics, match="a page of HTML"):
        scraped("<!doctype html>\n<html>\n")
    with pytest.raises(NotMetrics, match="no metrics"):
        scraped("Please sign in:\n\n")


def test_case_115_a_byte_that_is_no_utf8_costs_itself() -> None:
    assert values(b'up{h="a"} 1\nreq{h="\xfft"} 5\nup{h="b"} 1\n') == {"up{h=a}": 1, "req{h=\ufffdt}": 5, "up{h=b}": 1}


@pytest.mark.parametrize("body", [b"\xef\xbb\xbf# TYPE a gauge\na 1\n", b"\xef\xbb\xbfa 1\n"])
def test_case_116_a_byte_order_mark_is_no_part_of_a_name(body: bytes) -> None:
    assert values(body) == {"a": 1}


def test_case_117_a_line_without_a_value_is_left_out() -> None:
    body = 'a{gpu="0"} 40\nb{gpu="0"} \nc{gpu="0"}\nd{gpu="0"} N/A161262243332996445\ne{gpu="0"} 51.2\n'

    assert scraped(body).bad == 3
    assert values(body) == {"a{gpu=0}": 40, "e{gpu=0}": 51.2}


def test_case_118_what_dcgm_writes_for_unknown_is_absent() -> None:
    body = (
        'DCGM_FI_DEV_MEMORY_TEMP{gpu="0"} 9223372036854775794\n'
        'DCGM_FI_PROF_SM_ACTIVE{gpu="1"} 140737488355328.0\n'
        'DCGM_FI_DEV_XID{gpu="1"} 2147483632\n'
        'DCGM_FI_DEV_GPU_TEMP{gpu="0"} 39\n'
        "bytes 140737488355328\n"
    )

    assert values(body) == {"DCGM_FI_DEV_GPU_TEMP{gpu=0}": 39, "bytes": 140737488355328}


def test_case_119_a_spike_passes_through_as_it_is() -> None:
    assert values('DCGM_FI_DEV_GPU_UTIL{gpu="3"} 4294967295\n') == {"DCGM_FI_DEV_GPU_UTIL{gpu=3}": 4294967295}


@pytest.mark.parametrize(
    ("chosen", "kept"),
    [
        ([], "abcd"),
        (["^a_x$"], ""),
        (["ep[.]a_x$"], "ab"),
        (["y"], "cd"),
        ({"a_x": {"gpu": "[0,1]"}}, "a"),
        ({"a_x": {"gpu": "[0,1]"}, "nothing": {}, "y": {"gpu": ".*"}}, "ac"),
        ({"a_x": {}}, "ab"),
        ({".*": {"gpu": "2", "absent": ".*"}}, ""),
        ({".*": {"gpu": "^2$"}, "b_y": {}}, "bcd"),
        (["ep.a_(x|z)"], "ab"),
    ],
)
def test_case_120_filters_are_searched_in_endpoint_and_metric(chosen: object, kept: str) -> None:
    """Entries are alternatives, the labels of one all have to be found, and one that is absent is not."""
    lines = {"a": 'a_x{gpu="0"}', "b": 'a_x{gpu="2"}', "c": 'b_y{gpu="3"}', "d": "b_y"}
    body = "".join(f"{line} {number}\n" for number, line in enumerate(lines.values()))

    assert "".join(sorted("abcd"[int(value)] for value in values(body, chosen).values())) == kept


def test_case_121_counters_gauges_and_untyped_are_read_and_nothing_else() -> None:
    body = (
        '# TYPE h histogram\nh_bucket{le="+Inf"} 3\nh_sum 0.9\nh_count 3\n'
        '# TYPE s summary\ns{quantile="0.5"} 0.2\ns_sum 1.1\ns_count 4\n'
        "# TYPE c counter\nc_total 17\nc_created 1.7091426423897128e+09\n"
        '# TYPE i info\ni_info{version="1.2"} 1\n# TYPE st stateset\nst{st="on"} 1\n'
        "# TYPE gh gaugehistogram\ngh_bucket 1\ngh_gsum 1\ngh_gcount 1\n# TYPE g gauge\ng 2\nuntyped 9\n# EOF\n"
    )

    assert {series.name: series.counts for series in scraped(body).series} == {
        "c_total": True,
        "g": False,
        "untyped": False,
    }


def test_labels_keep_what_stands_in_quotes() -> None:
    body = 'e{path="C:\\\\dir",msg="say \\"hi\\"\\nbye",odd="},{=#"} 1 # {trace="x"} 1 2.5\n{"utf8.name","k.k"="v"} 4\n'

    found = [(series.name, dict(series.labels)) for series in scraped(body).series]
    assert found == [
        ("e", {"path": "C:\\dir", "msg": 'say "hi"\nbye', "odd": "},{=#"}),
        ("utf8.name", {"k.k": "v"}),
    ]


def test_what_is_no_number_is_absent_and_the_last_of_two_counts() -> None:
    assert values("a NaN\nb +Inf\nc -Inf\nd 1e3\ne 1\ne 2\nf .5\n") == {"d": 1000, "e": 2, "f": 0.5}


@pytest.mark.parametrize(
    "line", ["a 1_000", "a \u0661", "a 0x10", "a 1 2 3", "a{b} 1", 'a{b="1" c="2"} 1', 'a{b="1",b="2"} 1']
)
def test_a_line_that_is_not_of_the_format_is_bad(line: str) -> None:
    found = scraped(f"ok 1\n{line}\n")

    assert (found.bad, len(found.series)) == (1, 1)


def test_a_unit_belongs_to_its_family() -> None:
    found = scraped("# TYPE q counter\n# UNIT q seconds\nq_total 1\nother 1\n").series

    assert [(series.name, series.unit) for series in found] == [("q_total", "seconds"), ("other", "")]


def test_series_over_the_limit_are_counted() -> None:
    found = scraped("".join(f'a{{x="{number}"}} 1\n' for number in range(9)), limit=4)

    assert (len(found.series), found.dropped) == (4, 5)


def test_of_more_names_than_are_remembered_each_has_its_kind_and_unit() -> None:
    """Of a hundred thousand and more: what is said of a name stands right before its samples."""
    lines = "# TYPE n{0} counter\n# UNIT n{0} bytes\nn{0} 1\nn{0}_total 2\n"
    found = scraped("".join(map(lines.format, range(110_000))), limit=10**6, step=65_536)

    assert len(found.series) == 220_000
    assert all(series.counts and series.unit == "bytes" for series in found.series)


def test_a_line_without_end_takes_no_memory() -> None:
    found = scraped("a 1\nb" + 3_000_000 * "x" + " 1\nc 2\n", step=65_536)

    assert ([series.name for series in found.series], found.bad) == (["a", "c"], 1)


@pytest.mark.parametrize("line", ["a " + 60_000 * "1" + "x", "a 1." + 60_000 * "1" + "x", "a 1 1" + 60_000 * "1" + "x"])
def test_a_line_of_digits_takes_no_time_with_the_square_of_its_length(line: str) -> None:
    """It held the interpreter for minutes, and so every thread of the application."""
    begun = time.thread_time()
    found = scraped(f"{line}\nb 1\n")

    assert (len(found.series), found.bad) == (1, 1)
    assert time.thread_time() - begun < 2


@given(
    st.lists(
        st.sampled_from(["a", "b 1", "{", "}", '"', "\\", "=", ",", "#", " ", "\n", "1", "TYPE", "x="]) | st.text()
    )
)
def test_no_text_raises_anything_but_that_it_is_none(parts: list[str]) -> None:
    try:
        found = scraped("".join(parts).encode("utf-8", "surrogatepass"))
    except NotMetrics:
        return
    assert all(math.isfinite(value) for value in found.series.values())
    for series in found.series:
        assert series.name.encode()


@given(st.floats(allow_nan=False), st.text(st.characters(exclude_categories=["Cs"]), max_size=8))
def test_what_prometheus_client_reads_is_read_alike(value: float, label: str) -> None:
    text = label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "")
    body = f'a{{l="{text}"}} {value!r}\nb 1\n'

    theirs = {
        (sample.name, tuple((key, found) for key, found in sample.labels.items() if found)): sample.value
        for family in text_string_to_metric_families(body)
        for sample in family.samples
        if math.isfinite(sample.value)
    }
    assert {(series.name, series.labels): found for series, found in scraped(body).series.items()} == theirs


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="the samples are not here")
def test_what_real_exporters_send_is_read_whole() -> None:
    for path in SAMPLES.iterdir():
        found = scraped(path.read_bytes())
        assert found.series
        assert found.bad == (1 if path.stem == "dcgm__bad_values" else 0), path.name
