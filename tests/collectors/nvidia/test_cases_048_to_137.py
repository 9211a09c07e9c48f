from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from tests.collectors.nvidia.hosts import BINDING, CHILD, EIGHT, FOREIGN, WATCHED, binding, but, processes, tags
from tests.collectors.nvidia.program import Failed, Program, given, points
from tests.nvml import GEFORCE, H100, Answer, Code, Process, Slice

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeMachine

INIT: Final = "nvmlInitWithFlags"
POWER: Final = "nvmlDeviceGetPowerUsage"
LOAD: Final = "nvmlDeviceGetUtilizationRates"
ENERGY: Final = "nvmlDeviceGetTotalEnergyConsumption"
COMPUTE: Final = "nvmlDeviceGetComputeRunningProcesses"
FANS: Final = ("nvmlDeviceGetFanSpeed", "nvmlDeviceGetFanSpeed_v2")


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
    machine: MakeMachine, tmp_path: Path, namespace: str, *, shared: bool, sent: bool
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
        assert set(child) == {
            tag for tag in before if "Active" not in tag and "Occ" not in tag and "Bytes" not in tag
        } | {"gpu.0.memoryAllocatedBytes"}
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
