"""The machines of odd_devices.json, a collection that is not part of this repository."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.collectors.nvidia.hosts import tags
from tests.collectors.nvidia.program import Failed, Program
from tests.nvml import NvmlMachine

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

FILE: Final = Path(__file__).parents[3].parent / "shared" / "samples" / "nvidia" / "odd_devices.json"

MEMORY: Final = ("memoryAllocated", "memoryAllocatedBytes")
POWER: Final = ("powerWatts", "enforcedPowerLimitWatts", "powerPercent")
ERRORS: Final = ("correctedMemoryErrors", "unCorrectedMemoryErrors")
PIPES: Final = ("pipeTensorActive", "pipeTensorHmmaActive", "pipeFp64Active", "pipeFp32Active", "pipeFp16Active")
LINKS: Final = ("pcieTxBytes", "pcieRxBytes", "nvlinkTxBytes", "nvlinkRxBytes")
GPM: Final = ("smActive", "smOccupancy", "dramActive", *PIPES, *LINKS)
CLOCKS: Final = ("smClock", "memoryClock", "graphicsClock")
HEALTHY: Final = (
    "gpu",
    "memory",
    *MEMORY,
    "temp",
    *POWER,
    "energyJoules",
    *CLOCKS,
    *ERRORS,
    "encoderUtilization",
    *GPM,
)

# The exact tags of each machine, by the index of its GPU; nothing is what it must not show.
SENT: Final[Mapping[str, Mapping[int, tuple[str, ...]]]] = {
    # What NVML shows for the memory controller of unified memory is a constant 0.
    "gb10_580.126.09": {0: ("gpu", "temp", "powerWatts", "energyJoules", "smClock")},
    # A driver that does answer is believed.
    "gb10_success_variant": {0: MEMORY},
    "gh200_480gb": {},
    "orin_jetpack6_540.4.0": {},
    "thor_jetpack7_580": {0: ("gpu",)},
    "wsl2_510.10_rtx8000": {0: (*MEMORY, "temp", *POWER, "fanSpeed")},
    "wsl2_510.06_laptop": {0: (*MEMORY, "temp", "powerWatts")},
    "gtx770_2018": {0: ("temp", "fanSpeed")},
    "mig_parent_h200_590": {0: (*MEMORY, "temp", *POWER, *ERRORS)},
    "lost_while_running": {0: HEALTHY, 2: HEALTHY},
    "fell_off_before_init": {0: HEALTHY, 2: HEALTHY},
}
FAILS: Final[Mapping[str, tuple[str, str]]] = {
    "no_library": ("NotHere", "not found"),
    "driver_not_loaded": ("Unavailable", "not loaded"),
    "driver_upgraded_without_reboot": ("Unavailable", "different versions"),
    "container_lost_its_devices": ("Unavailable", "unknown error"),
    "no_permission_on_dev_nodes": ("Unavailable", "no permission"),
}
# What hangs costs its own thread, and what crashes takes the process with it, which nothing inside can prevent.
NOT_SURVIVED: Final = frozenset({"hangs", "crashes"})


def entries() -> Iterator[Mapping[str, Any]]:
    if FILE.exists():
        data = json.loads(FILE.read_text(encoding="utf-8"))
        yield from (*data["init"], *data["devices"])


@pytest.fixture
def entry(request: pytest.FixtureRequest) -> Mapping[str, Any]:
    found = {entry["id"]: entry for entry in entries()}
    if not found:
        pytest.skip(f"{FILE} is not here")
    return found[request.param]


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("entry", SENT, indirect=True)
def test_an_odd_machine_sends_exactly_what_it_can(entry: Mapping[str, Any], tmp_path: Path) -> None:
    with Program(NvmlMachine.from_odd(tmp_path, entry)).probe() as program:
        program.values()
        values = program.values()
    expected = SENT[entry["id"]]
    assert {index: tags(values, index) for index in range(3) if tags(values, index)} == {
        index: set(names) for index, names in expected.items()
    }
    assert len(values) == sum(map(len, expected.values()))


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("entry", FAILS, indirect=True)
def test_an_odd_start_is_explained(entry: Mapping[str, Any], tmp_path: Path) -> None:
    kind, words = FAILS[entry["id"]]
    with Program(NvmlMachine.from_odd(tmp_path, entry)) as program:
        with pytest.raises(Failed, match=words) as caught:
            program.probe()
        assert caught.value.kind == kind


def test_no_machine_is_left_out() -> None:
    if not FILE.exists():
        pytest.skip(f"{FILE} is not here")
    assert {entry["id"] for entry in entries()} == SENT.keys() | FAILS.keys() | NOT_SURVIVED
