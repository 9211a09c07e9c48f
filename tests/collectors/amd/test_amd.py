"""AMD GPUs: the sources as they answer, fail and are not there."""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import pytest

from otel_sysmetrics.collector import NotHere
from otel_sysmetrics.collectors.amd.sources import RocmSmi
from otel_sysmetrics.settings import Settings, SettingsError
from otel_sysmetrics.sources.tools import ToolError
from tests.collectors.amd.machine import CARD, TWO
from tests.parts import CAPTURES, tree, until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.collectors.amd.machine import Machine


@pytest.mark.parametrize("capture", sorted((CAPTURES / "amd").glob("*.json")), ids=lambda path: path.stem)
def test_what_each_model_reports_gives_exactly_its_tags(capture: Path, machine: Machine) -> None:
    recorded = json.loads(capture.read_text())
    if recorded["source"] == "rocm-smi":
        machine.has("rocm-smi", _=recorded["document"])
    elif recorded["source"] == "sysfs":
        tree(machine.root, recorded["files"])
    else:
        machine.has("amd-smi", metric=recorded["document"], static=recorded["static"])

    assert machine.bench().tags() == pytest.approx(recorded["tags"])


def test_rocm_smi_is_asked_for_bytes_too_and_once_per_sample(machine: Machine) -> None:
    """Case 72: many runs flood the kernel's log; the first sample takes what the probe has read."""
    machine.has("rocm-smi", _=TWO)
    bench = machine.bench()

    assert bench.tags() == bench.tags(after=1) == {"gpu.0.gpu": 5, "gpu.1.gpu": 6}

    assert machine.runs() == ["-a --showmeminfo vram --json"] * 2
    assert bench.collector.describe() == f"0: MI210, 1: AMD GPU, through {machine.folder}/bin/rocm-smi"


test_case_72_amd_poll_too_fast = test_rocm_smi_is_asked_for_bytes_too_and_once_per_sample


def test_a_point_says_which_gpu_and_which_sensor(machine: Machine) -> None:
    machine.has("rocm-smi", _={"card3": {**CARD["card0"], "Temperature (Sensor junction) (C)": "41.0"}})
    by_tag = {reading.spec.tag: reading for reading in machine.bench().readings()}

    who = {"hw.id": "0x00000000000000a1", "hw.name": "MI210"}
    assert by_tag["gpu.{gpu}.gpu"].labels == {"gpu": 3}
    assert by_tag["gpu.{gpu}.gpu"].attributes == who
    assert by_tag["gpu.{gpu}.temp"].attributes == {**who, "hw.sensor_location": "junction"}


UNIQUE: Final = [f"{mark}{text}" for mark in ("0x", "0X") for text in ("b2", "B2", "0b2", "00000000000000B2")]
ADDRESSES: Final = [f"{domain}{slot}" for domain in ("", "0000:", "00000000:") for slot in ("c3:00.0", "C3:00.0")]


@pytest.mark.parametrize("named", ["1", 1, "01", "00000000000000b2", *UNIQUE, *ADDRESSES])
def test_the_setting_names_gpus_by_index_unique_id_or_pci_address(named: str | int, machine: Machine) -> None:
    """In every spelling that the tools, the driver's files and lspci have."""
    machine.has("rocm-smi", _=TWO)

    assert machine.bench(gpu_device_ids=(named, "GPU-of-another-vendor")).tags() == {"gpu.1.gpu": 6}


def test_the_serial_that_amd_smi_shows_names_a_gpu_and_never_goes_out(machine: Machine) -> None:
    """The PCI address tells GPUs apart instead; where that is missing too, the index does."""
    static = [
        {"gpu": 0, "asic": {"asic_serial": "0x00000000000000A1"}, "bus": {"bdf": "0000:0b:00.0"}},
        {"gpu": 1, "asic": {"asic_serial": "0x00000000000000B2"}},
    ]
    machine.has("amd-smi", metric=[{"gpu": index, "usage": {"gfx_activity": 5}} for index in (0, 1)], static=static)
    bench = machine.bench()

    assert [reading.attributes["hw.id"] for reading in bench.readings()] == ["0000:0b:00.0", None]
    assert bench.collector.describe() == f"0: AMD GPU, 1: AMD GPU, through {machine.folder}/bin/amd-smi"
    assert machine.bench(gpu_device_ids=("0x000000b2",)).tags() == {"gpu.1.gpu": 5}


