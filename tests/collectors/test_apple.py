"""Apple silicon: ioreg and the door as they answer, fail and are not there."""

from __future__ import annotations

import json
import os
import plistlib
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_sysmetrics.collector import NotHere, Unavailable
from otel_sysmetrics.collectors import apple
from otel_sysmetrics.collectors.apple.accelerator import Accelerator, of_plist, of_text
from otel_sysmetrics.collectors.apple.collector import AppleCollector
from otel_sysmetrics.collectors.apple.collector import values as of_both
from otel_sysmetrics.collectors.apple.listener import Listener
from otel_sysmetrics.collectors.apple.registry import Registry, of_sysctl
from otel_sysmetrics.collectors.apple.told import Told, load, parse, power, temperature
from otel_sysmetrics.sources.tools import ToolError
from tests.fakes import ScriptedClock
from tests.parts import CAPTURES, SHARED, Bench, children_of, program, until, values

if TYPE_CHECKING:
    from collections.abc import Iterator

SAMPLES: Final = SHARED / "samples" / "apple"
OURS: Final = CAPTURES / "apple"
MODELS: Final = sorted(path.stem for path in OURS.glob("*.golden"))
DOOR: Final = Path(apple.__file__).with_name("door.py")
GIB: Final = 1 << 30

ANYTHING: Final = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["OFF", "GPU"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


def capture(name: str) -> str:
    return (OURS / name).read_text()


class Mac:
    """A machine with ioreg and sysctl, which answer what the test says."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.calls = folder / "calls"
        program(
            folder / "bin",
            "ioreg",
            f"""
            echo "$*" >>{self.calls}
            case "$*" in
                "-r -d 1 -w 0 -c IOAccelerator -a") . {folder}/plist.sh;;
                "-r -d 1 -w 0 -c IOAccelerator") . {folder}/text.sh;;
                *) echo "usage: ioreg"; exit 64;;
            esac
            """,
        )
        program(folder / "bin", "sysctl", f'[ "$1" = hw.memsize ] && cat {folder}/sysctl')
        self.remembers(16 * GIB)
        self.does("exit 1")
        monkeypatch.setenv("PATH", f"{folder / 'bin'}:/usr/bin:/bin")

    def remembers(self, memory: int) -> None:
        """Say how much memory there is."""
        (self.folder / "sysctl").write_text(f"hw.memsize: {memory}\nmachdep.cpu.brand_string: Apple M9 Max\n")

    def does(self, plist: str, text: str = "exit 1") -> None:
        """Say what ioreg does when it is asked for either form."""
        (self.folder / "plist.sh").write_text(plist)
        (self.folder / "text.sh").write_text(text)

    def shows(self, name: str) -> None:
        """Have ioreg show one of the captures."""
        self.does(f"cat {OURS}/{name}.plist")

    def asked(self) -> int:
        """Return how often ioreg was started."""
        return len(self.calls.read_text().splitlines()) if self.calls.exists() else 0


@pytest.fixture
def mac(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mac:
    return Mac(tmp_path, monkeypatch)


@pytest.fixture
def bench(mac: Mac) -> Iterator[Bench]:
    bench = Bench("apple", mac.folder)
    yield bench
    bench.close()


class Spoken:
    """A collector whose door is a program of the test's own."""

    def __init__(self, mac: Mac, script: str, limit: float | None = None, memory: int | None = 16 * GIB) -> None:
        self.clock = ScriptedClock()
        self.starts = mac.folder / "starts"
        path = program(mac.folder, "door", f"echo $$ >>{self.starts}\n{script}")
        self.listener = Listener((str(path),), 15, self.clock.now)
        registry = Registry(str(mac.folder / "bin" / "ioreg"), self.clock.now)
        found = registry.read()
        assert found is not None
        self.collector = AppleCollector(registry, found, self.listener, memory, None, limit)

    def tags(self, after: float = 0) -> dict[str, float]:
        """Take a sample after so many seconds."""
        self.clock.spend(after)
        return values(list(self.collector.sample()))

    def started(self) -> int:
        """Return how often the door was started."""
        return len(self.starts.read_text().splitlines()) if self.starts.exists() else 0


def says(line: str) -> str:
    return f"cat <<'END'\n{line.strip()}\nEND\nexec sleep 1000"


