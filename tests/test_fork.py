"""A forked child reports itself, and none hangs: tried with the real otelcol, each way in a program of its own."""

from __future__ import annotations

import json
import os
import socket
import statistics
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tests.running import PROGRAMS, Running, clean_environment, over, receiving

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.otelcol import Otelcol, Point

pytestmark = [
    pytest.mark.otelcol,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork"),
]

LIMIT = 25  # seconds that any of the programs may take; one that hangs would take for ever, or the SDK's 30
CONFIGURED_ID = {"OTEL_RESOURCE_ATTRIBUTES": "service.instance.id=configured"}
AT_THE_END = {"OTEL_METRIC_EXPORT_INTERVAL": "15000"}
# Per case: the way in programs/forks.py, the protocol, and further variables.
CASES: dict[str, tuple[str, str, dict[str, str]]] = {
    "generations-http": ("generations", "http/protobuf", {}),
    "generations-grpc": ("generations", "grpc", {}),
    "generations-configured": ("generations", "http/protobuf", CONFIGURED_ID),
    "stuck-http": ("stuck", "http/protobuf", {}),
    "stuck-grpc": ("stuck", "grpc", {}),
    "short-lived": ("short-lived", "http/protobuf", {}),
    "twice": ("twice", "http/protobuf", {}),
    "silenced": ("silenced", "http/protobuf", {}),
    "silenced-in-the-child": ("silenced-in-the-child", "http/protobuf", {}),
    "fork": ("fork", "http/protobuf", AT_THE_END),
    "spawn": ("spawn", "http/protobuf", AT_THE_END),
    "forkserver": ("forkserver", "http/protobuf", AT_THE_END),
    "foreign": ("foreign", "http/protobuf", {}),
    "foreign-configured": ("foreign", "http/protobuf", CONFIGURED_ID),
    "foreign-without-id": ("foreign-without-id", "http/protobuf", {}),
}


class Told(NamedTuple):
    """What a case's processes said, and what arrived of them."""

    program: Running
    facts: list[dict[str, Any]]
    points: list[Point]

    @property
    def streams(self) -> dict[tuple[object, object], list[float]]:
        """The values of `proc.memory.rssMB` by the identity of who sent them."""
        found: dict[tuple[object, object], list[float]] = {}
        for point in self.points:
            if point.name == "proc.memory.rssMB":
                identity = (point.resource.get("service.instance.id"), point.attributes.get("process.pid"))
                found.setdefault(identity, []).append(point.value)
        return found

    @property
    def residents(self) -> list[float]:
        """The resident memory that each process saw of itself, in MiB."""
        return [fact["resident"] for fact in self.facts if "resident" in fact]


@pytest.fixture(scope="module")
def backend(otelcol_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Otelcol]:
    """Run one otelcol for the whole module."""
    with receiving(otelcol_binary, str(tmp_path_factory.mktemp("otelcol"))) as backend:
        yield backend


@pytest.fixture(scope="module")
def told(backend: Otelcol) -> dict[str, Told]:
    """Run all cases at once, to their end."""
    endpoints = {"http/protobuf": backend.http_endpoint, "grpc": backend.grpc_endpoint}
    script = (sys.executable, os.path.join(PROGRAMS, "forks.py"))
    with ExitStack() as stack:
        programs = {
            case: stack.enter_context(
                Running(
                    *script,
                    way,
                    environment=clean_environment(
                        **over(protocol, endpoints[protocol]) | variables,
                        OTEL_SERVICE_NAME=case,
                        OTEL_PYTHON_SYSMETRICS_SAMPLING_INTERVAL="0.5",
                    ),
                )
            )
            for case, (way, protocol, variables) in CASES.items()
        }
        for program in programs.values():
            program.finish(LIMIT)
    reporting = set(CASES) - {"stuck-grpc"}
    points = backend.wait_for(lambda points: reporting <= {point.resource["service.name"] for point in points})
    return {
        case: Told(
            program,
            [json.loads(line) for line in program.lines],
            [point for point in points if point.resource["service.name"] == case],
        )
        for case, program in programs.items()
    }


@pytest.mark.parametrize("case", CASES)
def test_no_process_hangs_or_fails(told: Mapping[str, Told], case: str) -> None:
    """Parent and children come to their end with status 0 and without a word on stderr."""
    program = told[case].program
    assert program.process.returncode == 0, program.tell()
    assert {fact["status"] for fact in told[case].facts if "status" in fact} <= {0}, program.tell()
    # The parent of `stuck` has to say that its own export did not work; gRPC and Python have words of their own.
    # Under a foreign provider the SDK's exporter shares its connection with the child's, which spoils some requests.
    theirs = (
        "metrics are not exported",
        "forked during an export over gRPC",
        "DeprecationWarning",
        "os.fork()",
        "Bad Request",
        ".cc:",
    )
    assert [line for line in program.errors if not any(word in line for word in theirs)] == [], program.tell()


@pytest.mark.parametrize("case", ["generations-http", "generations-grpc", "generations-configured"])
def test_each_generation_reports_itself(told: Mapping[str, Told], case: str) -> None:
    """Parent, child and grandchild each have an instance id of their own, also where one is configured."""
    streams = told[case].streams
    assert len(streams) == 3, told[case].program.tell()
    assert {pid for _, pid in streams} == {None}, "the Resource alone tells them apart"
    for seen, sent in zip(
        sorted(told[case].residents), sorted(max(values) for values in streams.values()), strict=True
    ):
        assert sent == pytest.approx(seen, rel=0.1)


