"""`otel-sysmetrics exec -- CMD`: watches the command's process tree and is as good as the command itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.running import COMMAND, clean_environment, command, over, python, receiving

WORKLOAD = Path(__file__).parents[2] / "examples" / "workload.py"
TRAPPING = """
import os, signal, sys, time

def trap(number, _frame):
    os.write(1, f"got {signal.Signals(number).name}\\n".encode())
    sys.exit(5)

for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1"):
    signal.signal(getattr(signal, name), trap)
print("ready", flush=True)
time.sleep(30)
"""
COUNTING = """
import signal, time

got = []
signal.signal(signal.SIGINT, lambda *_: got.append(1))
print("ready", flush=True)
while not got:
    time.sleep(0.01)
time.sleep(0.5)
print("got", len(got), flush=True)
"""
STATUSES = {
    "true": 0,
    "exit 3": 3,
    "exit 255": 255,
    "kill -TERM $$": 128 + signal.SIGTERM,
    "kill -KILL $$": 128 + signal.SIGKILL,
}


def test_a_command_that_is_over_at_once_is_sampled_all_the_same() -> None:
    """Of the command nothing may be left to read, its host is there."""
    with command("exec", "--exporter", "console", "--", "true", environment=clean_environment()) as program:
        assert program.finish() == 0
    printed = json.loads("\n".join(program.lines))
    names = {
        metric["name"]
        for resource in printed["resource_metrics"]
        for scope in resource["scope_metrics"]
        for metric in scope["metrics"]
    }
    assert {"memory_percent", "disk./.usagePercent"} <= names


@pytest.mark.otelcol
def test_what_the_whole_tree_uses_arrives(otelcol_binary: str, tmp_path: Path) -> None:
    """A grandchild holds 300 MiB and keeps a CPU busy for 3 s: both arrive, by the flush at the end of the command."""
    with receiving(otelcol_binary, str(tmp_path)) as backend:
        environment = clean_environment(**over("http/protobuf", backend.http_endpoint, 15_000))
        shell = f'"{sys.executable}" "{WORKLOAD}" --seconds 3 & wait $!; exit 7'
        with command("exec", "--", "sh", "-c", shell, environment=environment) as program:
            assert program.finish() == 7, program.tell()
        points = {point.name: point for point in backend.wait_for(bool)}
    assert program.errors == []
    assert points["proc.memory.rssMB"].value >= 300
    one_cpu = 100 / (os.cpu_count() or 1)
    assert one_cpu / 5 < points["cpu"].value <= one_cpu * 1.2
    assert points["proc.cpu.threads"].value >= 2
    assert points["cpu"].resource["service.name"] == "sh"


@pytest.mark.parametrize("shell", STATUSES)
def test_exits_with_the_status_of_the_command(shell: str) -> None:
    """As a shell has it: 128 + n for a command that died of signal n."""
    with command("exec", "--exporter", "none", "--", "sh", "-c", shell) as program:
        assert program.finish() == STATUSES[shell]
    assert (program.lines, program.errors) == ([], [])


def test_a_command_that_is_not_there_is_status_127() -> None:
    """As a shell has it, in one line that names the command."""
    with command("exec", "--", "no-such-command") as program:
        assert program.finish() == 127
    assert program.errors == ["otel-sysmetrics: no-such-command: No such file or directory"]


def test_a_command_that_cannot_be_run_is_status_126(tmp_path: Path) -> None:
    """As a shell has it, in one line that names the command."""
    script = tmp_path / "script"
    script.write_text("not executable")
    with command("exec", "--", str(script)) as program:
        assert program.finish() == 126
    assert program.errors == [f"otel-sysmetrics: {script}: Permission denied"]


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1"])
def test_signals_reach_the_command(name: str) -> None:
    """What `kill` sends to `exec` the command gets, and its answer is our status."""
    with command("exec", "--exporter", "none", "--", sys.executable, "-c", TRAPPING) as program:
        program.wait_for_line("ready")
        program.send(getattr(signal, name))
        assert program.finish() == 5, program.tell()
    assert program.lines == ["ready", f"got {name}"]


def test_ctrl_c_reaches_the_command_once(tmp_path: Path) -> None:
    """The terminal sends it to the command itself; ours on top would spoil its clean-up. stdin is no terminal here."""
    counting = tmp_path / "counting.py"
    counting.write_text(COUNTING)
    words = [*COMMAND, "exec", "--exporter", "none", "--", sys.executable, str(counting)]
    with python("terminal.py", *words) as program:
        assert program.finish() == 0, program.tell()
    assert program.lines == ["ready", "^Cgot 1"]


def test_what_is_ignored_stays_ignored() -> None:
    """Under nohup neither we nor the command die of SIGHUP."""
    asks = "import signal; print(signal.getsignal(signal.SIGHUP).name)"
    words = ["/bin/sh", "-c", "trap '' HUP; exec \"$@\"", "sh", *COMMAND, "exec", "--exporter", "none", "--"]
    done = subprocess.run(
        [*words, sys.executable, "-c", asks],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert done.stdout == "SIG_IGN\n"


def test_the_command_has_our_terminal_arguments_and_environment() -> None:
    """stdin, stdout and the environment are the command's; options behind `--` are not ours."""
    done = subprocess.run(
        [*COMMAND, "exec", "--exporter", "none", "--", "sh", "-c", 'cat; echo "$0 $1 $MARK"', "--exporter", "--help"],
        env=clean_environment(MARK="mark"),
        input="from stdin\n",
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert done.stdout == "from stdin\n--exporter --help mark\n"


def test_console_shows_what_would_be_sent() -> None:
    """A command that is over before the first interval has its numbers in the last flush."""
    with command("exec", "--exporter", "console", "--", "sleep", "0.5") as program:
        assert program.finish() == 0
    assert any('"name": "proc.memory.rssMB"' in line for line in program.lines)
    assert program.errors == []


@pytest.mark.parametrize("variable", ["OTEL_SDK_DISABLED", "OTEL_PYTHON_SYSMETRICS_DISABLED"])
def test_switched_off_the_command_runs_all_the_same(variable: str) -> None:
    """What watches must not stop what is watched."""
    with command(
        "exec", "--", "sh", "-c", "echo ran; exit 3", environment=clean_environment(**{variable: "true"})
    ) as program:
        assert program.finish() == 3
    assert program.lines == ["ran"]
    assert len(program.errors) == 1
