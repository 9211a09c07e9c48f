"""From the hardware of this machine to a real otelcol, by every way in."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
import urllib.request
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from otel_sysmetrics import __version__
from otel_sysmetrics.spec import Kind, MetricSpec, Scope
from tests import here
from tests.running import COMMAND, PROGRAMS, SCRIPTS, Running, clean_environment, over, receiving, refusing_port, until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.otelcol import Otelcol, Point

pytestmark = pytest.mark.otelcol

METER = "otel_sysmetrics"
EVERYTHING = {"OTEL_PYTHON_SYSMETRICS_METRICS_INCLUDED": "*"}
JOB = (sys.executable, os.path.join(PROGRAMS, "job.py"), "--seconds", "4", "--interval", "0.5")
WEB = (os.path.join(SCRIPTS, "opentelemetry-instrument"), sys.executable, os.path.join(PROGRAMS, "web.py"))


@pytest.fixture(scope="module")
def backend(otelcol_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Otelcol]:
    """Run one otelcol for the whole module."""
    with receiving(otelcol_binary, str(tmp_path_factory.mktemp("otelcol")), prometheus=True) as backend:
        yield backend


@pytest.fixture(scope="module")
def reported(backend: Otelcol) -> dict[str, list[Point]]:
    """Run every way in that samples for some seconds, all at once; return what arrived, by service name."""
    http = over("http/protobuf", backend.http_endpoint) | here.ONLY_HOST
    grpc = over("grpc", backend.grpc_endpoint) | here.ONLY_HOST
    delta = {"OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": "delta"}
    ways: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
        "over-http": (JOB, http | EVERYTHING),
        "over-grpc": (JOB, grpc | EVERYTHING),
        "delta": (JOB, http | EVERYTHING | delta),
        "exec": ((*COMMAND, "exec", "--", sys.executable, "-c", "import time; time.sleep(3)"), http),
        "run": ((*COMMAND, "run", "--exporter", "otlp"), http),
        "run-once": ((*COMMAND, "run", "--once"), http),
    }
    with ExitStack() as stack:
        programs = {
            name: stack.enter_context(
                Running(*words, environment=clean_environment(**variables, OTEL_SERVICE_NAME=name))
            )
            for name, (words, variables) in ways.items()
        }
        for name in ways.keys() - {"run"}:
            assert programs[name].finish() == 0, programs[name].tell()
        programs["run"].send(signal.SIGTERM)
        assert programs["run"].finish() == 0, programs["run"].tell()
    points = backend.wait_for(lambda points: set(ways) <= {service(point) for point in points})
    return {name: [point for point in points if service(point) == name] for name in ways}


def service(point: Point) -> str:
    return str(point.resource.get("service.name"))


@pytest.mark.parametrize("way", ["over-http", "over-grpc"])
def test_every_tag_of_the_catalogue_arrives_as_it_is_promised(reported: Mapping[str, list[Point]], way: str) -> None:
    """The tags that this machine has, and no other, with unit, kind and attribute keys of the catalogue."""
    wanted = here.expected(lambda _: True)
    arrived: dict[str, tuple[str, str, bool, str | None]] = {}
    keys: dict[str, set[frozenset[str]]] = {}
    for point in reported[way]:
        arrived[point.name] = (point.unit, point.kind, point.monotonic, point.temporality)
        keys.setdefault(point.name, set()).add(frozenset(point.attributes))

    assert arrived == {
        name: (spec.unit, "sum", True, "cumulative") if spec.kind is Kind.COUNTER else (spec.unit, "gauge", False, None)
        for name, spec in wanted.items()
    }, f"missing here: {here.missing()}"
    without_part = {frozenset({"collector"}), frozenset({"collector", "part"})}
    assert keys == {
        name: without_part if spec in here.HEALTH_TABLE else {frozenset(here.attribute_keys(spec))}
        for name, spec in wanted.items()
    }


@pytest.mark.parametrize("way", ["over-http", "over-grpc", "delta", "exec", "run", "run-once"])
def test_scope_and_resource_say_who_speaks(reported: Mapping[str, list[Point]], way: str) -> None:
    """One instrumentation scope with our version; host name, service name and one instance id on the Resource."""
    assert {(point.scope_name, point.scope_version) for point in reported[way]} == {(METER, __version__)}
    resources = [point.resource for point in reported[way]]
    assert all(resource == resources[0] for resource in resources)
    assert resources[0]["host.name"] == socket.gethostname()
    assert resources[0]["service.name"] == way
    assert resources[0]["service.instance.id"]


def test_what_a_job_does_shows_in_its_numbers(reported: Mapping[str, list[Point]]) -> None:
    """The job holds 100 MiB and keeps about half a CPU busy; both arrive, as does a counter that never falls."""
    most: dict[str, float] = {}
    for point in reported["over-http"]:
        most[point.name] = max(point.value, most.get(point.name, 0))
    assert 100 <= most["proc.memory.rssMB"] < 400
    assert 100 / (os.cpu_count() or 1) / 10 < most["cpu"] <= 100
    assert 0 < most["memory_percent"] < 100
    retransmits = [point.value for point in reported["over-http"] if point.name == "network.tcpRetransmits"]
    assert retransmits == sorted(retransmits)


@pytest.mark.parametrize("way", ["over-http", "delta"])
def test_prometheus_exporter_shows_names_unmangled(
    backend: Otelcol, reported: Mapping[str, list[Point]], way: str
) -> None:
    """With NoTranslation every name that arrived over OTLP is scraped with its dots, slashes and capitals."""
    lines = [line for line in backend.scrape().splitlines() if f'job="{way}"' in line]
    scraped = {match[1] or match[2] for line in lines if (match := re.match(r'\{"([^"]+)"|(\w+)\{', line))}
    # The Resource's attributes are a metric of the exporter's own.
    assert scraped - {"target_info"} == {point.name for point in reported[way]}


def test_delta_temporality_is_never_negative(reported: Mapping[str, list[Point]]) -> None:
    """Each counter is sent as what came since the last export, which is nothing or more."""
    counters = {spec.tag for spec in here.expected(lambda spec: spec.kind is Kind.COUNTER).values()}
    sums = [point for point in reported["delta"] if point.kind == "sum"]
    assert len({point.name for point in sums}) == len(counters) - len(here.HEALTH_TABLE)
    assert {point.temporality for point in sums} == {"delta"}
    assert min(point.value for point in sums) >= 0


@pytest.mark.parametrize("way", ["run", "run-once"])
def test_an_agent_reports_the_host_and_no_process(reported: Mapping[str, list[Point]], way: str) -> None:
    """`run` and `run --once` send all host-scoped tags that are on; nothing is watched, so no cgroup counts."""
    assert {point.name for point in reported[way]} == set(here.expected(host_alone))


def host_alone(spec: MetricSpec) -> bool:
    of_cgroup = spec.tag in {"proc.cpu.throttledPercent", "proc.memory.oomKills"}
    return spec.on and spec.scope is Scope.HOST and not of_cgroup


def test_exec_reports_the_host_and_the_command(reported: Mapping[str, list[Point]]) -> None:
    """Every tag that is on arrives from `exec -- CMD`."""
    assert {point.name for point in reported["exec"]} == set(here.expected(lambda spec: spec.on))


def test_once_at_a_dead_endpoint_is_status_1() -> None:
    """`run --once` says in one line why nothing was exported, and fails."""
    with refusing_port() as port:
        variables = over("http/protobuf", f"http://127.0.0.1:{port}") | {"OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
        with Running(*COMMAND, "run", "--once", environment=clean_environment(**variables)) as once:
            assert once.finish() == 1, once.tell()
    (line,) = once.errors
    assert line.startswith("otel-sysmetrics: metrics are not exported: ")
    assert once.lines == []


class Answers:
    """What one instrumented web application answered and said until it was told to quit."""

    def __init__(self, program: Running) -> None:
        port = int(program.wait_for_line("port ").split()[1])
        self._url = f"http://127.0.0.1:{port}"
        self._program = program

    def ask(self, path: str = "/") -> list[str]:
        """Return the names of the application's threads."""
        with urllib.request.urlopen(self._url + path, timeout=10) as answer:
            names: list[str] = json.load(answer)
        return names

    def quit(self) -> list[str]:
        """End the application, which has to go well, and return what it said on stderr."""
        self.ask("/quit")
        assert self._program.finish() == 0, self._program.tell()
        assert self._program.lines[-1] == "served"
        return self._program.errors


