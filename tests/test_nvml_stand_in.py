"""The NVML stand-in, through the real binding in an interpreter of its own."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import pynvml
import pytest

from tests.nvml import (
    CAPTURES,
    EVERY_CALL,
    FOREVER,
    GEFORCE,
    H100,
    NO_INSTANCE,
    NOT_AVAILABLE,
    Answer,
    Code,
    Moving,
    NvmlMachine,
    Process,
    Says,
    Slice,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tests.conftest import MakeMachine

pytestmark = pytest.mark.nvml

SAMPLES: Final = Path(__file__).parents[2] / "shared" / "samples" / "nvidia"
HEADER: Final = Path(__file__).parent / "stand_ins" / "nvml" / "stand_in.h"

# Evaluates a line at a time; a failure is answered by the name of its class.
INTERPRETER: Final = """
import ctypes, os, sys
from pynvml import *
import pynvml

def plain(answer):
    if isinstance(answer, list):
        return [plain(item) for item in answer]
    if isinstance(answer, ctypes.Structure):
        return {name: plain(getattr(answer, name)) for name, _ in answer._fields_}
    if hasattr(answer, "__dict__") and not isinstance(answer, ctypes._Pointer):
        return vars(answer)
    return answer if isinstance(answer, (int, float, str, dict, tuple)) else None

def gpm(first, second, *ids):
    asked = c_nvmlGpmMetricsGet_t(version=1, numMetrics=len(ids), sample1=first, sample2=second)
    for metric, number in zip(asked.metrics, ids):
        metric.metricId = number
    nvmlGpmMetricsGet(asked)
    return [(metric.nvmlReturn, metric.value) for metric in asked.metrics[: len(ids)]]

for line in sys.stdin:
    try:
        answer = plain(eval(line, globals()))
    except Exception as error:
        answer = type(error).__name__
    print(repr(answer), flush=True)
"""


class Interpreter:
    """A Python process that finds itself on a machine."""

    def __init__(self, machine: NvmlMachine) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", INTERPRETER],
            env={**os.environ, **machine.environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, expression: str) -> Any:  # noqa: ANN401 - whatever the binding returns
        """Evaluate an expression there."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(f"{expression}\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, f"the interpreter ended: {self.process.wait()}"
        return ast.literal_eval(answer)

    def death(self, expression: str) -> tuple[int, str]:
        """Evaluate an expression that ends the process, and return its status and last words."""
        _, words = self.process.communicate(f"{expression}\n")
        return self.process.returncode, words


class StartInterpreter(Protocol):
    """Starts an interpreter on a machine; unless told not to, it starts NVML and has a handle `h` of device 0."""

    def __call__(self, machine: NvmlMachine, *, begin: bool = True) -> Interpreter:
        """Return it."""


@pytest.fixture
def interpreter() -> Iterator[StartInterpreter]:
    """Return a function that starts an interpreter."""
    with contextlib.ExitStack() as ends:

        def start(machine: NvmlMachine, *, begin: bool = True) -> Interpreter:
            ask = Interpreter(machine)
            ends.enter_context(ask.process)
            ends.callback(ask.process.kill)
            if begin:
                assert ask("nvmlInit()") is None
                ask("(h := nvmlDeviceGetHandleByIndex(0))")
            return ask

        yield start


