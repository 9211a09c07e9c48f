"""`otel-sysmetrics sample` prints what is measured here and now, and nothing else, to stdout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from otel_sysmetrics.spec import MetricSpec, Scope
from tests import here
from tests.collectors.openmetrics_server import serving
from tests.running import COMMAND, Running, clean_environment, command, python

if TYPE_CHECKING:
    from pathlib import Path

    from tests.collectors.openmetrics_server import Handler
    from tests.conftest import MakeMachine

MIB = 2**20
HELD_MIB = 200
HOLDER = f"""
import threading
held = b"\\xa5" * ({HELD_MIB} * 2**20)
for _ in range(3):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
print("ready", flush=True)
while True:
    pass
"""
OF_CGROUP = {"proc.cpu.throttledPercent", "proc.memory.oomKills"}


@dataclass
class Machine:
    """What the machine itself said while the samples were taken."""

    memory_percent: float
    available: float
    disk_used: float
    disk_percent: float
    load: float
    swap_used: int
    resident: float
    threads: int


@dataclass
class Taken:
    """The samples, and the machine beside them."""

    host: Running
    process: Running
    everything: Running
    table: Running
    machine: Machine


def look(pid: int) -> Machine:
    space = os.statvfs("/")
    used = (space.f_blocks - space.f_bfree) * space.f_frsize
    memory = psutil.virtual_memory()
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        facts = dict(line.split(":", 1) for line in status)
    return Machine(
        memory_percent=100 * (memory.total - memory.available) / memory.total,
        available=memory.available / MIB,
        disk_used=used / 2**30,
        disk_percent=100 * used / (used + space.f_bavail * space.f_frsize),
        load=os.getloadavg()[0],
        swap_used=psutil.swap_memory().used,
        resident=int(facts["VmRSS"].split()[0]) / 1024,
        threads=int(facts["Threads"]),
    )


@pytest.fixture(scope="module")
def taken() -> Taken:
    """Sample with and without a process, as JSON and as a table, all at once, beside a process that holds and burns."""
    with ExitStack() as stack:
        holder = stack.enter_context(Running(sys.executable, "-c", HOLDER))
        holder.wait_for_line("ready")
        pid = str(holder.process.pid)
        known = clean_environment(**here.ONLY_HOST)
        every = known | {"OTEL_PYTHON_SYSMETRICS_METRICS_INCLUDED": "*"}
        host = stack.enter_context(command("sample", "--format", "json", environment=known))
        process = stack.enter_context(command("sample", "--pid", pid, "--format", "json", environment=known))
        everything = stack.enter_context(command("sample", "--pid", pid, "--format", "json", environment=every))
        table = stack.enter_context(command("sample", "--pid", pid, environment=known))
        for program in (host, process, everything, table):
            assert program.finish() == 0, program.tell()
        return Taken(host, process, everything, table, look(holder.process.pid))


def points_of(program: Running) -> list[dict[str, Any]]:
    points: list[dict[str, Any]] = json.loads("\n".join(program.lines))
    return points


def names(program: Running) -> set[str]:
    return {point["name"] for point in points_of(program)}


def values_of(program: Running) -> dict[str, Any]:
    return {point["name"]: point["value"] for point in points_of(program)}


def test_without_a_process_all_tags_of_the_host_that_are_on(taken: Taken) -> None:
    """No process, hence no process's tags and no cgroup; stderr says how to get them."""

    def of_host(spec: MetricSpec) -> bool:
        return spec.on and spec.scope is Scope.HOST and spec.tag not in OF_CGROUP

    assert names(taken.host) == set(here.expected(of_host))
    assert taken.host.errors == ["otel-sysmetrics: no process is watched; --pid adds its tags"]


def test_with_a_process_its_tags_and_those_of_its_cgroup_too(taken: Taken) -> None:
    """`--pid` adds everything else that is on."""
    assert names(taken.process) == set(here.expected(lambda spec: spec.on))
    assert taken.process.errors == []


def test_with_everything_included_the_whole_catalogue(taken: Taken) -> None:
    """What is off by default is switched on by a pattern."""
    assert names(taken.everything) == set(here.expected(lambda _: True))


