"""`sample` and `doctor` against a stand-in of each accelerator but NVIDIA's, which has tests of its own."""

from __future__ import annotations

import json
import os
import plistlib
import re
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest

from otel_sysmetrics.catalog import CATALOG
from tests.collectors import test_apple, test_ipu, test_tpu
from tests.fakes import REPOSITORY
from tests.parts import program, tree
from tests.running import clean_environment, command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the stand-ins are shell scripts")

GIB: Final = 2**30
MIB: Final = 2**20


class Row(NamedTuple):
    """A point as METRICS.md has it."""

    name: str
    unit: str
    kind: str
    value: float
    attributes: Mapping[str, object]


def amd(folder: Path) -> Iterator[dict[str, str]]:
    card = {
        "Unique ID": "0x740f00000000a1b2",
        "PCI Bus": "0000:63:00.0",
        "Card Series": "AMD Instinct MI210",
        "GPU use (%)": "37",
        "VRAM Total Memory (B)": str(64 * GIB),
        "VRAM Total Used Memory (B)": str(16 * GIB),
        "GPU Memory Read/Write Activity (%)": "12",
        "GPU Memory OverDrive value (%)": "3",
        "Temperature (Sensor edge) (C)": "40.0",
        "Temperature (Sensor junction) (C)": "45.0",
        "Temperature (Sensor memory) (C)": "51.0",
        "Average Graphics Package Power (W)": "150.0",
        "Max Graphics Package Power (W)": "300.0",
        "Accumulated Energy (uJ)": "93668000000.5",
    }
    (folder / "document").write_text(json.dumps({"card2": card, "system": {"Driver version": "6.3.6"}}))
    program(folder / "bin", "rocm-smi", f"cat {folder}/document")
    yield {}


def trainium(folder: Path) -> Iterator[dict[str, str]]:
    def runtime(pid: int, busy: Mapping[str, float], host: int, device: int) -> dict[str, Any]:
        on_host = {"application_memory": host, "constants": 0, "dma_buffers": 2 * host, "tensors": 3 * host}
        on_core = {"constants": 1, "model_code": 2, "model_shared_scratchpad": 0, "runtime_memory": 4, "tensors": 5}
        breakdown = {"host": on_host, "neuroncore_memory_usage": dict.fromkeys(busy, on_core)}
        used = {"host": 6 * host, "neuron_device": device, "usage_breakdown": breakdown}
        in_use = {core: {"neuroncore_utilization": share} for core, share in busy.items()}
        cores, memory = {"neuroncores_in_use": in_use, "error": ""}, {"neuron_runtime_used_bytes": used, "error": ""}
        return {"pid": pid, "error": "", "report": {"neuroncore_counters": cores, "memory_used": memory}}

    line = {
        "neuron_runtime_data": [runtime(1, {"0": 62.5, "1": 0}, MIB, GIB), runtime(2, {"0": 0, "1": 30}, MIB, GIB)],
        "instance_info": {"instance_id": "i-secret"},
        "neuron_hardware_info": {"neuron_device_type": "trainium"},
    }
    tree(folder / "root", {"dev/neuron0": ""})
    (folder / "line").write_text(f"{json.dumps(line)}\n")
    program(folder / "bin", "neuron-monitor", f'cat "$2" >/dev/null; while :; do cat {folder}/line; sleep 0.3; done')
    yield {}


def ipu(folder: Path) -> Iterator[dict[str, str]]:
    device = {
        "id": "3",
        "board type": "M2000",
        "board serial number": "secret",
        "user name": "secret",
        "average board temp": "31.5 C",
        "average die temp": "42.0 C",
        "clock": "1330MHz",
        "ipu power": "92.30W",
        "total board power": "399.5 W",
        "ipu utilisation": "12.50%",
        "ipu utilisation (session)": "25.00%",
        "link speed": "8 GT/s",
        "numa node": "1",
    }
    shutil.copy(test_ipu.STAND_IN, folder)
    (folder / "gcipuinfo.json").write_text(json.dumps({"devices": [device]}))
    yield {"PYTHONPATH": str(folder)}


def tpu(folder: Path) -> Iterator[dict[str, str]]:
    served: dict[str, dict[int, float]] = {
        test_tpu.USED: {4: 8 * GIB},
        test_tpu.TOTAL: {4: 32 * GIB},
        test_tpu.DUTY: {4: 75.5},
        "tpu.runtime.hbm.utilization.percent": {4: 26.0},
        "tpu.runtime.tensorcore.idle_duration.seconds": {4: 0.0},
    }
    test_tpu.machine(folder / "root", "v5p")
    with test_tpu.running(served) as runtime:
        yield {"TPU_RUNTIME_METRICS_PORTS": str(runtime.port)}