def test_every_call_answers(machine: MakeMachine, interpreter: StartInterpreter) -> None:
    ask = interpreter(machine(H100, GEFORCE))
    answers = {
        "nvmlSystemGetDriverVersion()": "580.95.05",
        "nvmlSystemGetNVMLVersion()": "13.580.95.05",
        "nvmlSystemGetCudaDriverVersion()": 13000,
        "nvmlSystemGetCudaDriverVersion_v2()": 13000,
        "nvmlDeviceGetCount()": 2,
        "nvmlDeviceGetName(h)": "NVIDIA H100 80GB HBM3",
        "nvmlDeviceGetUUID(h)": "GPU-00000000-5a5a-4b4b-8c8c-0123456789ab",
        "nvmlDeviceGetIndex(h)": 0,
        "nvmlDeviceGetMinorNumber(h)": 0,
        "nvmlDeviceGetPciInfo(h).busId": "00000000:01:00.0",
        "nvmlDeviceGetBrand(h)": 14,
        "nvmlDeviceGetArchitecture(h)": 9,
        "nvmlDeviceGetNumGpuCores(h)": 16896,
        "nvmlDeviceGetVirtualizationMode(h)": 0,
        "nvmlDeviceGetUtilizationRates(h)": {"gpu": 97, "memory": 41},
        "nvmlDeviceGetEncoderUtilization(h)": [0, 167000],
        "nvmlDeviceGetDecoderUtilization(h)": [0, 167000],
        "nvmlDeviceGetMemoryInfo(h)": {"total": 80 * 2**30, "free": 20 * 2**30, "used": 60 * 2**30},
        "nvmlDeviceGetMemoryInfo(h, version=nvmlMemory_v2)": {
            "version": 0x02000028,
            "total": 80 * 2**30,
            "reserved": 2**29,
            "free": 20 * 2**30,
            "used": 60 * 2**30 - 2**29,
        },
        "nvmlDeviceGetBAR1MemoryInfo(h).bar1Used": 2**30,
        "nvmlDeviceGetTemperature(h, 0)": 57,
        "nvmlDeviceGetPowerUsage(h)": 612345,
        "nvmlDeviceGetEnforcedPowerLimit(h)": 700000,
        "nvmlDeviceGetPowerManagementLimit(h)": 700000,
        "nvmlDeviceGetTotalEnergyConsumption(h)": 9_000_000_000,
        "[nvmlDeviceGetClockInfo(h, clock) for clock in range(4)]": [1980, 1965, 2619, 1545],
        "nvmlDeviceGetMemoryErrorCounter(h, 1, 0, 2)": 0,
        "nvmlDeviceGetTotalEccErrors(h, 0, 1)": 0,
        "nvmlDeviceGetEccMode(h)": [1, 1],
        "nvmlDeviceGetNumFans(h)": 0,
        "nvmlDeviceGetFanSpeed(h)": "NVMLError_NotSupported",
        "nvmlDeviceGetFanSpeed_v2(h, 0)": "NVMLError_NotSupported",
        "[nvmlDeviceGetFanSpeed_v2(nvmlDeviceGetHandleByIndex(1), fan) for fan in range(2)]": [41, 44],
        "nvmlDeviceGetComputeRunningProcesses(h)": [],
        "nvmlDeviceGetGraphicsRunningProcesses(h)": [],
        "nvmlDeviceGetMPSComputeRunningProcesses(h)": [],
        "nvmlDeviceGetPcieThroughput(h, 0)": 120_000,
        "nvmlDeviceGetPcieSpeed(h)": 32000,
        "nvmlDeviceGetCurrPcieLinkGeneration(h)": 5,
        "nvmlDeviceGetCurrPcieLinkWidth(h)": 16,
        "nvmlDeviceGetMaxPcieLinkGeneration(h)": 5,
        "nvmlDeviceGetMaxPcieLinkWidth(h)": 16,
        "nvmlDeviceGetMigMode(h)": [0, 0],
        "nvmlDeviceGetMaxMigDeviceCount(h)": 0,
        "nvmlDeviceGetMigDeviceHandleByIndex(h, 0)": "NVMLError_NotSupported",
        "nvmlDeviceIsMigDeviceHandle(h).value": 0,
        "nvmlDeviceGetDeviceHandleFromMigDeviceHandle(h)": "NVMLError_InvalidArgument",
        "nvmlDeviceGetGpuInstanceId(h)": "NVMLError_NotSupported",
        "nvmlDeviceGetComputeInstanceId(h)": "NVMLError_NotSupported",
        "nvmlDeviceGetAttributes(h)": "NVMLError_NotSupported",
        "[(f.nvmlReturn, f.valueType, f.value.ullVal) for f in nvmlDeviceGetFieldValues(h, [185, (186, 0)])]": [
            (0, 3, 612345),
            (0, 3, 640001),
        ],
        "[f.nvmlReturn for f in nvmlDeviceGetFieldValues(h, [1])]": [Code.NOT_SUPPORTED],
        "nvmlGpmQueryDeviceSupport(h).isSupportedDevice": 1,
        "nvmlGpmQueryIfStreamingEnabled(h)": 0,
        "nvmlDeviceGetIndex(nvmlDeviceGetHandleByUUID('GPU-00000001-5a5a-4b4b-8c8c-0123456789ab'))": 1,
        "nvmlDeviceGetIndex(nvmlDeviceGetHandleByPciBusId('00000000:02:00.0'))": 1,
        "nvmlDeviceGetHandleByUUID('GPU-0')": "NVMLError_NotFound",
        "nvmlDeviceGetHandleByPciBusId('00000000:03:00.0')": "NVMLError_NotFound",
        "nvmlDeviceGetHandleByIndex(2)": "NVMLError_InvalidArgument",
        "nvmlShutdown()": None,
    }
    assert {expression: ask(expression) for expression in answers} == answers


def test_the_binding_sees_a_newer_temperature_call(machine: MakeMachine, interpreter: StartInterpreter) -> None:
    if not hasattr(pynvml, "nvmlDeviceGetTemperatureV"):
        pytest.skip("this nvidia-ml-py is older than nvmlDeviceGetTemperatureV")
    made = machine()
    made.set("nvmlDeviceGetTemperatureV", -3, 0, sensor=0)
    assert interpreter(made)("nvmlDeviceGetTemperatureV(h, 0)") == -3