def test_json_is_one_sorted_array_of_plain_objects(taken: Taken) -> None:
    """Name, value, unit, kind and attributes as the catalogue says, sorted by name and then by attributes."""
    points = points_of(taken.everything)
    assert [point["name"] for point in points] == sorted(point["name"] for point in points)
    wanted = here.expected(lambda _: True)
    for point in points:
        spec = wanted[point["name"]]
        assert list(point) == ["name", "value", "unit", "kind", "attributes"]
        assert (point["unit"], point["kind"]) == (spec.unit, spec.kind.value)
        assert isinstance(point["value"], int | float)
        assert set(point["attributes"]) <= here.attribute_keys(spec)


def test_values_are_those_of_the_machine(taken: Taken) -> None:
    """Memory, disk, load and swap agree with what the kernel and psutil say at the same time."""
    values, machine = values_of(taken.everything), taken.machine
    host = values_of(taken.host)
    assert host["memory_percent"] == pytest.approx(machine.memory_percent, abs=10)
    assert host["proc.memory.availableMB"] == pytest.approx(machine.available, rel=0.1)
    assert values["disk./.usageGB"] == pytest.approx(machine.disk_used, abs=2)
    assert values["disk./.usagePercent"] == pytest.approx(machine.disk_percent, abs=3)
    assert values["system.load1"] == pytest.approx(machine.load, abs=2)
    assert values["swap.used"] == pytest.approx(machine.swap_used, abs=100 * MIB)


def test_values_are_those_of_the_process(taken: Taken) -> None:
    """Memory and threads agree with /proc; one thread that never rests is one CPU's share or what it can get."""
    values, machine = values_of(taken.process), taken.machine
    assert values["proc.memory.rssMB"] == pytest.approx(machine.resident, rel=0.02)
    assert values["proc.memory.rssMB"] > HELD_MIB
    assert values["proc.cpu.threads"] == machine.threads
    one_cpu = 100 / (os.cpu_count() or 1)
    assert one_cpu / 5 < values["cpu"] <= one_cpu * 1.1
    assert values["cpu.cpu_percent"] >= values["cpu"] / 3


def test_table_says_the_same_for_people(taken: Taken) -> None:
    """A head, a rule, and one line per point with its value and attributes."""
    head, _, *lines = taken.table.lines
    assert head.split() == ["metric", "value", "unit", "attributes"]
    assert {line.split()[0] for line in lines} == names(taken.process)
    (usage,) = [line for line in lines if line.startswith("disk./.usageGB ")]
    assert usage.split()[2:4] == ["GiBy", "disk.path=/"]
    assert not any(line.endswith(" ") for line in taken.table.lines)
    assert taken.table.errors == []


@pytest.mark.nvml
@pytest.mark.parametrize("columns", [80, 120])
def test_nothing_breaks_inside_a_word_in_a_terminal(machine: MakeMachine, columns: int) -> None:
    """Names, units and attributes are whole, however long those of a GPU are, and no line is too long."""
    variables = {**machine().environment, "COLUMNS": str(columns), "TERM": "xterm"}
    words = (*COMMAND, "sample", "--pid", str(os.getpid()))
    with python("terminal.py", *words, environment=clean_environment(**variables)) as table:
        assert table.finish() == 0, table.tell()
    with command(*words[len(COMMAND) :], "--format", "json", environment=clean_environment(**variables)) as plain:
        assert plain.finish() == 0, plain.tell()
    assert max(map(len, table.lines[1:])) <= columns
    starts = {tuple(line.split()[::2][:2]) for line in table.lines}
    for point in points_of(plain):
        assert (point["name"], point["unit"]) in starts
        for key, value in point["attributes"].items():
            assert any(f"{key}={value}" in line for line in table.lines)


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("no.such.tag", "no metric is chosen by metrics_included and metrics_excluded"),
        ("disk.*.usageGB", "nothing could be read; `otel-sysmetrics doctor` says why"),
    ],
)
def test_where_nothing_came_out_the_reason_is_said(pattern: str, reason: str) -> None:
    """An empty table would be a riddle: there is none, and stderr says whether nothing was asked for or answered."""
    variables = {
        "OTEL_PYTHON_SYSMETRICS_METRICS_INCLUDED": pattern,
        "OTEL_PYTHON_SYSMETRICS_DISK_PATHS": "/nowhere",
        "OTEL_PYTHON_SYSMETRICS_PID": str(os.getpid()),
    }
    with command("sample", "--window", "0.1", environment=clean_environment(**variables)) as program:
        assert program.finish() == 0
    assert program.lines == []
    assert program.errors[-1] == f"otel-sysmetrics: {reason}"


