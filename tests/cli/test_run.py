"""`otel-sysmetrics run`: the agent of a host, and the same once."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.running import COMMAND, clean_environment, command, over, receiving, until

if TYPE_CHECKING:
    from pathlib import Path


def tags(lines: list[str]) -> set[str]:
    """Return the metrics' names in what the console exporter printed."""
    marker = '"name": "'
    found = {line.partition(marker)[2].partition('"')[0] for line in lines if marker in line}
    return found - {"otel_sysmetrics"}  # the scope


def test_console_shows_what_would_be_sent() -> None:
    """`run --exporter console` prints each export as JSON to stdout, and SIGTERM ends it with a last one."""
    variables = {"OTEL_PYTHON_SYSMETRICS_SAMPLING_INTERVAL": "0.3"}
    with command("run", "--exporter", "console", environment=clean_environment(**variables)) as agent:
        until(lambda: "cpu.cpu_percent" in tags(agent.lines), 20, agent.tell)
        agent.send(signal.SIGTERM)
        assert agent.finish() == 0
    exports = "\n".join(agent.lines).split("\n}\n")
    assert all("resource_metrics" in json.loads(export + "\n}") for export in exports[:-1])
    assert {"cpu.cpu_percent", "memory_percent", "sysmetrics.collector.success"} <= tags(agent.lines)
    assert agent.errors == []


def test_a_reader_that_leaves_ends_the_agent() -> None:
    """`run --exporter console | head -1` comes to its end by itself and without a word."""
    done = subprocess.run(
        ["/bin/sh", "-c", '"$@" | head -1', "sh", *COMMAND, "run", "--exporter", "console"],
        env=clean_environment(OTEL_PYTHON_SYSMETRICS_SAMPLING_INTERVAL="0.2"),
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("{\n", "")


def test_once_prints_one_export() -> None:
    """`run --once --exporter console --pid` samples the host and the process once."""
    with command("run", "--once", "--exporter", "console", "--pid", str(os.getpid())) as agent:
        assert agent.finish() == 0
    (scope,) = json.loads("\n".join(agent.lines))["resource_metrics"][0]["scope_metrics"]
    assert {"cpu", "proc.memory.rssMB", "cpu.cpu_percent"} <= {metric["name"] for metric in scope["metrics"]}
    assert agent.errors == []


@pytest.mark.parametrize("variable", ["OTEL_SDK_DISABLED", "OTEL_PYTHON_SYSMETRICS_DISABLED"])
def test_once_sends_nothing_where_all_is_switched_off(variable: str) -> None:
    """It says so, and fails: what was asked for is not done."""
    environment = clean_environment(**{variable: "true"})
    with command("run", "--once", "--exporter", "console", environment=environment) as agent:
        assert agent.finish() == 2
    assert agent.lines == []
    assert [line for line in agent.errors if variable in line]


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_once_does_not_wait_for_a_backend_that_never_answers(protocol: str) -> None:
    """The exporter itself would wait for ten seconds; status 1 comes after the window and four."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with command("run", "--once", environment=clean_environment(**over(protocol, endpoint))) as agent:
            assert agent.finish(9) == 1


def test_a_name_of_undecodable_bytes_costs_no_traceback() -> None:
    """The SDK would say so in thirty lines at each export, and leave the service without a name."""
    environment = clean_environment(OTEL_SERVICE_NAME=os.fsdecode(b"job-\xff"))
    with command("run", "--once", "--exporter", "console", environment=environment) as agent:
        assert agent.finish() == 0
    assert (
        json.loads("\n".join(agent.lines))["resource_metrics"][0]["resource"]["attributes"]["service.name"] == "job-?"
    )
    assert agent.errors == []


def test_no_exporter_is_no_output() -> None:
    """`--exporter none` is for trying whether everything can be read."""
    with command("run", "--once", "--exporter", "none") as agent:
        assert agent.finish() == 0
    assert (agent.lines, agent.errors) == ([], [])


@pytest.mark.parametrize("variable", ["OTEL_SDK_DISABLED", "OTEL_PYTHON_SYSMETRICS_DISABLED"])
def test_switched_off_is_said_and_is_no_failure(variable: str) -> None:
    """An agent that is switched off waits like one that works, so that nothing restarts it for ever."""
    with command("run", "--exporter", "console", environment=clean_environment(**{variable: "true"})) as agent:
        line = agent.wait_for_error("otel-sysmetrics: nothing is measured")
        agent.send(signal.SIGTERM)
        assert agent.finish() == 0
    assert variable in line
    assert (agent.lines, len(agent.errors)) == ([], 1)


@pytest.mark.otelcol
def test_an_outage_of_the_backend_is_two_lines(otelcol_binary: str, tmp_path: Path) -> None:
    """One when the export begins to fail and one when it works again, however often it was tried; then points come."""
    with receiving(otelcol_binary, str(tmp_path)) as backend:
        variables = over("http/protobuf", backend.http_endpoint, 200) | {"OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
        with command("run", environment=clean_environment(**variables)) as agent:
            backend.wait_for(bool)
            backend.stop()
            agent.wait_for_error("otel-sysmetrics: metrics are not exported: ")
            before = len(backend.points())
            backend.start()
            agent.wait_for_error("otel-sysmetrics: metrics are exported again")
            backend.wait_for(lambda points: len(points) > before)
            agent.send(signal.SIGINT)
            assert agent.finish() == 0
    assert len(agent.errors) == 2, agent.tell()