def test_exports_what_a_real_library_exports(machine: MakeMachine) -> None:
    ours = set(re.findall(r"X\((nvml\w+)\)", HEADER.read_text(encoding="utf-8")))
    with machine().loaded():
        pynvml._LoadNvmlLibrary()
        assert not [name for name in ours if not hasattr(pynvml.nvmlLib, name)]
        # What the parts of the library share with one another stays inside.
        assert not hasattr(pynvml.nvmlLib, "find")
    exports = sorted(SAMPLES.glob("nvml_exports__*.txt"))
    if not exports:
        pytest.skip("the exported names of real libraries are not here")
    for real in exports:
        assert ours <= set(real.read_text(encoding="utf-8").split())


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (Code.INVALID_ARGUMENT, "NVMLError_InvalidArgument"),
        (Code.NOT_SUPPORTED, "NVMLError_NotSupported"),
        (Code.NO_PERMISSION, "NVMLError_NoPermission"),
        (Code.GPU_IS_LOST, "NVMLError_GpuIsLost"),
        (Code.RESET_REQUIRED, "NVMLError_ResetRequired"),
        (Code.NO_DATA, "NVMLError_NoData"),
        (Code.ARGUMENT_VERSION_MISMATCH, "NVMLError_ArgumentVersionMismatch"),
        (Code.UNKNOWN, "NVMLError_Unknown"),
        (Answer(code=12345), "NVMLError"),
    ],
)
def test_a_code_comes_out_as_its_exception(
    code: Says, name: str, machine: MakeMachine, interpreter: StartInterpreter
) -> None:
    made = machine(H100, H100)
    made.set("nvmlDeviceGetPowerUsage", code, 0)
    ask = interpreter(made)
    assert ask("nvmlDeviceGetPowerUsage(h)") == name
    assert ask("nvmlDeviceGetPowerUsage(nvmlDeviceGetHandleByIndex(1))") == 612345
    assert ask("nvmlDeviceGetTemperature(h, 0)") == 57


def test_values_beside_an_error_are_written(machine: MakeMachine) -> None:
    made = machine()
    made.set("nvmlDeviceGetUtilizationRates", Answer((0, 7), code=Code.NOT_SUPPORTED), 0)
    with made.loaded():
        pynvml.nvmlInit()
        rates = pynvml.c_nvmlUtilization_t(gpu=99, memory=99)
        code = pynvml.nvmlLib.nvmlDeviceGetUtilizationRates(pynvml.nvmlDeviceGetHandleByIndex(0), pynvml.byref(rates))
    assert (code, rates.gpu, rates.memory) == (Code.NOT_SUPPORTED, 0, 7)


@pytest.mark.parametrize(
    "expression",
    [
        "nvmlDeviceGetMemoryInfo(h, version=0x03000028)",
        "nvmlDeviceGetMemoryInfo(h, version=0x02000020)",
        "pynvml._nvmlCheckReturn(nvmlLib.nvmlDeviceGetTemperatureV(h, byref(c_nvmlGpmSupport_t(version=1))))",
        "pynvml._nvmlCheckReturn(nvmlLib.nvmlGpmQueryDeviceSupport(h, byref(c_nvmlGpmSupport_t(version=2))))",
    ],
)
def test_version_words_are_checked(expression: str, machine: MakeMachine, interpreter: StartInterpreter) -> None:
    ask = interpreter(machine())
    assert ask(expression.replace("nvmlLib", "pynvml.nvmlLib")) == "NVMLError_ArgumentVersionMismatch"


def test_a_missing_symbol_is_truly_absent(machine: MakeMachine, interpreter: StartInterpreter) -> None:
    processes = "nvmlDeviceGetComputeRunningProcesses"
    made = machine(missing=[f"{processes}_v3", "nvmlDeviceGetMemoryInfo_v2"])
    made.set(f"{processes}_v2", [Process(4242, 2**30)], 0)
    ask = interpreter(made)
    newer = hasattr(pynvml, "NVMLLibraryMismatchError")
    assert ask(f"{processes}(h)") == ("NVMLLibraryMismatchError" if newer else "NVMLError_FunctionNotFound")
    if hasattr(pynvml, f"{processes}_v2"):
        assert [process["pid"] for process in ask(f"{processes}_v2(h)")] == [4242]
    assert ask("nvmlDeviceGetMemoryInfo(h, version=nvmlMemory_v2)") == "NVMLError_FunctionNotFound"
    assert ask("nvmlDeviceGetMemoryInfo(h).total") == 80 * 2**30


@pytest.mark.usefixtures("nvml_builds")
def test_the_library_may_be_missing_and_come(tmp_path: Path) -> None:
    made = NvmlMachine(tmp_path, installed=False)
    with made.loaded():
        with pytest.raises(pynvml.NVMLError_LibraryNotFound):
            pynvml.nvmlInit()
        made.install()
        pynvml.nvmlInit()
        assert pynvml.nvmlDeviceGetCount() == 1


