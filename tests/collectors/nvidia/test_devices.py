from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from otel_sysmetrics.catalog import CATALOG, gpu
from otel_sysmetrics.collectors.nvidia.device import plan
from otel_sysmetrics.settings import Settings, SettingsError
from otel_sysmetrics.spec import Fold, Kind, Scope
from tests.collectors.nvidia.hosts import CHILD, EIGHT, WATCHED, but, processes, tags
from tests.collectors.nvidia.program import Failed, Program
from tests.nvml import GEFORCE, H100, Code, Moving, Process, Slice

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.conftest import MakeMachine

PCIE: Final = "nvmlDeviceGetPcieThroughput"
UUID: Final = "GPU-{:08x}-5a5a-4b4b-8c8c-0123456789ab"


def test_the_catalogue_says_what_the_collector_reads() -> None:
    rows = [spec for spec in CATALOG.values() if "nvidia" in spec.collectors]
    assert len(rows) == 44
    others = {"host.name", "hw.sensor_location"}  # which other collectors give
    assert all(set(spec.attributes) - others == {"hw.id", "hw.name"} for spec in rows)
    assert {spec.tag for spec in rows if spec.scope is Scope.PROCESS} == {
        f"gpu.process.{{gpu}}.{name}" for name in (*EIGHT, "processMemoryBytes")
    }
    assert {spec.tag for spec in rows if spec.kind is Kind.COUNTER} == {"gpu.{gpu}.energyJoules"}
    assert gpu.POWER_LIMIT.fold is gpu.PROCESS_POWER_LIMIT.fold is Fold.LAST
    assert gpu.POWER.fold is gpu.PCIE_SENT.fold is Fold.MEAN


def test_every_row_comes_out_with_its_unit_and_attributes(machine: MakeMachine, tmp_path: Path) -> None:
    host = machine(but(H100, {"nvmlDeviceGetComputeRunningProcesses_v3": [Process(WATCHED, 7)]}), H100, GEFORCE)
    host.slice(1, {0: Slice(instance=3)})
    root = processes(tmp_path)
    with Program(host, root_path=root, pid=WATCHED, metrics_included=["default", "gpu.*"]).probe() as program:
        program.sample()
        points = program.sample()
    seen = set()
    for tag, point in points.items():
        first, *middle, last = tag.split(".")
        template = ".".join((first, *("{gpu}" if part.isdecimal() else part for part in middle), last))
        template = template.replace("mig.{gpu}", "mig.{mig}")
        seen.add(template)
        assert point.unit == CATALOG[template].unit
        index = point.attributes["gpu.index"]
        name = "NVIDIA GeForce RTX 4080 SUPER" if index == 2 else "NVIDIA H100 80GB HBM3"
        mig = {"gpu.mig.id": 3} if ".mig." in tag else {}
        uuid = "MIG-00000003-5a5a-4b4b-8c8c-0123456789ab" if mig else UUID.format(index)
        assert point.attributes == {"gpu.index": index, "hw.id": uuid, "hw.name": name, **mig}
    assert seen == {spec.tag for spec in CATALOG.values() if "nvidia" in spec.collectors}


def test_units_are_those_of_the_catalogue(machine: MakeMachine) -> None:
    with Program(machine(H100, GEFORCE), metrics_included=["gpu.*"]).probe() as program:
        program.values()
        values = program.values()
    assert values["gpu.0.powerWatts"] == 612.345
    assert values["gpu.0.powerPercent"] == pytest.approx(100 * 612.345 / 700)
    assert values["gpu.0.energyJoules"] == 9_000_600
    assert values["gpu.0.memoryAllocated"] == pytest.approx(100 * (60 * 1024 - 512) / (80 * 1024))
    assert (values["gpu.0.pcieTxBytes"], values["gpu.0.pcieRxBytes"]) == (1500 * 2**20, 900 * 2**20)
    assert (values["gpu.0.nvlinkTxBytes"], values["gpu.0.nvlinkRxBytes"]) == (20500 * 2**20, 21000 * 2**20)
    assert (values["gpu.1.pcieTxBytes"], values["gpu.1.pcieLinkSpeed"]) == (20_000 * 1024, 16e9)
    assert [values[f"gpu.1.{name}"] for name in ("pcieLinkGen", "maxPcieLinkGen", "pcieLinkWidth")] == [4, 4, 16]


@pytest.mark.parametrize(
    ("included", "asked"), [(["default"], 0), (["gpu.*.pcieTxBytes"], 1), (["default", "gpu.*"], 2), (["cpu"], 0)]
)
def test_reads_that_block_are_made_only_where_they_are_asked_for(
    machine: MakeMachine, included: Sequence[str], asked: int
) -> None:
    host = machine(H100, GEFORCE)
    with Program(host, metrics_included=included).probe() as program:
        program.values()
    assert host.calls()[PCIE] == asked


