from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Final

import pytest

from otel_sysmetrics.settings import Settings
from tests.collectors.nvidia.hosts import CHILD, EIGHT, FOREIGN, WATCHED, but, pci, processes, tags
from tests.collectors.nvidia.program import Failed, Program, given, points
from tests.nvml import EVERY_CALL, GEFORCE, H100, Answer, Code, NvmlMachine, Process, Says, Slice

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

# The real binding under another name, for a module `pynvml` that stands in front of it and changes it.
BINDING: Final = """
import importlib.util, sys, sysconfig
spec = importlib.util.spec_from_file_location("real_pynvml", sysconfig.get_path("purelib") + "/pynvml.py")
real = importlib.util.module_from_spec(spec)
sys.modules["real_pynvml"] = real
spec.loader.exec_module(real)
globals().update({name: value for name, value in vars(real).items() if not name.startswith("__")})
"""


def binding(folder: Path, changes: str, *, before: str = BINDING) -> str:
    """Write a module `pynvml` and return its folder."""
    (folder / "pynvml.py").write_text(before + textwrap.dedent(changes), encoding="utf-8")
    return str(folder)


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
    assert full - set(values) == {f"gpu.{place}{tag}" for tag in lost for place in ("0.", "process.0.")} & full
    # Version 1 counts what the driver reserved for itself as used.
    assert values["gpu.0.memoryAllocatedBytes"] == 6 * 2**30 - (0 if "nvmlDeviceGetMemoryInfo_v2" in missing else 448 * 2**20)


