from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_sysmetrics.catalog import CATALOG
from otel_sysmetrics.collector import Context
from otel_sysmetrics.collectors import cpu, memory
from otel_sysmetrics.settings import Settings
from otel_sysmetrics.sources.files import Files
from otel_sysmetrics.sources.processes import WatchedProcess
from otel_sysmetrics.sources.temperatures import best_class
from tests.trees import TICKS, Clock, WithoutProc, cgroup2, context, in_cgroup2, stat, write_tree

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from otel_sysmetrics.collector import Collector

LOADS = ("system.load1", "system.load5", "system.load15")
OFF = ("cpu.{cpu}.cpu_percent", "cpu.avg_temp", *LOADS)
STAT = "cpu  9 9 9 9\ncpu0 9 9 9 9\ncpu1 9 9 9 9\ncpu2 9 9 9 9\ncpu3 9 9 9 9\nintr 1 2\nctxt 3\n"


def values(collector: Collector) -> dict[str, float]:
    """Take a sample and return what is known, by filled tag."""
    sample = collector.sample()
    return {reading.spec.fill(reading.labels): reading.value for reading in sample if reading.value is not None}


class Machine:
    """A machine of four CPUs with process 5 on it, and the collector that looks at it every ten seconds."""

    def __init__(self, root: Path, *, tree: bool = False, no_cgroup: bool = False, off: tuple[str, ...] = ()) -> None:
        self._root = root
        self._clock = Clock(1000.0)
        self.write({"proc/stat": STAT, "proc/5/stat": stat(5)})
        self.files = Files(str(root))
        (part,) = cpu.parts(context(self.files, 5, self._clock, tree=tree, no_cgroup=no_cgroup, off=off))
        self.collector = part.probe()

    def write(self, files: Mapping[str, str]) -> Machine:
        """Change files."""
        write_tree(self._root, {"proc/uptime": f"{self._clock.now} 9.9\n", **files})
        return self

    def look(self, after: float = 10.0) -> dict[str, float]:
        """Sample after so many seconds."""
        self._clock.now += after
        self.write({})
        return values(self.collector)

    def used(self, seconds: float) -> float | None:
        """Return the process's share after it used so many CPU seconds in ten."""
        self.write({"proc/5/stat": stat(5)}).look()
        return self.write({"proc/5/stat": stat(5, cpu=seconds)}).look().get("cpu")


def allowed(cpus: str) -> str:
    """Write /proc/<pid>/status as far as CPUs are concerned."""
    return f"Name:\tpython\nThreads:\t1\nCpus_allowed:\tff\nCpus_allowed_list:\t{cpus}\nMems_allowed_list:\t0\n"


def test_every_row_of_the_catalogue_is_declared() -> None:
    for kind, module in (("cpu", cpu), ("memory", memory)):
        (part,) = module.parts(context(Files("/nowhere"), None, Clock()))
        assert set(part.specs) == {spec for spec in CATALOG.values() if kind in spec.collectors}
        assert (part.kind, part.name) == (kind, None)


def test_case_007_first_cpu_value_is_absent(tmp_path: Path) -> None:
    machine = Machine(tmp_path, off=OFF)

    assert machine.look() == {"proc.cpu.threads": 1}