@pytest.mark.parametrize("wrong", ["0x", "0xg", "b2", "c3", "c3:00", "c3:00.8", "3:00.0", "c3:00.0:", "C3-00.0"])
def test_an_identifier_that_may_be_a_typo_is_an_error_that_names_the_forms(wrong: str) -> None:
    with pytest.raises(
        SettingsError, match=r"indices or UUIDs, such as 0,2 .* unique ids or PCI addresses, such as 0x"
    ):
        Settings(gpu_device_ids=(wrong,))


def test_where_no_gpu_is_named_nothing_is_started(machine: Machine) -> None:
    machine.has("rocm-smi", _=TWO)

    with pytest.raises(NotHere):
        _ = machine.bench(gpu_device_ids=()).collector
    assert machine.runs() == []


def test_sources_are_tried_in_their_order(machine: Machine) -> None:
    machine.card(128, "0000:03:00.0", gpu_busy_percent="3\n")
    assert machine.bench().tags() == {"gpu.0.gpu": 3}

    machine.has("amd-smi", metric=[{"gpu": 0, "usage": {"gfx_activity": 2}}], static=[])
    assert machine.bench().tags() == {"gpu.0.gpu": 2}

    machine.has("rocm-smi", _={"system": {"Driver version": "6.3.6"}})
    assert machine.bench().tags() == {"gpu.0.gpu": 2}

    machine.has("rocm-smi", _=CARD)
    assert machine.bench().tags() == {"gpu.0.gpu": 5}


@pytest.mark.parametrize(
    "writes", ["", "WARNING: No JSON data to report\n", '{"card0": {"GPU use (%)": "3"', '{"system": {}}']
)
def test_a_tool_that_fails_once_costs_a_sample_and_not_the_source(writes: str, machine: Machine) -> None:
    machine.card(128, "0000:03:00.0", gpu_busy_percent="3\n")
    machine.has("rocm-smi", _=CARD)
    bench = machine.bench()
    assert bench.tags() == {"gpu.0.gpu": 5}

    (machine.folder / "rocm-smi_").write_text(writes)
    with pytest.raises(ToolError, match="rocm-smi"):
        bench.tags(after=1)

    (machine.folder / "rocm-smi_").write_text(json.dumps(CARD))
    assert bench.tags(after=1) == {"gpu.0.gpu": 5}


def test_a_machine_without_amd_starts_nothing(machine: Machine) -> None:
    tree(machine.root, {"sys/class/drm/renderD128/device/vendor": "0x10de\n"})

    with pytest.raises(NotHere):
        _ = machine.bench().collector
    assert machine.runs() == []


def test_a_crashing_tool_where_the_driver_shows_no_gpu_is_quiet(machine: Machine) -> None:
    machine.has("rocm-smi", _='{"card0": {')

    with pytest.raises(NotHere, match="no whole document"):
        _ = machine.bench().collector


@pytest.mark.parametrize("tool", ["rocm-smi", "amd-smi"])
@pytest.mark.parametrize("writes", ["", "WARNING: oops", '{"system": {}, "gpu_data": []}'])
@pytest.mark.parametrize(("end", "fate"), [("exit 1", "ended with status 1"), ("kill -SEGV $$", "died of signal 11")])
def test_a_tool_that_fails_does_not_list_no_gpu(tool: str, writes: str, end: str, fate: str, machine: Machine) -> None:
    machine.does(tool, f"echo '{writes}'; {end}")
    with pytest.raises(NotHere, match=rf"no AMD GPU in .*{tool}, .* \(.*{tool} {fate}\)"):
        _ = machine.bench().collector

    machine.has(tool, _=CARD if tool == "rocm-smi" else [{"gpu": 0, "usage": {"gfx_activity": 5}}])
    bench = machine.bench()
    assert bench.tags() == {"gpu.0.gpu": 5}

    machine.does(tool, f"echo '{writes}'; {end}")
    with pytest.raises(ToolError, match=rf"{tool} {fate}$"):
        bench.tags(after=1)