@pytest.mark.parametrize("style", ["table", "json"])
@pytest.mark.parametrize("reader", ["head -1", "true"])
def test_a_reader_that_leaves_costs_no_traceback(reader: str, style: str) -> None:
    """`sample | head -1` ends quietly, also where the reader has gone before the first line."""
    done = subprocess.run(
        ["/bin/sh", "-c", f'"$@" | {reader}', "sh", *COMMAND, "sample", "--window", "0.1", "--format", style],
        env=clean_environment(OTEL_PYTHON_SYSMETRICS_PID=str(os.getpid())),
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert done.stderr == ""


def test_a_process_that_is_gone_is_said() -> None:
    """The host's tags come all the same."""
    with Running(sys.executable, "-c", "") as gone:
        gone.finish()
    with command("sample", "--pid", str(gone.process.pid), "--window", "0.1") as program:
        assert program.finish() == 0
    assert program.errors == [f"otel-sysmetrics: there is no process {gone.process.pid}"]
    assert any(line.startswith("memory_percent ") for line in program.lines)


def test_a_missing_path_costs_only_itself() -> None:
    """It is named once on stderr; the other path is there."""
    variables = {"OTEL_PYTHON_SYSMETRICS_DISK_PATHS": "/nowhere:/", "OTEL_PYTHON_SYSMETRICS_PID": str(os.getpid())}
    with command("sample", "--window", "0.1", environment=clean_environment(**variables)) as program:
        assert program.finish() == 0
    assert program.errors == ["otel-sysmetrics: disk /nowhere: No such file or directory: /nowhere"]
    assert any(line.startswith("disk./.usageGB ") for line in program.lines)
    assert all(line.startswith("sysmetrics.collector.") for line in program.lines if "nowhere" in line)


def test_what_hangs_is_named_and_hangs_nobody(tmp_path: Path) -> None:
    """A /proc/meminfo that never answers: the CPU's numbers come in time, memory is named on stderr."""
    os.makedirs(tmp_path / "proc")
    (tmp_path / "proc" / "stat").write_text("cpu  1 0 1 1\ncpu0 1 0 1 1\n")
    (tmp_path / "proc" / "loadavg").write_text("1.25 0.50 0.25 1/100 4242\n")
    os.mkfifo(tmp_path / "proc" / "meminfo")
    variables = {
        "OTEL_PYTHON_SYSMETRICS_ROOT_PATH": str(tmp_path),
        "OTEL_PYTHON_SYSMETRICS_COLLECTORS": "cpu,memory",
        "OTEL_PYTHON_SYSMETRICS_METRICS_INCLUDED": "system.load1,memory_percent",
    }
    words = ("sample", "--window", "0.2", "--timeout", "0.5", "--format", "json")
    with command(*words, environment=clean_environment(**variables)) as program:
        assert program.finish(10) == 0
    assert [point["value"] for point in points_of(program)] == [1.25]
    assert program.errors == [
        "otel-sysmetrics: memory did not answer within 0.7 s",
        "otel-sysmetrics: no process is watched; --pid adds its tags",
    ]


@pytest.mark.parametrize("words", [("sample", "--window", "0.2"), ("run", "--once", "--exporter", "console")])
def test_an_endpoint_that_takes_longer_than_the_window_is_waited_for(words: tuple[str, ...]) -> None:
    """Its own time-out holds, and `--timeout` for both of its samples."""

    def slowly(request: Handler) -> None:
        time.sleep(1.5)
        request.say("answered_slowly 1\n")

    with serving(slowly) as server:
        variables = {
            "OTEL_PYTHON_SYSMETRICS_COLLECTORS": "openmetrics",
            "OTEL_PYTHON_SYSMETRICS_OPENMETRICS_ENDPOINTS": json.dumps({"slow": server.url}),
        }
        with command(*words, environment=clean_environment(**variables)) as program:
            assert program.finish() == 0
    assert any("openmetrics.slow.answered_slowly" in line for line in program.lines), program.tell()
    assert not any("openmetrics" in line for line in program.errors)
