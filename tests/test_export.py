"""Our own provider: the exit is bounded, the last numbers arrive, and the environment says who we are."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.running import (
    PROGRAMS,
    Running,
    Silent,
    clean_environment,
    command,
    over,
    python,
    receiving,
    refusing_port,
    until,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.otelcol import Otelcol, Point

PROTOCOLS = ("http/protobuf", "grpc")
ENDPOINTS = ("refusing", "silent")
# What a script ends with, and the status that Python gives it.
ENDS = {"return": 0, "exit": 3, "raise": 1}
STOPS = {
    ("http/protobuf", "silent"): signal.SIGTERM,
    ("grpc", "silent"): signal.SIGINT,
    ("http/protobuf", "refusing"): signal.SIGINT,
    ("grpc", "refusing"): signal.SIGTERM,
}
MOST_SECONDS = 5  # the SDK alone needs 6 to 10


@pytest.fixture(scope="module")
def dead_ends() -> Iterator[Mapping[str, str]]:
    """Return the endpoints that lead nowhere, by what they do."""
    with refusing_port() as refusing, Silent() as silent:
        yield {"refusing": f"http://127.0.0.1:{refusing}", "silent": silent.endpoint}


@pytest.fixture(scope="module")
def jobs_at_dead_ends(dead_ends: Mapping[str, str]) -> Iterator[dict[tuple[str, str, str], Running]]:
    """Run a job for each protocol, dead end and way to end, all at once, each with an export under way at its end."""
    with ExitStack() as stack:
        jobs = {
            (protocol, endpoint, end): stack.enter_context(
                python(
                    "job.py",
                    *("--idle", "--seconds", "1.5", "--end", end),
                    environment=clean_environment(**over(protocol, dead_ends[endpoint])),
                )
            )
            for protocol in PROTOCOLS
            for endpoint in ENDPOINTS
            for end in ENDS
        }
        for job in jobs.values():
            job.finish()
        yield jobs


@pytest.fixture(scope="module")
def agents_at_dead_ends() -> Iterator[dict[tuple[str, str], tuple[Running, float]]]:
    """Run `run` at each dead end until its first export has failed or hangs, then stop it; with the time of that."""
    with ExitStack() as stack:
        silents = {protocol: stack.enter_context(Silent()) for protocol in PROTOCOLS}
        refusing = f"http://127.0.0.1:{stack.enter_context(refusing_port())}"
        agents = {
            (protocol, endpoint): stack.enter_context(
                command(
                    "run",
                    environment=clean_environment(
                        **over(protocol, silents[protocol].endpoint if endpoint == "silent" else refusing)
                    ),
                )
            )
            for protocol, endpoint in STOPS
        }
        stopped = {}
        for (protocol, endpoint), number in STOPS.items():
            agent = agents[protocol, endpoint]
            if endpoint == "silent":
                until(lambda protocol=protocol: silents[protocol].callers, 30, agent.tell)  # type: ignore[misc]
            else:
                agent.wait_for_error("otel-sysmetrics: metrics are not exported")
            stopped[protocol, endpoint] = agent.send(number)
        for agent in agents.values():
            agent.finish()
        yield {case: (agent, stopped[case]) for case, agent in agents.items()}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_dead_endpoint_keeps_no_script_from_its_end(
    jobs_at_dead_ends: Mapping[tuple[str, str, str], Running], protocol: str, endpoint: str, end: str
) -> None:
    """The process is gone within 5 s of the script's last line, with the script's own status."""
    job = jobs_at_dead_ends[protocol, endpoint, end]
    assert job.lines[-1].startswith("last line"), job.tell()
    assert job.process.returncode == ENDS[end], job.tell()
    assert job.seconds_after_last_line < MOST_SECONDS, job.tell()


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_dead_endpoint_is_said_once_in_one_line(
    jobs_at_dead_ends: Mapping[tuple[str, str, str], Running], protocol: str, endpoint: str
) -> None:
    """Whatever the SDK logs at each retry and at the end, a script's stderr gets one line."""
    job = jobs_at_dead_ends[protocol, endpoint, "return"]
    (line,) = job.errors
    assert line.startswith("otel-sysmetrics: metrics are not exported: "), line
    reasons = {"refusing": ("refused", "UNAVAILABLE"), "silent": ("no answer before the end",)}[endpoint]
    assert any(reason in line for reason in reasons), line


@pytest.mark.parametrize(("protocol", "endpoint"), STOPS)
def test_a_dead_endpoint_keeps_no_agent_from_its_end(
    agents_at_dead_ends: Mapping[tuple[str, str], tuple[Running, float]], protocol: str, endpoint: str
) -> None:
    """`run` is gone within 5 s of SIGTERM or SIGINT, with status 0 and one line about the export."""
    agent, stopped = agents_at_dead_ends[protocol, endpoint]
    assert agent.process.returncode == 0, agent.tell()
    assert agent.seconds_since(stopped) < MOST_SECONDS, agent.tell()
    assert len(agent.errors) == 1, agent.tell()
    assert agent.lines == []


