"""What one failed call means for its tag, its GPU, and the whole collector."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from tests.collectors.nvidia.hosts import WATCHED, binding, but, processes, tags
from tests.collectors.nvidia.program import Failed, Program
from tests.nvml import GEFORCE, H100, Answer, Code, Process, Says, Slice

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.conftest import MakeMachine

INIT: Final = "nvmlInitWithFlags"
ENCODER: Final = "nvmlDeviceGetEncoderUtilization"
HANDLE: Final = "nvmlDeviceGetHandleByIndex_v2"
MEMORY: Final = "nvmlDeviceGetMemoryInfo_v2"
PCIE: Final = "nvmlDeviceGetPcieThroughput"
TEMPERATURE: Final = "nvmlDeviceGetTemperatureV"
WARNING: Final = "WARNING otel-sysmetrics: nvidia: "


@pytest.mark.parametrize(
    "code", [Code.UNKNOWN, Code.OPERATING_SYSTEM, Code.NO_PERMISSION, Code.UNINITIALIZED, Code.DRIVER_NOT_LOADED]
)
def test_a_gpu_that_is_found_and_answers_nothing_costs_itself(machine: MakeMachine, code: Code) -> None:
    host = machine(H100, H100, H100)
    with Program(host).probe() as program:
        program.values()
        whole = set(program.values())
        with host.deaf(code, 1):
            program.values()  # NVML may have been opened anew for it
            for _ in range(3):
                assert set(program.values()) == {tag for tag in whole if not tag.startswith("gpu.1.")}
            assert len(program.log) == 1
            assert program.log[0].startswith(f"{WARNING}GPU 1 does not answer: ")
            assert "GPU 1: does not answer: " in program.do("describe")
        program.values()
        assert set(program.values()) == whole
        assert program.log[1:] == [f"{WARNING}GPU 1 is back"]
        assert host.calls()[INIT] <= 2


def test_a_gpu_that_supports_nothing_is_well_and_quiet(machine: MakeMachine) -> None:
    host = machine(H100)
    with Program(host).probe() as program:
        program.values()
        with host.deaf(Code.NOT_SUPPORTED, 0):
            for _ in range(50):
                assert program.values() == {}
        assert (program.log, host.calls()[INIT]) == ([], 1)


def test_a_gpu_asked_for_processes_only_is_heard_where_one_list_is(machine: MakeMachine, tmp_path: Path) -> None:
    host = machine(but(H100, {"nvmlDeviceGetGraphicsRunningProcesses_v3": Code.UNKNOWN}))
    only, root = ["gpu.process.0.processMemoryBytes"], processes(tmp_path)
    with Program(host, root_path=root, pid=WATCHED, metrics_included=only).probe() as program:
        assert program.values() == {}
        host.set("nvmlDeviceGetComputeRunningProcesses_v3", [Process(WATCHED, 7)], 0)
        assert program.values() == {"gpu.process.0.processMemoryBytes": 7}
        with host.deaf(Code.UNKNOWN, 0), pytest.raises(Failed, match="none of 1 GPUs answers: Unknown Error"):
            program.values()


@pytest.mark.parametrize("code", [Code.UNINITIALIZED, Code.DRIVER_NOT_LOADED])
def test_one_call_that_takes_nvml_for_closed_costs_its_tag_and_one_start(machine: MakeMachine, code: Code) -> None:
    host = machine(H100, H100, H100)
    with Program(host).probe() as program:
        program.values()
        whole = set(program.values())
        host.set(ENCODER, code, 1)
        for _ in range(5):
            values = set(program.values())
        assert whole - values == {"gpu.1.encoderUtilization"}
        assert host.calls()[INIT] == 2
        program.do("shutdown")
        program.values()
        assert whole - set(program.values()) == {"gpu.1.encoderUtilization"}
        assert host.calls()[INIT] == 3
        host.unset(ENCODER, 1)
        host.set(ENCODER, (0, 1), 1)
        assert set(program.values()) == whole
        assert program.log == []


def test_one_gpu_whose_handle_takes_nvml_for_closed_is_silent(machine: MakeMachine) -> None:
    host = machine(H100, H100)
    with Program(host).probe() as program:
        host.set(HANDLE, Code.UNINITIALIZED, 1)
        for _ in range(3):
            assert tags(program.values(), 0)
        assert host.calls()[INIT] == 2
        assert program.log == [f"{WARNING}GPU 1 does not answer: Uninitialized"]


@pytest.mark.parametrize(
    ("included", "read"),
    [
        (["default", "gpu.process.*"], set()),
        (["default", "gpu.*.mig.*"], set()),
        (["default", "gpu.*.pcieLink*"], set()),
        (["default", "gpu.0.pcieTxBytes"], {"gpu.0.pcieTxBytes"}),
        (["default", "gpu.0.*"], {"gpu.0.pcieTxBytes", "gpu.0.pcieRxBytes"}),
        (["default", "*.pcieRxBytes"], {"gpu.0.pcieRxBytes", "gpu.1.pcieRxBytes"}),
    ],
)
def test_reads_that_block_are_made_for_the_tags_that_are_named(
    machine: MakeMachine, included: Sequence[str], read: set[str]
) -> None:
    host = machine(GEFORCE, GEFORCE)
    with Program(host, metrics_included=included).probe() as program:
        assert {tag for tag in program.values() if tag.endswith("xBytes")} == read
    assert host.calls()[PCIE] == len(read)


@pytest.mark.parametrize("call", ["nvmlGpmSampleGet", "nvmlDeviceGetMigMode"])
def test_a_gpu_that_is_lost_in_the_middle_of_a_sample_sends_nothing(machine: MakeMachine, call: str) -> None:
    host = machine(H100, H100)
    with Program(host).probe() as program:
        program.values()
        with host.changing():
            for early in ("nvmlDeviceGetNumFans", "nvmlDeviceGetFanSpeed"):
                host.set(early, Code.GPU_IS_LOST, 1)
            host.set(call, Code.GPU_IS_LOST, 1)
        assert tags(program.values(), 1) == set()
        assert program.log == [f"{WARNING}GPU 1 does not answer: GPU is lost"]


@pytest.mark.parametrize("code", [Code.GPU_IS_LOST, Code.UNKNOWN, Code.INVALID_ARGUMENT])
@pytest.mark.parametrize("call", ["nvmlDeviceGetMigDeviceHandleByIndex", "nvmlDeviceGetGpuInstanceId", "*"])
def test_a_mig_slot_that_says_it_is_lost_costs_itself(machine: MakeMachine, call: str, code: Code) -> None:
    host = machine(H100, H100)
    host.slice(1, {0: Slice(3), 1: Slice(4), 2: Slice(5)})
    with Program(host).probe() as program:
        program.values()
        whole = set(program.values())
        calls = ["nvmlDeviceGetUUID", "nvmlDeviceGetGpuInstanceId", MEMORY] if call == "*" else [call]
        with host.changing():
            for each in calls:
                if each == call == "nvmlDeviceGetMigDeviceHandleByIndex":
                    host.set(each, code, 1, slot=1)
                else:
                    host.set(each, code, 1, mig=1)
        for _ in range(2):
            assert whole - set(program.values()) == {tag for tag in whole if tag.startswith("gpu.1.mig.4.")}
        assert program.log == []


def test_a_change_of_the_mig_mode_brings_back_what_was_refused(machine: MakeMachine) -> None:
    host = machine(H100)
    with Program(host).probe() as program:
        program.values()
        whole = set(program.values())
        host.slice(0, {0: Slice(3)})
        for _ in range(3):
            divided = program.values()
        assert not {"gpu.0.gpu", "gpu.0.encoderUtilization", "gpu.0.smActive"} & set(divided)
        with host.changing():
            host.slice(0, {})
            for call, says in H100.items():
                if call.startswith(("nvmlDeviceGetMig", "nvmlDeviceGetUtil", ENCODER)):
                    host.set(call, says, 0)
            host.set("nvmlGpmSampleGet", Code.SUCCESS, 0)
        program.values()
        assert whole - set(program.values()) <= {tag for tag in whole if "Active" in tag or "Occ" in tag or "xB" in tag}
        assert set(program.values()) == whole
        assert program.log == []


@pytest.mark.parametrize("code", [2, 3, 13, 25, 26, 27, 999])
def test_the_older_temperature_is_asked_where_the_newer_fails(machine: MakeMachine, code: int) -> None:
    with Program(machine(but(GEFORCE, {TEMPERATURE: Answer(code=code)}))).probe() as program:
        for _ in range(2):
            assert program.values()["gpu.0.temp"] == 63


@pytest.mark.parametrize(
    ("code", "used"),
    [
        (Code.FUNCTION_NOT_FOUND, 6 * 2**30),
        (Code.ARGUMENT_VERSION_MISMATCH, 6 * 2**30),
        (Code.NOT_SUPPORTED, None),
        (Code.NO_PERMISSION, None),
        (Code.UNKNOWN, None),
    ],
)
def test_the_older_memory_is_asked_only_where_the_newer_is_missing(
    machine: MakeMachine, code: Code, used: int | None
) -> None:
    with Program(machine(but(GEFORCE, {MEMORY: code}))).probe() as program:
        for _ in range(2):
            assert program.values().get("gpu.0.memoryAllocatedBytes") == used


@pytest.mark.parametrize(("speeds", "sent"), [((44, 1001), 44), ((130, 41), 130), ((2**31, 5000), None)])
def test_a_fan_may_pass_its_maximum_and_not_tenfold(
    machine: MakeMachine, speeds: Sequence[int], sent: int | None
) -> None:
    fans: dict[str, Says] = {f"nvmlDeviceGetFanSpeed_v2 fan={fan}": speed for fan, speed in enumerate(speeds)}
    with Program(machine(but(GEFORCE, fans))).probe() as program:
        assert program.values().get("gpu.0.fanSpeed") == sent


def test_gpus_that_are_not_counted_any_more_are_said_once_each(machine: MakeMachine) -> None:
    host = machine(*[H100] * 8)
    with Program(host).probe() as program:
        program.values()
        host.count = 6
        for _ in range(3):
            assert {tag.split(".")[1] for tag in program.values()} == set("012345")
        gone = "does not answer: NVML does not show it any more"
        assert program.log == [f"{WARNING}GPU 6 {gone}", f"{WARNING}GPU 7 {gone}"]
        assert program.do("describe").endswith(f"GPU 6: {gone}; GPU 7: {gone}")
        host.count = 8
        program.values()
        assert program.log[2:] == [f"{WARNING}GPU 6 is back", f"{WARNING}GPU 7 is back"]


def test_doctor_knows_what_helps_a_gpu_that_needs_a_reset(machine: MakeMachine) -> None:
    host = machine(H100, H100)
    host.set(HANDLE, Code.RESET_REQUIRED, 1)
    with Program(host).probe() as program:
        program.values()
        assert "nvidia-smi --gpu-reset" in program.do("describe")


def test_an_error_that_fails_when_it_is_looked_at_costs_its_call(machine: MakeMachine, tmp_path: Path) -> None:
    changes = """
        class Mad(Exception):
            @property
            def value(self): raise SystemExit(3)
            def __str__(self): raise KeyboardInterrupt
        def nvmlDeviceGetEncoderUtilization(handle): raise Mad
    """
    with Program(machine(H100), path=binding(tmp_path, changes)).probe() as program:
        values = program.values()
        assert "gpu.0.encoderUtilization" not in values
        assert values["gpu.0.gpu"] == 97