def test_without_the_tags_of_the_host_only_gpus_that_the_process_uses_are_asked() -> None:
    what = plan(lambda spec: spec.scope is Scope.PROCESS, lambda *_: True)
    assert {spec.tag.rpartition(".")[2] for query in what.used for spec in query.specs} == set(EIGHT)
    assert (what.device, what.blocking, what.gpm, what.mig) == ((), (), False, False)


@pytest.mark.parametrize(
    ("ids", "left"),
    [
        (None, {0, 1, 2}),
        ([1], {1}),
        (["2", UUID.format(0)], {0, 2}),
        ([UUID.format(1)], {1}),
        ([7], set()),
        ([], set()),
    ],
)
def test_gpus_are_chosen_by_index_or_uuid(machine: MakeMachine, ids: Sequence[object] | None, left: set[int]) -> None:
    with Program(machine(H100, GEFORCE, H100), gpu_device_ids=ids).probe() as program:
        assert {point.attributes["gpu.index"] for point in program.sample().values()} == left
        assert program.do("describe").count("left out by gpu_device_ids") == 3 - len(left)


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("0, 2", ("0", "2")),
        ("[0, 2]", ("0", "2")),
        ((3, "007"), ("3", "7")),
        (UUID.format(1), (UUID.format(1),)),
        ("0000:03:00.0", ("0000:03:00.0",)),
        ("[]", ()),
    ],
)
def test_gpu_device_ids_are_read(given: object, read: tuple[str, ...]) -> None:
    assert Settings(gpu_device_ids=given).gpu_device_ids == read  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", ["-1", "1.5", "gpu0", "all", [True], [1.5], {"0": 1}, 0, "[0", "0;1"])
def test_gpu_device_ids_that_cannot_be_read_select_nothing(wrong: object) -> None:
    with pytest.raises(SettingsError, match=r"GPU indices or UUIDs|a list"):
        Settings(gpu_device_ids=wrong)  # type: ignore[arg-type]
    errors: list[SettingsError] = []
    environ = {"OTEL_PYTHON_SYSMETRICS_GPU_DEVICE_IDS": str(wrong)}
    settings = Settings.load({"gpu_device_ids": wrong}, environ=environ, report=errors.append)
    assert (settings.gpu_device_ids, len(errors)) == ((), 1)


def test_another_gpu_under_an_index_is_known_as_another(machine: MakeMachine) -> None:
    host = machine(H100, but(GEFORCE, {"nvmlDeviceGetTotalEnergyConsumption": Code.NOT_SUPPORTED}))
    with Program(host).probe() as program:
        assert program.sample()["gpu.1.gpu"].attributes["hw.id"] == UUID.format(1)
        with host.changing():
            for place, says in but(H100, {"nvmlDeviceGetUUID": UUID.format(9)}).items():
                call, *selectors = place.split()
                host.set(call, says, 1, **{name: int(number) for name, number in (s.split("=") for s in selectors)})
        points = program.sample()
        assert points["gpu.1.gpu"].attributes == {
            "gpu.index": 1,
            "hw.id": UUID.format(9),
            "hw.name": "NVIDIA H100 80GB HBM3",
        }
        assert "gpu.1.energyJoules" in points


def test_gpm_covers_the_whole_time_between_two_samples_and_none_shorter_than_it_can(machine: MakeMachine) -> None:
    host = machine(but(H100, {"nvmlGpmMetricsGet metric=2": Moving(1.0, 1.0)}))
    with Program(host).probe() as program:
        found = [program.values(after=after).get("gpu.0.smActive") for after in (15, 15, 0.05, 0.05, 300)]
        assert [value is None for value in found] == [True, False, True, False, False]
        assert host.calls()["nvmlGpmSampleGet"] == 4
        assert host.calls()["nvmlGpmSampleAlloc"] == 2


def test_a_mig_reconfiguration_is_noticed(machine: MakeMachine) -> None:
    host = machine(H100)
    with Program(host).probe() as program:
        program.values()
        assert "gpu.0.smActive" in program.values()
        host.slice(0, {0: Slice(instance=1), 1: Slice(instance=2)})
        values = program.values()
        assert {tag.split(".")[3] for tag in values if ".mig." in tag} == {"1", "2"}
        assert "gpu.0.smActive" not in values
        assert "2 instances" in program.do("describe")
        host.slice(0, {4: Slice(instance=2, used=5 * 2**30), 5: Slice(instance=2, compute=1, used=5 * 2**30)})
        values = program.values()
        assert {tag: values[tag] for tag in values if ".mig." in tag} == {
            "gpu.0.mig.2.memoryAllocated": 25.0,
            "gpu.0.mig.2.memoryAllocatedBytes": 5 * 2**30,
        }
        host.set("nvmlDeviceGetMigMode", {"current": 0, "pending": 0}, 0)
        assert not [tag for tag in program.values() if ".mig." in tag]
        assert program.log == []


def test_one_instance_that_fails_costs_itself(machine: MakeMachine) -> None:
    host = machine(H100)
    host.slice(0, {0: Slice(instance=1), 1: Slice(instance=2), 2: Slice(instance=3)})
    host.set("nvmlDeviceGetMemoryInfo_v2", Code.UNKNOWN, 0, mig=1)
    host.set("nvmlDeviceGetUUID", Code.NOT_SUPPORTED, 0, mig=2)
    with Program(host).probe() as program:
        points = program.sample()
    assert {tag.split(".")[3] for tag in points if ".mig." in tag} == {"1", "3"}
    assert points["gpu.0.mig.3.memoryAllocated"].attributes["hw.id"] is None


def test_memory_of_a_process_in_several_lists_and_instances_is_counted_once_each(
    machine: MakeMachine, tmp_path: Path
) -> None:
    compute = [Process(WATCHED, 2**30, 1, 0), Process(WATCHED, 2**29, 2, 0), Process(CHILD, 2**20)]
    host = machine(
        but(
            H100,
            {
                "nvmlDeviceGetComputeRunningProcesses_v3": compute,
                "nvmlDeviceGetGraphicsRunningProcesses_v3": [Process(CHILD, 2**20), Process(77, 2**33)],
                "nvmlDeviceGetMPSComputeRunningProcesses_v3": [Process(CHILD)],
            },
        )
    )
    with Program(host, root_path=processes(tmp_path), pid=WATCHED).probe() as program:
        assert program.values()["gpu.process.0.processMemoryBytes"] == 2**30 + 2**29 + 2**20


def test_a_gpu_without_uuid_and_name_is_sent_all_the_same(machine: MakeMachine) -> None:
    host = machine(but(H100, {"nvmlDeviceGetName": Code.UNKNOWN}))
    host.set("nvmlDeviceGetUUID", Code.NOT_SUPPORTED, 0)
    with Program(host).probe() as program:
        points = program.sample()
        assert points["gpu.0.gpu"].attributes == {"gpu.index": 0, "hw.id": None, "hw.name": None}
        host.set("nvmlDeviceGetName", "NVIDIA H100 80GB HBM3", 0)
        assert program.sample()["gpu.0.gpu"].attributes["hw.name"] == "NVIDIA H100 80GB HBM3"


def test_doctor_names_what_was_found(machine: MakeMachine) -> None:
    host = machine(H100, GEFORCE, H100)
    host.slice(2, {0: Slice(instance=1)})
    host.set("nvmlDeviceGetHandleByIndex_v2", Code.GPU_IS_LOST, 1)
    with Program(host).probe() as program:
        program.values()
        assert program.do("describe") == (
            "driver 580.95.05, CUDA 13.0; "
            f"GPU 0: NVIDIA H100 80GB HBM3, {UUID.format(0)}, GPM; "
            "GPU 1: does not answer: GPU is lost (look for Xid in the kernel's log (dmesg); "
            "reset the GPU or restart the machine); "
            f"GPU 2: NVIDIA H100 80GB HBM3, {UUID.format(2)}, MIG with 1 instances, no GPM"
        )


def test_nothing_but_the_tags_of_one_gpu_is_lost_with_it(machine: MakeMachine) -> None:
    host = machine(*[H100] * 8)
    with Program(host).probe() as program:
        program.values()
        whole = program.values()
        host.set("*", Code.GPU_IS_LOST, 3)
        assert set(program.values()) == {tag for tag in whole if not tag.startswith("gpu.3.")}
        host.unset("*", 3)
        program.values()
        assert set(program.values()) == set(whole)
        assert tags(whole, 3) == tags(whole, 2)


def test_where_no_gpu_answers_the_collector_is_ill(machine: MakeMachine) -> None:
    host = machine(H100, H100)
    with Program(host).probe() as program:
        host.set("nvmlDeviceGetHandleByIndex_v2", Code.GPU_IS_LOST)
        with pytest.raises(Failed, match="none of 2 GPUs answers: GPU is lost"):
            program.sample()
