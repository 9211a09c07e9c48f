from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.collectors.nvidia.hosts import pci
from tests.collectors.nvidia.program import Failed, Program, given, points
from tests.nvml import EVERY_CALL, GEFORCE, H100, Code, Process

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeMachine

INIT: Final = "nvmlInitWithFlags"
SHUTDOWN: Final = "nvmlShutdown"
HANDLE: Final = "nvmlDeviceGetHandleByIndex_v2"


def test_nvml_is_opened_once(machine: MakeMachine) -> None:
    host = machine(H100)
    with Program(host).probe() as program:
        for _ in range(50):
            program.values()
        assert (host.calls()[INIT], host.calls()[SHUTDOWN]) == (1, 0)


def test_a_shutdown_by_another_library_costs_no_sample(machine: MakeMachine) -> None:
    host = machine(H100)
    with Program(host).probe() as program:
        program.values()
        before = program.values()
        for _ in range(3):
            program.do("shutdown")
            # GPM's buffers were the library's: what it had counted is gone with them.
            assert set(before) - set(program.values()) == {
                tag for tag in before if "gpu.0.sm" in tag or "Active" in tag or "xBytes" in tag
            } - {"gpu.0.smClock"}
            assert set(program.values()) == set(before)
        assert host.calls()[INIT] == 4
        assert host.calls()["nvmlGpmSampleFree"] == 0
        assert program.log == []


def test_nvml_that_does_not_stay_open_is_said(machine: MakeMachine) -> None:
    host = machine(H100)
    with Program(host).probe() as program:
        host.set("nvmlDeviceGetCount_v2", Code.UNINITIALIZED)
        with pytest.raises(Failed, match="does not stay open"):
            program.values()
        host.unset("nvmlDeviceGetCount_v2")
        assert program.values()["gpu.0.gpu"] == 97


def test_a_driver_that_is_unloaded_and_loaded_again_is_survived(machine: MakeMachine) -> None:
    host = machine(H100, H100)
    with Program(host).probe() as program:
        program.values()
        host.set(EVERY_CALL, Code.DRIVER_NOT_LOADED)
        for _ in range(10):
            with pytest.raises(Failed, match="driver is not loaded") as caught:
                program.values()
            assert caught.value.remedy
        host.unset(EVERY_CALL)
        assert program.values()["gpu.1.gpu"] == 97


def test_a_driver_that_was_reloaded_needs_a_new_session(machine: MakeMachine) -> None:
    host = machine(H100)
    with Program(host).probe() as program:
        program.values()
        host.set(HANDLE, Code.UNKNOWN)
        with pytest.raises(Failed, match="none of 1 GPUs"):
            program.values()
        assert (host.calls()[INIT], host.calls()[SHUTDOWN]) == (1, 0)
        host.unset(HANDLE)
        assert program.values()["gpu.0.gpu"] == 97
        assert (host.calls()[INIT], host.calls()[SHUTDOWN]) == (2, 1)
        assert program.log[-1] == "WARNING otel-sysmetrics: nvidia: GPU 0 is back"


def test_a_session_in_doubt_is_opened_anew_ever_more_seldom(machine: MakeMachine) -> None:
    host = machine(H100)
    with Program(host).probe() as program:
        host.set(HANDLE, Code.GPU_IS_LOST)
        starts = []
        for _ in range(100):
            with pytest.raises(Failed):
                program.values()
            starts.append(host.calls()[INIT])
        changed = [15 * tick for tick in range(1, 100) if starts[tick] > starts[tick - 1]]
        gaps = [later - earlier for earlier, later in itertools.pairwise(changed)]
        assert gaps == [60, 120, 240, 300, 300, 300]


def test_no_permission_after_a_restart_is_tried_again_seldom(machine: MakeMachine) -> None:
    host = machine(H100)
    with Program(host).probe() as program:
        program.values()
        host.set(INIT, Code.NO_PERMISSION)
        program.do("shutdown")
        for _ in range(20):
            with pytest.raises(Failed, match="no permission"):
                program.values()
        assert host.calls()[INIT] <= 1 + 4


def test_a_child_of_a_child_opens_nvml_too_and_leaves_the_parent_alone(machine: MakeMachine) -> None:
    host = machine(H100)
    with Program(host).probe() as program:
        for children in range(1, 4):
            assert points(given(program.do("fork", after=15)))["gpu.0.gpu"].value == 97
            assert program.values()["gpu.0.gpu"] == 97
            assert host.calls()[INIT] == 1 + children
        assert host.calls()[SHUTDOWN] == 0


def test_closing_shuts_down_once_and_only_in_the_thread_that_samples(machine: MakeMachine) -> None:
    host = machine(H100)
    with Program(host).probe() as program:
        program.values()
        program.do("close elsewhere")  # as at exit, where a driver call may hang
        assert host.calls()[SHUTDOWN] == 0
        assert program.values()["gpu.0.gpu"] == 97
        program.do("close")
        program.do("close")
        assert host.calls()[SHUTDOWN] == 1


@pytest.mark.parametrize("code", [Code.UNKNOWN, Code.UNINITIALIZED, Code.DRIVER_NOT_LOADED])
def test_a_start_that_gets_no_further_than_that_leaves_nothing_open(machine: MakeMachine, code: Code) -> None:
    host = machine(H100)
    host.set("nvmlDeviceGetCount_v2", code)
    with Program(host) as program:
        with pytest.raises(Failed) as caught:
            program.probe()
        assert caught.value.kind == "Unavailable"
        assert host.calls()[SHUTDOWN] == (1 if code is Code.UNKNOWN else 0)
        host.unset("nvmlDeviceGetCount_v2")
        assert program.probe().values()["gpu.0.gpu"] == 97


