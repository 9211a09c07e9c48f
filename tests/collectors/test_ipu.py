"""Graphcore IPUs: gcipuinfo as it answers, fails, hangs and is not there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_sysmetrics.catalog import CATALOG, ipu
from otel_sysmetrics.collector import NotHere, Unavailable
from otel_sysmetrics.collectors.ipu import parse_metric, readings
from otel_sysmetrics.spec import Fold
from tests.fakes import REPOSITORY, Desk, run_script
from tests.parts import CAPTURES, SHARED, Bench, values
from tests.trees import stat, write_tree

if TYPE_CHECKING:
    from collections.abc import Mapping

STAND_IN: Final = Path(__file__).parents[1] / "stand_ins" / "poplar" / "gcipuinfo.py"
OURS: Final = CAPTURES / "ipu"
SAMPLES: Final = SHARED / "samples" / "graphcore"
WATCHED: Final = 500
KEYS: Final = (
    *("average board temp", "average die temp", "clock", "ipu power", "total board power", "ipu utilisation"),
    *("ipu utilisation (session)", "link speed", "hexoatt total size (bytes)", "numa node", "attempts"),
)


def ipu_of(number: int, pid: int | None = None, **attributes: str) -> dict[str, str]:
    """Return what one IPU says; `load` is its utilisation, in other names `_` stands for the blank."""
    user = {} if pid is None else {"user process id": str(pid), "user name": "secret", "user executable": "secret"}
    spelled = {
        ("ipu utilisation" if key == "load" else key.replace("_", " ")): each for key, each in attributes.items()
    }
    return {"id": str(number), "board type": "M2000", **user, **spelled}


class Poplar:
    """A machine with a gcipuinfo that does what the test says."""

    def __init__(self, folder: Path) -> None:
        self.module = folder / "poplar"
        self.root = folder / "root"
        self.module.mkdir()
        self.root.mkdir()
        shutil.copy(STAND_IN, self.module)
        self.says()

    def says(self, *devices: object, **faults: Mapping[str, object]) -> None:
        """Say what is there and what fails, from now on."""
        table = {"devices": devices, **{name.rstrip("_"): fault for name, fault in faults.items()}}
        (self.module / "gcipuinfo.json").write_text(json.dumps(table))

    def has_processes(self, **parents: int) -> None:
        """Say which processes there are, and who started them; `p500=1` is pid 500, started by 1."""
        files = {f"proc/{name[1:]}/stat": stat(int(name[1:]), parent=parent) for name, parent in parents.items()}
        write_tree(self.root, {"proc/uptime": "1000 1000\n", **files})

    def bench(self, pid: int | None = None) -> Bench:
        """Return the collector there."""
        return Bench("ipu", self.root, pid=pid)

    def run(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a command of ours there, with no other collector."""
        ours = {"OTEL_PYTHON_SYSMETRICS_COLLECTORS": "ipu", "COLUMNS": "250", **variables}
        environment = {**os.environ, "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{self.module}", **ours}
        command = [sys.executable, "-m", "otel_sysmetrics", *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=False)


@pytest.fixture
def poplar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Poplar:
    poplar = Poplar(tmp_path)
    monkeypatch.syspath_prepend(str(poplar.module))
    monkeypatch.delitem(sys.modules, "gcipuinfo", raising=False)
    poplar.has_processes(p500=1)
    return poplar