class TestCaptures:
    @pytest.mark.parametrize("model", MODELS)
    @pytest.mark.parametrize("form", ["plist", "txt"])
    def test_what_each_model_shows_gives_exactly_its_tags(self, model: str, form: str) -> None:
        golden = json.loads(capture(f"{model}.golden"))
        found = {"plist": of_plist, "txt": of_text}[form](capture(f"{model}.{form}"))
        told = parse(capture(f"{model}.jsonl"))
        assert found
        assert told

        tags = {
            spec.fill({"gpu": 0}): value
            for spec, value in of_both(found[0], told, golden["memory"], golden["limit"])
            if value is not None
        }

        assert tags == pytest.approx(golden["tags"])

    @pytest.mark.parametrize("name", ["intel_mac", "virtual_machine"])
    def test_no_other_machine_has_a_gpu_of_apples(self, name: str) -> None:
        assert of_plist(capture(f"{name}.plist")) == of_text(capture(f"{name}.txt")) == []

    def test_the_recordings_give_the_tags_of_the_rule(self) -> None:
        if not SAMPLES.exists():
            pytest.skip("the recordings are not here")
        expected = json.loads((SAMPLES / "expected_tags__ioreg.json").read_text())["files"]
        for name, (*_, last) in expected.items():
            found = of_plist((SAMPLES / name).read_text())
            if not last["class"].startswith("AGX"):
                assert found == [], name
                continue
            assert found
            assert (found[0].load, found[0].allocated) == (last["tags"]["gpu"], last["tags"]["alloc_bytes"]), name
            text = SAMPLES / name.replace("_a_plist", "_text").replace(".plist", ".txt")
            assert of_text(text.read_text()) == found, name

    def test_the_recorded_energies_give_the_watts_of_the_rule(self) -> None:
        if not SAMPLES.exists():
            pytest.skip("the recordings are not here")
        for each in json.loads((SAMPLES / "ioreport_channels.json").read_text())["example_deltas"]:
            found = power([[each["channel"], each["unit"], each["delta"]]], each["dt_s"])
            assert found == (None if each["watts"] is None else pytest.approx(each["watts"])), each


