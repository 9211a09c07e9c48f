from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pynvml
import pytest

from otel_sysmetrics.settings import Settings
from tests.collectors.nvidia.hosts import CHILD, EIGHT, WATCHED, binding, but, pci, processes, tags
from tests.collectors.nvidia.program import Failed, Program
from tests.nvml import EVERY_CALL, GEFORCE, H100, Code, NvmlMachine, Process, Says

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.conftest import MakeMachine

INIT: Final = "nvmlInitWithFlags"
POWER: Final = "nvmlDeviceGetPowerUsage"
LOAD: Final = "nvmlDeviceGetUtilizationRates"
ENERGY: Final = "nvmlDeviceGetTotalEnergyConsumption"
COMPUTE: Final = "nvmlDeviceGetComputeRunningProcesses"
FANS: Final = ("nvmlDeviceGetFanSpeed", "nvmlDeviceGetFanSpeed_v2")


def test_case_038_a_driver_that_loads_late_is_picked_up(machine: MakeMachine) -> None:
    host = machine()
    host.set(INIT, Code.DRIVER_NOT_LOADED)
    with Program(host) as program:
        for _ in range(3):
            with pytest.raises(Failed, match="driver is not loaded") as caught:
                program.probe()
            assert (caught.value.kind, caught.value.remedy) == ("Unavailable", "load it: modprobe nvidia")
        host.unset(INIT)
        assert program.probe().values()["gpu.0.gpu"] == 97


def test_case_039_a_container_that_loses_its_devices_is_tried_again_seldom_and_leaks_nothing(
    machine: MakeMachine,
) -> None:
    host = machine(H100, H100)
    with Program(host).probe() as program:
        program.values()
        program.values()
        host.set(EVERY_CALL, Code.UNKNOWN)
        before, starts = program.do("usage"), host.calls()[INIT]
        for _ in range(80):  # 20 minutes
            with pytest.raises(Failed, match=r"NVML does not say|unknown error") as caught:
                program.values()
            assert caught.value.kind == "Unavailable"
        assert 3 <= host.calls()[INIT] - starts <= 8
        assert program.do("usage")[2] == before[2]
        host.unset(EVERY_CALL)
        for _ in range(20):  # at the latest 5 minutes later
            try:
                values = program.values()
            except Failed:
                continue
        assert {"gpu", "temp", "smActive"} <= tags(values, 0)
        assert program.log == []


@pytest.mark.parametrize("code", [Code.UNKNOWN, Code.OPERATING_SYSTEM, Code.NO_PERMISSION, Code.INVALID_ARGUMENT, 27])
def test_case_039_gpus_that_are_found_and_answer_nothing_are_as_good_as_lost(machine: MakeMachine, code: int) -> None:
    host = machine(H100, H100)
    with Program(host).probe() as program:
        program.values()
        whole = set(program.values())
        starts = host.calls()[INIT]
        with host.deaf(code, 0, 1):
            for _ in range(80):  # 20 minutes
                with pytest.raises(Failed, match="none of 2 GPUs answers") as caught:
                    program.values()
                assert caught.value.kind == "Unavailable"
            assert 3 <= host.calls()[INIT] - starts <= 8
        assert [line.partition(" does not answer")[0][-5:] for line in program.log] == ["GPU 0", "GPU 1"]
        for _ in range(20):  # 5 minutes
            values = set(program.values())
        assert values == whole
        assert [line[-13:] for line in program.log[2:]] == ["GPU 0 is back", "GPU 1 is back"]


def test_case_040_a_fan_that_fails_costs_the_fan(machine: MakeMachine) -> None:
    broken: dict[str, Says] = dict.fromkeys(FANS, Code.UNKNOWN)
    absent: dict[str, Says] = dict.fromkeys((*FANS, "nvmlDeviceGetNumFans"), Code.NOT_SUPPORTED)
    with Program(machine(*[GEFORCE] * 14, but(GEFORCE, broken), but(GEFORCE, absent))).probe() as program:
        values = program.values()
        assert tags(values, 13) - tags(values, 14) == {"fanSpeed"}
        assert tags(values, 13) - tags(values, 15) == {"fanSpeed"}
        assert program.log == []


def test_case_040_the_fastest_fan_that_answers_is_sent(machine: MakeMachine) -> None:
    first: dict[str, Says] = {"nvmlDeviceGetFanSpeed_v2 fan=0": Code.UNKNOWN, "nvmlDeviceGetFanSpeed_v2 fan=1": 38}
    second: dict[str, Says] = {"nvmlDeviceGetNumFans": Code.NOT_SUPPORTED}
    host = machine(but(GEFORCE, {**first, "nvmlDeviceGetNumFans": 2}), but(GEFORCE, second), GEFORCE)
    with Program(host).probe() as program:
        values = program.values()
    assert [values[f"gpu.{index}.fanSpeed"] for index in range(3)] == [38, 41, 44]


