"""What AMD's tools write of a quantity means the same in whatever unit and form it is written, or is absent."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_sysmetrics.collectors.amd import amd_smi, rocm_smi
from otel_sysmetrics.collectors.amd.collector import readings
from otel_sysmetrics.collectors.amd.sysfs import Sysfs
from otel_sysmetrics.sources.files import Files
from tests.parts import tree, values

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from otel_sysmetrics.collectors.amd.gpu import Gpu

SCALES: Final[dict[str, dict[str, float]]] = {
    "share": {"%": 1},
    "temperature": {"C": 1, "°C": 1, "mC": 1e-3},
    "power": {"W": 1, "mW": 1e-3, "uW": 1e-6, "µW": 1e-6, "kW": 1e3},
    "energy": {"J": 1, "mJ": 1e-3, "uJ": 1e-6, "µJ": 1e-6, "kJ": 1e3},
    "memory": {
        "B": 1,
        **dict.fromkeys(("KB", "KiB"), 2**10),
        **dict.fromkeys(("MB", "MiB"), 2**20),
        **dict.fromkeys(("GB", "GiB"), 2**30),
        **dict.fromkeys(("TB", "TiB"), 2**40),
    },
}
UNITS: Final = sorted({unit for scales in SCALES.values() for unit in scales} | {"F", "K", "MHz", "MW", "Wh", "N/A"})

# Each tag, the quantity that it is, the unit that holds where none is written, and where it lies.
ROCM: Final = {
    "gpu.0.gpu": ("share", "%", "GPU use (%)"),
    "gpu.0.memoryReadWriteActivity": ("share", "%", "GPU Memory Read/Write Activity (%)"),
    "gpu.0.memoryOverDrive": ("share", "%", "GPU Memory OverDrive value (%)"),
    "gpu.0.temp": ("temperature", "C", "Temperature (Sensor memory) (C)"),
    "gpu.0.powerWatts": ("power", "W", "Average Graphics Package Power (W)"),
    "gpu.0.enforcedPowerLimitWatts": ("power", "W", "Max Graphics Package Power (W)"),
    "gpu.0.energyJoules": ("energy", "uJ", "Accumulated Energy (uJ)"),
    "gpu.0.memoryAllocatedBytes": ("memory", "B", "VRAM Total Used Memory (B)"),
}
AMD: Final = {
    "gpu.0.gpu": ("share", "%", "usage.gfx_activity"),
    "gpu.0.memoryReadWriteActivity": ("share", "%", "usage.umc_activity"),
    "gpu.0.memoryOverDrive": ("share", "%", "mem_overdrive"),
    "gpu.0.temp": ("temperature", "C", "temperature.mem"),
    "gpu.0.powerWatts": ("power", "W", "power.socket_power"),
    "gpu.0.enforcedPowerLimitWatts": ("power", "W", "limit.ppt0.socket_power_limit"),
    "gpu.0.energyJoules": ("energy", "J", "energy.total_energy_consumption"),
    "gpu.0.memoryAllocatedBytes": ("memory", "MB", "mem_usage.used_vram"),
}
FORMS: Final[tuple[Callable[[float, str | None], Any], ...]] = (
    lambda value, unit: f"{value} {unit or ''}",
    lambda value, unit: f"{value}{unit or ''}",
    lambda value, unit: {"value": value, "unit": unit},
    lambda value, unit: {"value": str(value), "unit": unit or ""},
)


def tags(gpus: list[Gpu] | None) -> dict[str, float]:
    return values([reading for reading in readings(gpus or []) if reading.value is not None])


def of_rocm(key: str, value: object) -> dict[str, float]:
    return tags(rocm_smi.parse(json.dumps({"card0": {key: value}})))


def of_amd(path: str, value: object) -> dict[str, float]:
    for key in reversed(path.split(".")):
        value = {key: value}
    assert isinstance(value, dict)
    text = json.dumps([{"gpu": 0, **value}])
    return tags(amd_smi.join(amd_smi.parse(text) or [], amd_smi.parse_static(text) or {}))


@given(
    st.sampled_from([(of_rocm, *row) for row in ROCM.items()] + [(of_amd, *row) for row in AMD.items()]),
    st.sampled_from([*UNITS, None]) | st.text("abmkWJCB%", min_size=1, max_size=5),
    st.sampled_from(FORMS),
    st.sampled_from((1, 7, 50, 99.5)),
)
def test_a_value_is_what_its_unit_says_and_absent_where_that_is_not_known(
    where: tuple[Callable[[str, object], dict[str, float]], str, tuple[str, str, str]],
    unit: str | None,
    form: Callable[[float, str | None], Any],
    value: float,
) -> None:
    of, tag, (quantity, usual, key) = where
    scale = SCALES[quantity].get(unit or usual)

    found = of(key, form(value, unit))

    assert found == ({} if scale is None else {tag: pytest.approx(value * scale)})


@pytest.mark.parametrize("sentinel", [2**16 - 1, 2**32 - 1, 2**64 - 1])
@pytest.mark.parametrize("form", [int, str, float], ids=lambda form: form.__name__)
@pytest.mark.parametrize("tag", ROCM)
def test_all_bits_set_is_no_value_in_whatever_form(tag: str, form: Callable[[int], object], sentinel: int) -> None:
    assert of_rocm(ROCM[tag][2], form(sentinel)) == {}
    assert of_amd(AMD[tag][2], form(sentinel)) == {}


SIZES: Final = st.integers(0, 2**40).filter(lambda size: size not in {2**16 - 1, 2**32 - 1})
TOTALS: Final = st.sampled_from((None, 0, "0", "N/A", "", "Unknown", -1, 2**64 - 1)) | SIZES
USED: Final = st.sampled_from((None, 0, "0", "N/A")) | SIZES


def of_files(used: object, total: object, root: Path) -> dict[str, float]:
    device = "sys/class/drm/renderD128/device"
    files = {"vendor": "0x1002\n", "mem_info_vram_used": f"{used}\n", "mem_info_vram_total": f"{total}\n"}
    tree(root, {f"{device}/{name}": text for name, text in files.items()})
    return tags(Sysfs(Files(str(root))).read())


@given(used=USED, total=TOTALS, share=st.sampled_from((None, 0, "0", "12")))
def test_a_total_that_is_not_known_never_makes_a_0_and_more_than_the_total_is_nothing(
    used: object, total: object, share: object, tmp_path_factory: pytest.TempPathFactory
) -> None:
    card = {
        "VRAM Total Used Memory (B)": used,
        "VRAM Total Memory (B)": total,
        "GPU Memory Allocated (VRAM%)": share,
    }
    root = tmp_path_factory.getbasetemp() / "total"
    for scale, found, said in (
        (1, tags(rocm_smi.parse(json.dumps({"card0": card}))), share == "12"),
        (2**20, of_amd("mem_usage", {"used_vram": used, "total_vram": total}), False),
        (1, of_files(used, total, root), False),
    ):
        size = total if isinstance(total, int) and 0 < total < 2**64 - 1 else None
        taken = int(used) if isinstance(used, int) or used == "0" else None
        allocated, in_bytes = found.get("gpu.0.memoryAllocated"), found.get("gpu.0.memoryAllocatedBytes")
        if size is None:
            assert allocated == (12 if said else None)
            assert in_bytes == (taken * scale if taken else None)
        elif taken is None or taken > size:
            assert in_bytes is None
        else:
            assert in_bytes == taken * scale
            assert allocated == pytest.approx(100 * taken / size)


SAID: Final = st.lists(st.none() | st.sampled_from((0, 31, 45)), min_size=3, max_size=3)


@given(temperatures=SAID, powers=SAID)
def test_a_sensor_that_says_0_hides_no_other(
    temperatures: list[int | None], powers: list[int | None], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Chips say 0 for a sensor that they do not have; where no other says more, a 0 may be meant."""
    words = ["N/A" if value is None else value for value in temperatures + powers]
    memory, junction, edge, average, now, _ = words
    card = {
        "Temperature (Sensor memory) (C)": f"{memory}",
        "Temperature (Sensor junction) (C)": f"{junction}",
        "Temperature (Sensor edge) (C)": f"{edge}",
        "Average Graphics Package Power (W)": f"{average}",
        "Current Socket Graphics Package Power (W)": f"{now}",
    }
    row = {
        "gpu": 0,
        "temperature": {"mem": memory, "hotspot": junction, "edge": edge},
        "power": {"socket_power": average, "apu_average_socket_power": now},
    }
    device, hwmon = "sys/class/drm/renderD128/device", "hwmon/hwmon2"
    files = {"vendor": "0x1002\n", "mem_info_vram_total": "1\n"}
    for order, (place, said) in enumerate((("mem", memory), ("junction", junction), ("edge", edge)), 1):
        files[f"{hwmon}/temp{order}_label"] = f"{place}\n"
        files[f"{hwmon}/temp{order}_input"] = f"{said if said == 'N/A' else said * 1000}\n"
    for name, said in (("average", average), ("input", now)):
        files[f"{hwmon}/power1_{name}"] = f"{said if said == 'N/A' else said * 1_000_000}\n"
    root = tree(tmp_path_factory.getbasetemp() / "sensors", {f"{device}/{name}": text for name, text in files.items()})

    def first(values: list[int | None]) -> int | None:
        said = [value for value in values if value is not None]
        return next((value for value in said if value), 0 if said else None)

    expected = {"gpu.0.temp": first(temperatures), "gpu.0.powerWatts": first(powers[:2])}
    for found in (
        tags(rocm_smi.parse(json.dumps({"card0": card}))),
        tags(amd_smi.parse(json.dumps([row]))),
        tags(Sysfs(Files(str(root))).read()),
    ):
        assert found == {tag: pytest.approx(value) for tag, value in expected.items() if value is not None}
