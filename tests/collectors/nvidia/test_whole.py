"""The collector as users have it: through the command line and through instrument()."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.collectors.nvidia.hosts import but
from tests.collectors.nvidia.program import ROOT
from tests.nvml import FOREVER, H100, Answer, Code, NvmlMachine, Process

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.conftest import MakeMachine

PATIENCE = 30


def run(host: NvmlMachine, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **host.environment, "PYTHONPATH": str(ROOT), **variables}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=PATIENCE, check=True
    )


def sample(host: NvmlMachine, *arguments: str, **variables: str) -> list[Mapping[str, Any]]:
    command = ("-m", "otel_sysmetrics", "sample", "--window", "0.2", "--format", "json", *arguments)
    points: list[Mapping[str, Any]] = json.loads(run(host, *command, **variables).stdout)
    return points


def test_a_sample_of_eight_gpus_has_every_tag(machine: MakeMachine) -> None:
    ours = [Process(os.getpid(), 2**30)]
    host = machine(*[but(H100, {"nvmlDeviceGetComputeRunningProcesses_v3": ours})] * 8)
    shared = {"OTEL_PYTHON_SYSMETRICS_SHARED_PID_NAMESPACE": "true"}
    points = sample(host, "--pid", str(os.getpid()), **shared)
    gpus = [point for point in points if point["name"].startswith("gpu.")]
    assert len({point["name"] for point in gpus}) == len(gpus) == 8 * (27 + 9)
    assert {point["attributes"]["gpu.index"] for point in gpus} == set(range(8))
    assert {(point["kind"], point["unit"]) for point in gpus if point["name"].endswith("energyJoules")} == {
        ("counter", "J")
    }
    host.set("*", Code.GPU_IS_LOST, 3)
    left = {point["name"] for point in sample(host, "--pid", str(os.getpid()), **shared)}
    expected = {point["name"] for point in points if ".3." not in point["name"]}
    assert {name for name in left if name.startswith("gpu.")} == {name for name in expected if name.startswith("gpu.")}
    host.unset("*", 3)
    names = {point["name"] for point in sample(host, "--pid", str(os.getpid()), **shared)}
    assert {point["name"] for point in gpus} <= names


def test_doctor_shows_the_gpus_and_leaves(machine: MakeMachine) -> None:
    only = {"OTEL_PYTHON_SYSMETRICS_COLLECTORS": "nvidia", "COLUMNS": "200"}
    assert "NVIDIA H100" in run(machine(H100), "-m", "otel_sysmetrics", "doctor", **only).stdout
    broken = machine(H100)
    broken.set("nvmlInitWithFlags", Code.LIB_RM_VERSION_MISMATCH)
    said = " ".join(run(broken, "-m", "otel_sysmetrics", "doctor", **only).stdout.split())
    assert "ill" in said
    assert "restart the machine" in said


HANGING = """
import json, sys, time
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from otel_sysmetrics import SysMetricsInstrumentor
reader = InMemoryMetricReader()
SysMetricsInstrumentor().instrument(meter_provider=MeterProvider([reader]), sampling_interval=0.2)
def names():
    data = reader.get_metrics_data()
    return sorted({
        f"{metric.name} {point.value if metric.name.endswith('success') else ''}{point.attributes.get('collector', '')}"
        for r in (data.resource_metrics if data else ()) for s in r.scope_metrics for metric in s.metrics
        for point in metric.data.data_points
    })
for line in sys.stdin:
    print(json.dumps(names()), flush=True)
"""


def test_a_call_that_hangs_costs_the_gpus_only_and_delays_no_exit(machine: MakeMachine) -> None:
    host = machine(H100, H100)
    process = subprocess.Popen(
        [sys.executable, "-c", HANGING],
        env={**os.environ, **host.environment, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def names() -> set[str]:
        process.stdin.write("\n")  # type: ignore[union-attr] # checked above
        process.stdin.flush()  # type: ignore[union-attr]
        return set(json.loads(process.stdout.readline()))  # type: ignore[union-attr]

    def until(condition: Any) -> set[str]:  # noqa: ANN401
        deadline = time.monotonic() + PATIENCE
        while not condition(found := names()):
            assert time.monotonic() < deadline, found
            time.sleep(0.2)
        return found

    until(lambda found: {"gpu.1.smActive ", "cpu.cpu_percent "} <= found)
    host.set("nvmlDeviceGetPowerUsage", Answer((1,), delay=FOREVER), 1)
    left = until(lambda found: not any(name.startswith("gpu.") for name in found))
    assert {"cpu.cpu_percent ", "memory_percent ", "sysmetrics.collector.success 0nvidia"} <= left
    assert "sysmetrics.collector.success 1cpu" in left
    begun = time.monotonic()
    process.communicate(timeout=PATIENCE)
    assert time.monotonic() - begun < 2
    assert process.returncode == 0


@pytest.mark.parametrize("command", [("sample", "--timeout", "1"), ("doctor", "--timeout", "1")])
def test_a_start_that_hangs_is_named_and_left(machine: MakeMachine, command: tuple[str, ...]) -> None:
    host = machine(H100)
    host.set("nvmlInitWithFlags", Answer(delay=FOREVER))
    begun = time.monotonic()
    done = run(host, "-m", "otel_sysmetrics", *command)
    assert time.monotonic() - begun < 8
    assert "did not answer" in done.stdout + done.stderr