def apple(folder: Path) -> Iterator[dict[str, str]]:
    statistics = {"Device Utilization %": 12, "Alloc system memory": 4 * GIB}
    entry = {"IOClass": "AGXAccelerator", "model": "Apple M9", "PerformanceStatistics": statistics}
    (folder / "plist").write_bytes(plistlib.dumps([entry]))
    program(folder / "bin", "ioreg", f"cat {folder}/plist")
    program(folder / "bin", "sysctl", f"echo hw.memsize: {16 * GIB}")
    test_apple.installed(folder / "site")
    yield {"PYTHONPATH": str(folder / "site"), "OTEL_PYTHON_SYSMETRICS_APPLE_GPU_POWER_LIMIT": "15"}


STAND_INS: Final[Mapping[str, Callable[[Path], AbstractContextManager[dict[str, str]]]]] = {
    make.__name__: contextmanager(make) for make in (amd, trainium, ipu, tpu, apple)
}

AMD: Final = {"gpu.index": 2, "hw.id": "0x740f00000000a1b2", "hw.name": "AMD Instinct MI210"}
APPLE: Final = {"gpu.index": 0, "hw.name": "Apple M9"}
TPU: Final = {"tpu.index": 4, "hw.name": "TPU v5p"}
CORES: Final = ({"neuron.core": 0}, {"neuron.core": 1})


def of_ipu(key: str, unit: str, value: float, original: str) -> Row:
    attributes = {"ipu.index": 3, "hw.id": "3", "wandb.key": original}
    return Row(f"ipu.3.{key}", unit, "gauge", value, attributes)


EXPECTED: Final[Mapping[str, tuple[Row, ...]]] = {
    "amd": (
        Row("gpu.2.gpu", "%", "gauge", 37, AMD),
        Row("gpu.2.memoryAllocated", "%", "gauge", 25, AMD),
        Row("gpu.2.memoryAllocatedBytes", "By", "gauge", 16 * GIB, AMD),
        Row("gpu.2.memoryReadWriteActivity", "%", "gauge", 12, AMD),
        Row("gpu.2.temp", "Cel", "gauge", 51, {**AMD, "hw.sensor_location": "memory"}),
        Row("gpu.2.powerWatts", "W", "gauge", 150, AMD),
        Row("gpu.2.enforcedPowerLimitWatts", "W", "gauge", 300, AMD),
        Row("gpu.2.powerPercent", "%", "gauge", 50, AMD),
        Row("gpu.2.energyJoules", "J", "counter", 0, AMD),
    ),
    "trainium": (
        Row("trn.0.neuroncore_utilization", "%", "gauge", 62.5, CORES[0]),
        Row("trn.1.neuroncore_utilization", "%", "gauge", 30, CORES[1]),
        Row("trn.host_total_memory_usage", "By", "gauge", 12 * MIB, {}),
        Row("trn.neuron_device_total_memory_usage", "By", "gauge", 2 * GIB, {}),
        Row("trn.host_total_memory_usage.application_memory", "By", "gauge", 2 * MIB, {}),
        Row("trn.host_total_memory_usage.constants", "By", "gauge", 0, {}),
        Row("trn.host_total_memory_usage.dma_buffers", "By", "gauge", 4 * MIB, {}),
        Row("trn.host_total_memory_usage.tensors", "By", "gauge", 6 * MIB, {}),
        *(
            Row(f"trn.{core}.neuroncore_memory_usage.{key}", "By", "gauge", value, CORES[core])
            for core in (0, 1)
            for key, value in {
                "constants": 2,
                "model_code": 4,
                "model_shared_scratchpad": 0,
                "runtime_memory": 8,
                "tensors": 10,
            }.items()
        ),
    ),
    "ipu": (
        of_ipu("average_board_temp", "Cel", 31.5, "average board temp (C)"),
        of_ipu("average_die_temp", "Cel", 42, "average die temp (C)"),
        of_ipu("clock", "MHz", 1330, "clock (MHz)"),
        of_ipu("ipu_power", "W", 92.3, "ipu power (W)"),
        of_ipu("total_board_power", "W", 399.5, "total board power (W)"),
        of_ipu("ipu_utilisation", "%", 12.5, "ipu utilisation (%)"),
        of_ipu("ipu_utilisation_session", "%", 25, "ipu utilisation (session) (%)"),
        of_ipu("link_speed", "{GT}/s", 8, "link speed (GT/s)"),
    ),
    "tpu": (
        Row("tpu.4.memoryUsageBytes", "By", "gauge", 8 * GIB, TPU),
        Row("tpu.4.memoryUsage", "%", "gauge", 25, TPU),
        Row("tpu.4.dutyCycle", "%", "gauge", 75.5, TPU),
        Row("tpu.4.hbmCapacityTotal", "By", "gauge", 32 * GIB, TPU),
        Row("tpu.4.runtimeHbmUtilization", "%", "gauge", 26, TPU),
        Row("tpu.4.tensorcoreIdleDuration", "s", "gauge", 0, TPU),
    ),
    "apple": (
        Row("gpu.0.gpu", "%", "gauge", 12, APPLE),
        Row("gpu.0.memoryAllocated", "%", "gauge", 25, APPLE),
        Row("gpu.0.memoryAllocatedBytes", "By", "gauge", 4 * GIB, APPLE),
        Row("gpu.0.temp", "Cel", "gauge", 41.5, APPLE),
        Row("gpu.0.powerWatts", "W", "gauge", 7.5, APPLE),
        Row("gpu.0.powerPercent", "%", "gauge", 50, APPLE),
    ),
}