def test_the_oldest_process_list(machine: MakeMachine) -> None:
    made = machine()
    made.set("nvmlDeviceGetComputeRunningProcesses", [Process(1, 2), Process(3, 4)], 0)
    room = pynvml.c_uint(5)
    numbers = (pynvml.c_ulonglong * 10)()
    with made.loaded():
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        assert pynvml.nvmlLib.nvmlDeviceGetComputeRunningProcesses(handle, pynvml.byref(room), numbers) == 0
    assert room.value == 2
    assert [number & 0xFFFFFFFF for number in numbers[:4]] == [1, 2, 3, 4]


def test_nvml_counts_its_starts(machine: MakeMachine, interpreter: StartInterpreter) -> None:
    ask = interpreter(machine())
    assert ask("nvmlInit()") is None
    assert ask("nvmlShutdown()") is None
    assert ask("nvmlDeviceGetPowerUsage(h)") == 612345
    assert ask("nvmlShutdown()") is None
    assert ask("nvmlDeviceGetPowerUsage(h)") == "NVMLError_Uninitialized"
    assert ask("nvmlDeviceGetCount()") == "NVMLError_Uninitialized"
    assert ask("nvmlShutdown()") is None
    assert ask("nvmlInit()") is None
    assert ask("nvmlDeviceGetPowerUsage(h)") == "NVMLError_InvalidArgument"
    assert ask("nvmlDeviceGetPowerUsage(nvmlDeviceGetHandleByIndex(0))") == 612345


def test_a_fork_starts_anew(machine: MakeMachine, interpreter: StartInterpreter) -> None:
    ask = interpreter(machine())
    status = "nvmlLib.nvmlDeviceGetCount_v2(byref(c_uint()))".replace("nvmlLib", "pynvml.nvmlLib")
    child = f"os.waitpid(pid, 0)[1] >> 8 if (pid := os.fork()) else os._exit({status})"
    assert ask(child) == Code.UNINITIALIZED
    assert ask(status) == Code.SUCCESS


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (Code.DRIVER_NOT_LOADED, "NVMLError_DriverNotLoaded"),
        (Code.LIB_RM_VERSION_MISMATCH, "NVMLError_LibRmVersionMismatch"),
        (Code.UNKNOWN, "NVMLError_Unknown"),
    ],
)
def test_nvml_may_not_start(code: Code, name: str, machine: MakeMachine, interpreter: StartInterpreter) -> None:
    made = machine()
    made.set("nvmlInitWithFlags", code)
    ask = interpreter(made, begin=False)
    assert ask("nvmlDeviceGetCount()") == "NVMLError_Uninitialized"
    assert ask("nvmlInit()") == name
    assert ask("nvmlDeviceGetCount()") == "NVMLError_Uninitialized"
    made.unset("nvmlInitWithFlags")
    assert ask("nvmlInit()") is None
    assert ask("nvmlDeviceGetCount()") == 1


def test_the_table_may_change_at_any_time(machine: MakeMachine, interpreter: StartInterpreter) -> None:
    made = machine()
    ask = interpreter(made)
    for milliwatts in range(1000, 1050):
        made.set("nvmlDeviceGetPowerUsage", milliwatts, 0)
        assert ask("nvmlDeviceGetPowerUsage(h)") == milliwatts
    made.unset("nvmlDeviceGetPowerUsage", 0)
    assert ask("nvmlDeviceGetPowerUsage(h)") == "NVMLError_NotSupported"
    made.set("nvmlDeviceGetPowerUsage", 7)
    assert ask("nvmlDeviceGetPowerUsage(h)") == 7


def test_a_moving_number_survives_other_changes(machine: MakeMachine, interpreter: StartInterpreter) -> None:
    made = machine()
    made.set("nvmlDeviceGetTotalEnergyConsumption", Moving(100, 5), 0)
    made.set("nvmlDeviceGetFieldValues", Moving(1.5, -0.25), 0, field=1)
    ask = interpreter(made)
    assert [ask("nvmlDeviceGetTotalEnergyConsumption(h)") for _ in range(3)] == [100, 105, 110]
    made.set("nvmlDeviceGetPowerUsage", 1, 0)
    assert ask("nvmlDeviceGetTotalEnergyConsumption(h)") == 115
    made.set("nvmlDeviceGetTotalEnergyConsumption", Moving(0, 5), 0)
    assert ask("nvmlDeviceGetTotalEnergyConsumption(h)") == 0
    field = "nvmlDeviceGetFieldValues(h, [1])[0]"
    assert [ask(f"{field}.value.dVal") for _ in range(2)] == [1.5, 1.25]
    assert ask(f"{field}.valueType") == 0


