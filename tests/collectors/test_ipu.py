"""Graphcore IPUs, through a module gcipuinfo that says what the test wants it to."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_sysmetrics.collector import NotHere, Unavailable
from otel_sysmetrics.collectors.ipu import parse_metric, sample
from tests.parts import CAPTURES, SHARED, Bench, tree, values

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SAMPLES: Final = SHARED / "samples" / "graphcore"
WATCHED: Final = 4242
CHILD: Final = 4243

MODULE: Final = '''
import json, os

class gcipuinfo:
    """Takes one look at construction unless it is told to update itself, as the real one does."""

    def __init__(self):
        self._updates = False
        self._look()
        if self._found == "broken":
            raise RuntimeError("no active partition")

    def _look(self):
        with open(os.path.join(os.path.dirname(__file__), "devices.json")) as file:
            self._found = json.load(file)

    def setUpdateMode(self, updates):
        self._updates = updates

    def getDevices(self):
        if self._updates:
            self._look()
        if self._found == "fails":
            raise SystemError("the driver is gone")
        return self._found
'''


class Machine:
    """A machine on which gcipuinfo is installed, with a watched process and a child of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "gcipuinfo.py").write_text(MODULE)
        self.root = tree(folder / "root", {"proc/uptime": "1000.0 1000.0\n"})
        for pid, parent in ((WATCHED, 1), (CHILD, WATCHED), (999, 1)):
            stat = f"{pid} (python) S {parent} " + " ".join(["0"] * 16) + " 1 0 100 0 10 " + " ".join(["0"] * 28)
            tree(self.root, {f"proc/{pid}/stat": stat + "\n"})

    def has(self, found: object) -> None:
        """Say what gcipuinfo finds."""
        (self.folder / "devices.json").write_text(json.dumps(found))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("gcipuinfo", None)
    yield Machine(tmp_path)
    sys.modules.pop("gcipuinfo", None)


def device(number: int, **attributes: str) -> dict[str, str]:
    return {"id": str(number), **{key.replace("_", " "): text for key, text in attributes.items()}}


@pytest.mark.parametrize("capture", sorted((CAPTURES / "ipu").glob("*.json")), ids=lambda path: path.stem)
def test_what_each_board_says_gives_exactly_its_tags(capture: Path) -> None:
    recorded = json.loads(capture.read_text())
    readings = list(sample(recorded["device"]))

    assert values([reading for reading in readings if reading.spec.on]) == recorded["tags"]
    assert {reading.spec.unit for reading in readings if reading.spec.on} <= {"Cel", "MHz", "W", "%", "{GT}/s"}


def test_the_recordings_give_wandbs_numbers() -> None:
    """Under W&B's own keys, which stand on the points; the device's own id is a label here."""
    if not SAMPLES.exists():
        pytest.skip("the recordings are not here")
    devices = json.loads((SAMPLES / "getDevices__wandb_test_three_devices.json").read_text())
    expected = json.loads((SAMPLES / "expected_tags__wandb_pid123.json").read_text())["later samples"]
    found = {
        f"ipu.1.{reading.attributes['wandb.key']}": reading.value for reading in sample(devices[1]) if reading.spec.on
    }

    assert found == expected


def test_any_other_number_is_a_gauge_that_is_off_and_no_text_is_one() -> None:
    found = list(
        sample({"id": "0", "link width": "8", "hexopt total size (bytes)": "268435456", "ipu error state": "no errors"})
    )

    assert values(found) == {"ipu.0.link_width": 8, "ipu.0.hexopt_total_size_bytes": 268435456}
    assert not any(reading.spec.on for reading in found)


def test_no_identifier_of_a_person_or_a_board_comes_out() -> None:
    private = {
        "user name": "7",
        "user executable": "12",
        "user process id": "123",
        "board serial number": "0000.0001",
        "config domain": "94414229001808",
        "pci id": "3",
        "ipuof partition id": "5",
    }

    assert list(sample({"id": "0", **private})) == []


def test_case_96_ipu_static_cache(machine: Machine) -> None:
    """The second sample shows new values."""
    machine.has([device(0, clock="1300MHz")])
    bench = Bench("ipu", machine.root)
    assert bench.tags() == {"ipu.0.clock": 1300}

    machine.has([device(0, clock="20MHz")])

    assert bench.tags() == {"ipu.0.clock": 20}
    assert bench.collector.describe() == "1 IPU through gcipuinfo"


def test_case_97_ipu_other_users(machine: Machine) -> None:
    """With a watched process only the devices of its tree are reported; without one, all."""
    machine.has(
        [
            device(0, clock="1MHz", user_process_id=str(WATCHED)),
            device(1, clock="2MHz", user_process_id=str(CHILD)),
            device(2, clock="3MHz", user_process_id="999"),
            device(3, clock="4MHz", user_process_id=""),
            device(4, clock="5MHz"),
        ]
    )

    assert Bench("ipu", machine.root, pid=WATCHED).tags() == {"ipu.0.clock": 1, "ipu.1.clock": 2}
    assert Bench("ipu", machine.root, pid=77).tags() == {}, "a process that is gone uses none"
    assert len(Bench("ipu", machine.root).tags()) == 5


def test_without_the_module_nothing_is_here(tmp_path: Path) -> None:
    with pytest.raises(NotHere, match="gcipuinfo"):
        _ = Bench("ipu", tmp_path).collector


def test_a_module_that_fails_is_said_with_the_remedy(machine: Machine) -> None:
    machine.has("broken")

    with pytest.raises(Unavailable, match="no active partition") as caught:
        _ = Bench("ipu", machine.root).collector
    assert "Poplar" in caught.value.remedy


def test_a_failure_costs_its_sample_only(machine: Machine) -> None:
    machine.has([device(0, clock="1MHz")])
    bench = Bench("ipu", machine.root)
    assert bench.tags()
    machine.has("fails")
    with pytest.raises(SystemError):
        bench.tags()
    machine.has([device(0, clock="2MHz"), None, {"clock": "3MHz"}, {"id": None, "clock": None}])

    assert bench.tags() == {"ipu.0.clock": 2}


@pytest.mark.parametrize(
    ("key", "text", "found"),
    [
        ("clock", "1300MHz", ("clock (MHz)", 1300)),
        ("total board power", "12.6 W", ("total board power (W)", 12.6)),
        ("link speed", "8 GT/s", ("link speed (GT/s)", 8)),
        ("ipu utilisation (session)", "15.65%", ("ipu utilisation (session) (%)", 15.65)),
        ("average die temp", "-3C", ("average die temp (C)", -3)),
        ("ipu power", "N/A", None),
        ("ipu power", "120 kW", None),
        ("ipu power", "200000W", None),
        ("ipu utilisation", "150%", None),
        ("average die temp", "1000C", None),
        ("link width", "8", ("link width", 8)),
        ("parity error threshold interval", "7776000 seconds", None),
        ("ipu power", None, None),
        ("ipu power", "nan W", None),
        ("number of replicas", "1" * 30, None),
    ],
)
def test_a_text_becomes_a_number_or_nothing(key: str, text: object, found: object) -> None:
    assert parse_metric(key, text) == found


@given(
    st.sampled_from(["clock", "ipu power", "link speed", "average board temp", "ipu utilisation", "x"]) | st.text(),
    st.text() | st.none() | st.integers(),
)
def test_no_text_makes_the_parser_fail_or_a_0_out_of_nothing(key: str, text: Any) -> None:  # noqa: ANN401 - whatever comes
    found = parse_metric(key, text)

    if found is not None:
        assert found[1] != 0 or "0" in text
