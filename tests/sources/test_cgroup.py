from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_sysmetrics.sources.cgroup import (
    Cgroups,
    CpuControl,
    MemoryControl,
    Mount,
    lineages,
    parse_cpu_max,
    parse_limit,
    parse_memberships,
    parse_mounts,
    visible,
)
from tests.trees import Clock, cgroup2, in_cgroup2, write_tree

if TYPE_CHECKING:
    from pathlib import Path

    from otel_sysmetrics.sources.cgroup import Lineage
    from otel_sysmetrics.sources.files import Files

GIB = 1 << 30
V1_NO_LIMIT = "9223372036854771712"

DOCKER_V1 = """\
600 590 0:45 / /sys/fs/cgroup rw,nosuid - tmpfs tmpfs rw,mode=755
601 600 0:30 /docker/c0ffee /sys/fs/cgroup/cpu,cpuacct ro,nosuid master:17 - cgroup cgroup rw,cpu,cpuacct
602 600 0:33 /docker/c0ffee /sys/fs/cgroup/memory ro,nosuid master:21 - cgroup cgroup rw,memory
603 600 0:28 /docker/c0ffee /sys/fs/cgroup/systemd ro - cgroup cgroup rw,xattr,name=systemd
"""
DOCKER_V1_SELF = (
    "12:cpu,cpuacct:/docker/c0ffee\n4:memory:/docker/c0ffee\n1:name=systemd:/docker/c0ffee\n0::/system.slice\n"
)

HYBRID = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
33 31 0:30 / /sys/fs/cgroup/c\\040p rw,relatime - cgroup cgroup rw,cpu
35 31 0:32 / /mnt/mem rw,relatime - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""


def memory(files: Files, *, pid: int = 5, ram: int | None = 64 * GIB) -> MemoryControl | None:
    return Cgroups(files, "memory", Clock()).memory(pid, ram)


def cpu(files: Files, pid: int = 5) -> CpuControl | None:
    return Cgroups(files, "cpu", Clock()).cpu(pid)


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        *[("1073741824\n", GIB), ("max\n", None), ("-1", None), (V1_NO_LIMIT, None), ("9223372036854710272", None)],
        *[("9223372036854775807", None), ("0", None), ("", None), ("12 kB", None), (None, None)],
    ],
)
def test_only_a_finite_number_of_bytes_is_a_limit(text: str | None, limit: int | None) -> None:
    assert parse_limit(text) == limit


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        *[("150000 100000\n", 1.5), ("50000 100000", 0.5), ("max 100000", None), ("200000", 2.0)],
        *[("100000 0", None), ("0 100000", None), ("", None), (None, None), ("x y", None), ("100000 x", None)],
    ],
)
def test_a_cpu_quota_may_be_a_fraction(text: str | None, cpus: float | None) -> None:
    assert parse_cpu_max(text) == cpus


TEXTS = st.text() | st.text(alphabet="0123456789:/,. -max\\\ncgroup2")


@given(TEXTS, TEXTS)
def test_no_text_breaks_a_parser_or_becomes_a_limit_of_zero(text: str, other: str) -> None:
    assert parse_limit(text) != 0
    assert parse_cpu_max(text) != 0
    mounts = parse_mounts(f"1 2 3 {text} {other} rw - cgroup2 cgroup2 rw\n{other}")
    for lineage in lineages(parse_memberships(f"0::{text}\n{other}"), mounts, "memory"):
        assert lineage.directories


V2_AT_ROOT = Mount("/", "/sys/fs/cgroup", frozenset(), unified=True)
V2_IN_CONTAINER = Mount("/docker/c0ffee", "/sys/fs/cgroup", frozenset(), unified=True)
V2_FROM_OUTSIDE = Mount("/../../..", "/host/cgroup", frozenset(), unified=True)


@pytest.mark.parametrize(
    ("path", "mount", "directories"),
    [
        ("/a/b", V2_AT_ROOT, ("/sys/fs/cgroup/a/b", "/sys/fs/cgroup/a", "/sys/fs/cgroup")),
        ("/", V2_AT_ROOT, ("/sys/fs/cgroup",)),
        ("/docker/c0ffee", V2_IN_CONTAINER, ("/sys/fs/cgroup",)),
        ("/docker/c0ffee/x", V2_IN_CONTAINER, ("/sys/fs/cgroup/x", "/sys/fs/cgroup")),
        ("/docker/other", V2_IN_CONTAINER, ()),
        ("/docker/c0ffee2", V2_IN_CONTAINER, ()),
        ("/../sibling", V2_AT_ROOT, ()),
        ("/", V2_FROM_OUTSIDE, ("/host/cgroup",)),
        ("/../sibling", V2_FROM_OUTSIDE, ("/host/cgroup",)),
        ("/../../../user.slice", V2_FROM_OUTSIDE, ("/host/cgroup/user.slice", "/host/cgroup")),
        ("/../../../../above", V2_FROM_OUTSIDE, ()),
    ],
)
def test_a_cgroup_is_found_from_inside_and_outside_of_namespaces(
    path: str, mount: Mount, directories: tuple[str, ...]
) -> None:
    assert visible(path, mount) == directories