def test_the_most_particular_line_wins(machine: MakeMachine, interpreter: StartInterpreter) -> None:
    made = machine({"nvmlDeviceGetName": "bare"})
    ask = interpreter(made)
    count = "nvmlDeviceGetMemoryErrorCounter(h, 1, 0, 2)"
    assert ask(count) == "NVMLError_NotSupported"
    made.set("nvmlDeviceGetMemoryErrorCounter", 1)
    assert ask(count) == 1
    made.set("nvmlDeviceGetMemoryErrorCounter", 2, error=1)
    assert ask(count) == 2
    made.set("nvmlDeviceGetMemoryErrorCounter", 3, 0)
    assert ask(count) == 3
    made.set("nvmlDeviceGetMemoryErrorCounter", 2**64 - 4, 0, error=1, counter=0, location=2)
    assert ask(count) == 2**64 - 4
    assert ask("nvmlDeviceGetMemoryErrorCounter(h, 0, 0, 2)") == 3


def test_a_selector_that_a_call_does_not_have_is_an_error(machine: MakeMachine) -> None:
    with pytest.raises(TypeError, match="nvmlDeviceGetPowerUsage has no selector clock"):
        machine().set("nvmlDeviceGetPowerUsage", 1, 0, clock=1)
    with pytest.raises(TypeError, match="fields of nvmlDeviceGetMigMode are current, pending"):
        machine().set("nvmlDeviceGetMigMode", {"current": 1}, 0)


def test_a_slow_call_keeps_no_other_waiting(machine: MakeMachine) -> None:
    made = machine()
    made.set("nvmlDeviceGetPowerUsage", Answer((5,), delay=300), 0)
    with made.loaded():
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        start = time.monotonic()
        slow = threading.Thread(target=pynvml.nvmlDeviceGetPowerUsage, args=(handle,))
        slow.start()
        assert pynvml.nvmlDeviceGetTemperature(handle, 0) == 57
        assert slow.is_alive()
        slow.join()
        assert time.monotonic() - start >= 0.3


def test_a_hung_call_goes_on_when_the_table_changes(machine: MakeMachine, interpreter: StartInterpreter) -> None:
    made = machine()
    ask = interpreter(made)
    made.set(EVERY_CALL, Answer(delay=FOREVER), 0)
    change = threading.Timer(0.2, made.unset, (EVERY_CALL, 0))
    start = time.monotonic()
    change.start()
    assert ask("nvmlDeviceGetPowerUsage(h)") == 612345
    assert time.monotonic() - start >= 0.2
    change.join()


def test_a_call_may_crash(machine: MakeMachine, interpreter: StartInterpreter) -> None:
    made = machine()
    ask = interpreter(made)
    made.set("nvmlDeviceGetPowerUsage", Answer(signal=signal.SIGSEGV), 0)
    assert ask.death("nvmlDeviceGetPowerUsage(h)")[0] == -signal.SIGSEGV


def test_a_lost_device_leaves_the_others(machine: MakeMachine, interpreter: StartInterpreter) -> None:
    made = machine(H100, H100, H100)
    ask = interpreter(made)
    ask("(handles := [nvmlDeviceGetHandleByIndex(index) for index in range(3)])")
    made.set(EVERY_CALL, Code.GPU_IS_LOST, 1)
    assert ask("nvmlDeviceGetPowerUsage(handles[1])") == "NVMLError_GpuIsLost"
    assert ask("nvmlDeviceGetHandleByIndex(1)") == "NVMLError_GpuIsLost"
    assert ask("nvmlDeviceGetCount()") == 3
    assert ask("[nvmlDeviceGetIndex(handle) for handle in handles[::2]]") == [0, 2]
    made.unset(EVERY_CALL, 1)
    assert ask("nvmlDeviceGetIndex(nvmlDeviceGetHandleByIndex(1))") == 1


def test_case_23_a_handle_of_a_lost_device_may_crash(machine: MakeMachine, interpreter: StartInterpreter) -> None:
    made = machine()
    made.set("abort-after-loss", 1)
    ask = interpreter(made)
    made.set("nvmlDeviceGetHandleByIndex_v2", Code.GPU_IS_LOST, 0)
    assert ask("nvmlDeviceGetPowerUsage(h)") == 612345
    assert ask("nvmlDeviceGetHandleByIndex(0)") == "NVMLError_GpuIsLost"
    status, words = ask.death("nvmlDeviceGetPowerUsage(h)")
    assert status == -signal.SIGABRT
    assert "a handle from before its device was lost" in words


def test_no_handle_at_all_may_crash(machine: MakeMachine, interpreter: StartInterpreter) -> None:
    made = machine()
    ask = interpreter(made)
    assert ask("nvmlDeviceGetPowerUsage(None)") == "NVMLError_InvalidArgument"
    made.set("abort-after-loss", 1)
    assert ask.death("nvmlDeviceGetPowerUsage(None)")[0] == -signal.SIGABRT