@pytest.fixture(autouse=True)
def _unloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the next test load the module anew: where it was not loaded before, undoing takes it out again."""
    monkeypatch.setitem(sys.modules, "gcipuinfo", sys)
    del sys.modules["gcipuinfo"]


class TestWhatItReads:
    @pytest.mark.parametrize("capture", sorted(OURS.glob("*.json")), ids=lambda path: path.stem)
    def test_what_each_board_says_gives_exactly_its_tags_in_their_units(self, capture: Path, poplar: Poplar) -> None:
        recorded = json.loads(capture.read_text())
        poplar.says(*recorded["devices"])

        found = poplar.bench(recorded["pid"]).readings()

        assert {
            reading.spec.fill(reading.labels): [reading.value, reading.spec.unit, reading.attributes["wandb.key"]]
            for reading in found
        } == recorded["tags"]

    def test_what_is_on_by_default_is_the_rows_of_the_table(self) -> None:
        on = [reading.spec for reading in readings(0, dict.fromkeys(KEYS, "5")) if reading.spec.on]

        assert set(on) == {spec for spec in CATALOG.values() if "ipu" in spec.collectors and spec.on}

    def test_the_recordings_give_wandbs_tags_under_our_names(self) -> None:
        """But for the user's pid: who uses a device is nobody's business."""
        if not SAMPLES.exists():
            pytest.skip("the recordings are not here")
        _, device, _ = json.loads((SAMPLES / "getDevices__wandb_test_three_devices.json").read_text())
        theirs = json.loads((SAMPLES / "expected_tags__wandb_pid123.json").read_text())["first sample"]
        ours = {f"ipu.1.{reading.attributes['wandb.key']}": reading.value for reading in readings(1, device)}

        assert {**ours, "ipu.1.user process id": 123} == theirs

    def test_no_recording_has_a_value_where_it_says_not_available(self) -> None:
        if not SAMPLES.exists():
            pytest.skip("the recordings are not here")
        for path in SAMPLES.glob("gc-info*.json"):
            for device in json.loads(path.read_text()):
                found = {key for key in device if parse_metric(key, device[key])}
                assert found.isdisjoint(key for key, text in device.items() if text == "N/A"), path.name
                assert {"clock", "link speed", "ipu utilisation"} <= found, path.name

    def test_a_point_says_which_ipu_and_wandbs_key(self, poplar: Poplar) -> None:
        poplar.says(ipu_of(7, clock="1300MHz", hexopt_total_size_="x", numa_node="1"))
        clock, other = (
            next(r for r in poplar.bench().readings() if key in r.attributes.values())
            for key in ("clock (MHz)", "numa node")
        )

        assert clock.labels == {"ipu": 7}
        assert clock.attributes == {"hw.id": "7", "wandb.key": "clock (MHz)"}
        assert other.labels == {"ipu": 7, "key": "numa_node"}
        assert other.attributes == {"hw.id": "7", "wandb.key": "numa node"}

    def test_keys_that_meet_in_one_name_stay_two_series(self) -> None:
        desk = Desk()
        desk.give(*readings(0, {"lanes (up)": "1", "lanes up": "2"}), kind="ipu")

        assert {(point.name, point.attributes["wandb.key"], point.value) for point in desk.ask()} == {
            ("ipu.0.lanes_up", "lanes (up)", 1),
            ("ipu.0.lanes_up", "lanes up", 2),
        }
        desk.close()

    @pytest.mark.parametrize(
        "key", ["user process id", "user name", "board serial number", "config domain", "firmware version"]
    )
    def test_nothing_of_people_and_no_identifier_or_version_is_a_number(self, key: str) -> None:
        assert list(readings(0, {key: "1.10", "numa node": "x"})) == list(readings(0, {key: "12"})) == []

    def test_readings_of_one_export_are_averaged_and_sizes_are_not(self, poplar: Poplar) -> None:
        desk, bench = Desk(), poplar.bench()
        for load in ("20.00%", "40.00%"):
            poplar.says(ipu_of(0, load=load, ipu_power="30W", foo_power="5W", board_ipu_index=load[0]))
            desk.clock.spend(1)
            desk.give(*bench.readings(), kind="ipu")
        found = {point.name: point.value for point in desk.ask()}

        assert found["ipu.0.ipu_utilisation"] == 30
        assert found["ipu.0.board_ipu_index"] == 4
        other = next(r.spec for r in bench.readings() if r.labels.get("key") == "foo_power")
        assert (other.unit, other.fold, other.on, other.tag) == ("W", Fold.MEAN, False, ipu.OTHER.tag)
        desk.close()


class TestWhose:
    def test_with_no_process_watched_all_are_read(self, poplar: Poplar) -> None:
        poplar.says(ipu_of(0, 700, load="1%"), ipu_of(1, load="2%"))

        assert poplar.bench().tags().keys() >= {"ipu.0.ipu_utilisation", "ipu.1.ipu_utilisation"}

    def test_those_of_a_descendant_count_as_the_launchers(self, poplar: Poplar) -> None:
        """Under poprun the IPU belongs to a child; W&B reports nothing then."""
        poplar.has_processes(p500=1, p501=500, p502=501, p700=1)
        poplar.says(ipu_of(0, 502, load="1%"), ipu_of(1, 700, load="2%"), ipu_of(2, 500, load="3%"))

        loads = {tag: load for tag, load in poplar.bench(WATCHED).tags().items() if tag.endswith("utilisation")}

        assert loads == {"ipu.0.ipu_utilisation": 1, "ipu.2.ipu_utilisation": 3}

    def test_a_process_that_is_gone_has_none(self, poplar: Poplar) -> None:
        poplar.says(ipu_of(0, 600, load="1%"))

        assert poplar.bench(600).tags() == {}

    def test_an_application_reports_its_own(self, poplar: Poplar) -> None:
        """Through instrument(), where the watched process is the application's own."""
        script = """
            import json
            import os
            import sys
            from pathlib import Path

            from otel_sysmetrics import SysMetricsInstrumentor
            from tests.fakes import in_memory, provider_of, until, values

            folder = Path(sys.argv[1])
            sys.path.insert(0, str(folder))
            ours = {"id": "0", "ipu utilisation": "5.00%", "user process id": str(os.getpid())}
            other = {**ours, "id": "1", "user process id": "1"}
            (folder / "gcipuinfo.json").write_text(json.dumps({"devices": [ours, other]}))
            reader = in_memory()
            SysMetricsInstrumentor().instrument(meter_provider=provider_of(reader), collectors="ipu")
            found = {}
            until(lambda: found.update(values(reader.get_metrics_data())) or found)
            print(json.dumps(found))
        """
        assert run_script(script, str(poplar.module)) == {"ipu.0.ipu_utilisation": 5.0}