def test_amd_smi_is_asked_once_for_what_stays_the_same(machine: Machine) -> None:
    static = [{"gpu": 0, "bus": {"bdf": "0000:0B:00.0"}, "limit": {"socket_power": 100}}]
    machine.has("amd-smi", metric=[{"gpu": 0, "power": {"socket_power": 25}}], static=static)
    bench = machine.bench()
    bench.tags()

    assert bench.tags(after=1)["gpu.0.powerPercent"] == 25
    assert machine.runs() == ["metric --json", "static --json", "metric --json"]
    assert {reading.attributes["hw.id"] for reading in bench.readings()} == {"0000:0b:00.0"}


def test_amd_smi_without_what_stays_the_same_is_asked_for_it_three_times(machine: Machine) -> None:
    machine.has("amd-smi", metric=[{"gpu": 0, "power": {"socket_power": 25}}], static="")
    bench = machine.bench()
    for _ in range(5):
        assert bench.tags(after=1) == {"gpu.0.powerWatts": 25}

    assert machine.runs().count("static --json") == 3


def test_the_drivers_files_give_the_same_tags_in_the_order_of_the_render_nodes(machine: Machine) -> None:
    machine.card(
        1000, "0000:0b:00.0", unique_id="a1b2\n", power__runtime_status="suspended\n", gpu_busy_percent="9\n"
    )  # fmt: skip
    machine.card(
        129,
        "0000:03:00.0",
        gpu_busy_percent="7\n",
        mem_busy_percent="2\n",
        mem_info_vram_used="2147483648\n",
        pp_mem_od="1\n",
        product_name="Radeon\n",
        hwmon__hwmon4__temp1_label="edge\n",
        hwmon__hwmon4__temp1_input="50000\n",
        hwmon__hwmon4__temp3_label="mem\n",
        hwmon__hwmon4__temp3_input="61000\n",
        hwmon__hwmon4__power1_average="30000000\n",
        hwmon__hwmon4__power1_cap="120000000\n",
    )
    bench = machine.bench()

    assert bench.tags() == {
        "gpu.0.gpu": 7,
        "gpu.0.memoryReadWriteActivity": 2,
        "gpu.0.memoryAllocated": 25,
        "gpu.0.memoryAllocatedBytes": 2**31,
        "gpu.0.memoryOverDrive": 1,
        "gpu.0.temp": pytest.approx(61),
        "gpu.0.powerWatts": pytest.approx(30),
        "gpu.0.enforcedPowerLimitWatts": pytest.approx(120),
        "gpu.0.powerPercent": pytest.approx(25),
    }
    assert bench.collector.describe() == "0: Radeon, 1: AMD GPU, through the amdgpu driver's files"
    assert machine.runs() == []

    (machine.root / "sys/class/drm/renderD1000/device/power/runtime_status").write_text("active\n")
    assert bench.tags()["gpu.1.gpu"] == 9


def test_a_tool_that_hangs_is_ended_at_its_limit(machine: Machine) -> None:
    """Case 68: a grandchild that holds the pipe delays nobody."""
    machine.does("rocm-smi", "sleep 1000 & exec sleep 1000")
    source = RocmSmi(str(machine.folder / "bin" / "rocm-smi"))

    with pytest.raises(ToolError):
        source.read(0.3)


test_case_68_amd_dstate = test_a_tool_that_hangs_is_ended_at_its_limit


def test_closing_ends_a_tool_that_hangs(machine: Machine) -> None:
    machine.does("rocm-smi", "exec sleep 1000")
    source = RocmSmi(str(machine.folder / "bin" / "rocm-smi"))
    found: list[object] = []

    def read() -> None:
        with suppress(ToolError):  # it says so, if it was heard
            found.extend(source.read())

    thread = threading.Thread(target=read)
    thread.start()
    assert until(lambda: machine.runs() != [])

    source.close()

    thread.join(10)
    assert not thread.is_alive()
    assert found == []