def only(memberships: str, mounts: str, controller: str) -> Lineage:
    (lineage,) = lineages(parse_memberships(memberships), parse_mounts(mounts), controller)
    return lineage


def test_docker_on_v1_shows_its_cgroup_as_the_root_of_the_mount() -> None:
    lineage = only(DOCKER_V1_SELF, DOCKER_V1, "cpu")

    assert (lineage.directories, lineage.unified) == (("/sys/fs/cgroup/cpu,cpuacct",), False)


def test_hybrid_takes_each_controller_from_where_it_is() -> None:
    memberships = "4:memory:/job:1/step\n1:cpu:/\n0::/user.slice\n"

    assert only(memberships, HYBRID, "memory").directories == ("/mnt/mem/job:1/step", "/mnt/mem/job:1", "/mnt/mem")
    assert only(memberships, HYBRID, "cpu").directories == ("/sys/fs/cgroup/c p",)
    assert only(memberships, HYBRID, "io") == only("0::/user.slice", HYBRID, "memory")
    assert only(memberships, HYBRID, "io").unified


def test_the_tightest_ancestor_is_the_limit_and_its_usage_counts(tmp_path: Path) -> None:
    tree = {
        **in_cgroup2(5, "/pod/job/step"),
        **cgroup2("pod", memory__max="max", memory__current=str(50 * GIB)),
        **cgroup2(
            "pod/job", memory__max=str(2 * GIB), memory__current=str(GIB), memory__stat="file 9\ninactive_file 1024"
        ),
        **cgroup2("pod/job/step", memory__max=str(3 * GIB), memory__current="4096"),
    }

    control = memory(write_tree(tmp_path, tree))

    assert control is not None
    assert (control.limit, control.used) == (2 * GIB, GIB - 1024)


def test_of_equal_limits_the_outer_one_counts_as_it_is_reached_first(tmp_path: Path) -> None:
    tree = {
        **in_cgroup2(5, "/pod/job"),
        **cgroup2("pod", memory__max=str(GIB), memory__current="900", memory__stat="inactive_file 0"),
        **cgroup2("pod/job", memory__max=str(GIB), memory__current="100", memory__stat="inactive_file 0"),
    }

    control = memory(write_tree(tmp_path, tree))

    assert control is not None
    assert control.used == 900


@pytest.mark.parametrize(("limit", "ram"), [("max", 64 * GIB), (str(64 * GIB), 64 * GIB), (V1_NO_LIMIT, None)])
def test_case_011_no_limit_is_none(tmp_path: Path, limit: str, ram: int | None) -> None:
    tree = {
        **in_cgroup2(5, "/a"),
        **cgroup2("a", memory__max=limit, memory__current="4096", memory__events="oom_kill 3"),
    }

    assert memory(write_tree(tmp_path, tree), ram=ram) == MemoryControl(None, None, 3, "/sys/fs/cgroup/a")


