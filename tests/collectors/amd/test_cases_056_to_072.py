"""Public failures of AMD collectors, by number."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from typing import TYPE_CHECKING, Final

import psutil
import pytest

from otel_sysmetrics.collector import NotHere
from otel_sysmetrics.collectors.amd import amd_smi, rocm_smi
from otel_sysmetrics.collectors.amd.collector import probe, readings
from otel_sysmetrics.collectors.amd.sources import Sources
from otel_sysmetrics.sources.tools import ToolError
from tests.collectors.amd.machine import CARD, TWO
from tests.fakes import run_script
from tests.parts import SHARED, children_of, until, values

if TYPE_CHECKING:
    from tests.collectors.amd.machine import Machine

SAMPLES: Final = SHARED / "samples" / "amd"
USE: Final = "GPU use (%)"
AVERAGE: Final = "Average Graphics Package Power (W)"
SOCKET: Final = "Current Socket Graphics Package Power (W)"
CAP: Final = "Max Graphics Package Power (W)"
ACTIVITY_THEN: Final = "GPU memory use (%)"
ALLOCATED: Final = "GPU Memory Allocated (VRAM%)"
ACTIVITY: Final = "GPU Memory Read/Write Activity (%)"


def tags(text: str | dict[str, dict[str, str]]) -> dict[str, float]:
    text = text if isinstance(text, str) else json.dumps(text)
    return values([reading for reading in readings(rocm_smi.parse(text) or []) if reading.value is not None])


def test_case_56_amd_no_gpu_warning(machine: Machine, capfd: pytest.CaptureFixture[str]) -> None:
    """A node whose job has no AMD GPU gives nothing, quietly."""
    tool = 'echo "WARNING: No AMD GPUs specified"; echo oops >&2; echo \'{"system": {"Driver version": "6.3.6"}}\''
    machine.does("rocm-smi", tool)

    bench = machine.bench()
    with pytest.raises(NotHere):
        bench.tags()
    assert capfd.readouterr() == ("", "")


def test_case_57_amd_memkey_rename() -> None:
    """Activity never passes for allocation, under its old name either."""
    assert tags({"card0": {ACTIVITY_THEN: "20"}}) == {"gpu.0.memoryReadWriteActivity": 20}
    assert tags({"card0": {ALLOCATED: "44", ACTIVITY: "18"}}) == {
        "gpu.0.memoryAllocated": 44,
        "gpu.0.memoryReadWriteActivity": 18,
    }


def test_case_58_amd_power_key_varies() -> None:
    """Power lies under either key, and the second die has none."""
    found = tags({"card0": {AVERAGE: "N/A (Secondary die)", USE: "0"}, "card1": {AVERAGE: "N/A", SOCKET: "4.0"}})

    assert found == {"gpu.0.gpu": 0, "gpu.1.powerWatts": 4}


def test_case_59_amd_apu_na() -> None:
    """An APU has an edge sensor, no cap and no unique id."""
    card = {"Unique ID": "N/A", USE: "19", ALLOCATED: "87", SOCKET: "7.222", "Memory Activity": "N/A"}
    (gpu,) = rocm_smi.parse(json.dumps({"card0": {**card, "Temperature (Sensor edge) (C)": "31.0"}})) or []

    assert gpu.unique_id is None
    assert gpu.temperature == ("edge", 31.0)
    assert (gpu.power, gpu.power_share, gpu.activity) == (7.222, None, None)


def test_case_60_amd_presence_check(machine: Machine) -> None:
    """What counts is that the tool on PATH lists GPUs; they come in the order of their numbers."""
    machine.has("rocm-smi", _={f"card{index}": {USE: str(index)} for index in (10, 9, 1, 0)})

    assert list(machine.bench().tags()) == [f"gpu.{index}.gpu" for index in (0, 1, 9, 10)]


def test_case_61_amd_mi250_secondary_powercap() -> None:
    """A cap of 0 W is none."""
    found = tags({"card0": {AVERAGE: "91.0", CAP: "560.0"}, "card1": {AVERAGE: "N/A (Secondary die)", CAP: "0.0"}})

    assert found["gpu.0.powerPercent"] == pytest.approx(16.25)
    assert not [tag for tag in found if tag.startswith("gpu.1.")]


@pytest.mark.parametrize("text", ["", "WARNING: No JSON data to report\n"])
def test_case_62_amd_nojson_report(text: str, machine: Machine) -> None:
    """No document is no tag, and the next sample asks again."""
    machine.has("rocm-smi", _=CARD)
    bench = machine.bench()
    bench.tags()

    machine.has("rocm-smi", _=text)
    with pytest.raises(ToolError, match="lists no GPU"):
        bench.tags(after=15)
    machine.has("rocm-smi", _=CARD)
    assert bench.tags(after=15) == {"gpu.0.gpu": 5}


def test_case_63_amd_warning_groups_stdout() -> None:
    """What stands before the document is passed over."""
    noise = "WARNING: [user] is missing {groups}\nPlease add it: render, video\n"

    assert tags(f'{noise}{{"card0": {{"{USE}": "12"}}}}\n\n') == {"gpu.0.gpu": 12}


def test_case_64_amd_watch_json_dup() -> None:
    """A card that is written twice counts once, the first; each may have a document of its own."""
    each = '{"card0": {"GPU use (%)": "5"}}\n{"card1": {"GPU use (%)": "6"}}\n'

    assert tags(each + each.replace("5", "7")) == {"gpu.0.gpu": 5, "gpu.1.gpu": 6}


@pytest.mark.parametrize(("document", "names"), [(CARD, ["gpu.0.gpu"]), ({"system": {}}, []), ("", [])])
def test_case_65_amd_slow_probe(document: object, names: list[str], machine: Machine) -> None:
    """`instrument()` does not wait for the tool, and a list without a card is no error."""
    text = document if isinstance(document, str) else json.dumps(document)
    machine.does("rocm-smi", f"until [ -e {machine.folder}/gate ]; do sleep 0.1; done; echo '{text}'")

    script = """
        import json, sys
        from pathlib import Path
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader
        from otel_sysmetrics import SysMetricsInstrumentor
        from tests.fakes import points
        from tests.parts import until

        folder = Path(sys.argv[1])
        def runs():
            return (folder / "runs").read_text().count("vram") if (folder / "runs").exists() else 0

        reader = InMemoryMetricReader()
        SysMetricsInstrumentor().instrument(
            meter_provider=MeterProvider([reader]), collectors=["amd"], root_path=str(folder / "root"),
            host_metrics="always", sampling_interval=1,
        )
        assert until(lambda: runs() == 1)
        assert points(reader.get_metrics_data()) == []
        (folder / "gate").touch()
        assert until(lambda: runs() >= 3)
        print(json.dumps(sorted({point.name for point in points(reader.get_metrics_data())})))
        SysMetricsInstrumentor().uninstrument()
    """
    assert run_script(script, str(machine.folder)) == names


@pytest.mark.parametrize("part", ['{"card0": {"GPU use (%)": "3"', '{"card0": {"GPU use (%)": "3"}, "card1": {', ""])
def test_case_67_amd_tool_traceback(part: str, machine: Machine, capfd: pytest.CaptureFixture[str]) -> None:
    """A tool that dies over one card costs a sample: nothing of it is sent or shown, and the next is as usual."""
    machine.has("rocm-smi", _=TWO)
    bench = machine.bench()
    assert bench.tags() == {"gpu.0.gpu": 5, "gpu.1.gpu": 6}

    machine.does("rocm-smi", f"printf '%s' '{part}'; echo 'Traceback (most recent call last):' >&2; exit 1")
    with pytest.raises(ToolError, match="rocm-smi ended with status 1"):
        bench.tags(after=15)

    machine.has("rocm-smi", _=TWO)
    assert bench.tags(after=15) == {"gpu.0.gpu": 5, "gpu.1.gpu": 6}
    assert capfd.readouterr() == ("", "")


def test_case_68_amd_dstate_that_nothing_can_kill(machine: Machine) -> None:
    """Whoever waits is let go at the limit, no second one is started, and it is collected once it ends.

    A keeper that is stopped is as deaf to all signals as one whose tool hangs in the driver.
    """
    machine.card(128, "0000:03:00.0", gpu_busy_percent="3\n")
    machine.does("rocm-smi", "exec sleep 1000")
    others = children_of(os.getpid())
    context = machine.context(time.monotonic)
    sources = Sources(context, longest=2)
    found: list[dict[str, float]] = []

    def look() -> None:
        collector = probe(context, sources)
        found.append(values([reading for reading in collector.sample() if reading.value is not None]))
        collector.close()

    first = threading.Thread(target=look)
    first.start()
    assert until(lambda: machine.runs() != [])
    (keeper,) = children_of(os.getpid()) - others
    os.kill(keeper, signal.SIGSTOP)
    try:
        first.join(20)
        for _ in range(3):
            look()
        assert found == [{"gpu.0.gpu": 3}] * 4
        assert len(machine.runs()) == 1
        (rocm_smi_, _files) = [source for source, _ in sources.looks()]
        with pytest.raises(ToolError, match="still hangs since an earlier sample"):
            rocm_smi_.read(1)
        rocm_smi_.close()
    finally:
        os.kill(keeper, signal.SIGCONT)
    assert until(lambda: psutil.Process(keeper).status() == psutil.STATUS_ZOMBIE)

    machine.has("rocm-smi", _=CARD)
    look()
    assert found[-1] == {"gpu.0.gpu": 5}
    assert children_of(os.getpid()) - others == set()


@pytest.mark.parametrize("nothing", ["N/A", "n/a", "N/A (Secondary die)", "Unknown", "unknown", "", "None", "65535"])
def test_case_70_amd_zero_instead_of_na(nothing: str) -> None:
    """What is not said is absent, and a 0 that is said is there."""
    keys = (ALLOCATED, ACTIVITY, AVERAGE, SOCKET, CAP, "Temperature (Sensor edge) (C)", "VRAM Total Used Memory (B)")

    assert tags({"card0": {USE: "0", **dict.fromkeys(keys, nothing)}}) == {"gpu.0.gpu": 0}


def test_what_amd_smi_writes_around_its_document_is_passed_over() -> None:
    text = 'WARNING: [] missing {"groups": []}\n[{"gpu": 1, "usage": {"gfx_activity": "7 %"}}, {"gpu": 1}, "x"]\nbye'
    (gpu,) = amd_smi.parse(text) or []

    assert (gpu.index, gpu.use) == (1, 7)


@pytest.mark.parametrize("document", ["", "[]", "{}", "[WARNING] no {gpu}"])
@pytest.mark.parametrize("tool", ["rocm-smi", "amd-smi"])
def test_a_tool_that_lists_no_gpu_means_that_none_is_here(tool: str, document: str, machine: Machine) -> None:
    machine.has(tool, _=document)
    bench = machine.bench()

    with pytest.raises(NotHere):
        bench.tags()


def test_case_71_amd_rocm6_new_keys() -> None:
    """Only `card` and a number is a GPU."""
    assert tags({"card0": {USE: "2"}, "system": {USE: "3"}, "cardX": {USE: "4"}}) == {"gpu.0.gpu": 2}


# What W&B has no tag for, the keys that it comes from and the unit of these.
MORE: Final = {
    "memoryAllocatedBytes": (("VRAM Total Used Memory (B)",), 1),
    "memoryReadWriteActivity": ((ACTIVITY, ACTIVITY_THEN), 1),
    "memoryOverDrive": (("GPU Memory OverDrive value (%)",), 1),
    "enforcedPowerLimitWatts": ((CAP,), 1),
    "energyJoules": (("Accumulated Energy (uJ)",), 1e-6),
}


def test_the_recordings_give_exactly_the_tags_of_the_rule() -> None:
    """All but the old `GPU memory use (%)` as allocation, which it is not (case 57)."""
    if not SAMPLES.exists():
        pytest.skip("the recordings are not here")
    recorded = json.loads((SAMPLES / "expected_tags__rocm-smi.json").read_text())["files"]
    assert recorded
    for name, of_file in recorded.items():
        text = (SAMPLES / name).read_text()
        cards = {key[4:]: card for key, card in json.loads(text).items() if re.fullmatch("card[0-9]+", key)}
        expected = dict(of_file["advice"])
        for index, card in cards.items():
            if not {ALLOCATED, "VRAM Total Memory (B)"} & set(card):
                expected.pop(f"gpu.{index}.memoryAllocated", None)
            for tag, (keys, scale) in MORE.items():
                said = next((card[key] for key in keys if key in card), "N/A")
                if re.fullmatch("[0-9.]+", said) and (
                    float(said) or tag not in {"energyJoules", "enforcedPowerLimitWatts"}
                ):
                    expected[f"gpu.{index}.{tag}"] = float(said) * scale

        assert tags(text) == pytest.approx(expected, abs=1e-5), name
