from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Final

import pytest

from tests.collectors.nvidia.hosts import CHILD, EIGHT, WATCHED, binding, but, processes, tags
from tests.collectors.nvidia.program import ROOT, Failed, Program
from tests.nvml import EVERY_CALL, GEFORCE, H100, NOT_AVAILABLE, Answer, Code, NvmlMachine, Process, Says, Slice

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeMachine

POWER: Final = "nvmlDeviceGetPowerUsage"
LIMIT: Final = "nvmlDeviceGetEnforcedPowerLimit"
LOAD: Final = "nvmlDeviceGetUtilizationRates"
TEMPERATURE: Final = ("nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureV")
MEMORY: Final = ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2")
COMPUTE: Final = "nvmlDeviceGetComputeRunningProcesses_v3"
GRAPHICS: Final = "nvmlDeviceGetGraphicsRunningProcesses_v3"
PATIENCE: Final = 20


def unsupported(*calls: str) -> dict[str, Says]:
    return dict.fromkeys(calls, Code.NOT_SUPPORTED)


def test_case_020_a_sample_of_a_large_host_is_cheap(machine: MakeMachine, tmp_path: Path) -> None:
    crowd = [Process(pid, 2**20) for pid in range(1000, 1200)]
    host = machine(*(but(H100, {COMPUTE: crowd}) for _ in range(8)))
    root = processes(tmp_path, others=range(200, 5200))
    with Program(host, root_path=root, pid=WATCHED).probe() as program:
        program.values()
        asked, (before, threads, _) = host.calls(), program.do("usage")
        for _ in range(5):
            program.values()
        spent, threads_after, _ = program.do("usage")
        new = host.calls() - asked
    assert new[COMPUTE] == 5 * 8 * 2  # the binding asks once for the length and once for the list
    assert new[GRAPHICS] == 5 * 8
    assert (spent - before) / 5 < 0.15, "more than 1 % of a core at 15 s"
    assert threads_after == threads


def test_case_021_what_a_laptop_does_not_support_costs_only_itself(machine: MakeMachine) -> None:
    fans: dict[str, Says] = unsupported("nvmlDeviceGetFanSpeed", "nvmlDeviceGetFanSpeed_v2", LIMIT)
    with Program(machine(but(GEFORCE, {**fans, POWER: 12000, LOAD: (37, 5)}))).probe() as program:
        values = program.values()
        assert (values["gpu.0.gpu"], values["gpu.0.powerWatts"]) == (37, 12.0)
        assert not {"enforcedPowerLimitWatts", "powerPercent", "fanSpeed"} & tags(values, 0)
        assert program.log == []


def test_case_022_a_lost_gpu_hides_no_other_and_shifts_no_index(machine: MakeMachine) -> None:
    host = machine(*(but(H100, {"nvmlDeviceGetName": f"GPU of slot {index}"}) for index in range(4)))
    host.set("nvmlDeviceGetHandleByIndex_v2", Code.GPU_IS_LOST, 1)
    with Program(host).probe() as program:
        for _ in range(5):
            points = program.sample()
            found = {point.attributes["gpu.index"]: point.attributes["hw.name"] for point in points.values()}
            assert found == {index: f"GPU of slot {index}" for index in (0, 2, 3)}
        assert program.log == ["WARNING otel-sysmetrics: nvidia: GPU 1 does not answer: GPU is lost"]


@pytest.mark.parametrize("code", [Code.GPU_IS_LOST, Code.UNKNOWN, Code.UNINITIALIZED])
@pytest.mark.parametrize("call", ["nvmlDeviceGetUUID", LOAD, POWER, "nvmlGpmSampleGet", "nvmlDeviceGetMigMode"])
def test_case_023_no_handle_outlives_an_error(machine: MakeMachine, call: str, code: Code) -> None:
    host = machine(H100, H100)
    host.set("abort-after-loss", 1)
    with Program(host).probe() as program:
        program.values()
        host.set(call, Answer(code=code), 1)
        for _ in range(3):
            with suppress(Failed) if code is Code.UNINITIALIZED else nullcontext():
                program.values()
        host.set(EVERY_CALL, Code.GPU_IS_LOST, 1)
        if code is not Code.UNINITIALIZED:
            assert not tags(program.values(), 1)


