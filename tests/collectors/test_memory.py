from __future__ import annotations

import os
import sys
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_sysmetrics.collector import Context, NotHere
from otel_sysmetrics.collectors import memory
from otel_sysmetrics.settings import Settings
from otel_sysmetrics.sources.files import Files
from otel_sysmetrics.sources.processes import WatchedProcess
from tests.trees import Clock, WithoutProc, cgroup2, context, in_cgroup2, stat, write_tree

if TYPE_CHECKING:
    from pathlib import Path

    from otel_sysmetrics.collector import Collector

GIB = 1 << 30
MIB = 1 << 20
MEMINFO = """\
MemTotal:       16777216 kB
MemFree:         1048576 kB
MemAvailable:    4194304 kB
Buffers:          524288 kB
Cached:          2097152 kB
SwapCached:            0 kB
SwapTotal:       4194304 kB
SwapFree:        3145728 kB
HugePages_Total:       0
"""
HOST = {"proc/meminfo": MEMINFO, "proc/5/stat": stat(5, rss=512 * MIB)}


def values(collector: Collector) -> dict[str, float]:
    """Take a sample and return what is known, by tag."""
    return {reading.spec.tag: reading.value for reading in collector.sample() if reading.value is not None}


def collect(files: Files, *, pid: int | None = 5, tree: bool = False, no_cgroup: bool = False) -> dict[str, float]:
    (part,) = memory.parts(context(files, pid, Clock(), tree=tree, no_cgroup=no_cgroup))
    return values(part.probe())


def test_without_a_limit_the_host_is_what_counts(tmp_path: Path) -> None:
    assert collect(write_tree(tmp_path, HOST)) == {
        "proc.memory.rssMB": 512,
        "proc.memory.percent": 100 * 512 / 16384,
        "memory_percent": 75,
        "proc.memory.availableMB": 4096,
        "swap.used": GIB,
        "swap.used_percent": 25,
    }


def limited(limit: str = str(2 * GIB), current: int = GIB + GIB // 2, cache: int = GIB // 2) -> dict[str, str]:
    """Write a process in a v2 cgroup."""
    files = {"memory__max": limit, "memory__current": str(current), "memory__stat": f"anon 1\ninactive_file {cache}"}
    return {**HOST, **in_cgroup2(5, "/job"), **cgroup2("job", memory__events="oom 9\noom_kill 7", **files)}


def test_case_011_a_limit_of_the_cgroup_takes_the_place_of_the_host(tmp_path: Path) -> None:
    sample = collect(write_tree(tmp_path, limited()))

    assert sample["memory_percent"] == 50
    assert sample["proc.memory.availableMB"] == 1024
    assert sample["proc.memory.percent"] == 25
    assert sample["swap.used"] == GIB


@pytest.mark.parametrize("limit", ["max", "9223372036854771712", str(16 * GIB), str(99 * GIB)])
def test_case_011_no_limit_below_the_ram_leaves_the_host(tmp_path: Path, limit: str) -> None:
    sample = collect(write_tree(tmp_path, limited(limit)))

    assert (sample["memory_percent"], sample["proc.memory.availableMB"]) == (75, 4096)


def test_no_cgroup_and_no_process_leave_the_host(tmp_path: Path) -> None:
    files = write_tree(tmp_path, limited())
    host = {"memory_percent": 75, "proc.memory.availableMB": 4096, "swap.used": GIB, "swap.used_percent": 25}

    assert collect(files, pid=None) == host
    assert collect(files, pid=6) == host
    assert collect(files, no_cgroup=True) == {
        **host,
        "proc.memory.rssMB": 512,
        "proc.memory.percent": 100 * 512 / 16384,
    }


def test_a_limit_with_unknown_use_is_not_answered_with_the_host(tmp_path: Path) -> None:
    sample = collect(write_tree(tmp_path, {**limited(), "sys/fs/cgroup/job/memory.current": ""}))

    assert "memory_percent" not in sample
    assert "proc.memory.availableMB" not in sample
    assert sample["proc.memory.percent"] == 25


def test_use_beyond_the_limit_is_full_and_leaves_nothing(tmp_path: Path) -> None:
    sample = collect(write_tree(tmp_path, limited(current=3 * GIB)))

    assert (sample["memory_percent"], sample["proc.memory.availableMB"]) == (100, 0)


def test_case_002_a_tree_is_the_sum_of_its_processes_and_may_pass_its_limit(tmp_path: Path) -> None:
    children = {
        f"proc/{pid}/stat": stat(pid, parent=5, rss=GIB, state=state) for pid, state in ((6, "S"), (7, "S"), (8, "Z"))
    }
    files = write_tree(tmp_path, {**limited(), **children})

    assert collect(files)["proc.memory.rssMB"] == 512
    assert collect(files, tree=True)["proc.memory.rssMB"] == 512 + 2048
    assert collect(files, tree=True)["proc.memory.percent"] == 125


def test_unknown_resident_memory_is_absent(tmp_path: Path) -> None:
    sample = collect(write_tree(tmp_path, {**HOST, "proc/5/stat": stat(5, rss=0)}))

    assert not [tag for tag in sample if tag in {"proc.memory.rssMB", "proc.memory.percent"}]


def test_kills_count_from_the_first_look_and_not_those_of_another_cgroup(tmp_path: Path) -> None:
    files = write_tree(tmp_path, limited())
    clock = Clock()
    collector = memory.MemoryCollector(context(files, 5, clock))

    def kills() -> float:
        clock.now += 1
        return values(collector)["proc.memory.oomKills"]

    assert kills() == 0
    write_tree(tmp_path, cgroup2("job", memory__events="oom_kill 9"))
    assert kills() == 2
    write_tree(tmp_path, {**in_cgroup2(5, "/other"), **cgroup2("other", memory__events="oom_kill 400")})
    assert kills() == 2
    write_tree(tmp_path, cgroup2("other", memory__events="oom_kill 401"))
    assert kills() == 3


def test_kernels_that_do_not_say_what_is_available_are_estimated(tmp_path: Path) -> None:
    old = "".join(line for line in MEMINFO.splitlines(keepends=True) if "MemAvailable" not in line)

    assert collect(write_tree(tmp_path, {"proc/meminfo": old}), pid=None)["proc.memory.availableMB"] == 3584


@pytest.mark.parametrize("lost", ["MemTotal", "MemFree"])
def test_what_cannot_be_read_is_absent_and_the_rest_is_there(tmp_path: Path, lost: str) -> None:
    files = write_tree(tmp_path, {"proc/meminfo": MEMINFO.replace("MemAvailable", "X").replace(f"{lost}:", "Y:")})

    sample = collect(files, pid=None)

    assert "memory_percent" not in sample
    assert ("proc.memory.availableMB" in sample) == (lost == "MemTotal")
    assert sample["swap.used_percent"] == 25


def test_no_more_is_available_than_there_is(tmp_path: Path) -> None:
    files = write_tree(tmp_path, {"proc/meminfo": "MemTotal: 2048 kB\nMemAvailable: 4096 kB\n"})

    assert collect(files, pid=None) == {"memory_percent": 0, "proc.memory.availableMB": 2}


def test_a_machine_without_swap_uses_none_and_has_no_share_of_it(tmp_path: Path) -> None:
    files = write_tree(tmp_path, {"proc/meminfo": "SwapTotal: 0 kB\nSwapFree: 0 kB\n"})

    assert collect(files, pid=None) == {"swap.used": 0}


@given(st.text() | st.text(alphabet="MemTotalAvibSwpFr: 0123456789-kB\n"))
def test_no_text_breaks_the_reading_of_meminfo(text: str) -> None:
    machine = memory.parse_meminfo(text)

    assert machine.total != 0
    sizes = (machine.total, machine.available, machine.swap_total, machine.swap_used)
    assert all(size is None or (size >= 0 and any(map(str.isdecimal, text))) for size in sizes)


def test_case_010_swap_needs_no_vmstat_and_warns_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)

    assert collect(write_tree(tmp_path, HOST))["swap.used"] == GIB