@pytest.mark.parametrize("gpus", [(), ("active",)])
def test_case_041_a_missing_library_is_quiet_and_doctor_knows_the_remedy(
    machine: MakeMachine, tmp_path: Path, gpus: Sequence[str]
) -> None:
    machine()
    host = NvmlMachine(tmp_path, installed=False)
    with Program(host, root_path=pci(tmp_path, *gpus)) as program:
        with pytest.raises(Failed, match="not found") as caught:
            program.probe()
        assert (caught.value.kind, program.log) == ("NotHere", [])
        assert ("NVIDIA runtime" in caught.value.reason) == bool(gpus)


def test_case_042_processes_that_are_gone_or_not_ours_are_not_looked_up(machine: MakeMachine, tmp_path: Path) -> None:
    strangers = [Process(22919, 2**30), Process(1, 2**30), Process(999999, 2**30)]
    host = machine(but(H100, {f"{COMPUTE}_v3": strangers}))
    with Program(host, root_path=processes(tmp_path), pid=WATCHED).probe() as program:
        assert not [tag for tag in program.values() if tag.startswith("gpu.process.")]


def test_case_043_a_process_whose_memory_is_hidden_has_none(machine: MakeMachine, tmp_path: Path) -> None:
    host = machine(but(GEFORCE, {f"{COMPUTE}_v3": [Process(WATCHED), Process(CHILD, 2**30)]}))
    with Program(host, root_path=processes(tmp_path), pid=WATCHED).probe() as program:
        sent = {tag for tag in program.values() if tag.startswith("gpu.process.")}
    assert sent == {f"gpu.process.0.{name}" for name in EIGHT}


def test_case_044_what_is_not_supported_is_never_logged_and_seldom_asked(machine: MakeMachine) -> None:
    host = machine(but(H100, {POWER: Code.NOT_SUPPORTED}))
    with Program(host).probe() as program:
        for _ in range(100):  # 25 minutes
            program.values()
        assert program.log == []
        assert host.calls()[POWER] == 5
        host.set(POWER, 300_000, 0)
        assert [program.values(after=100).get("gpu.0.powerWatts") for _ in range(3)][-1] == 300
    assert "nvidia" not in Settings(collectors=("cpu", "memory")).collectors


@pytest.mark.parametrize(
    ("missing", "lost"),
    [
        ({f"{COMPUTE}_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v3"}, set()),
        ({"nvmlDeviceGetMemoryInfo_v2"}, set()),
        ({"nvmlDeviceGetTemperatureV"}, set()),
        ({"nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature"}, {"temp"}),
        ({"nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetMigMode"}, {"energyJoules"}),
    ],
)
def test_case_047_an_older_driver_costs_what_it_lacks(
    machine: MakeMachine, missing: set[str], lost: set[str], tmp_path: Path
) -> None:
    ours: dict[str, Says] = {f"{COMPUTE}_v2": [Process(CHILD, 2**30)], f"{COMPUTE}_v3": [Process(CHILD, 2**30)]}
    root = processes(tmp_path)
    with Program(machine(but(GEFORCE, ours)), root_path=root, pid=WATCHED).probe() as program:
        full = set(program.values())
    with Program(machine(but(GEFORCE, ours), missing=missing), root_path=root, pid=WATCHED).probe() as program:
        values = program.values()
        assert program.log == []
    gone = {f"gpu.{place}{tag}" for tag in lost for place in ("0.", "process.0.")} & full
    if f"{COMPUTE}_v3" in missing and not hasattr(pynvml, f"{COMPUTE}_v2"):  # a binding that knows no other
        gone = {tag for tag in full if tag.startswith("gpu.process.")}
    assert full - set(values) == gone
    # Version 1 counts what the driver reserved for itself as used.
    assert values["gpu.0.memoryAllocatedBytes"] == 6 * 2**30 - (
        0 if "nvmlDeviceGetMemoryInfo_v2" in missing else 448 * 2**20
    )


def test_case_047_an_older_binding_costs_what_it_lacks(machine: MakeMachine, tmp_path: Path) -> None:
    changes = """
        for name in ("nvmlDeviceGetTemperatureV", "nvmlGpmQueryDeviceSupport", "nvmlDeviceGetMigMode",
                     "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"):
            globals().pop(name, None)
        def nvmlDeviceGetMemoryInfo(handle):  # nvidia-ml-py3
            return real.nvmlDeviceGetMemoryInfo(handle)
    """
    host = machine(but(H100, {f"{COMPUTE}_v3": [Process(CHILD, 2**30)]}))
    root, path = processes(tmp_path), binding(tmp_path, changes)
    with Program(host, root_path=root, pid=WATCHED, path=path).probe() as program:
        program.values()
        values = program.values()
    assert values["gpu.0.memoryAllocatedBytes"] == 60 * 2**30
    assert values["gpu.0.temp"] == 57
    assert values["gpu.process.0.processMemoryBytes"] == 2**30
    assert "gpu.0.smActive" not in values