class TestIoreg:
    def test_load_and_memory_come_from_the_property_list(self, mac: Mac, bench: Bench) -> None:
        mac.shows("m4_mini")

        assert bench.tags() == {
            "gpu.0.gpu": 0,
            "gpu.0.memoryAllocated": 25.0,
            "gpu.0.memoryAllocatedBytes": 4 * GIB,
        }
        assert all(reading.attributes == {"hw.name": "Apple M4"} for reading in bench.readings())
        assert bench.collector.describe().startswith("0: Apple M4, 10 cores, 16 GiB of shared memory")

    @pytest.mark.parametrize("illegal", ["echo 'ioreg: illegal option'", "exit 64"])
    def test_the_text_is_read_where_the_property_list_cannot_be_and_is_then_kept(
        self, illegal: str, mac: Mac, bench: Bench
    ) -> None:
        mac.does(illegal, f"cat {OURS}/m5_pro.txt")

        assert bench.tags()["gpu.0.gpu"] == 47
        assert bench.tags(after=15)["gpu.0.gpu"] == 47
        assert mac.asked() == 3

    @pytest.mark.parametrize("text", ["exit 0", "kill -ABRT $$", "echo nonsense"])
    def test_an_ioreg_that_crashes_is_ill_and_does_not_show_that_no_gpu_is_here(
        self, text: str, mac: Mac, bench: Bench
    ) -> None:
        mac.does("kill -ABRT $$", text)

        with pytest.raises(Unavailable, match="ioreg died of signal 6"):
            bench.part.probe()

        mac.shows("m1_air")
        assert bench.tags()
        mac.does("kill -ABRT $$", text)
        with pytest.raises(ToolError, match="ioreg died of signal 6"):
            bench.tags(after=15)

    def test_without_a_model_the_chips_name_is_sysctls(self, mac: Mac, bench: Bench) -> None:
        mac.shows("without_door")

        assert {reading.attributes["hw.name"] for reading in bench.readings()} == {"Apple M9 Max"}

    def test_without_the_size_of_memory_its_share_is_absent_and_its_bytes_are_not(self, mac: Mac, bench: Bench) -> None:
        (mac.folder / "sysctl").write_text("")
        mac.shows("m4_mini")

        assert bench.tags() == {"gpu.0.gpu": 0, "gpu.0.memoryAllocatedBytes": 4 * GIB}
        assert "memory of unknown size" in bench.collector.describe()

    def test_the_first_sample_takes_what_the_probe_has_read(self, mac: Mac, bench: Bench) -> None:
        mac.shows("m1_air")
        bench.tags()

        assert mac.asked() == 1

    def test_without_ioreg_nothing_is_started(self, mac: Mac, bench: Bench) -> None:
        os.remove(mac.folder / "bin" / "ioreg")

        with pytest.raises(NotHere, match="no ioreg"):
            bench.part.probe()
        assert children_of(os.getpid()) == set()

    def test_ioreg_is_found_where_the_system_has_it_although_path_lacks_that(
        self, mac: Mac, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        mac.shows("m1_air")
        os.makedirs(mac.folder / "usr")
        os.rename(mac.folder / "bin", mac.folder / "usr" / "sbin")
        monkeypatch.setenv("PATH", "/usr/bin:/bin")
        bench = Bench("apple", mac.folder)

        assert bench.tags()["gpu.0.gpu"] == 12
        bench.close()

    @pytest.mark.parametrize(("ids", "here"), [(("0",), True), (("1", "2"), False), ((), False)])
    def test_gpu_device_ids_may_leave_it_out(self, mac: Mac, ids: tuple[str, ...], *, here: bool) -> None:
        mac.shows("m1_air")
        bench = Bench("apple", mac.folder, gpu_device_ids=ids)
        if here:
            assert bench.tags()
            bench.close()
        else:
            with pytest.raises(NotHere):
                bench.part.probe()
            assert mac.asked() == 0

    def test_a_number_that_is_cut_off_at_the_end_of_a_line_is_none(self) -> None:
        line = capture("m4_mini.txt").split('"PerformanceStatistics"')
        whole = line[1].splitlines()[0]
        number = whole.index("4294967296")
        cut = f'{line[0]}"PerformanceStatistics"{whole[: number + 4]}\n    }}\n'

        assert of_text(cut) == [Accelerator(model="Apple M4", cores=10)]

    @pytest.mark.parametrize("bad", [-1, 101, 2**64, True, "12", 1e400, [1]])
    def test_a_load_that_cannot_be_is_absent_and_costs_no_other(self, bad: object) -> None:
        entry = {"IOClass": "AGXAccelerator", "PerformanceStatistics": {"Alloc system memory": 5}}
        statistics = entry["PerformanceStatistics"]
        assert isinstance(statistics, dict)
        statistics["Device Utilization %"] = bad if not isinstance(bad, int) or bad < 2**64 else 2**64 - 1
        found = of_plist(plistlib.dumps([entry]).decode())

        assert found == [Accelerator(allocated=5)]

    def test_the_entry_that_has_statistics_is_the_one_that_is_read(self) -> None:
        entries = [{"IOClass": "AGXAccelerator"}, plistlib.loads(capture("m1_air.plist").encode())[0]]
        found = of_plist(plistlib.dumps(entries).decode())

        assert found
        assert found[0].load == 12


class TestTold:
    @pytest.mark.parametrize(
        ("states", "share"),
        [
            ([["GPUPH", [["OFF", 1], ["P1", 3]]]], 75.0),
            ([["GPUPH", [["OFF", 4], ["IDLE", 1], ["DOWN", 0], ["P1", 5]]]], 50.0),
            ([["DIE_0_GPUPH", [["OFF", 1], ["P1", 1]]], ["DIE_1_GPUPH", [["OFF", 0], ["P1", 1]]]], 75.0),
            ([["DIE_0_GPUPH", [["OFF", 1], ["P1", 1]]], ["DIE_1_GPUPH", []]], None),
            ([["GPUPH", [["OFF", 0], ["P1", 0]]]], None),
            ([["GPUPH", [["OFF", -1], ["P1", 3]]]], None),
            ([["GPUPH", [["P1", 1], ["P2", 3]]]], None),
            ([["GPUPH", [["OFF", 1e308], ["P1", 1e308], [[], 1e308]]]], None),
            ([["GPU_CLTM", [["OFF", 1], ["P1", 3]]]], None),
            ([], None),
            (None, None),
        ],
    )
    def test_load_is_the_share_of_time_in_working_states(self, states: object, share: float | None) -> None:
        assert load(states) == share

    @pytest.mark.parametrize(
        ("energies", "seconds", "watts"),
        [
            ([["GPU Energy", "mJ", 500]], 0.2, 2.5),
            ([["GPU Energy", "uJ", 500_000]], 0.2, 2.5),
            ([["GPU Energy", "µJ", 500_000]], 0.2, 2.5),
            ([["GPU Energy", " nJ ", 500_000_000]], 0.2, 2.5),
            ([["GPU Energy", "nJ", 0]], 1, 0.0),
            ([["GPU", "mJ", 2000], ["GPU SRAM", "mJ", 9]], 1, 2.0),
            ([["GPU", "mJ", 2000], ["GPU Energy", "mJ", 1000]], 1, 1.0),
            ([["GPU Energy", "kWh", 1]], 1, None),
            ([["GPU Energy", None, 1]], 1, None),
            ([["GPU Energy", "mJ", -1]], 1, None),
            ([["GPU Energy", "mJ", 3_000_000]], 1, None),
            ([["GPU Energy", "mJ", 1]], 0, None),
            ([["GPU Energy", "mJ", 1]], None, None),
            ([["GPU SRAM", "mJ", 1], ["CPU Energy", "mJ", 1]], 1, None),
            ([], 1, None),
        ],
    )
    def test_power_is_energy_over_time_in_each_channels_unit(
        self, energies: object, seconds: object, watts: float | None
    ) -> None:
        assert power(energies, seconds) == (None if watts is None else pytest.approx(watts))

    @pytest.mark.parametrize(
        ("sensors", "celsius"),
        [
            ([["Tg05", 40.0], ["Tg0D", 50.0]], 45.0),
            ([["Tg05", 4.0], ["Tg0D", 0.0], ["Tg0L", 150.0], ["Tg0M", -127.0], ["Tg0N", 50.0]], 50.0),
            ([["Tg05", 9.8]], None),
            ([["Tg05", None]], None),
            ([], None),
        ],
    )
    def test_temperature_is_the_mean_of_what_can_be(self, sensors: object, celsius: float | None) -> None:
        assert temperature(sensors) == celsius

    def test_the_hid_sensors_count_where_the_smc_says_nothing_that_can_be(self) -> None:
        line = {"seconds": 1, "smc": [["Tg05", 3.0]], "hid": [["GPU MTR Temp Sensor1", 44.0]]}

        assert parse(json.dumps(line)) == Told(celsius=44.0)

    def test_a_zero_of_macmons_is_no_value_and_the_systems_own_counts_instead(self) -> None:
        line = {
            "macmon": {"watts": 0.0, "celsius": 0.0},
            "seconds": 1,
            "energies": [["GPU Energy", "mJ", 250]],
            "smc": [["Tg05", 30.0]],
        }

        assert parse(json.dumps(line)) == Told(watts=0.25, celsius=30.0)

    def test_a_line_that_is_none_of_the_doors_is_nothing(self) -> None:
        lines = ("", "usage: door", "[1]", "{}", '{"gpu_power": 1.5}', '{"error": 3}', '{"seconds": 1', "[" * 100_000)

        assert [parse(line) for line in lines] == [None] * len(lines)


class TestParsersOnAnything:
    @given(st.text())
    def test_no_text_is_an_error_or_a_value(self, text: str) -> None:
        for found in (of_plist(text), of_text(text), parse(text)):
            assert not found
        assert of_sysctl(text)[0] is None or "hw.memsize" in text

    @given(ANYTHING, ANYTHING, ANYTHING, ANYTHING)
    def test_nothing_that_json_can_hold_gives_a_value_that_cannot_be(
        self, states: object, energies: object, seconds: object, sensors: object
    ) -> None:
        rows = [["GPUPH", states], ["GPU Energy", "mJ", energies]]
        line = {"states": rows, "energies": rows, "seconds": seconds, "smc": [["Tg05", sensors]], "macmon": sensors}
        told = parse(json.dumps(line))

        assert told is not None
        assert told.load is None or 0 <= told.load <= 100
        assert told.watts is None or 0 <= told.watts <= 2000
        assert told.celsius is None or 10 < told.celsius < 150

    @given(st.dictionaries(st.text(max_size=8), ANYTHING, max_size=4))
    def test_nothing_in_an_entry_is_an_error_and_what_is_absent_is_none(self, entry: dict[str, Any]) -> None:
        try:
            text = plistlib.dumps([entry | {"IOClass": "AGXAccelerator"}]).decode()
        except (OverflowError, TypeError, UnicodeEncodeError, ValueError):
            return  # a property list holds less than JSON does
        for found in of_plist(text) or ():
            assert (found.load, found.allocated) == (None, None)


class TestDoor:
    def test_power_temperature_and_better_load_come_from_it(self, mac: Mac) -> None:
        mac.shows("m2_ultra")
        spoken = Spoken(mac, says(capture("m2_ultra.jsonl")), limit=200, memory=192 * GIB)
        spoken.tags()

        assert spoken.tags(after=1) == pytest.approx(json.loads(capture("m2_ultra.golden"))["tags"])
        assert "no power" not in spoken.collector.describe()
        spoken.collector.close()

    def test_what_it_told_is_dropped_after_three_periods_of_silence(self, mac: Mac) -> None:
        mac.shows("m2_ultra")
        spoken = Spoken(mac, says(capture("m2_ultra.jsonl")))
        spoken.tags()
        assert "gpu.0.powerWatts" in spoken.tags(after=1)
        assert "gpu.0.powerWatts" in spoken.tags(after=44)

        tags = spoken.tags(after=2)

        assert "gpu.0.powerWatts" not in tags
        assert tags["gpu.0.gpu"] == 84
        spoken.collector.close()

    def test_one_that_says_why_it_cannot_is_not_started_again_and_costs_nothing_else(self, mac: Mac) -> None:
        mac.shows("m4_mini")
        spoken = Spoken(mac, """printf '%s\\n' '{"error": "OSError: no  SMC"}'""")
        spoken.tags()

        for _ in range(5):
            assert spoken.tags(after=100)["gpu.0.memoryAllocated"] == 25.0

        assert spoken.started() == 1
        assert spoken.collector.describe().endswith("no power and no temperature: OSError: no SMC")
        spoken.collector.close()

    def test_one_that_keeps_crashing_is_started_three_times_a_minute_apart(self, mac: Mac) -> None:
        """Each crash is a report that macOS writes."""
        mac.shows("m4_mini")
        spoken = Spoken(mac, "kill -SEGV $$")
        for _ in range(40):
            assert spoken.tags(after=20)["gpu.0.gpu"] == 0

        assert spoken.started() == 3
        assert "died of signal 11" in spoken.collector.describe()
        spoken.collector.close()

    def test_where_ioreg_fails_what_it_tells_is_still_sent(self, mac: Mac) -> None:
        mac.shows("m2_ultra")
        spoken = Spoken(mac, says(capture("m2_ultra.jsonl")))
        spoken.tags()
        mac.does("exit 1")

        assert spoken.tags(after=1).keys() == {"gpu.0.gpu", "gpu.0.powerWatts", "gpu.0.temp"}
        spoken.collector.close()

    def test_to_close_the_collector_ends_it(self, mac: Mac) -> None:
        mac.shows("m2_ultra")
        spoken = Spoken(mac, says(capture("m2_ultra.jsonl")))
        spoken.tags()
        spoken.tags(after=1)
        (pid,) = map(int, spoken.starts.read_text().split())
        spoken.collector.close()
        spoken.collector.close()

        assert until(lambda: not Path("/proc", str(pid)).exists())


@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has what is missing here")
class TestTheDoorItself:
    def test_where_the_systems_libraries_are_missing_its_only_line_says_so(self) -> None:
        command = (sys.executable, "-I", "-S", str(DOOR), "1")
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)

        (line,) = done.stdout.splitlines()
        told = parse(line)
        assert told is not None
        assert told.error == "no CoreFoundation or no IOKit"
        assert done.stderr == ""

    def test_without_it_the_rest_is_there_from_end_to_end(self, mac: Mac, bench: Bench) -> None:
        mac.shows("m4_mini")
        assert bench.collector.describe().endswith("no power and no temperature: no CoreFoundation or no IOKit")

        assert bench.tags(after=1).keys() == {"gpu.0.gpu", "gpu.0.memoryAllocated", "gpu.0.memoryAllocatedBytes"}

    def test_macmon_lib_is_asked_where_it_is_installed_and_what_it_prints_is_no_line(
        self, mac: Mac, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        mac.shows("macmon")
        installed(mac.folder / "site")
        monkeypatch.syspath_prepend(mac.folder / "site")
        bench = Bench("apple", mac.folder, sampling_interval=1)
        bench.tags()

        tags = bench.tags(after=1)

        assert (tags["gpu.0.powerWatts"], tags["gpu.0.temp"]) == (7.5, 41.5)
        bench.close()

    def test_it_ends_when_nobody_reads_it_any_more(self, tmp_path: Path) -> None:
        installed(tmp_path)
        command = (sys.executable, "-I", "-S", str(DOOR), "1000", str(tmp_path))
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as door:
            assert door.stdout is not None
            assert door.stderr is not None
            assert b"macmon" in door.stdout.readline()
            door.stdout.close()

            assert door.wait(20) == 0
            assert door.stderr.read() == b""


def installed(folder: Path) -> None:
    """Install a stand-in for macmon-lib, which talks."""
    (folder / "macmon").mkdir(parents=True)
    (folder / "macmon" / "__init__.py").write_text(
        """
import os
from types import SimpleNamespace as Of


class Sampler:
    def metrics(self):
        print("macmon says hello", flush=True)
        os.write(1, b"so does its library")
        return Of(power=Of(gpu=7.5), temperature=Of(gpu_average=41.5))
"""
    )
    about = folder / "macmon_lib-0.7.2.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: macmon-lib\nVersion: 0.7.2\n")


