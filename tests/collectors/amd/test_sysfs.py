"""Which of a card's sensors the driver's files are read from."""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING, Any, Final

import pytest

from otel_sysmetrics.collectors.amd.sysfs import Sysfs
from otel_sysmetrics.sources.files import Files
from tests.parts import tree

if TYPE_CHECKING:
    from pathlib import Path

DEVICE: Final = "sys/class/drm/renderD128/device"
CARD: Final = {f"{DEVICE}/vendor": "0x1002\n", f"{DEVICE}/mem_info_vram_total": "8589934592\n"}


def temperature(root: Path, files: dict[str, str]) -> Any:  # noqa: ANN401 - so that it can be compared with what is about that
    tree(root, {**CARD, **{f"{DEVICE}/hwmon/{name}": f"{text}\n" for name, text in files.items()}})
    (gpu,) = Sysfs(Files(str(root))).read()
    return gpu.temperature


@pytest.mark.parametrize("folders", [*permutations(("hwmon1", "hwmon2", "hwmon10"))])
def test_the_sensors_are_the_drivers_own_whatever_stands_beside_them(
    folders: tuple[str, str, str], tmp_path: Path
) -> None:
    drivers, network, unnamed = folders
    files = {f"{folder}/temp1_input": "99000" for folder in (network, unnamed)}

    assert temperature(
        tmp_path,
        {**files, f"{network}/name": "r8169", f"{drivers}/name": "amdgpu", f"{drivers}/temp1_input": "40000"},
    ) == ("edge", pytest.approx(40))


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"temp1_input": "40000"}, ("edge", 40)),
        ({"temp1_input": "40000", "temp1_label": "edge"}, ("edge", 40)),
        ({"temp1_input": "40000", "temp2_input": "45000", "temp2_label": "junction"}, ("junction", 45)),
        ({"temp1_input": "40000", "temp2_input": "0", "temp2_label": "junction"}, ("edge", 40)),
        ({"temp1_input": "40000", "temp1_label": "junction"}, ("junction", 40)),
        ({"temp1_input": "40000", "temp1_label": "vrsoc"}, None),
        ({"temp2_input": "40000"}, None),
        ({"temp1_label": "edge"}, None),
        ({}, None),
    ],
)
def test_a_sensor_without_a_label_is_the_edges(
    files: dict[str, str], found: tuple[str, float] | None, tmp_path: Path
) -> None:
    said = temperature(tmp_path, {f"hwmon0/{name}": text for name, text in files.items()})

    assert said == (None if found is None else (found[0], pytest.approx(found[1])))