def test_devices_may_be_unplugged(machine: MakeMachine, interpreter: StartInterpreter) -> None:
    made = machine(H100, H100)
    ask = interpreter(made)
    ask("(second := nvmlDeviceGetHandleByIndex(1))")
    made.count = 1
    assert ask("nvmlDeviceGetCount()") == 1
    assert ask("nvmlDeviceGetPowerUsage(second)") == "NVMLError_GpuIsLost"
    assert ask("nvmlDeviceGetHandleByIndex(1)") == "NVMLError_InvalidArgument"
    made.count = 2
    assert made.add(GEFORCE) == 2
    assert ask("[nvmlDeviceGetName(nvmlDeviceGetHandleByIndex(index)) for index in range(3)]") == [
        "NVIDIA H100 80GB HBM3",
        "NVIDIA H100 80GB HBM3",
        "NVIDIA GeForce RTX 4080 SUPER",
    ]


def test_everything_may_fail(machine: MakeMachine, interpreter: StartInterpreter) -> None:
    made = machine()
    ask = interpreter(made)
    made.set(EVERY_CALL, Code.UNKNOWN)
    for expression in ("nvmlDeviceGetCount()", "nvmlDeviceGetPowerUsage(h)", "nvmlShutdown()", "nvmlInit()"):
        assert ask(expression) == "NVMLError_Unknown"
    made.unset(EVERY_CALL)
    assert ask("nvmlDeviceGetPowerUsage(h)") == 612345


def test_processes(machine: MakeMachine, interpreter: StartInterpreter) -> None:
    made = machine()
    listed = [Process(4242, 2**31), Process(7, NOT_AVAILABLE), Process(9, 5, gpu_instance=3, compute_instance=1)]
    made.set("nvmlDeviceGetComputeRunningProcesses_v3", listed, 0)
    ask = interpreter(made)
    assert ask("nvmlDeviceGetComputeRunningProcesses(h)") == [
        {"pid": 4242, "usedGpuMemory": 2**31, "gpuInstanceId": NO_INSTANCE, "computeInstanceId": NO_INSTANCE},
        {"pid": 7, "usedGpuMemory": None, "gpuInstanceId": NO_INSTANCE, "computeInstanceId": NO_INSTANCE},
        {"pid": 9, "usedGpuMemory": 5, "gpuInstanceId": 3, "computeInstanceId": 1},
    ]
    made.set("nvmlDeviceGetComputeRunningProcesses_v3", [Process(pid) for pid in range(3000)], 0)
    assert [process["pid"] for process in ask("nvmlDeviceGetComputeRunningProcesses(h)")] == list(range(3000))
    made.set("nvmlDeviceGetComputeRunningProcesses_v3", Code.INSUFFICIENT_SIZE, 0)
    assert ask("nvmlDeviceGetComputeRunningProcesses(h)") == "NVMLError_InsufficientSize"


def test_mig_slices_have_holes_and_change(machine: MakeMachine, interpreter: StartInterpreter) -> None:
    made = machine(H100, H100)
    made.slice(0, {0: Slice(1, total=40 * 2**30), 2: Slice(5, uuid="MIG-five")})
    ask = interpreter(made)
    handles = "[nvmlDeviceGetMigDeviceHandleByIndex(h, slot) for slot in ({})]"
    assert ask("nvmlDeviceGetMigMode(h)") == [1, 1]
    assert ask("nvmlDeviceGetMaxMigDeviceCount(h)") == 7
    assert ask(handles.format("1,")) == "NVMLError_NotFound"
    assert ask(handles.format("7,")) == "NVMLError_InvalidArgument"
    ask(f"(slices := {handles.format('0, 2')})")
    assert ask("[nvmlDeviceGetGpuInstanceId(mig) for mig in slices]") == [1, 5]
    assert ask("[nvmlDeviceIsMigDeviceHandle(mig).value for mig in slices]") == [1, 1]
    assert ask("nvmlDeviceGetMemoryInfo(slices[0]).total") == 40 * 2**30
    assert ask("nvmlDeviceGetAttributes(slices[1]).memorySizeMB") == 20 * 1024
    assert ask("nvmlDeviceGetIndex(nvmlDeviceGetDeviceHandleFromMigDeviceHandle(slices[1]))") == 0
    assert ask("nvmlDeviceGetGpuInstanceId(nvmlDeviceGetHandleByUUID('MIG-five'))") == 5
    for handle in ("h", "slices[0]"):
        assert ask(f"nvmlDeviceGetUtilizationRates({handle})") == "NVMLError_NotSupported"
    assert ask("nvmlDeviceGetPowerUsage(slices[0])") == "NVMLError_NotSupported"
    assert ask("nvmlDeviceGetPowerUsage(h)") == 612345

    made.slice(0, {1: Slice(9)})
    assert ask("nvmlDeviceGetMemoryInfo(slices[0])") == "NVMLError_InvalidArgument"
    assert ask(handles.format("0,")) == "NVMLError_NotFound"
    assert ask(f"nvmlDeviceGetGpuInstanceId({handles.format('1,')}[0])") == 9
    assert ask("nvmlDeviceGetUtilizationRates(nvmlDeviceGetHandleByIndex(1)).gpu") == 97