def test_a_driver_without_gpus_is_no_nvidia(machine: MakeMachine) -> None:
    host = machine(H100)
    host.count = 0
    with Program(host) as program:
        with pytest.raises(Failed, match="shows no GPU") as caught:
            program.probe()
        assert caught.value.kind == "NotHere"
        assert (host.calls()[INIT], host.calls()[SHUTDOWN]) == (1, 1)


def set_state(root: str, bus: int, state: str) -> None:
    with open(f"{root}/sys/bus/pci/devices/0000:{bus:02x}:00.0/power/runtime_status", "w", encoding="ascii") as file:
        file.write(f"{state}\n")


def test_a_suspended_gpu_is_not_woken(machine: MakeMachine, tmp_path: Path) -> None:
    host = machine(GEFORCE)
    root = pci(tmp_path, "suspended")
    with Program(host, root_path=root).probe() as program:
        assert (program.values(), program.values()) == ({}, {})
        assert program.do("describe") == "every NVIDIA GPU is asleep, and not woken"
        assert host.calls() == {}
        set_state(root, 1, "active")
        assert program.values()["gpu.0.gpu"] == 73
        asked = host.calls()
        set_state(root, 1, "suspended")
        assert program.values() == {}
        assert host.calls() == asked
        assert program.log == []


@pytest.mark.parametrize(
    ("power", "closed"), [({}, 3), ({"control": "on"}, 0), ({"slept": 0}, 0), ({"driver": "vfio-pci"}, 0)]
)
def test_a_gpu_that_sleeps_at_times_is_let_go_while_nobody_computes(
    machine: MakeMachine, tmp_path: Path, power: dict[str, Any], closed: int
) -> None:
    host = machine(GEFORCE)
    with Program(host, root_path=pci(tmp_path, "active", **power)).probe() as program:
        host.set("nvmlDeviceGetComputeRunningProcesses_v3", [Process(4242, 2**30)], 0)
        for _ in range(4):
            program.values()
        assert host.calls()[SHUTDOWN] == 0
        host.set("nvmlDeviceGetComputeRunningProcesses_v3", (), 0)
        for _ in range(42):  # somebody else keeps it awake for over 10 minutes
            assert program.values()["gpu.0.gpu"] == 73
        assert host.calls()[SHUTDOWN] == closed


def test_a_gpu_that_another_driver_has_is_no_reason_to_wait(machine: MakeMachine, tmp_path: Path) -> None:
    with Program(machine(H100), root_path=pci(tmp_path, "suspended", driver="vfio-pci")).probe() as program:
        assert program.values()["gpu.0.gpu"] == 97


def test_of_several_gpus_only_the_one_that_sleeps_is_left_alone(machine: MakeMachine, tmp_path: Path) -> None:
    host = machine(GEFORCE, H100)
    host.set("nvmlDeviceGetComputeRunningProcesses_v3", [Process(4242, 2**30)], 1)
    root = pci(tmp_path, "suspended", "active")
    with Program(host, root_path=root).probe() as program:
        for state in ("suspended", "active", "suspended"):
            set_state(root, 1, state)
            present = {point.attributes["gpu.index"] for point in program.sample().values()}
            assert present == ({0, 1} if state == "active" else {1})
        assert program.log == []


@pytest.mark.parametrize("driver", ["580.95.05"])
def test_what_the_real_redirector_of_pynvml_warns_about_is_not_heard(
    machine: MakeMachine, tmp_path: Path, driver: str
) -> None:
    # Written after _pynvml_redirector.py of the distribution pynvml 13.0.1, which its .pth file imports at start.
    (tmp_path / "_pynvml_redirector.py").write_text(
        "import importlib.abc, sys, warnings\n"
        "class PynvmlFinder(importlib.abc.MetaPathFinder):\n"
        "    has_warned_pynvml = False\n"
        "    def find_spec(self, name, _, __=None):\n"
        "        if name.startswith('pynvml') and not self.has_warned_pynvml:\n"
        "            warnings.warn('The pynvml package is deprecated.', FutureWarning, stacklevel=2)\n"
        "            self.has_warned_pynvml = True\n"
        "sys.meta_path.insert(0, PynvmlFinder())\n",
        encoding="utf-8",
    )
    (tmp_path / "sitecustomize.py").write_text("import _pynvml_redirector\n", encoding="utf-8")
    for filters in ("error", "always"):
        with Program(machine(driver=driver), "-W", filters, path=str(tmp_path)).probe() as program:
            assert program.values()["gpu.0.gpu"] == 97


@pytest.mark.parametrize("warning", ["FutureWarning", "DeprecationWarning"])
def test_a_binding_that_warns_is_used_even_where_warnings_are_errors(
    machine: MakeMachine, tmp_path: Path, warning: str
) -> None:
    (tmp_path / "pynvml.py").write_text(
        f"import warnings\nwarnings.warn('old', {warning})\n"
        "import sysconfig\nexec(open(sysconfig.get_path('purelib') + '/pynvml.py').read())\n",
        encoding="utf-8",
    )
    with Program(machine(), path=str(tmp_path)).probe() as program:
        assert program.values()["gpu.0.gpu"] == 97
