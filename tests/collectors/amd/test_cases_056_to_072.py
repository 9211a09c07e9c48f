"""Public failures of AMD collectors, by number, and that no text makes a parser fail."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_sysmetrics.collector import NotHere
from otel_sysmetrics.collectors.amd import amd_smi, rocm_smi
from otel_sysmetrics.collectors.amd.collector import readings
from tests.parts import SHARED, values

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


@pytest.mark.parametrize("text", ["", "WARNING: No JSON data to report\n", '{"card0": {"GPU use (%)": "3"'])
def test_case_62_67_no_document(text: str) -> None:
    """No document is none; half a document is none either."""
    assert rocm_smi.parse(text) is None


def test_case_63_amd_warning_groups_stdout() -> None:
    """What stands before the document is passed over."""
    noise = "WARNING: [user] is missing {groups}\nPlease add it: render, video\n"

    assert tags(f'{noise}{{"card0": {{"{USE}": "12"}}}}\n\n') == {"gpu.0.gpu": 12}


def test_case_64_amd_watch_json_dup() -> None:
    """A card that is written twice counts once, the first; each may have a document of its own."""
    each = '{"card0": {"GPU use (%)": "5"}}\n{"card1": {"GPU use (%)": "6"}}\n'

    assert tags(each + each.replace("5", "7")) == {"gpu.0.gpu": 5, "gpu.1.gpu": 6}


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


def test_the_recordings_give_the_tags_of_the_rule() -> None:
    """All but the old `GPU memory use (%)` as allocation, which it is not (case 57)."""
    if not SAMPLES.exists():
        pytest.skip("the recordings are not here")
    expected = json.loads((SAMPLES / "expected_tags__rocm-smi.json").read_text())["files"]
    for name, of_file in expected.items():
        text = (SAMPLES / name).read_text()
        found = tags(text)
        for tag, value in of_file["advice"].items():
            if tag.endswith("memoryAllocated") and tag not in found:
                assert ACTIVITY_THEN in text, name
                continue
            assert found[tag] == pytest.approx(value, abs=1e-5), (name, tag)


KEYS: Final = st.sampled_from(
    (
        *("card0", "card1", "system", USE, ALLOCATED, ACTIVITY, AVERAGE, CAP, "Unique ID", "PCI Bus", "gpu_data"),
        *("gpu", "usage", "gfx_activity", "mem_usage", "used_vram", "total_vram", "value", "unit", "limit", "ppt0"),
    )
)
DOCUMENTS: Final = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers(1) | st.sampled_from(("N/A", "", "7", "7 W", "MB", "1e999")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=25,
)
ROWS: Final = st.lists(st.fixed_dictionaries({"gpu": st.integers(-1, 3)}, optional={"usage": DOCUMENTS}), max_size=3)


@given(st.text() | (DOCUMENTS | ROWS).map(json.dumps), st.text(max_size=9))
def test_no_text_makes_a_parser_fail_or_a_0_out_of_nothing(text: str, noise: str) -> None:
    for document in (text, noise + text, text[: len(text) // 2]):
        static = amd_smi.parse_static(document) or {}
        for gpus in (rocm_smi.parse(document), amd_smi.join(amd_smi.parse(document) or [], static)):
            found = values([reading for reading in readings(gpus or []) if reading.value is not None])
            assert all(value >= -50 for value in found.values())
            assert 0 not in found.values() or "0" in document