def test_gpm(machine: MakeMachine, interpreter: StartInterpreter) -> None:
    made = machine(H100, GEFORCE)
    made.set("nvmlGpmMetricsGet", Answer((-1e300,), code=Code.NOT_SUPPORTED), 0, metric=60)
    made.set("nvmlGpmMetricsGet", float("nan"), 0, metric=3)
    ask = interpreter(made)
    ask("(first := nvmlGpmSampleAlloc())")
    ask("(second := nvmlGpmSampleAlloc())")
    assert ask("gpm(first, second, 2)") == "NVMLError_NoData"
    ask("nvmlGpmSampleGet(h, first)")
    made.set("nvmlGpmMetricsGet", 12.5, 0, metric=2)
    ask("nvmlGpmSampleGet(h, second)")
    made.set("nvmlGpmMetricsGet", 99.0, 0, metric=2)
    assert ask("gpm(first, second, 2, 60, 400)") == [(0, 12.5), (3, -1e300), (3, 0.0)]
    assert ask("str(gpm(first, second, 3))") == "[(0, nan)]"
    assert ask("gpm(second, first, 2)") == "NVMLError_InvalidArgument"
    ask("nvmlGpmSampleGet(h, first)")
    assert ask("gpm(second, first, 2)") == [(0, 99.0)]
    assert ask("nvmlGpmSampleGet(nvmlDeviceGetHandleByIndex(1), second)") == "NVMLError_NotSupported"
    made.set(EVERY_CALL, Code.GPU_IS_LOST, 0)
    assert ask("gpm(second, first, 2)") == "NVMLError_GpuIsLost"
    assert ask("nvmlGpmSampleFree(first)") is None
    assert ask("nvmlGpmSampleFree(first)") == "NVMLError_InvalidArgument"
    calls = made.calls()
    assert (calls["nvmlGpmSampleAlloc"], calls["nvmlGpmSampleFree"]) == (2, 2)


def test_gpm_of_mig_slices(machine: MakeMachine, interpreter: StartInterpreter) -> None:
    made = machine()
    made.slice(0, {0: Slice(1, gpm={2: 10.0}), 1: Slice(2, gpm={2: 20.0})})
    ask = interpreter(made)
    ask("(first := nvmlGpmSampleAlloc())")
    ask("(second := nvmlGpmSampleAlloc())")
    assert ask("nvmlGpmSampleGet(h, first)") == "NVMLError_NotSupported"
    ask("nvmlGpmMigSampleGet(h, 2, first)")
    ask("nvmlGpmMigSampleGet(h, 2, second)")
    assert ask("gpm(first, second, 2, 3)") == [(0, 20.0), (3, 0.0)]
    made.set("nvmlGpmMigSampleGet", Code.NO_PERMISSION, 0, instance=2)
    assert ask("nvmlGpmMigSampleGet(h, 2, first)") == "NVMLError_NoPermission"


def test_calls_are_counted_over_all_processes(machine: MakeMachine, interpreter: StartInterpreter) -> None:
    made = machine()
    for ask in (interpreter(made), interpreter(made)):
        ask("[nvmlDeviceGetPowerUsage(h) for _ in range(10)]")
    assert made.calls() == {
        "nvmlInitWithFlags": 2,
        "nvmlDeviceGetHandleByIndex_v2": 2,
        "nvmlDeviceGetPowerUsage": 20,
    }


def test_machines_in_this_process_are_apart(machine: MakeMachine) -> None:
    first, second = machine(H100, H100), machine(GEFORCE, missing=["nvmlDeviceGetName"])
    with first.loaded():
        pynvml.nvmlInit()
        assert pynvml.nvmlDeviceGetCount() == 2
        assert pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0)) == "NVIDIA H100 80GB HBM3"
    with second.loaded():
        with pytest.raises(pynvml.NVMLError_Uninitialized):
            pynvml.nvmlDeviceGetCount()
        pynvml.nvmlInit()
        assert pynvml.nvmlDeviceGetCount() == 1
        with pytest.raises(pynvml.NVMLError_FunctionNotFound):
            pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0))
    assert "NVML_STAND_IN_TABLE" not in os.environ


@pytest.mark.usefixtures("nvml_builds")
@pytest.mark.parametrize("name", sorted(path.stem for path in CAPTURES.glob("*.json")))
def test_captures(name: str, tmp_path: Path) -> None:
    capture = json.loads((CAPTURES / f"{name}.json").read_text(encoding="utf-8"))
    with NvmlMachine.from_capture(tmp_path, name).loaded():
        pynvml.nvmlInit()
        assert pynvml.nvmlSystemGetDriverVersion() == capture["driver"]
        assert pynvml.nvmlDeviceGetCount() == len(capture["devices"])
        for index, device in enumerate(capture["devices"]):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            assert pynvml.nvmlDeviceGetName(handle) == device["answers"]["nvmlDeviceGetName"]
            power = device["answers"]["nvmlDeviceGetPowerUsage"]
            if isinstance(power, int):
                assert pynvml.nvmlDeviceGetPowerUsage(handle) == power
            else:
                with pytest.raises(pynvml.NVMLError_NotSupported):
                    pynvml.nvmlDeviceGetPowerUsage(handle)
            for slot, cut in device.get("slices", {}).items():
                part = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, int(slot))
                assert pynvml.nvmlDeviceGetMemoryInfo(part).used == cut["used"]