@pytest.mark.parametrize("code", [Code.GPU_IS_LOST, Code.UNKNOWN])
@pytest.mark.parametrize("call", ["nvmlDeviceGetGpuInstanceId", "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetUUID"])
def test_case_023_no_handle_outlives_an_error_of_an_instance(machine: MakeMachine, call: str, code: Code) -> None:
    host = machine(H100)
    host.slice(0, {slot: Slice(instance=slot + 1) for slot in range(4)})
    host.set("abort-after-loss", 1)
    host.set(call, code, 0, mig=1)
    with Program(host).probe() as program:
        for _ in range(2):
            assert {"gpu.0.mig.1.memoryAllocated", "gpu.0.mig.4.memoryAllocated"} <= set(program.values())


def test_case_024_a_driver_upgraded_under_us_is_said_with_its_remedy(machine: MakeMachine, tmp_path: Path) -> None:
    host = machine(H100)
    host.set("nvmlInitWithFlags", Code.LIB_RM_VERSION_MISMATCH)
    version = tmp_path / "proc" / "driver" / "nvidia" / "version"
    version.parent.mkdir(parents=True)
    version.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.90.07  Fri May 31 09:35:42 UTC 2024\n")
    with Program(host, root_path=str(tmp_path)) as program:
        with pytest.raises(Failed, match=r"different versions \(loaded: 550\.90\.07\)") as caught:
            program.probe()
        assert (caught.value.kind, program.log) == ("Unavailable", [])
        assert "restart" in caught.value.remedy


@pytest.mark.parametrize(
    "memory",
    [unsupported(*MEMORY), dict.fromkeys(MEMORY, 0), {MEMORY[0]: (0, 0, 0), MEMORY[1]: (0, 0, 0, 0)}],
)
def test_case_025_unified_memory_is_absent_and_costs_nothing_else(
    machine: MakeMachine, memory: dict[str, Says]
) -> None:
    device: dict[str, Says] = {LOAD: (0, 0), POWER: 11170, "nvmlDeviceGetTemperature": 35, LIMIT: Code.NOT_SUPPORTED}
    with Program(machine({"nvmlDeviceGetName": "NVIDIA GB10", **device, **memory})).probe() as program:
        # Its memory controller is the CPU's: the 0 that NVML shows for it is no measurement.
        assert program.values() == {"gpu.0.gpu": 0, "gpu.0.powerWatts": 11.17, "gpu.0.temp": 35}


def test_case_026_a_jetson_that_answers_nothing_sends_nothing(machine: MakeMachine) -> None:
    with Program(machine({"nvmlDeviceGetName": "Orin (nvgpu)"}, driver="540.4.0")).probe() as program:
        assert (program.values(), program.values(), program.log) == ({}, {}, [])
        assert "Orin (nvgpu)" in program.do("describe")


def test_case_027_garbage_of_a_jetson_is_not_sent(machine: MakeMachine, tmp_path: Path) -> None:
    garbage = [Process(0), Process(2**32 - 1, 2**64 - 1), Process(WATCHED, 18446744073709551615)]
    zeros: dict[str, Says] = {
        **dict.fromkeys((*TEMPERATURE, POWER, LIMIT, "nvmlDeviceGetTotalEnergyConsumption"), 0),
        **{f"nvmlDeviceGetClockInfo clock={clock}": 0 for clock in range(3)},
        MEMORY[0]: (0, 0, 0),
        MEMORY[1]: (0, 0, 0, 0),
        LOAD: (0, 0),
        COMPUTE: garbage[:2],
    }
    host = machine(zeros, but(H100, {COMPUTE: garbage}))
    with Program(host, root_path=processes(tmp_path), pid=WATCHED).probe() as program:
        values = program.values()
    assert not tags(values, 0)
    assert not [tag for tag in values if tag.startswith("gpu.process.0")]
    assert {f"gpu.process.1.{name}" for name in EIGHT} <= set(values)
    assert "gpu.process.1.processMemoryBytes" not in values