class PsutilError(Exception):
    """What every exception of psutil is."""


def elsewhere(tmp_path: Path, *off: str) -> dict[str, float]:
    (part,) = memory.parts(context(WithoutProc(tmp_path), None, Clock(), off=off))
    return values(part.probe())


def test_case_003_a_mac_shows_what_psutil_knows_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ram, swap = SimpleNamespace(total=16 * GIB, available=4 * GIB), SimpleNamespace(total=GIB, used=GIB // 4)
    stub = SimpleNamespace(Error=PsutilError, virtual_memory=lambda: ram, swap_memory=lambda: swap)
    monkeypatch.setitem(sys.modules, "psutil", stub)

    host = {"memory_percent": 75, "proc.memory.availableMB": 4096}
    assert elsewhere(tmp_path) == host
    assert elsewhere(tmp_path, "swap.used") == {**host, "swap.used": GIB // 4, "swap.used_percent": 25}


def test_case_004_functions_that_a_platform_lacks_are_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psutil", SimpleNamespace(Error=PsutilError))

    with pytest.raises(NotHere):
        elsewhere(tmp_path, "swap.used")


@pytest.mark.skipif(not os.path.exists("/proc/meminfo"), reason="there is no /proc here")
def test_this_machine_is_what_psutil_sees() -> None:
    files = Files("/")
    watched = WatchedProcess(files, os.getpid, tree=False, clock=time.monotonic)
    settings = Settings(no_cgroup=True)
    sample = values(memory.MemoryCollector(Context(settings, files, watched, lambda _: True, time.monotonic)))
    theirs = psutil.virtual_memory()

    assert sample["memory_percent"] == pytest.approx(100 * (1 - theirs.available / theirs.total), abs=2)
    assert sample["proc.memory.availableMB"] == pytest.approx(theirs.available / MIB, rel=0.05)
    assert sample["proc.memory.rssMB"] == pytest.approx(psutil.Process().memory_info().rss / MIB, rel=0.05)


def test_doctor_is_told_the_size_of_the_machine_and_of_the_cgroup(tmp_path: Path) -> None:
    limit = memory.MemoryCollector(context(write_tree(tmp_path, limited()), 5, Clock()))

    assert limit.describe() == "16.0 GiB of memory, 2.0 GiB of it for this cgroup"
    assert "unknown" in memory.MemoryCollector(context(Files(str(tmp_path / "none")), 5, Clock())).describe()