def odd_entries(kind: str) -> list[Any]:
    path = SAMPLES / "odd_devices.json"
    entries = json.loads(path.read_text(encoding="utf-8"))[kind] if path.is_file() else []
    absent = pytest.param(None, marks=pytest.mark.skip(reason="odd_devices.json is not here"), id="absent")
    return [pytest.param(entry, id=entry["id"]) for entry in entries] or [absent]


@pytest.mark.usefixtures("nvml_builds")
@pytest.mark.parametrize("entry", odd_entries("init"))
def test_odd_starts(entry: Mapping[str, Any], tmp_path: Path, interpreter: StartInterpreter) -> None:
    ask = interpreter(NvmlMachine.from_odd(tmp_path, entry), begin=False)
    start = entry.get("nvmlInitWithFlags", {})
    if "sleeps" in start:
        with pytest.raises(subprocess.TimeoutExpired):
            ask.process.communicate("nvmlInit()\n", timeout=1)
    elif "signal" in start:
        assert ask.death("nvmlInit()")[0] == -signal.Signals[start["signal"]]
    else:
        assert ask("nvmlInit()") == entry.get("python", name_of(start.get("rc")))


def name_of(code: int | None) -> str | None:
    """Return the name of the exception for a code."""
    return type(pynvml.NVMLError(code)).__name__ if code else None


ODD_CALLS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "BAR1MemoryInfo": pynvml.nvmlDeviceGetBAR1MemoryInfo,
    "ClockInfo_MEM": lambda handle: pynvml.nvmlDeviceGetClockInfo(handle, 2),
    "ClockInfo_SM": lambda handle: pynvml.nvmlDeviceGetClockInfo(handle, 1),
    "ComputeRunningProcesses": pynvml.nvmlDeviceGetComputeRunningProcesses_v3,
    "DecoderUtilization": pynvml.nvmlDeviceGetDecoderUtilization,
    "EccMode": pynvml.nvmlDeviceGetEccMode,
    "EncoderUtilization": pynvml.nvmlDeviceGetEncoderUtilization,
    "EnforcedPowerLimit": pynvml.nvmlDeviceGetEnforcedPowerLimit,
    "FanSpeed": lambda handle: pynvml.nvmlDeviceGetFanSpeed_v2(handle, 0),
    "MemoryErrorCounter": lambda handle: pynvml.nvmlDeviceGetMemoryErrorCounter(handle, 0, 0, 2),
    "MemoryInfo": pynvml.nvmlDeviceGetMemoryInfo,
    "MemoryInfo_v2": lambda handle: pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2),
    "MigMode": pynvml.nvmlDeviceGetMigMode,
    "PowerUsage": pynvml.nvmlDeviceGetPowerUsage,
    "Temperature": lambda handle: pynvml.nvmlDeviceGetTemperature(handle, 0),
    "TotalEnergyConsumption": pynvml.nvmlDeviceGetTotalEnergyConsumption,
    "UtilizationRates": pynvml.nvmlDeviceGetUtilizationRates,
}


@pytest.mark.usefixtures("nvml_builds")
@pytest.mark.parametrize("entry", odd_entries("devices"))
def test_odd_devices(entry: Mapping[str, Any], tmp_path: Path) -> None:
    lost = entry["calls"].get("HandleByIndex")
    with NvmlMachine.from_odd(tmp_path, entry).loaded():
        pynvml.nvmlInit()
        if lost:
            assert pynvml.nvmlDeviceGetCount() == 3
            with pytest.raises(pynvml.NVMLError) as raised:
                pynvml.nvmlDeviceGetHandleByIndex(1)
            assert raised.value.value == lost["rc"]
            assert pynvml.nvmlDeviceGetPowerUsage(pynvml.nvmlDeviceGetHandleByIndex(2)) == 612345
            return
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        assert pynvml.nvmlDeviceGetName(handle) == entry["name"]
        for call, answer in entry["calls"].items():
            if answer["rc"]:
                with pytest.raises(pynvml.NVMLError) as raised:
                    ODD_CALLS[call](handle)
                assert raised.value.value == answer["rc"]
                continue
            read = ODD_CALLS[call](handle)
            if "gpu" in answer:
                assert (read.gpu, read.memory) == (answer["gpu"], answer["memory"])
            if isinstance(answer.get("value"), int):
                assert read == answer["value"]
            if isinstance(answer.get("out"), list):
                assert [getattr(read, name) for name, _ in read._fields_ if name != "version"] == answer["out"]
            if "list" in answer:
                assert len(read) == 1