@pytest.mark.parametrize("value", [NOT_AVAILABLE, 2**32 - 1, 250])
def test_case_027_readings_that_cannot_be_are_not_sent(machine: MakeMachine, value: int) -> None:
    small = value & 0xFFFF_FFFF
    device: dict[str, Says] = {
        **dict.fromkeys(TEMPERATURE, small),
        LOAD: (small, 3),
        "nvmlDeviceGetMemoryErrorCounter": NOT_AVAILABLE,
        "nvmlDeviceGetEncoderUtilization": (small, 1),
        POWER: 2**32 - 1 if value > 250 else 100_000_001,
        MEMORY[1]: (16, 0, 0, 17),
        "nvmlDeviceGetFanSpeed_v2": 130,
    }
    with Program(machine(but(GEFORCE, device))).probe() as program:
        values = program.values()
    assert values["gpu.0.fanSpeed"] == 130
    assert tags(values, 0) == {
        *("memory", "fanSpeed", "energyJoules", "enforcedPowerLimitWatts"),
        *("smClock", "memoryClock", "graphicsClock"),
    }


def test_case_028_a_driver_that_is_installed_late_is_picked_up(tmp_path: Path, machine: MakeMachine) -> None:
    machine()
    host = NvmlMachine(tmp_path, installed=False)
    with Program(host) as program:
        for _ in range(3):
            with pytest.raises(Failed, match=r"libnvidia-ml\.so\.1 was not found") as caught:
                program.probe()
            assert caught.value.kind == "NotHere"
        host.install()
        assert program.probe().values()["gpu.0.gpu"] == 97
        assert program.log == []


def test_case_029_a_code_without_a_class_of_its_own_is_a_failed_call(machine: MakeMachine) -> None:
    energy: dict[str, Says] = {"nvmlDeviceGetTotalEnergyConsumption": Code.NOT_READY, POWER: Answer(code=12345)}
    with Program(machine(but(H100, energy))).probe() as program:
        values = program.values()
        assert not {"energyJoules", "powerWatts", "powerPercent"} & tags(values, 0)
        assert {"temp", "enforcedPowerLimitWatts"} <= tags(values, 0)
        assert program.log == []