@pytest.fixture(scope="module")
def backend(otelcol_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Otelcol]:
    """Run one otelcol for the whole module."""
    with receiving(otelcol_binary, str(tmp_path_factory.mktemp("otelcol"))) as backend:
        yield backend


RANKS = {
    "RANK": "11",
    "LOCAL_RANK": "3",
    "WORLD_SIZE": "16",
    "SLURM_JOB_ID": "4711",
    "SLURM_PROCID": "11",
    "SLURM_LOCALID": "3",
}
CONFIGURED = {
    "OTEL_SERVICE_NAME": "from-variable",
    "OTEL_RESOURCE_ATTRIBUTES": (
        "service.name=from-list,service.instance.id=mine,host.name=elsewhere,rank=7,team=vision"
    ),
}


@pytest.fixture(scope="module")
def reported(backend: Otelcol) -> dict[str, list[Point]]:
    """Run one program per case against otelcol, all at once; return what arrived of each by the end."""
    short = ("--idle", "--seconds", "1")
    job = (sys.executable, os.path.join(PROGRAMS, "job.py"))
    module = (sys.executable, "-m", "otel_sysmetrics")
    cases: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
        "long": ((*job, "--seconds", "3"), {}),
        "plain": ((*job, *short), {}),
        "plain again": ((*job, *short), {}),
        "configured": ((*job, *short), CONFIGURED | RANKS),
        "ranked": ((*job, *short), RANKS),
        "by variable": ((*job, "--idle", "--seconds", "2.5"), {"OTEL_METRIC_EXPORT_INTERVAL": "400"}),
        "by setting": ((*job, "--idle", "--seconds", "2.5", "--interval", "0.4"), {}),
        "twice": ((sys.executable, os.path.join(PROGRAMS, "twice.py")), {}),
        "run": ((*module, "run", "--once"), {}),
        "run configured": ((*module, "run", "--once"), CONFIGURED),
        "exec": ((*module, "exec", "--", "sleep", "1"), {}),
        "exec configured": ((*module, "exec", "--", "sleep", "1"), CONFIGURED),
    }
    with ExitStack() as stack:
        programs = {
            case: stack.enter_context(
                Running(
                    *words,
                    environment=clean_environment(
                        OTEL_EXPORTER_OTLP_ENDPOINT=backend.http_endpoint,
                        OTEL_PYTHON_SYSMETRICS_ATTRIBUTES=json.dumps({"case": case}),
                        **variables,
                    ),
                )
            )
            for case, (words, variables) in cases.items()
        }
        for program in programs.values():
            assert program.finish() == 0, program.tell()
            assert program.errors == [], program.tell()
    points = backend.wait_for(lambda points: set(cases) <= {_case(point) for point in points})
    return {case: [point for point in points if _case(point) == case] for case in cases}


def _case(point: Point) -> str:
    return str(point.attributes.get("case"))


def resource_of(points: list[Point]) -> dict[str, object]:
    """Return the one Resource that all points have."""
    first = points[0].resource
    assert all(point.resource == first for point in points)
    return first


@pytest.mark.otelcol
def test_last_numbers_of_a_short_job_arrive(reported: Mapping[str, list[Point]]) -> None:
    """A job of 3 s under the interval of 15 s is exported once, at its end, with what was sampled last."""
    (resident,) = [point.value for point in reported["long"] if point.name == "proc.memory.rssMB"]
    (busy,) = [point.value for point in reported["long"] if point.name == "cpu"]
    assert resident >= 100
    assert busy > 1


@pytest.mark.otelcol
def test_a_plain_script_is_told_apart_by_process(reported: Mapping[str, list[Point]]) -> None:
    """Without any variable the Resource names the host, and each process has an instance id of its own."""
    one, other = resource_of(reported["plain"]), resource_of(reported["plain again"])
    assert one["host.name"] == other["host.name"] == socket.gethostname()
    assert one["service.instance.id"] != other["service.instance.id"]
    assert str(one["service.name"]).startswith("unknown_service")


@pytest.mark.otelcol
@pytest.mark.parametrize("case", ["configured", "run configured", "exec configured"])
def test_the_environment_comes_first(reported: Mapping[str, list[Point]], case: str) -> None:
    """OTEL_SERVICE_NAME wins over OTEL_RESOURCE_ATTRIBUTES, and both over what we find ourselves."""
    resource = resource_of(reported[case])
    given = {key: resource[key] for key in ("service.name", "service.instance.id", "host.name", "rank", "team")}
    assert given == {
        "service.name": "from-variable",
        "service.instance.id": "mine",
        "host.name": "elsewhere",
        "rank": "7",
        "team": "vision",
    }


@pytest.mark.otelcol
def test_ranks_of_torchrun_and_slurm_are_on_the_resource(reported: Mapping[str, list[Point]]) -> None:
    """RANK, LOCAL_RANK and WORLD_SIZE are numbers, what Slurm says is text."""
    resource = resource_of(reported["ranked"])
    keys = ("rank", "local_rank", "world_size", "slurm.job_id", "slurm.procid", "slurm.localid")
    assert [resource[key] for key in keys] == [11, 3, 16, "4711", "11", "3"]