def test_case_007_two_looks_at_the_same_moment_give_no_share(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.look()

    assert machine.write({"proc/5/stat": stat(5, cpu=9)}).look(after=0) == {"proc.cpu.threads": 1}


def test_a_process_that_keeps_all_of_its_cpus_busy_shows_100(tmp_path: Path) -> None:
    machine = Machine(tmp_path)

    assert machine.used(10) == pytest.approx(25)
    assert machine.used(40) == pytest.approx(100)
    assert machine.used(40.5) == 100


def test_usable_cpus_are_the_least_of_affinity_quota_and_logical_cpus(tmp_path: Path) -> None:
    machine = Machine(tmp_path)

    machine.write({"proc/5/status": allowed("0-511")})
    assert machine.used(5) == pytest.approx(12.5)
    machine.write({"proc/5/status": allowed("0,2")})
    assert machine.used(5) == pytest.approx(25)
    machine.write({**in_cgroup2(5, "/job"), **cgroup2("job", cpu__max="50000 100000")})
    assert machine.used(5) == pytest.approx(100)
    machine.write(cgroup2("job", cpu__max="800000 100000"))
    assert machine.used(5) == pytest.approx(25)


def test_a_main_thread_bound_to_one_cpu_does_not_speak_for_the_others(tmp_path: Path) -> None:
    threads = {f"proc/5/task/{5 + number}/status": allowed(str(number)) for number in range(4)}
    machine = Machine(tmp_path).write({"proc/5/status": allowed("0"), **threads})

    assert machine.used(40) == pytest.approx(100)
    assert machine.used(10) == pytest.approx(25)


def test_no_cgroup_switches_quota_and_throttling_off(tmp_path: Path) -> None:
    job = cgroup2("job", cpu__max="50000 100000", cpu__stat="nr_periods 10\nnr_throttled 1")
    machine = Machine(tmp_path, no_cgroup=True).write({**in_cgroup2(5, "/job"), **job})

    assert machine.used(5) == pytest.approx(12.5)
    machine.write(cgroup2("job", cpu__stat="nr_periods 20\nnr_throttled 2"))
    assert "proc.cpu.throttledPercent" not in machine.look()


def throttle(machine: Machine, periods: int, throttled: int) -> float | None:
    machine.write(cgroup2("job", cpu__stat=f"nr_periods {periods}\nnr_throttled {throttled}"))
    return machine.look().get("proc.cpu.throttledPercent")


def test_throttling_is_the_share_of_the_periods_since_the_last_look(tmp_path: Path) -> None:
    machine = Machine(tmp_path).write({**in_cgroup2(5, "/job"), **cgroup2("job", cpu__max="50000 100000")})

    assert throttle(machine, 1000, 900) is None
    assert throttle(machine, 1100, 925) == 25
    assert throttle(machine, 1100, 925) is None
    assert throttle(machine, 50, 5) is None
    assert throttle(machine, 150, 5) == 0
    assert throttle(machine, 160, 4) is None
    machine.write(cgroup2("job", cpu__max="max 100000"))
    assert throttle(machine, 250, 105) is None


def test_a_process_that_moved_to_another_cgroup_has_no_throttling_yet(tmp_path: Path) -> None:
    limits = {"cpu__max": "50000 100000"}
    machine = Machine(tmp_path).write(
        {**in_cgroup2(5, "/a"), **cgroup2("a", cpu__stat="nr_periods 1\nnr_throttled 1", **limits)}
    )
    machine.look()
    machine.write({**in_cgroup2(5, "/b"), **cgroup2("b", cpu__stat="nr_periods 9\nnr_throttled 9", **limits)})

    assert "proc.cpu.throttledPercent" not in machine.look()


def test_a_tree_keeps_what_a_child_used_before_it_ended(tmp_path: Path) -> None:
    machine = Machine(tmp_path, tree=True).write({"proc/6/stat": stat(6, parent=5, cpu=100, threads=3)})
    assert machine.look()["proc.cpu.threads"] == 4

    machine.write({"proc/6/stat": stat(6, parent=1, cpu=105)}).write({"proc/5/stat": stat(5, cpu=2, reaped=106)})

    assert machine.look()["cpu"] == pytest.approx(100 * (2 + 6) / 10 / 4)
    assert machine.look()["cpu"] == 0


def test_an_adopted_process_makes_no_spike_and_a_newborn_counts(tmp_path: Path) -> None:
    machine = Machine(tmp_path, tree=True)
    machine.look()

    machine.write(
        {"proc/7/stat": stat(7, parent=5, cpu=30, start=100), "proc/8/stat": stat(8, parent=5, cpu=4, start=1012)}
    )

    assert machine.look()["cpu"] == pytest.approx(100 * 4 / 10 / 4)


def test_without_a_tree_children_do_not_count(tmp_path: Path) -> None:
    machine = Machine(tmp_path).write({"proc/6/stat": stat(6, parent=5)})
    machine.look()

    machine.write({"proc/5/stat": stat(5, reaped=20), "proc/6/stat": stat(6, parent=5, cpu=5)})

    assert machine.look() == {"cpu": 0, "proc.cpu.threads": 1}


def test_case_001_a_process_that_ended_takes_only_its_own_tags_along(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.look()
    machine.write(
        {"proc/5/stat": stat(5, state="Z", cpu=9, rss=0), "proc/stat": STAT.replace("cpu  9 9 9 9", "cpu  19 9 9 9")}
    )

    assert machine.look() == {"cpu.cpu_percent": 100}


def test_another_process_under_the_same_pid_starts_anew(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.look()

    assert "cpu" not in machine.write({"proc/5/stat": stat(5, cpu=300, start=1005)}).look()


def test_busy_is_what_is_neither_idle_nor_waiting_and_guests_count_once(tmp_path: Path) -> None:
    machine = Machine(tmp_path, off=OFF[:1])
    machine.write({"proc/stat": "cpu  100 0 0 100 100 0 0 0 50 0\ncpu3 0 0 0 0\n"}).look()
    machine.write({"proc/stat": "cpu  120 2 3 130 140 1 2 2 70 0\ncpu3 30 0 0 10\n"})

    sample = machine.look()

    assert sample["cpu.cpu_percent"] == pytest.approx(100 * (20 + 2 + 3 + 1 + 2 + 2) / 100)
    assert sample["cpu.3.cpu_percent"] == 75


def test_a_cpu_keeps_its_own_number_over_holes(tmp_path: Path) -> None:
    machine = Machine(tmp_path, off=OFF[:1])
    machine.write({"proc/stat": "cpu  0 0 0 0\ncpu0 0 0 0 0\ncpu2 0 0 0 0\n"}).look()
    machine.write({"proc/stat": "cpu  1 0 0 1\ncpu2 1 0 0 3\ncpu7 9 0 0 9\n"})

    sample = machine.collector.sample()
    machine.write({}).look()

    cores = {reading.labels["cpu"]: reading.value for reading in sample if reading.spec.tag == OFF[0]}
    assert cores == {2: 25, 7: None}


def test_case_008_counters_that_run_backwards_stay_within_0_and_100() -> None:
    assert cpu.busy_share((10, 0, 0, 100, 50), (20, 0, 0, 90, 40)) == 100
    assert cpu.busy_share((10, 0, 0, 100, 50), (5, 0, 0, 110, 50)) == 0
    assert cpu.busy_share((10, 0, 0, 100, 50), (10, 0, 0, 100, 50)) is None
    assert cpu.busy_share((10, 0, 0, 100, 50), (0, 0, 0, 0, 0)) is None


TIMES = st.lists(st.floats(0, 1e15), min_size=4, max_size=8).map(tuple)


@given(TIMES, TIMES)
def test_case_008_a_share_is_a_share(before: tuple[float, ...], now: tuple[float, ...]) -> None:
    share = cpu.busy_share(before, now)

    assert share is None or 0 <= share <= 100


@given(st.text() | st.text(alphabet="cpu 0123456789-.\n"), st.text(alphabet="0123456789-, \n") | st.text())
def test_no_text_breaks_a_parser(text: str, cpus: str) -> None:
    assert all(min(times) >= 0 for times in cpu.parse_cpu_times(text).values())
    assert all(number >= 0 for number in cpu.parse_cpu_list(cpus))


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0-3", 4),
        ("0,2", 2),
        ("0-1,8-9,20", 5),
        ("7\n", 1),
        ("", 0),
        ("all", 0),
        ("0-", 0),
        ("0-99999999999", 0),
        ("3,1", 0),
        ("0-9,9-12", 0),
    ],
)
def test_a_list_of_cpus_is_counted(text: str, count: int) -> None:
    assert len(cpu.parse_cpu_list(text)) == count


def test_case_014_a_hidden_stat_file_costs_only_what_stands_in_it(tmp_path: Path) -> None:
    machine = Machine(tmp_path, off=OFF).write({"proc/5/status": allowed("0-1"), "proc/loadavg": "0.5 1.25 2 1/99 7\n"})
    (tmp_path / "proc/stat").unlink()
    loads = dict(zip(LOADS, (0.5, 1.25, 2), strict=True))

    assert machine.look() == {"proc.cpu.threads": 1, **loads}
    assert machine.used(5) == pytest.approx(25)
    assert machine.collector.describe() == "CPUs that the machine does not show, 2 of them for process 5"


def test_case_006_nothing_is_logged_over_what_is_denied(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    machine = Machine(tmp_path, off=OFF)
    for path in ("proc/stat", "proc/5/stat", "proc/5/status", "proc/5/cgroup", "proc/loadavg"):
        (tmp_path / path).unlink(missing_ok=True)
        (tmp_path / path).mkdir()

    assert [machine.look() for _ in range(100)] == [{}] * 100
    assert caplog.records == []


def sensors(chips: Mapping[str, Mapping[str, int | str]], zones: Mapping[str, int] | None = None) -> dict[str, str]:
    """Write hwmon chips by name, each with temperatures in m°C by label, and thermal zones by type."""
    files: dict[str, str] = {}
    for number, (name, labels) in enumerate(chips.items()):
        folder = f"sys/class/hwmon/hwmon{number}"
        files[f"{folder}/name"] = f"{name}\n"
        for index, (label, value) in enumerate(labels.items(), 1):
            files[f"{folder}/temp{index}_input"] = f"{value}\n"
            if label:
                files[f"{folder}/temp{index}_label"] = f"{label}\n"
    for number, (name, value) in enumerate((zones or {}).items()):
        files[f"sys/class/thermal/thermal_zone{number}/type"] = f"{name}\n"
        files[f"sys/class/thermal/thermal_zone{number}/temp"] = f"{value}\n"
    return files


@pytest.mark.parametrize(
    ("files", "temperature"),
    [
        (sensors({"coretemp": {"Package id 0": 50000, "Package id 1": 60000, "Core 0": 90000}}), 55),
        (sensors({"coretemp": {"Package id 0": 0, "Core 0": 40000, "Core 1": 42000}}), 41),
        (sensors({"k10temp": {"Tctl": 80000, "Tdie": 70000, "Tccd1": 60000}}), 70),
        (sensors({"k10temp": {"Tctl": 80500, "Tccd1": 60000, "Tccd2": 62000}}), 80.5),
        (sensors({"k10temp": {"": 66000}, "nvme": {"Composite": 33000}}), 66),
        (sensors({"k10temp": {"Tctl": 255000, "Tccd1": 60000, "Tccd2": -60000}}), 60),
        (sensors({"nvme": {"Composite": 33000}}, {"acpitz": 20000, "x86_pkg_temp": 47000}), 47),
        (sensors({"cpu_thermal": {"": 51000}}, {"cpu-thermal": 52000}), 51),
        (sensors({}, {"cpu-thermal": 52000, "soc-thermal": 54000, "gpu-thermal": 90000}), 53),
        (sensors({"coretemp": {"Core 0": "", "Core 1": 44000, "Core 2": "9" * 500}}), 44),
        (sensors({"coretemp": {"Core 0": -128000}}), None),
        ({}, None),
    ],
)
def test_temperature_is_the_mean_of_the_best_class_of_sensors(
    tmp_path: Path, files: dict[str, str], temperature: float | None
) -> None:
    machine = Machine(tmp_path, off=OFF).write(files)

    assert machine.look().get("cpu.avg_temp") == temperature
    assert "cpu.avg_temp" not in values(cpu.CpuCollector(context(machine.files, 5, Clock())))


@given(st.lists(st.tuples(st.sampled_from(["coretemp_core_1", "k10temp_tctl", "x"]), st.floats())))
def test_no_reading_makes_an_implausible_temperature(readings: list[tuple[str, float]]) -> None:
    temperature = best_class(readings)

    assert temperature is None or 0 < temperature <= 150


class PsutilError(Exception):
    """What every exception of psutil is."""


def stub_psutil(monkeypatch: pytest.MonkeyPatch, **functions: object) -> None:
    monkeypatch.setitem(sys.modules, "psutil", SimpleNamespace(Error=PsutilError, **functions))


def broken(*_: object, **__: object) -> object:
    raise OSError(errno.EIO, "Input/output error")


def test_case_005_a_sensor_that_fails_costs_the_temperature_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub_psutil(monkeypatch, sensors_temperatures=broken, cpu_times=broken)
    collector = cpu.CpuCollector(context(WithoutProc(tmp_path), None, Clock(), off=OFF))

    assert set(values(collector)) == set(LOADS)


def test_case_003_times_of_a_mac_have_fewer_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter(
        [SimpleNamespace(user=10.0, nice=0.0, system=5.0, idle=85.0), SimpleNamespace(user=12.0, system=6.0, idle=92.0)]
    )
    sensor = SimpleNamespace(label="Core 0", current=40.0)
    stub_psutil(
        monkeypatch,
        cpu_times=lambda percpu=False: [] if percpu else next(looks),
        sensors_temperatures=lambda: {"coretemp": [sensor]},
    )
    collector = cpu.CpuCollector(context(WithoutProc(tmp_path), None, Clock(), off=("cpu.avg_temp",)))

    assert values(collector) == {"cpu.avg_temp": 40}
    assert values(collector) == {"cpu.cpu_percent": 30, "cpu.avg_temp": 40}


def test_case_004_functions_that_a_platform_lacks_are_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub_psutil(monkeypatch)
    monkeypatch.delattr(os, "getloadavg")

    assert values(cpu.CpuCollector(context(WithoutProc(tmp_path), 5, Clock(), off=OFF))) == {}


def test_without_proc_the_share_follows_psutil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spent = SimpleNamespace(user=1.0, system=0.0)
    process = SimpleNamespace(
        pid=5, create_time=lambda: 9.0, cpu_times=lambda: spent, num_threads=lambda: 3, cpu_affinity=lambda: [0, 1]
    )
    idle = SimpleNamespace(user=0.0, system=0.0, idle=9.0)
    stub_psutil(monkeypatch, Process=lambda _: process, cpu_times=lambda percpu=False: [idle] * 4 if percpu else idle)
    clock = Clock()
    collector = cpu.CpuCollector(context(WithoutProc(tmp_path), 5, clock))

    assert values(collector) == {"proc.cpu.threads": 3}
    clock.now, spent.user = 10.0, 6.0
    assert values(collector) == {"proc.cpu.threads": 3, "cpu": 25}
    assert collector.describe() == "4 logical CPUs, 2 of them for process 5"


def test_a_root_that_is_not_our_own_knows_nothing_of_this_machine(tmp_path: Path) -> None:
    assert values(cpu.CpuCollector(context(Files(str(tmp_path)), os.getpid(), Clock(), off=OFF))) == {}


def here(pid: int, *, tree: bool) -> Context:
    files = Files("/")
    watched = WatchedProcess(files, lambda: pid, tree=tree, clock=time.monotonic)
    return Context(Settings(no_cgroup=True), files, watched, lambda _: True, time.monotonic)


BURN = """
import os, sys
def burn(seconds):
    end = sum(os.times()[:2]) + seconds
    while sum(os.times()[:2]) < end:
        pass
print("ready", flush=True)
for line in sys.stdin:
    if not os.fork():
        burn(0.3)
        os._exit(0)
    os.wait()
    burn(0.2)
    print("done", flush=True)
"""


@pytest.fixture
def burner() -> Iterator[subprocess.Popen[str]]:
    """Start a process that uses 0.2 s of CPU time itself and 0.3 s in a child, whenever it is told to."""
    with subprocess.Popen(
        [sys.executable, "-c", BURN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        assert process.stdout
        process.stdout.readline()
        yield process


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="there is no /proc here")
@pytest.mark.parametrize(("tree", "seconds"), [(False, 0.2), (True, 0.5)])
def test_a_real_process_is_charged_what_it_used(burner: subprocess.Popen[str], *, tree: bool, seconds: float) -> None:
    collector = cpu.CpuCollector(here(burner.pid, tree=tree))
    started, _ = time.monotonic(), values(collector)
    assert burner.stdin
    assert burner.stdout
    burner.stdin.write("go\n")
    burner.stdout.readline()
    sample, window = values(collector), time.monotonic() - started

    used = sample["cpu"] / 100 * window * len(psutil.Process(burner.pid).cpu_affinity())
    assert used == pytest.approx(seconds, abs=3 / TICKS + 0.05)
    assert sample["cpu.cpu_percent"] > 0


@pytest.mark.skipif(not os.path.exists("/proc/loadavg"), reason="there is no /proc here")
def test_this_machine_is_what_psutil_sees() -> None:
    sample = values(cpu.CpuCollector(here(os.getpid(), tree=False)))

    assert [sample[tag] for tag in LOADS] == pytest.approx(psutil.getloadavg(), abs=0.5)
    assert cpu.CpuCollector(here(os.getpid(), tree=False)).describe() == (
        f"{psutil.cpu_count()} logical CPUs, {len(psutil.Process().cpu_affinity())} of them for process {os.getpid()}"
    )