def test_case_030_instrument_starts_whatever_the_hardware_says(machine: MakeMachine) -> None:
    host = machine(but(H100, unsupported(*TEMPERATURE)))
    code = """
import json, time
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from otel_sysmetrics import SysMetricsInstrumentor
reader = InMemoryMetricReader()
begun = time.monotonic()
SysMetricsInstrumentor().instrument(
    meter_provider=MeterProvider([reader]), collectors=["nvidia"], sampling_interval=0.2
)
assert time.monotonic() - begun < 1
names = set()
while "gpu.0.smActive" not in names:
    time.sleep(0.2)
    data = reader.get_metrics_data()
    names = {m.name for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics} if data else set()
print(json.dumps(sorted(names)))
"""
    environment = {**os.environ, **host.environment, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    names = set(json.loads(done.stdout))
    assert {"gpu.0.gpu", "gpu.0.powerWatts", "sysmetrics.collector.success"} <= names
    assert "gpu.0.temp" not in names
    assert done.stderr == ""


@pytest.mark.parametrize("call", ["nvmlDeviceGetName", "nvmlDeviceGetUUID"])
def test_case_031_names_may_come_as_bytes(machine: MakeMachine, tmp_path: Path, call: str) -> None:
    changes = f"""
        def {call}(handle):
            return real.{call}(handle).encode()
    """
    with Program(machine(but(H100, {"nvmlDeviceGetName": "NVIDIA L4"})), path=binding(tmp_path, changes)) as program:
        point = program.probe().sample()["gpu.0.gpu"]
    assert point.attributes == {
        "gpu.index": 0,
        "hw.id": "GPU-00000000-5a5a-4b4b-8c8c-0123456789ab",
        "hw.name": "NVIDIA L4",
    }


def test_case_033_wsl_keeps_its_memory_and_has_no_load(machine: MakeMachine) -> None:
    with Program(machine(but(GEFORCE, unsupported(LOAD)))).probe() as program:
        found = tags(program.values(), 0)
    assert {"memoryAllocated", "memoryAllocatedBytes"} <= found
    assert not {"gpu", "memory"} & found


def test_case_034_a_divided_gpu_has_memory_and_no_load(machine: MakeMachine) -> None:
    host = machine(H100)
    host.slice(0, {0: Slice(instance=1), 3: Slice(instance=9, used=2**31), 6: Slice(instance=13)})
    with Program(host).probe() as program:
        values = program.values()
    assert not {"gpu", "memory", "encoderUtilization", "smActive"} & tags(values, 0)
    assert {"memoryAllocated", "powerWatts", "temp", "smClock"} <= tags(values, 0)
    assert {tag.split(".")[3] for tag in values if ".mig." in tag} == {"1", "9", "13"}
    assert (values["gpu.0.mig.9.memoryAllocated"], values["gpu.0.mig.9.memoryAllocatedBytes"]) == (10.0, 2**31)


def test_case_035_a_parent_that_may_not_be_read_leaves_its_instances(machine: MakeMachine) -> None:
    host = machine(but(H100, dict.fromkeys(MEMORY, Code.NO_PERMISSION)))
    host.slice(0, {2: Slice(instance=4)})
    with Program(host).probe() as program:
        for _ in range(3):
            values = program.values()
            assert "gpu.0.mig.4.memoryAllocatedBytes" in values
            assert not {"memoryAllocated", "memoryAllocatedBytes"} & tags(values, 0)
        assert program.log == []


def test_case_036_a_vgpu_sends_exactly_what_it_supports(machine: MakeMachine) -> None:
    device: dict[str, Says] = {
        LOAD: (5, 1),
        MEMORY[1]: (32 * 2**30, 0, 26 * 2**30, 6 * 2**30),
        **{f"nvmlDeviceGetClockInfo clock={clock}": 1380 for clock in range(3)},
        LIMIT: 250_000,
    }
    with Program(machine(device, driver="525.85.05")).probe() as program:
        assert tags(program.values(), 0) == {
            *("gpu", "memory", "memoryAllocated", "memoryAllocatedBytes"),
            *("smClock", "memoryClock", "graphicsClock", "enforcedPowerLimitWatts"),
        }


def test_case_037_seven_go_on_while_one_is_away(machine: MakeMachine, tmp_path: Path) -> None:
    host = machine(*[but(H100, {COMPUTE: [Process(CHILD, 2**20)]})] * 8)
    with Program(host, root_path=processes(tmp_path), pid=WATCHED).probe() as program:
        for tick in range(1, 12):
            if tick == 5:
                host.set("nvmlDeviceGetHandleByIndex_v2", Code.UNKNOWN, 3)
            if tick == 9:
                host.unset("nvmlDeviceGetHandleByIndex_v2", 3)
            present = {point.attributes["gpu.index"] for point in program.sample().values()}
            assert present == set(range(8)) - ({3} if tick in range(5, 9) else set()), tick
        assert program.log == [
            "WARNING otel-sysmetrics: nvidia: GPU 3 does not answer: Unknown Error",
            "WARNING otel-sysmetrics: nvidia: GPU 3 is back",
        ]