@pytest.mark.otelcol
def test_run_and_exec_name_themselves(reported: Mapping[str, list[Point]]) -> None:
    """`run` is the host's agent under the host's name; `exec` is named after the command, each time anew."""
    run, executed = resource_of(reported["run"]), resource_of(reported["exec"])
    assert (run["service.name"], run["service.instance.id"]) == ("otel-sysmetrics", socket.gethostname())
    assert (executed["service.name"], executed["host.name"]) == ("sleep", socket.gethostname())
    assert len(str(executed["service.instance.id"])) == 36


@pytest.mark.otelcol
@pytest.mark.parametrize("case", ["by variable", "by setting"])
def test_exports_follow_the_variable_else_the_sampling_interval(reported: Mapping[str, list[Point]], case: str) -> None:
    """OTEL_METRIC_EXPORT_INTERVAL=400 or a sampling interval of 0.4 s: six exports in 2.5 s and one at the end."""
    exports = [point for point in reported[case] if point.name == "memory_percent"]
    assert 4 <= len(exports) <= 9


@pytest.mark.otelcol
def test_configured_twice_reports_once(reported: Mapping[str, list[Point]]) -> None:
    """The later call takes over; what the script counts on the first, global provider is exported as before."""
    (ours,) = [point for point in reported["twice"] if point.name == "memory_percent"]
    (theirs,) = [point for point in reported["twice"] if point.name == "script.steps"]
    assert ours.resource["service.instance.id"] != theirs.resource["service.instance.id"]


def run_script(script: str, **variables: str) -> Running:
    """Run a script to its end, with nowhere to export to unless the variables say so."""
    with (
        refusing_port() as port,
        Running(
            sys.executable,
            "-c",
            script,
            environment=clean_environment(**{**over("http/protobuf", f"http://127.0.0.1:{port}"), **variables}),
        ) as program,
    ):
        program.finish()
    return program


def test_a_provider_that_the_application_has_set_stays_the_global_one() -> None:
    """configure() makes its own provider global only where there is none."""
    script = """
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from otel_sysmetrics import configure

theirs = MeterProvider()
metrics.set_meter_provider(theirs)
ours = configure()
print(metrics.get_meter_provider() is theirs, ours is not theirs)
"""
    assert run_script(script).lines == ["True True"]


def test_the_first_provider_becomes_the_global_one() -> None:
    """A script without OpenTelemetry can make instruments of its own after configure()."""
    script = """
from opentelemetry import metrics
from otel_sysmetrics import configure

provider = configure()
print(metrics.get_meter_provider() is provider)
"""
    assert run_script(script).lines == ["True"]


def test_a_wrong_setting_raises_and_names_it() -> None:
    """configure() is code: it raises, and nothing is left running."""
    script = """
from otel_sysmetrics import configure

try:
    configure(sampling_interval=-1)
except ValueError as error:
    print(error)
"""
    program = run_script(script)
    assert program.lines == ["sampling_interval=-1: expected a number of seconds from 0.1 to 86400"]
    assert program.process.returncode == 0


def test_a_script_may_shut_the_provider_down_itself() -> None:
    """The exit then has nothing left to do, and nothing to complain about."""
    program = run_script(
        "from otel_sysmetrics import configure; configure().shutdown(); print('done')", OTEL_EXPORTER_OTLP_TIMEOUT="1"
    )
    assert program.seconds_after_last_line < 1
    assert [line for line in program.errors if "shutdown" in line] == []


@pytest.mark.parametrize("variable", ["OTEL_SDK_DISABLED", "OTEL_PYTHON_SYSMETRICS_DISABLED"])
def test_switched_off_costs_nothing(variable: str) -> None:
    """No sampling thread, no export, no word, no wait at the exit."""
    script = """
import threading
from otel_sysmetrics import configure

configure()
names = {thread.name for thread in threading.enumerate()}
print([name for name in names if name.startswith("otel-sysmetrics") and not name.endswith("exit")])
"""
    program = run_script(script, **{variable: "true"})
    assert program.lines == ["[]"]
    assert program.errors == []
    assert program.seconds_after_last_line < MOST_SECONDS / 2


@pytest.mark.otelcol
@pytest.mark.parametrize("provider", ["ours", "foreign"])
def test_what_a_job_does_right_before_its_end_is_in_the_last_export(
    backend: Otelcol, tmp_path: Path, provider: str
) -> None:
    """The checkpoint is what a training writes last; the newest regular sample is older."""
    service = f"checkpoint {provider}"
    environment = clean_environment(**over("http/protobuf", backend.http_endpoint, 15_000), OTEL_SERVICE_NAME=service)
    with python("checkpoint.py", str(tmp_path), provider, environment=environment) as program:
        assert program.finish() == 0, program.tell()

    def sent(points: list[Point]) -> list[float]:
        return [p.value for p in points if p.name == "network.sent" and p.resource["service.name"] == service]

    assert sent(backend.wait_for(lambda points: bool(sent(points)))) == [5_000_000]