class TestCases:
    def test_case_73_fields_of_a_new_chip_that_are_missing_or_null_cost_only_themselves(self) -> None:
        entry = {"IOClass": "AGXAcceleratorG99X", "PerformanceStatistics": {"Device Utilization %": 5}}
        line = {"seconds": 1, "states": None, "energies": [["S-Cluster", None, None]], "smc": None}

        assert of_plist(plistlib.dumps([entry]).decode()) == [Accelerator(load=5)]
        assert parse(json.dumps(line)) == Told()

    def test_case_74_an_intel_mac_has_none_and_its_door_is_never_started(self, mac: Mac, bench: Bench) -> None:
        mac.shows("intel_mac")

        with pytest.raises(NotHere, match="no GPU of Apple's"):
            bench.part.probe()
        assert children_of(os.getpid()) == set()

    def test_case_75_records_of_powermetrics_are_nothing_of_the_doors(self) -> None:
        records: tuple[dict[str, Any], ...] = (
            {"processor": {"package_energy": 820}},
            {"gpu": {"idle_ratio": 1.0}},
            {"processor": {}},
        )
        for record in records:
            assert parse(json.dumps(record)) is None
            assert not of_plist(plistlib.dumps([record]).decode())

    def test_case_76_a_tool_that_aborts_each_time_is_asked_ever_more_rarely(self, mac: Mac, bench: Bench) -> None:
        mac.shows("m1_air")
        bench.tags()
        bench.tags(after=15)
        mac.does("kill -ABRT $$", "kill -ABRT $$")
        before = mac.asked()
        for _ in range(40):
            try:
                assert bench.tags(after=15) == {}
            except ToolError:
                continue

        assert mac.asked() - before <= 20

        mac.shows("m1_air")
        assert bench.tags(after=301)["gpu.0.gpu"] == 12

    def test_case_77_usage_text_is_no_data_and_the_reason_is_said(self, mac: Mac, bench: Bench) -> None:
        usage = 'echo "usage: ioreg [-abfilrtxy] [-c class] 100 %"; exit 64'
        mac.does(usage, usage)

        with pytest.raises(Unavailable, match="shows nothing that can be read"):
            bench.part.probe()

    def test_case_78_no_tool_is_run_as_another_user_and_none_can_ask_anything(self, mac: Mac, bench: Bench) -> None:
        program(mac.folder / "bin", "sudo", f"touch {mac.folder}/sudo.ran; cat")
        mac.does(f"read answer; cat {OURS}/m1_air.plist")

        assert bench.tags()["gpu.0.gpu"] == 12
        assert not (mac.folder / "sudo.ran").exists()

    def test_case_80_the_dies_of_an_ultra_are_added_up_and_a_missing_channel_is_no_zero(self) -> None:
        both = [["DIE_0_GPU Energy", "mJ", 1000], ["DIE_1_GPU Energy", "nJ", 2_000_000_000]]

        assert power(both, 1) == pytest.approx(3.0)
        assert power([both[0], ["DIE_1_GPU Energy", "?", 1]], 1) is None
        assert power([["DIE_0_CPU Energy", "mJ", 1000]], 1) is None