class TestWhatFails:
    def test_without_the_module_it_is_not_here(self, tmp_path: Path) -> None:
        with pytest.raises(NotHere, match="no Python module gcipuinfo"):
            Bench("ipu", tmp_path).part.probe()

    def test_without_an_ipu_it_is_not_here_and_is_found_once_there_is_one(self, poplar: Poplar) -> None:
        bench = poplar.bench()
        with pytest.raises(NotHere, match="no partition is active"):
            bench.part.probe()
        poplar.says(ipu_of(0, load="1%"))

        assert bench.tags()["ipu.0.ipu_utilisation"] == 1

        poplar.says()
        with pytest.raises(NotHere):
            bench.tags()

    @pytest.mark.parametrize("call", ["import", "gcipuinfo", "setUpdateMode", "getDevices"])
    @pytest.mark.parametrize("error", ["RuntimeError", "ImportError", "SystemExit", "KeyboardInterrupt", "Mute"])
    def test_whatever_a_call_raises_is_one_line_with_a_remedy(self, call: str, error: str, poplar: Poplar) -> None:
        poplar.says(ipu_of(0), **{call: {"raise": error, "text": "no driver\nat all"}})

        with pytest.raises(Unavailable, match=f"gcipuinfo can.*{error}") as caught:
            poplar.bench().part.probe()

        assert "enable.sh" in caught.value.remedy
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("answer", [None, 5, "text"])
    def test_an_answer_that_is_no_list_of_devices_gives_nothing(self, answer: object, poplar: Poplar) -> None:
        poplar.says(ipu_of(0), getDevices={"return": answer})

        with pytest.raises((Unavailable, NotHere)):
            poplar.bench().part.probe()

    def test_a_call_that_fails_once_costs_one_sample_and_the_inventory_is_opened_anew(self, poplar: Poplar) -> None:
        poplar.says(ipu_of(0, load="1%"))
        bench = poplar.bench()
        bench.tags()
        poplar.says(getDevices={"raise": "RuntimeError"})
        with pytest.raises(Unavailable):
            bench.tags()
        poplar.says(ipu_of(0, load="2%"), gcipuinfo={"raise": "OSError", "text": "driver is being loaded"})
        with pytest.raises(Unavailable, match="being loaded"):
            bench.tags()

        poplar.says(ipu_of(0, load="3%"))

        assert bench.tags()["ipu.0.ipu_utilisation"] == 3

    def test_a_device_that_cannot_be_read_or_has_no_id_costs_itself_only(self, poplar: Poplar) -> None:
        nameless = {"ipu utilisation": "2%"}
        odd = {"id": 3, "ipu utilisation": None, "clock": 5, "ipu power": "7W"}
        poplar.says(
            "silent", None, nameless, {**nameless, "id": "-1"}, {**nameless, "id": ""}, ipu_of(2, load="1%"), odd
        )

        tags = poplar.bench().tags()

        assert {tag: tags[tag] for tag in tags if not tag.endswith("id")} == {
            "ipu.2.ipu_utilisation": 1,
            "ipu.3.ipu_power": 7,
        }

    def test_of_several_with_one_id_the_first_keeps_it_which_is_said_once(
        self, poplar: Poplar, caplog: pytest.LogCaptureFixture
    ) -> None:
        poplar.says(ipu_of(0, load="1%"), ipu_of(1, load="2%"), ipu_of(0, load="3%"), {**ipu_of(1), "id": " 01 "})
        bench = poplar.bench()
        for _ in range(3):
            tags = bench.tags()

        assert {tag: tags[tag] for tag in tags if tag.endswith("utilisation")} == {
            "ipu.0.ipu_utilisation": 1,
            "ipu.1.ipu_utilisation": 2,
        }
        said = "several IPUs have the id 0, 1: only the first of each is read"
        assert caplog.messages == [f"otel-sysmetrics: ipu: {said}"]
        assert bench.collector.describe().startswith("2 IPUs ")
        assert said in bench.collector.describe()

    def test_one_that_hangs_delays_nobody_and_is_named(self, poplar: Poplar) -> None:
        poplar.says(ipu_of(0, load="1%"), getDevices={"hang": True})
        done = poplar.run("sample", "--timeout", "0.3", "--window", "0.2", "--format", "json")

        assert (done.returncode, json.loads(done.stdout)) == (0, [])
        assert "ipu did not answer within 0.5 s" in done.stderr