def test_case_011_v1_knows_limits_of_cgroups_that_a_container_does_not_see(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/memory"
    tree = {
        "proc/5/cgroup": DOCKER_V1_SELF,
        "proc/5/mountinfo": DOCKER_V1,
        f"{group}/memory.limit_in_bytes": V1_NO_LIMIT,
        f"{group}/memory.usage_in_bytes": "500000\n",
        f"{group}/memory.stat": f"inactive_file 7\nhierarchical_memory_limit {GIB}\ntotal_inactive_file 100000\n",
        f"{group}/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
    }
    files = write_tree(tmp_path, tree)

    assert memory(files) == MemoryControl(GIB, 400_000, 2, "/sys/fs/cgroup/memory")
    write_tree(tmp_path, {f"{group}/memory.limit_in_bytes": str(GIB // 2)})
    assert memory(files) == MemoryControl(GIB // 2, 400_000, 2, "/sys/fs/cgroup/memory")


def test_case_011_missing_files_are_unknown(tmp_path: Path) -> None:
    assert memory(write_tree(tmp_path, {})) is None
    assert memory(write_tree(tmp_path, {"proc/5/cgroup": "0::/a\n"})) is None
    bare = write_tree(tmp_path, in_cgroup2(5, "/a"))
    assert memory(bare) == MemoryControl(None, None, None, "")
    assert cpu(bare) == CpuControl(None, None, None, "")
    limited = write_tree(tmp_path, cgroup2("a", memory__max=str(GIB)))
    assert memory(limited) == MemoryControl(GIB, None, None, "")


def test_a_sandbox_that_does_not_tell_its_cache_counts_all_of_its_memory(tmp_path: Path) -> None:
    tree = {**in_cgroup2(5, "/"), **cgroup2("", memory__max=str(GIB), memory__current="4096")}

    control = memory(write_tree(tmp_path, tree))

    assert control is not None
    assert control.used == 4096


def test_more_cache_than_usage_is_not_negative(tmp_path: Path) -> None:
    tree = cgroup2("", memory__max=str(GIB), memory__current="4096", memory__stat="inactive_file 8192")

    control = memory(write_tree(tmp_path, {**in_cgroup2(5, "/"), **tree}))

    assert control is not None
    assert control.used == 0


def test_limits_are_read_again_and_a_moved_process_is_followed(tmp_path: Path) -> None:
    files = write_tree(tmp_path, {**in_cgroup2(5, "/a"), **cgroup2("a", cpu__max="100000 100000")})
    cgroups = Cgroups(files, "cpu", Clock())

    assert cgroups.cpu(5) == CpuControl(1.0, None, None, "/sys/fs/cgroup/a")
    write_tree(tmp_path, cgroup2("a", cpu__max="300000 100000"))
    assert cgroups.cpu(5) == CpuControl(3.0, None, None, "/sys/fs/cgroup/a")
    write_tree(tmp_path, {**in_cgroup2(5, "/b"), **cgroup2("b", cpu__max="700000 100000")})
    assert cgroups.cpu(5) == CpuControl(7.0, None, None, "/sys/fs/cgroup/b")


def test_throttling_belongs_to_the_nearest_cgroup_with_a_quota(tmp_path: Path) -> None:
    tree = {
        **in_cgroup2(5, "/pod/job/step"),
        **cgroup2("pod", cpu__max="100000 100000", cpu__stat="nr_periods 9\nnr_throttled 9"),
        **cgroup2("pod/job", cpu__max="400000 100000", cpu__stat="usage_usec 1\nnr_periods 50\nnr_throttled 5"),
        **cgroup2("pod/job/step", cpu__max="max 100000", cpu__stat="usage_usec 1"),
    }

    assert cpu(write_tree(tmp_path, tree)) == CpuControl(1.0, 50, 5, "/sys/fs/cgroup/pod/job")


def test_v1_quota_and_throttling_are_read_from_the_combined_mount(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/cpu,cpuacct"
    tree = {
        "proc/5/cgroup": DOCKER_V1_SELF,
        "proc/5/mountinfo": DOCKER_V1,
        f"{group}/cpu.cfs_quota_us": "250000\n",
        f"{group}/cpu.cfs_period_us": "100000\n",
        f"{group}/cpu.stat": "nr_periods 8\nnr_throttled 2\nthrottled_time 99\n",
    }
    files = write_tree(tmp_path, tree)

    assert cpu(files) == CpuControl(2.5, 8, 2, "/sys/fs/cgroup/cpu,cpuacct")
    write_tree(tmp_path, {f"{group}/cpu.cfs_quota_us": "-1\n"})
    assert cpu(files) == CpuControl(None, None, None, "")


def test_kills_are_those_of_the_own_cgroup_or_the_one_that_counts_for_it(tmp_path: Path) -> None:
    tree = {
        **in_cgroup2(5, "/pod/job"),
        **cgroup2("pod", memory__events="low 0\noom 4\noom_kill 40\noom_group_kill 0"),
        **cgroup2("pod/job", memory__events="low 0\noom_kill 1", memory__events__local="oom_kill 0"),
    }
    files = write_tree(tmp_path, tree)

    assert memory(files) == MemoryControl(None, None, 1, "/sys/fs/cgroup/pod/job")
    write_tree(tmp_path, in_cgroup2(5, "/pod/without-the-controller"))
    assert memory(files) == MemoryControl(None, None, 40, "/sys/fs/cgroup/pod")


def test_of_several_mounts_the_one_that_has_the_cgroup_and_shows_most_is_taken(tmp_path: Path) -> None:
    mounts = """\
20 1 0:27 / /gone/cgroup rw - cgroup2 cgroup2 rw
21 1 0:27 /pod /part rw - cgroup2 cgroup2 rw
22 1 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw
"""
    tree = {
        "proc/5/cgroup": "0::/pod/job\n",
        "proc/1/mountinfo": mounts,
        **cgroup2("", cpu__max="100000 100000"),
        **cgroup2("pod/job", cpu__max="max 100000"),
        "part/job/cpu.max": "max 100000",
    }

    assert cpu(write_tree(tmp_path, tree)) == CpuControl(1.0, None, None, "/sys/fs/cgroup")


@pytest.mark.skipif(not os.path.exists("/proc/self/cgroup"), reason="there are no cgroups here")
@pytest.mark.parametrize("controller", ["cpu", "memory"])
def test_the_cgroup_of_this_very_process_is_there_as_the_kernel_says(controller: str) -> None:
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        mounts = parse_mounts(file.read())
    with open("/proc/self/cgroup", encoding="utf-8") as file:
        found = lineages(parse_memberships(file.read()), mounts, controller)

    if not found or not os.path.isdir(found[0].directories[0]):
        pytest.skip("this machine does not show the cgroup of its processes")
    for lineage in found:
        with open(f"{lineage.directories[0]}/cgroup.procs", encoding="ascii") as file:
            assert str(os.getpid()) in file.read().split()