@pytest.mark.parametrize("case", ["generations-http", "generations-grpc"])
def test_the_parent_goes_on(told: Mapping[str, Told], case: str) -> None:
    """The parent's stream, which begins first, has points to the end, long after the fork."""
    points = [point for point in told[case].points if point.name == "proc.memory.rssMB"]
    parent = points[0].resource["service.instance.id"]
    sent = [point.time_ns for point in points if point.resource["service.instance.id"] == parent]
    assert sent[-1] - sent[0] > 3 * 10**9
    assert len(sent) >= 6


def test_a_child_sends_its_own_cpu_time(told: Mapping[str, Told]) -> None:
    """The child asks for half a CPU while its parent sleeps; of the three it is the second in memory too."""
    case = told["generations-http"]
    parent, child, _ = sorted(case.streams, key=lambda identity: max(case.streams[identity]))
    spent: dict[object, list[float]] = {}
    for point in case.points:
        if point.name == "cpu":
            spent.setdefault(point.resource["service.instance.id"], []).append(point.value)
    assert statistics.fmean(spent[child[0]]) > 2 * statistics.fmean(spent[parent[0]])


def test_a_child_forked_during_a_stuck_export_reports_itself(told: Mapping[str, Told]) -> None:
    """The SDK's export lock is held for ever in such a child; it has a provider of its own and needs none of that."""
    (values,) = told["stuck-http"].streams.values()
    assert max(values) == pytest.approx(told["stuck-http"].residents[0], rel=0.1)


def test_a_child_forked_during_an_export_over_grpc_is_silent_and_lives(told: Mapping[str, Told]) -> None:
    """A process that uses gRPC again after such a fork is aborted (`ev_epoll1_linux.cc` Check failed)."""
    assert told["stuck-grpc"].streams == {}
    assert [line for line in told["stuck-grpc"].program.errors if "http/protobuf does" in line]


@pytest.mark.parametrize("case", ["stuck-http", "stuck-grpc", "short-lived"])
def test_a_child_that_leaves_at_once_is_gone_at_once(told: Mapping[str, Told], case: str) -> None:
    """sys.exit and os._exit right after the fork cost no wait, whatever the parent's export is doing."""
    (seconds,) = [fact["seconds"] for fact in told[case].facts if "seconds" in fact]
    assert statistics.median(seconds) < 1, seconds
    assert max(seconds) < 10, "the SDK would wait for 30 s; we ourselves for 4, each time"


def test_short_lived_children_send_nothing(told: Mapping[str, Told]) -> None:
    """Twenty children that left at once are no streams."""
    assert len(told["short-lived"].streams) == 1


def test_configured_twice_a_child_reports_once(told: Mapping[str, Told]) -> None:
    """The later configure() speaks for the child; an earlier one adds no second stream."""
    assert len(told["twice"].streams) == 2, told["twice"].program.tell()


def test_a_child_forked_after_uninstrument_is_silent(told: Mapping[str, Told]) -> None:
    """What was switched off in the parent stays off in its children."""
    assert len(told["silenced"].streams) == 1, told["silenced"].program.tell()


def test_a_child_that_is_uninstrumented_before_it_reports_is_silent(told: Mapping[str, Told]) -> None:
    """Its parent reports, and so does a child that calls configure() in that time, once."""
    assert len(told["silenced-in-the-child"].streams) == 2, told["silenced-in-the-child"].program.tell()


@pytest.mark.parametrize("case", ["fork", "spawn", "forkserver"])
def test_last_numbers_of_a_multiprocessing_child_arrive(told: Mapping[str, Told], case: str) -> None:
    """The interval is longer than the child lives, and it runs no atexit: what arrives is its last flush."""
    streams = told[case].streams
    assert len(streams) == 2, told[case].program.tell()
    assert max(max(values) for values in streams.values()) == pytest.approx(told[case].residents[0], rel=0.1)


@pytest.mark.parametrize("case", ["foreign", "foreign-configured", "foreign-without-id"])
def test_streams_under_a_foreign_provider_never_meet(told: Mapping[str, Told], case: str) -> None:
    """Parent and child each send their own memory, under identities that differ."""
    streams = told[case].streams
    assert len(streams) == 2, told[case].program.tell()
    for seen, sent in zip(sorted(told[case].residents), sorted(values[-1] for values in streams.values()), strict=True):
        assert sent == pytest.approx(seen, rel=0.1)


@pytest.mark.parametrize("case", ["foreign-configured", "foreign-without-id"])
def test_points_carry_host_and_pid_where_the_instance_id_does_not_tell(told: Mapping[str, Told], case: str) -> None:
    """An instance id from the environment, or none, is no single process's."""
    processes = {(socket.gethostname(), fact["pid"]) for fact in told[case].facts if "resident" in fact}
    ours = [point for point in told[case].points if point.scope_name == "otel_sysmetrics"]
    # Newer SDKs give a forked child an id of its own, over a configured one.
    told_apart = {point.resource.get("service.instance.id") for point in ours} - {None, "configured"}
    others = [point for point in ours if point.resource.get("service.instance.id") not in told_apart]
    assert others
    assert {(point.attributes["host.name"], point.attributes["process.pid"]) for point in others} <= processes
