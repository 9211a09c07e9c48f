"""Many forks while exports go on: nothing is left of short children, and long ones report although locks were held."""

from __future__ import annotations

import json
import os
import sys
from contextlib import ExitStack
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest

from tests.running import PROGRAMS, Running, clean_environment, over, receiving
from tests.streams import HOST_TAGS, PROCESS_TAGS, Watch, stream

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.otelcol import Otelcol

pytestmark = [
    pytest.mark.otelcol,
    pytest.mark.skipif(sys.platform != "linux", reason="counts files in /proc"),
]

PROGRAM: Final = (sys.executable, os.path.join(PROGRAMS, "storm.py"))
SECONDS: Final = float(os.environ.get("STORM_SECONDS", "3"))
RATE: Final = 200
LOOP: Final = 24
INTERVAL: Final = 0.5
PATIENCE: Final = 40 + 6 * SECONDS
# Per case: whose provider, seconds, children in a second, how long each lives, and the milliseconds between exports.
CASES: Final[dict[str, tuple[str, float, int, float, int]]] = {
    "ours": ("ours", SECONDS, RATE, 0.02, 500),
    "foreign": ("foreign", SECONDS, RATE, 0.02, 500),
    # With so short an interval nearly every child is forked in the midst of a collection, an encoding or a request.
    "loop": ("ours", LOOP / 10, 10, 5.0, 20),
}


class Passed(NamedTuple):
    """What the program said, and what arrived of it."""

    program: Running
    facts: dict[str, Any]
    watch: Watch


@pytest.fixture(scope="module")
def backend(otelcol_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Otelcol]:
    """Run one otelcol for the whole module."""
    with receiving(otelcol_binary, str(tmp_path_factory.mktemp("otelcol"))) as backend:
        yield backend


@pytest.fixture(scope="module")
def passed(backend: Otelcol) -> dict[str, Passed]:
    """Let all cases pass beside each other."""
    with ExitStack() as stack:
        programs = {
            case: stack.enter_context(
                Running(
                    *PROGRAM,
                    *map(str, arguments),
                    environment=clean_environment(
                        **over("http/protobuf", backend.http_endpoint, milliseconds),
                        OTEL_SERVICE_NAME=f"storm {case}",
                        OTEL_PYTHON_SYSMETRICS_SAMPLING_INTERVAL=str(INTERVAL),
                        OTEL_PYTHON_SYSMETRICS_COLLECTORS="cpu,memory,network",
                    ),
                )
            )
            for case, (*arguments, milliseconds) in CASES.items()
        }
        for program in programs.values():
            program.finish(PATIENCE)
    return {
        case: Passed(program, json.loads(program.lines[-1]), Watch(backend, **{"service.name": f"storm {case}"}))
        for case, program in programs.items()
    }


@pytest.mark.parametrize("case", CASES)
def test_no_thread_no_file_and_no_child_is_left(passed: dict[str, Passed], case: str) -> None:
    """Each child has ended well and was waited for, the parent too: none hung."""
    program, facts, _ = passed[case]
    assert program.process.returncode == 0, program.tell()
    assert facts["failed"] == [], program.tell()
    assert facts["after"]["threads"] <= facts["before"]["threads"], program.tell()
    assert facts["after"]["files"] <= facts["before"]["files"] + 1, program.tell()  # a connection may be open just now


def test_the_parent_has_every_point_in_the_storm_and_short_children_none(passed: dict[str, Passed]) -> None:
    """No two of its points are further apart than two intervals; a busy machine may be late by one."""
    _, facts, watch = passed["ours"]
    for tag in (HOST_TAGS[0], PROCESS_TAGS[0]):
        assert len(watch.streams(tag)) == 1, passed["ours"].program.tell()
        times = [point.time_ns for point in watch.points(tag)]
        assert max(after - before for before, after in pairwise(times)) < 3 * INTERVAL * 1e9
        assert times[0] < facts["begun"] < facts["ended"] < times[-1]


def test_the_parent_goes_on_under_a_provider_of_the_application_s_own(passed: dict[str, Passed]) -> None:
    """There a child may spoil a request: it shares the connection that the SDK keeps open."""
    _, facts, watch = passed["foreign"]
    first, *_ = watch.points(PROCESS_TAGS[0])
    parent = [point for point in watch.points(PROCESS_TAGS[0]) if stream(point) == stream(first)]
    assert parent[-1].time_ns > facts["ended"], passed["foreign"].program.tell()


def test_each_child_that_is_forked_in_the_midst_of_exports_reports(passed: dict[str, Passed]) -> None:
    """The locks that the SDK held while forking, and its open connection, are nothing to our own provider's child."""
    streams = passed["loop"].watch.streams(PROCESS_TAGS[0])
    assert len(streams) == 1 + passed["loop"].facts["forked"], passed["loop"].program.tell()
