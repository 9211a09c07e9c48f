"""The end of a process in which everything hangs: in time, with the status and the words that it has without us."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

from otel_sysmetrics.export import EXIT_SECONDS
from tests.nvml.answers import FOREVER, Answer
from tests.parts import program, tree
from tests.running import COMMAND, PROGRAMS, SCRIPTS, Running, Silent, clean_environment, over, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tests.conftest import MakeMachine
    from tests.nvml import NvmlMachine

    Make = Callable[..., "Hanging"]

pytestmark = [pytest.mark.nvml, pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc and signals")]

ENDS: Final = {
    "end of the script": signal.SIGUSR1,
    "sys.exit": signal.SIGUSR1,
    "exception": signal.SIGUSR1,
    "SIGINT": signal.SIGINT,
    "SIGTERM": signal.SIGTERM,
    "handled SIGTERM": signal.SIGTERM,
}
SOME_ENDS: Final = ("end of the script", "exception", "SIGINT", "handled SIGTERM")
ENDING: Final = (sys.executable, os.path.join(PROGRAMS, "ending.py"))
INSTRUMENT: Final = os.path.join(SCRIPTS, "opentelemetry-instrument")
AUTO: Final = ((INSTRUMENT, *ENDING, "auto"), {"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "sysmetrics"})
CODE: Final = ((*ENDING, "code"), {"OTEL_PYTHON_SYSMETRICS_DISABLED": "true"})
INTERVAL: Final = 2000  # milliseconds, which the SDK's last collect may take too
EXPORT_SECONDS: Final = 1  # what the exporter is allowed: one export may be under way, and the last one follows
OURS: Final = 2.0
BUSY: Final = 2.0  # for a machine that has much to do
PROTOCOLS: Final = ("http/protobuf", "grpc")
OURS_SAYS: Final = "otel-sysmetrics: "
NOT_EXPORTED: Final = "otel-sysmetrics: metrics are not exported: "
# Ignores what it is told and leaves a child that does so too.
HANGING: Final = """
    trap '' TERM INT HUP USR1
    sleep 1000 &
    echo $$ >"{mark}"
    while :; do wait; sleep 1000; done