class TestWhatItSays:
    def test_doctor_counts_the_ipus_and_says_why_sensors_are_missing(self, poplar: Poplar) -> None:
        poplar.says(ipu_of(0, ipu_power="N/A", clock="1300MHz"), ipu_of(1, average_die_temp="N/A"))

        said = " ".join(poplar.run("doctor").stdout.split())

        assert (
            "ipu here 2 IPUs (M2000) through gcipuinfo, without power and temperature: they need GCDA_MONITOR=1" in said
        )

    def test_where_one_sensor_answers_it_asks_for_nothing(self, poplar: Poplar) -> None:
        poplar.says(ipu_of(0, ipu_power="N/A", total_board_power="12.6 W"))

        assert poplar.bench().collector.describe() == "1 IPU (M2000) through gcipuinfo"

    def test_doctor_gives_the_reason_and_the_remedy(self, poplar: Poplar) -> None:
        poplar.says(import_={"raise": "ImportError", "text": "libgcipuinfo.so: cannot open shared object file"})

        said = " ".join(poplar.run("doctor").stdout.split())

        assert (
            "ipu ill gcipuinfo cannot be used: ImportError: libgcipuinfo.so: cannot open shared object file (" in said
        )

    def test_a_sample_on_the_command_line_has_the_default_tags_and_no_secret(self, poplar: Poplar) -> None:
        poplar.says(ipu_of(0, os.getpid(), load="12.5%", board_ipu_index="1"))

        done = poplar.run("sample", "--pid", str(os.getpid()), "--window", "0.2", "--format", "json")

        (point,) = (point for point in json.loads(done.stdout) if point["name"].startswith("ipu."))
        assert (point["name"], point["value"], point["unit"]) == ("ipu.0.ipu_utilisation", 12.5, "%")
        assert {key: point["attributes"][key] for key in ("ipu.index", "hw.id", "wandb.key")} == {
            "ipu.index": 0,
            "hw.id": "0",
            "wandb.key": "ipu utilisation (%)",
        }
        assert "secret" not in done.stdout + done.stderr