INSTRUMENTED = {
    "web": {},
    "web-with-a-bad-setting": {"OTEL_PYTHON_SYSMETRICS_SAMPLING_INTERVAL": "often"},
    "web-without-us": {"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "system_metrics , sysmetrics"},
    "web-without-the-sdk": {"OTEL_SDK_DISABLED": "true"},
    "web-without-metrics": {"OTEL_METRICS_EXPORTER": "none"},
}


@pytest.fixture(scope="module")
def served(backend: Otelcol) -> dict[str, tuple[list[str], list[str], list[Point]]]:
    """Run the web application under `opentelemetry-instrument` in each way, all at once.

    Returns its threads while it ran, what it said on stderr, and what arrived by its end.
    """
    common = over("http/protobuf", backend.http_endpoint) | here.ONLY_HOST
    common |= {
        "OTEL_METRICS_EXPORTER": "otlp",
        "OTEL_TRACES_EXPORTER": "none",
        "OTEL_LOGS_EXPORTER": "none",
        # Another package, with which ours is compared.
        "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "system_metrics",
    }
    ours = set(here.expected(lambda spec: spec.on))
    with ExitStack() as stack:
        programs = {
            name: stack.enter_context(
                Running(*WEB, environment=clean_environment(**common | variables, OTEL_SERVICE_NAME=name))
            )
            for name, variables in INSTRUMENTED.items()
        }
        answers = {name: Answers(program) for name, program in programs.items()}
        for name in ("web", "web-with-a-bad-setting"):
            until(lambda name=name: "otel-sysmetrics cpu" in answers[name].ask(), 10, programs[name].tell)  # type: ignore[misc]
        backend.wait_for(lambda points: ours <= {point.name for point in points if service(point) == "web"})
        threads = {name: answer.ask() for name, answer in answers.items()}
        errors = {name: answer.quit() for name, answer in answers.items()}
    arriving = {"web", "web-with-a-bad-setting", "web-without-us"}
    points = backend.wait_for(lambda points: arriving <= {service(point) for point in points})
    return {
        name: (threads[name], errors[name], [point for point in points if service(point) == name])
        for name in INSTRUMENTED
    }


Served = dict[str, tuple[list[str], list[str], list["Point"]]]


def test_an_application_and_its_hardware_arrive_beside_each_other(served: Served) -> None:
    """`opentelemetry-instrument python web.py`: its own counter and our tags, from one Resource, without a word."""
    _, errors, points = served["web"]
    assert {point.scope_name for point in points} == {METER, "web"}
    assert (
        len({point.resource["service.instance.id"] for point in points if "service.instance.id" in point.resource}) <= 1
    )
    assert {point.name for point in points if point.scope_name == METER} == set(here.expected(lambda spec: spec.on))
    assert max(point.value for point in points if point.name == "web.requests") >= 1
    assert errors == []


def test_a_bad_setting_is_one_error_and_the_application_runs(served: Served) -> None:
    """The error names variable, value and what is expected; the default holds and everything else works."""
    _, errors, points = served["web-with-a-bad-setting"]
    (line,) = errors
    assert line.startswith("otel-sysmetrics: OTEL_PYTHON_SYSMETRICS_SAMPLING_INTERVAL='often': expected a number")
    assert {point.scope_name for point in points} == {METER, "web"}


def test_disabled_instrumentations_switch_us_off_and_nobody_else(served: Served) -> None:
    """OTEL_PYTHON_DISABLED_INSTRUMENTATIONS=sysmetrics: no thread and no tag of ours; the application's counter is."""
    threads, errors, points = served["web-without-us"]
    assert [name for name in threads if name.startswith("otel-sysmetrics")] == []
    assert {point.scope_name for point in points} == {"web"}
    assert errors == []


@pytest.mark.parametrize("way", ["web-without-the-sdk", "web-without-metrics"])
def test_a_silenced_sdk_is_silent(served: Served, way: str) -> None:
    """OTEL_SDK_DISABLED=true and OTEL_METRICS_EXPORTER=none: the application runs and nothing arrives."""
    _, errors, points = served[way]
    assert points == []
    assert errors == []


def test_a_disabled_sdk_costs_no_thread(served: Served) -> None:
    """Under OTEL_SDK_DISABLED=true nothing is sampled that nobody could ask for."""
    threads, _, _ = served["web-without-the-sdk"]
    assert [name for name in threads if name.startswith("otel-sysmetrics")] == []