"""


class Hanging:
    """A machine on which everything hangs, with a process that is to end there.

    Its folder's path stands in the environment of all that it starts, vendors' tools included.
    """

    def __init__(
        self, folder: Path, gpus: NvmlMachine, words: Sequence[str], variables: Mapping[str, str], tool: str
    ) -> None:
        self.folder = folder
        self._stack = ExitStack()
        self._backend = self._stack.enter_context(Silent())
        self._endpoint = self._stack.enter_context(Silent())
        self._gpus = gpus
        self._gpus.set("nvmlDeviceGetPowerUsage", Answer((1,), delay=FOREVER))
        self._marks = [folder / name for name in (tool, "neuron-monitor")]
        for mark in self._marks:
            program(folder / "bin", mark.name, HANGING.format(mark=mark))
        root = tree(folder / "root", {"dev/neuron0": ""})
        for name in ("proc", "sys", "etc"):
            (root / name).symlink_to(f"/{name}")
        self._homes = [folder / name for name in ("temporary", "runtime", "home", "here")]
        for each in self._homes:
            each.mkdir(0o700, parents=True)
        temporary, runtime, home, here = map(str, self._homes)
        environment = clean_environment(
            **over("http/protobuf", self._backend.endpoint, INTERVAL),
            **self._gpus.environment,
            OTEL_EXPORTER_OTLP_TIMEOUT=str(EXPORT_SECONDS),
            OTEL_TRACES_EXPORTER="none",
            OTEL_LOGS_EXPORTER="none",
            OTEL_PYTHON_SYSMETRICS_ROOT_PATH=str(root),
            OTEL_PYTHON_SYSMETRICS_OPENMETRICS_ENDPOINTS=json.dumps(
                {"silent": {"url": self._endpoint.endpoint, "timeout": 60}}
            ),
            PATH=f"{folder / 'bin'}:/usr/bin:/bin",
            TMPDIR=temporary,
            XDG_RUNTIME_DIR=runtime,
            HOME=home,
            PYTHONDONTWRITEBYTECODE="1",
        )
        self.running = self._stack.enter_context(Running(*words, environment={**environment, **variables}, cwd=here))

    def close(self) -> None:
        """End what still runs."""
        self._stack.close()

    def hangs(self) -> bool:
        """Tell whether everything hangs by now: driver, tools, endpoint and backend."""
        called = self._gpus.calls()["nvmlDeviceGetPowerUsage"] and self._endpoint.callers and self._backend.callers
        return bool(called) and all(mark.exists() for mark in self._marks)

    def exports(self) -> bool:
        """Tell whether the backend has been called."""
        return self._backend.callers > 0

    def processes(self) -> list[str]:
        """Return the command lines of all processes of this machine."""
        found = []
        for name in filter(str.isdecimal, os.listdir("/proc")):
            try:
                if str(self.folder).encode() in Path("/proc", name, "environ").read_bytes():
                    found.append(Path("/proc", name, "cmdline").read_text())
            except OSError:
                continue
        return found

    def zombies(self) -> list[str]:
        """Return the children of the process that have ended and that it has not collected."""
        found = []
        for name in filter(str.isdecimal, os.listdir("/proc")):
            try:
                program, _, fields = Path("/proc", name, "stat").read_text().rpartition(")")
            except OSError:
                continue
            if fields.split()[:2] == ["Z", str(self.running.process.pid)]:
                found.append(program)
        return found

    def left_files(self) -> list[str]:
        """Return what lies in its folders, but for the empty file of the lock."""
        found = [path for home in self._homes for path in home.rglob("*")]
        locks = {path for path in found if path.suffix == ".lock" and path.stat().st_size == 0}
        ours = {*locks, *(lock.parent for lock in locks)}
        return [str(path.relative_to(self.folder)) for path in found if path not in ours]


class Ended(NamedTuple):
    """What is to be said of a process that has ended, and of what it left."""

    seconds: float
    status: int
    said: list[str]
    errors: list[str]


def said(errors: Sequence[str]) -> list[str]:
    """Return what a program has said, without the places of a traceback, where a signal comes, and without ports."""
    return [re.sub(r"port=\d+", "port=", line) for line in errors if not line.startswith(" ")]


def all_ended(machines: Mapping[str, Hanging], numbers: Mapping[str, int]) -> dict[str, Ended]:
    """End processes in which everything hangs, all at once, and look for what they leave."""
    for machine in machines.values():
        until(machine.hangs, 60, machine.running.tell)
    zombies = {end: machine.zombies() for end, machine in machines.items()}
    moments = {end: machine.running.send(numbers[end]) for end, machine in machines.items()}
    found = {}
    for end, machine in machines.items():
        running = machine.running
        status = running.finish()
        found[end] = Ended(running.seconds_since(moments[end]), status, running.lines, said(running.errors))
    leave_nothing(machines)
    assert not any(zombies.values()), zombies
    return found


def leave_nothing(machines: Mapping[str, Hanging]) -> None:
    """Wait until no process that was started on these machines runs; fail where one or a file is left."""
    until(
        lambda: not any(machine.processes() for machine in machines.values()),
        10,
        lambda: str({end: machine.processes() for end, machine in machines.items()}),
    )
    left = {end: machine.left_files() for end, machine in machines.items()}
    assert not any(left.values()), left


@pytest.fixture(scope="module")
def alone() -> dict[str, Ended]:
    """End the application in each way where nobody looks at it."""
    found = {}
    for end, number in ENDS.items():
        with Running(*ENDING, "bare", end, environment=clean_environment()) as running:
            running.wait_for_line("ready")
            moment = running.send(number)
            found[end] = Ended(0.0, running.finish(), running.lines, said(running.errors))
            assert running.seconds_since(moment) < OURS
    return found


@pytest.fixture
def hanging(machine: MakeMachine, tmp_path: Path) -> Iterator[Make]:
    """Return a function that starts a process on a machine of its own on which everything hangs."""
    with ExitStack() as stack:
        names = count()

        def make(*words: str, tool: str = "rocm-smi", **variables: str) -> Hanging:
            made = Hanging(tmp_path / f"machine-{next(names)}", machine(), words, variables, tool)
            stack.callback(made.close)
            return made

        yield make


def without(errors: Sequence[str], own: Sequence[str]) -> list[str]:
    """Return what else than its own words a program has said; fails where those are not all there, and in one piece."""
    for start in range(len(errors) - len(own) + 1):
        if list(errors[start : start + len(own)]) == list(own):
            return [*errors[:start], *errors[start + len(own) :]]
    raise AssertionError(f"{own} is not in {errors}")


def about_exports(ours: Sequence[str]) -> int:
    """Count the lines that say that exports fail; all others may only be ours, of what hung for too long meanwhile."""
    assert all(line.startswith(OURS_SAYS) for line in ours), ours
    return sum(line.startswith(NOT_EXPORTED) for line in ours)


@pytest.mark.parametrize(
    ("words", "off", "ends"),
    [
        pytest.param(*AUTO, SOME_ENDS, id="auto"),
        pytest.param(*CODE, tuple(ENDS), id="code"),
    ],
)
def test_an_instrumented_application_ends_as_without_us(
    hanging: Make, alone: Mapping[str, Ended], words: Sequence[str], off: dict[str, str], ends: Sequence[str]
) -> None:
    """With its status and its words, and at most 2 s later than with OpenTelemetry alone."""
    plain = hanging(*words, "end of the script", **off)
    ended = all_ended({end: hanging(*words, end) for end in ends}, ENDS)
    until(plain.exports, 60, plain.running.tell)
    moment = plain.running.send(signal.SIGUSR1)
    plain.running.finish()

    for end, found in ended.items():
        assert (found.status, found.said) == (alone[end].status, alone[end].said), end
        others = [line for line in without(found.errors, alone[end].errors) if not line.startswith(OURS_SAYS)]
        assert set(others) <= set(said(plain.running.errors)), end
        assert found.seconds <= max(plain.running.seconds_since(moment), EXPORT_SECONDS) + OURS, end


def test_a_script_with_our_provider_ends_as_without_us(hanging: Make, alone: Mapping[str, Ended]) -> None:
    """With its status and its words, and one line of ours about the exports."""
    machines = {end: hanging(*ENDING, "configure", end, XDG_RUNTIME_DIR="") for end in SOME_ENDS}

    for end, found in all_ended(machines, ENDS).items():
        assert (found.status, found.said) == (alone[end].status, alone[end].said), end
        ours = without(found.errors, alone[end].errors)
        assert about_exports(ours) <= 1, (end, ours)
        assert found.seconds <= 2 * EXPORT_SECONDS + OURS, end


def test_a_command_under_exec_ends_as_without_us(hanging: Make, alone: Mapping[str, Ended]) -> None:
    """With its status as a shell has it, its words, and one line of ours on exports; signals are passed on."""
    machines = {end: hanging(*COMMAND, "exec", "--", *ENDING, "bare", end, tool="amd-smi") for end in ENDS}

    for end, found in all_ended(machines, ENDS).items():
        status = alone[end].status
        assert found.status == (status if status >= 0 else 128 - status), end
        assert found.said == alone[end].said, end
        ours = without(found.errors, alone[end].errors)
        assert about_exports(ours) == 1, (end, ours)
        assert found.seconds <= 2 * EXPORT_SECONDS + OURS, end


def test_an_agent_ends_in_time_whatever_the_exporter_is_allowed(hanging: Make) -> None:
    """Within the 4 s that are promised also where the exporter would wait for its 10 s, over both protocols."""
    numbers = {f"{name} {protocol}": getattr(signal, name) for name in ("SIGTERM", "SIGINT") for protocol in PROTOCOLS}
    machines = {
        end: hanging(*COMMAND, "run", OTEL_EXPORTER_OTLP_PROTOCOL=end.split()[1], OTEL_EXPORTER_OTLP_TIMEOUT="10")
        for end in numbers
    }

    for end, found in all_ended(machines, numbers).items():
        assert (found.status, found.said) == (0, []), end
        assert about_exports(found.errors) == 1, (end, found.errors)
        assert found.seconds <= EXIT_SECONDS + BUSY, end


def test_a_script_that_ends_at_once_leaves_nothing(hanging: Make) -> None:
    """Also where a tool is just being started."""
    machines = {way: hanging(*ENDING, way, "at once") for way in ("code", "configure")}
    for machine in machines.values():
        assert machine.running.finish() == 0, machine.running.tell()
        assert machine.running.lines == ["ready"]
    leave_nothing(machines)