# A pattern per kind of what `doctor` says of it.
DESCRIBED: Final[Mapping[str, str]] = {
    "amd": r"2: AMD Instinct MI210, through /.*/bin/rocm-smi",
    "trainium": r"1 trainium device through /.*/bin/neuron-monitor, 2 runtimes",
    "ipu": r"1 IPU \(M2000\) through gcipuinfo",
    "tpu": r"TPU v5p: 1 device on port [0-9]+",
    "apple": r"0: Apple M9, 16 GiB of shared memory",
}


def environment(kinds: str, folder: Path, **variables: str) -> dict[str, str]:
    ours = {"OTEL_PYTHON_SYSMETRICS_COLLECTORS": kinds, "OTEL_PYTHON_SYSMETRICS_ROOT_PATH": str(folder / "root")}
    python_path = os.pathsep.join(filter(None, (REPOSITORY, variables.pop("PYTHONPATH", ""))))
    path = f"{folder / 'bin'}{os.pathsep}/usr/bin{os.pathsep}/bin"
    return clean_environment(**ours, **variables, PATH=path, PYTHONPATH=python_path, COLUMNS="400")


def sampled(kind: str, folder: Path, **more: str) -> list[Row]:
    """Return the points of one sample, without our own health."""
    (folder / "root").mkdir()
    with STAND_INS[kind](folder) as variables:
        words = ("sample", "--window", "1", "--format", "json")
        with command(*words, environment=environment(kind, folder, **variables, **more)) as done:
            assert done.finish(60) == 0, done.tell()
    assert done.errors == ["otel-sysmetrics: no process is watched; --pid adds its tags"], done.tell()
    assert "secret" not in done.tell()
    points: list[dict[str, Any]] = json.loads("\n".join(done.lines))
    return [Row(**point) for point in points if not point["name"].startswith("sysmetrics.")]


def described(folder: Path, kinds: str, **variables: str) -> dict[str, str]:
    """Return what `doctor` says of each kind."""
    with command("doctor", environment=environment(kinds, folder, **variables)) as done:
        assert done.finish(60) == 0, done.tell()
    assert done.errors == []
    assert "secret" not in done.tell()
    lines = [line.split(maxsplit=1) for line in done.lines if line.startswith(tuple(STAND_INS))]
    return {kind: " ".join(said.split()) for kind, said in lines}


@pytest.mark.parametrize("kind", STAND_INS)
def test_a_sample_has_exactly_the_points_of_the_contract(kind: str, tmp_path: Path) -> None:
    """Names, units, kinds, attributes and values."""
    found = {row.name: row for row in sampled(kind, tmp_path)}
    expected = {row.name: row for row in EXPECTED[kind]}

    assert found.keys() == expected.keys()
    for name, row in expected.items():
        assert found[name]._replace(value=0) == row._replace(value=0)
        assert found[name].value == pytest.approx(row.value), name


@pytest.mark.parametrize("kind", STAND_INS)
def test_every_tag_that_is_on_is_expected_above(kind: str) -> None:
    """So that a tag that is added, or one that is lost, shows."""
    tags = {spec.tag: spec for spec in CATALOG.values() if kind in spec.collectors and spec.on}
    patterns = {tag: re.compile(re.sub(r"\\\{[a-z]+\\\}", "[0-9]+", re.escape(tag))) for tag in tags}
    met = {
        row.name: [tag for tag, pattern in patterns.items() if pattern.fullmatch(row.name)] for row in EXPECTED[kind]
    }

    assert [name for name, of in met.items() if len(of) != 1] == []
    assert set(patterns) == {tag for of in met.values() for tag in of}


@pytest.mark.parametrize(
    ("kind", "pattern", "row"),
    [
        ("amd", "gpu.2.memoryOverDrive", Row("gpu.2.memoryOverDrive", "%", "gauge", 3, AMD)),
        ("ipu", "ipu.*.numa_node", of_ipu("numa_node", "", 1, "numa node")),
    ],
)
def test_what_is_off_is_switched_on_by_a_pattern(kind: str, pattern: str, row: Row, tmp_path: Path) -> None:
    assert sampled(kind, tmp_path, OTEL_PYTHON_SYSMETRICS_METRICS_INCLUDED=pattern) == [row]


@pytest.mark.parametrize("kind", STAND_INS)
def test_doctor_says_what_is_here(kind: str, tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    with STAND_INS[kind](tmp_path) as variables:
        said = described(tmp_path, kind, **variables)

    assert said.keys() == {kind}
    assert re.fullmatch(f"here {DESCRIBED[kind]}", said[kind]), said


def test_doctor_says_of_each_that_it_is_not_here(tmp_path: Path) -> None:
    """Where there is none of it, in one line each and in no time."""
    (tmp_path / "root").mkdir()
    said = described(tmp_path, ",".join(STAND_INS))

    assert said.keys() == STAND_INS.keys()
    assert all(re.match("not here no ", text) for text in said.values()), said