class TestKnownCases:
    def test_case_96_values_are_read_anew_for_each_sample(self, poplar: Poplar) -> None:
        bench = poplar.bench()
        loads = []
        for percent in range(3):
            poplar.says(ipu_of(0, load=f"{percent}%"))
            loads.append(bench.tags()["ipu.0.ipu_utilisation"])

        assert loads == [0, 1, 2]

    def test_case_97_other_users_ipus_and_those_without_a_user_are_left_out(self, poplar: Poplar) -> None:
        poplar.has_processes(p38641=1, p1262065=1)
        nobody = {**ipu_of(2, load="3%"), "user process id": ""}
        poplar.says(ipu_of(0, 38641, load="1%"), ipu_of(1, 1262065, load="2%"), nobody, ipu_of(3, load="4%"))

        found = poplar.bench(38641).readings()

        assert {reading.labels["ipu"] for reading in found} == {0}
        assert "secret" not in repr(found)
        assert {reading.labels["ipu"] for reading in poplar.bench().readings()} == {0, 1, 2, 3}


class TestParseMetric:
    @pytest.mark.parametrize(
        ("key", "text", "found"),
        [
            ("average board temp", "17.8 C", ("average board temp (C)", 17.8)),
            ("average die temp", "20C", ("average die temp (C)", 20)),
            ("clock", "1300MHz", ("clock (MHz)", 1300)),
            ("clock", " 20 MHz ", ("clock (MHz)", 20)),
            ("ipu utilisation", "0.00%", ("ipu utilisation (%)", 0)),
            ("ipu utilisation (session)", "12.50%", ("ipu utilisation (session) (%)", 12.5)),
            ("link speed", "8 GT/s", ("link speed (GT/s)", 8)),
            ("total board power", "99.5 W", ("total board power (W)", 99.5)),
            ("ipu power", "92.30W", ("ipu power (W)", 92.3)),
            ("clock", "1300", ("clock (MHz)", 1300)),
            ("link width", "8", ("link width", 8)),
            ("hexoatt total size (bytes)", "17045651456", ("hexoatt total size (bytes)", 17045651456)),
        ],
    )
    def test_units_are_read_glued_on_apart_and_left_out(self, key: str, text: str, found: tuple[str, float]) -> None:
        assert parse_metric(key, text) == found

    @pytest.mark.parametrize(
        ("key", "text"),
        [
            *[
                ("ipu power", text)
                for text in ("N/A", "", "W", "n/a W", "-1W", "100001W", "5 kW", "5C", "17,8 W", "nan", "inf")
            ],
            *[("ipu utilisation", text) for text in ("100.01%", "-0.5%", "1e400%", "%")],
            *[("average die temp", text) for text in ("-51 C", "201C", "65535 C", "20 F")],
            *[
                ("numa node", text)
                for text in ("-1", "0x1a", "1_000", "9" * 19, "9" * 400, "٣", "1e5", "true", "2.4.4")
            ],
            *[("clock", what) for what in (None, 1300, 1300.0, True, b"1300MHz", ["1300MHz"])],
            ("parity error threshold interval", "7776000 seconds"),
            ("pci id", "0000:1a:00.0"),
        ],
    )
    def test_what_is_none_or_cannot_be_is_nothing(self, key: str, text: object) -> None:
        assert parse_metric(key, text) is None

    def test_the_unit_is_told_by_the_end_of_the_key(self) -> None:
        assert parse_metric("attempts", "3") == ("attempts", 3)
        assert parse_metric("power state", "3") == ("power state", 3)

    @given(
        st.sampled_from(KEYS) | st.text(),
        st.text()
        | st.none()
        | st.from_regex(r"[-+]?[0-9]{0,25}\.?[0-9]{0,25} ?(C|MHz|W|%|GT/s|N/A|e9|)", fullmatch=True)
        | st.floats().map(str)
        | st.integers().map(str),
    )
    def test_no_text_is_an_error_or_a_0_out_of_nothing(self, key: str, text: str | None) -> None:
        found = parse_metric(key, text)

        if found is None:
            return
        name, value = found
        assert text is not None
        assert name.startswith(key)
        assert any(digit in text for digit in "0123456789")
        assert -50 <= value < 2**63
        assert value != 0 or not set("123456789") & set(text)

    @given(st.dictionaries(st.sampled_from((*KEYS, "user process id")) | st.text(), st.text() | st.none()))
    def test_nothing_that_a_device_says_is_an_error_or_an_illegal_name(self, device: Mapping[str, Any]) -> None:
        for reading in readings(0, device):
            assert reading.value is not None
            assert reading.spec.fill(reading.labels).isascii()
        values(list(readings(0, {key: device[key] for key in device if key in KEYS})))
