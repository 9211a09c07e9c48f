"""Answers that are big, endless or unpack to more: what they cost is bounded."""

from __future__ import annotations

import gzip
import json
import os
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.collectors.openmetrics_server import serving
from tests.running import clean_environment, python

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.collectors.openmetrics_server import Answer, Handler

PREFIX: Final = "OTEL_PYTHON_SYSMETRICS_OPENMETRICS_"
MIB: Final = 2**20
TYPES_AND_SAMPLES: Final = b"# TYPE name_%d counter\n# UNIT name_%d bytes\nname_%d 1\n"


def scraped(answer: Answer | bytes, filters: object = None, **fields: object) -> Any:  # noqa: ANN401 - JSON
    """Return what a process of its own makes of an answer."""
    with serving(answer) as server:
        variables = {f"{PREFIX}ENDPOINTS": json.dumps({"ep": {"url": server.url, **fields}})}
        if filters is not None:
            variables[f"{PREFIX}FILTERS"] = json.dumps(filters)
        with python("scrape.py", environment=clean_environment(**variables)) as program:
            assert program.finish(60) == 0, program.tell()
    return json.loads("".join(program.lines))


def names(pattern: bytes) -> Iterator[bytes]:
    """Yield pages of names that never come again."""
    for start in count(0, 500):
        yield b"".join(pattern.replace(b"%d", b"%d" % number) for number in range(start, start + 500))


def chunked(request: Handler, pieces: Iterator[bytes]) -> None:
    request.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    for piece in pieces:
        request.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))


def without_length(request: Handler, pieces: Iterator[bytes]) -> None:
    request.wfile.write(b"HTTP/1.0 200 OK\r\n\r\n")
    for piece in pieces:
        request.wfile.write(piece)


def packed(request: Handler, pieces: Iterator[bytes]) -> None:
    request.wfile.write(b"HTTP/1.0 200 OK\r\nContent-Encoding: gzip\r\n\r\n")
    for piece in pieces:
        request.wfile.write(gzip.compress(piece, 1))


pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="Linux shows the peak of a process")
WAYS: Final = [chunked, without_length, packed]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("filters", [None, ["nothing"]])
def test_case_112_an_answer_without_end_is_over_at_the_deadline_and_bounded(
    way: Callable[[Handler, Iterator[bytes]], None], filters: object
) -> None:
    """However it is sent, and though each line has a name of its own."""
    found = scraped(lambda request: way(request, names(TYPES_AND_SAMPLES)), filters, timeout=4, body_limit=2**40)

    assert found["said"] == "no whole answer within 4 s"
    assert found["took"] < 90 * MIB


@pytest.mark.parametrize("way", WAYS)
def test_case_112_an_answer_without_end_is_over_at_the_limit_and_bounded(
    way: Callable[[Handler, Iterator[bytes]], None],
) -> None:
    found = scraped(lambda request: way(request, names(b"-%d\n")), timeout=60, body_limit=8 * MIB)

    assert found["said"] == f"an answer of more than {8 * MIB} bytes"
    assert found["took"] < 40 * MIB


def test_case_104_four_hundred_thousand_lines_of_which_three_families_are_wanted() -> None:
    """What is wanted comes whole, and takes no memory for what is not."""
    page = "".join(
        f"# TYPE family_{family} gauge\n"
        + "".join(f'family_{family}{{pod="job-{item}",gpu="{item % 8}"}} {item}.5\n' for item in range(2000))
        for family in range(200)
    )
    found = scraped(page.encode(), ["family_(7|70|177)$"], timeout=60)

    assert (found["said"], found["series"]) == ("", 6000)
    assert found["names"] == ["family_177", "family_7", "family_70"]
    assert found["took"] < 60 * MIB