def test_case_047_an_older_binding_costs_what_it_lacks(machine: MakeMachine, tmp_path: Path) -> None:
    changes = """
        for name in ("nvmlDeviceGetTemperatureV", "nvmlGpmQueryDeviceSupport", "nvmlDeviceGetMigMode",
                     "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"):
            del globals()[name]
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


def test_case_048_a_gpu_without_load_does_not_disturb_the_other(machine: MakeMachine) -> None:
    with Program(machine(but(H100, {LOAD: Code.NOT_SUPPORTED}), but(H100, {LOAD: (50, 1)}))).probe() as program:
        values = program.values()
    assert "gpu.0.gpu" not in values
    assert values["gpu.1.gpu"] == 50


@pytest.mark.parametrize(
    ("before", "changes"),
    [
        ("", "raise RuntimeError('wrong distribution')"),
        ("", "raise SystemExit(1)"),
        ("", "_nvmlGetFunctionPointer"),
        ("", "x = 1"),
        ("", "def nvmlInit(): raise ValueError('?')"),
        ("", "def nvmlInit(): pass"),
        (BINDING, "del nvmlDeviceGetCount"),
    ],
)
def test_case_049_another_module_of_that_name_is_said_once_and_breaks_nothing(
    machine: MakeMachine, tmp_path: Path, before: str, changes: str
) -> None:
    with Program(machine(), path=binding(tmp_path, changes, before=before)) as program:
        with pytest.raises(Failed) as caught:
            program.probe()
        assert caught.value.kind == "Unavailable"
        assert program.log == []


def test_case_050_a_missing_field_costs_no_other(machine: MakeMachine) -> None:
    every = {place.split()[0] for place in H100 if place.startswith("nvmlDeviceGet")}
    with Program(machine(H100)).probe() as program:
        program.values()
        full = tags(program.values(), 0)
    for call in sorted(every):
        with Program(machine(but(H100, {call: Code.NOT_SUPPORTED}))).probe() as program:
            program.values()
            assert len(full - tags(program.values(), 0)) <= 3, call


def test_case_051_the_binding_may_be_one_module_without_a_submodule(machine: MakeMachine, tmp_path: Path) -> None:
    host = machine(but(H100, {POWER: Code.NOT_SUPPORTED}))
    with Program(host, path=binding(tmp_path, "assert 'nvml' not in globals()")).probe() as program:
        values = program.values()
    assert "gpu.0.powerWatts" not in values
    assert values["gpu.0.gpu"] == 97


def test_case_052_gpus_come_and_go(machine: MakeMachine) -> None:
    host = machine(*[H100] * 4)
    with Program(host).probe() as program:
        for count in (4, 3, 4, 0, 4):
            host.count = count
            if count:
                present = {point.attributes["gpu.index"] for point in program.sample().values()}
                assert present == set(range(count))
            else:
                with pytest.raises(Failed, match="no GPU any more"):
                    program.sample()
        assert host.add(GEFORCE) == 4
        assert program.values()["gpu.4.fanSpeed"] == 44


def test_case_053_without_an_energy_counter_there_is_no_energy(machine: MakeMachine) -> None:
    with Program(machine(but(H100, {ENERGY: Code.NOT_SUPPORTED, POWER: 51000}))).probe() as program:
        values = program.values()
    assert "gpu.0.energyJoules" not in values
    assert values["gpu.0.powerWatts"] == 51.0


@pytest.mark.parametrize(
    ("namespace", "shared", "sent"), [("", False, True), (FOREIGN, False, False), (FOREIGN, True, True)]
)
def test_case_054_a_gpu_is_ours_while_the_tree_uses_it(
    machine: MakeMachine, tmp_path: Path, namespace: str, shared: bool, sent: bool
) -> None:
    host = machine(but(H100, {f"{COMPUTE}_v3": [Process(CHILD, 3 * 2**30)]}), H100)
    root = processes(tmp_path, namespace=namespace) if namespace else processes(tmp_path)
    with Program(host, root_path=root, pid=WATCHED, shared_pid_namespace=shared).probe() as program:
        values = program.values()
        ours = {tag: value for tag, value in values.items() if tag.startswith("gpu.process.")}
        assert bool(ours) == sent
        if sent:
            assert ours.pop("gpu.process.0.processMemoryBytes") == 3 * 2**30
            assert ours == {f"gpu.process.0.{name}": values[f"gpu.0.{name}"] for name in EIGHT}
        host.set(f"{COMPUTE}_v3", (), 0)
        assert not [tag for tag in program.values() if tag.startswith("gpu.process.")]


@pytest.mark.parametrize("answer", [0, Code.NOT_SUPPORTED, Code.UNKNOWN, Code.NO_PERMISSION])
def test_case_055_without_gpm_nothing_else_is_affected(machine: MakeMachine, answer: int | Code) -> None:
    with Program(machine(but(H100, {"nvmlGpmQueryDeviceSupport": answer}))).probe() as program:
        first = program.values()
        assert set(program.values()) == set(first)
        assert "gpu.0.smActive" not in first


def test_case_055_gpm_needs_two_samples_and_gives_its_buffers_back(machine: MakeMachine) -> None:
    host = machine(H100, H100)
    host.slice(1, {0: Slice(instance=1)})
    with Program(host).probe() as program:
        assert "gpu.0.smActive" not in program.values()
        for _ in range(3):
            assert program.values()["gpu.0.smActive"] == 91.5
        host.set("nvmlGpmMetricsGet", Answer((7.0,), code=Code.NO_DATA), 0, metric=2)
        values = program.values()
        assert "gpu.0.smActive" not in values
        assert values["gpu.0.smOccupancy"] == 44.25
        program.do("close")
        calls = host.calls()
        assert calls["nvmlGpmSampleAlloc"] == calls["nvmlGpmSampleFree"] == 3
        assert calls["nvmlShutdown"] == 1


def test_case_136_a_forked_child_opens_nvml_itself_and_disturbs_nobody(machine: MakeMachine) -> None:
    host = machine(H100)
    with Program(host).probe() as program:
        program.values()
        before = program.values()
        frees = host.calls()["nvmlGpmSampleFree"]
        child = points(given(program.do("fork", after=15)))
        assert set(child) == {tag for tag in before if "Active" not in tag and "Occ" not in tag and "Bytes" not in tag} | {
            "gpu.0.memoryAllocatedBytes"
        }
        assert host.calls()[INIT] == 2
        assert host.calls()["nvmlGpmSampleFree"] == frees
        assert host.calls()["nvmlShutdown"] == 0
        assert set(program.values()) == set(before)
        assert program.log == []


def test_case_137_nothing_of_cuda_is_touched(machine: MakeMachine) -> None:
    host = machine(H100)
    with Program(host).probe() as program:
        program.values()
        modules = set(program.do("modules"))
    assert "pynvml" in modules
    assert not {name for name in modules if name.split(".")[0] in {"cuda", "cupy", "torch", "triton", "numba", "jax"}}
    assert all(name.startswith("nvml") for name in host.calls())


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
