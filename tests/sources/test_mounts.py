import os
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_sysmetrics.sources.files import Files
from otel_sysmetrics.sources.mounts import Mount, mount_of, mounts, parse_mountinfo, parse_mounts, resolve
from tests.machines import MACHINES, Machine
from tests.trees import write_tree


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_a_path_lies_on_the_longest_mount_by_whole_names(machine: Machine, tmp_path: Path) -> None:
    table = mounts(machine.write(tmp_path))
    found = {path: mount_of(path, table) for path in machine.places}
    assert {path: mount and mount.point for path, mount in found.items()} == {
        path: point for path, (point, _, _) in machine.places.items()
    }


def test_the_table_is_that_of_this_machine() -> None:
    ours = {(mount.point, mount.kind) for mount in mounts(Files("/"))}
    assert {(row.mountpoint, row.fstype) for row in psutil.disk_partitions(all=True)} <= ours


@pytest.mark.parametrize("path", ["/", "/proc", "/sys/class"])
def test_the_number_of_a_mount_is_the_device_that_stat_names(path: str) -> None:
    mount = mount_of(os.path.realpath(path), mounts(Files("/")))
    device = os.stat(path).st_dev
    assert mount
    assert mount.number == f"{os.major(device)}:{os.minor(device)}"


def test_without_mountinfo_a_moved_root_uses_our_own_mounts_below_it(tmp_path: Path) -> None:
    root = str(tmp_path)
    own = f"20 1 8:1 / / rw - ext4 /dev/sda1 rw\n21 20 8:2 / {root} rw - ext4 /dev/sda2 rw\n"
    own += f"22 21 8:3 / {root}/home rw - ext4 /dev/sda3 rw\n23 21 8:4 / {root}2 rw - ext4 /dev/sda4 rw\n"
    files = write_tree(tmp_path, {"proc/self/mountinfo": own})
    assert [(mount.point, mount.source) for mount in mounts(files)] == [("/", "/dev/sda2"), ("/home", "/dev/sda3")]


def test_proc_mounts_has_the_same_names_without_numbers() -> None:
    assert parse_mounts("/dev/sda1 /mnt/my\\040disk ext4 rw 0 0\nnone\n") == [
        Mount("/mnt/my disk", "ext4", "/dev/sda1")
    ]


def test_a_hidden_table_is_empty(tmp_path: Path) -> None:
    assert mounts(write_tree(tmp_path, {"proc/version": ""})) == []


def test_without_proc_psutil_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = SimpleNamespace(device="/dev/disk3s1", mountpoint="/", fstype="apfs", opts="rw")
    monkeypatch.setitem(sys.modules, "psutil", SimpleNamespace(disk_partitions=lambda: [row]))
    assert mounts(Files(str(tmp_path))) == [Mount("/", "apfs", "/dev/disk3s1")]


def test_case_014_partitions_denied_gives_an_empty_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied() -> None:
        raise PermissionError

    monkeypatch.setitem(sys.modules, "psutil", SimpleNamespace(disk_partitions=denied))
    assert mounts(Files(str(tmp_path))) == []


def test_links_are_followed_as_the_host_would(tmp_path: Path) -> None:
    links = {
        "data": "/mnt/big",
        "mnt/big": "../srv/./disk1",
        "mnt/deep/link": "/srv/disk1",
        "srv/up": "../../../../srv",
        "loop": "loop",
        "host": str(tmp_path),
    }
    files = write_tree(tmp_path, {"srv/disk1/x": ""}, links)
    assert resolve(files, "/data/x") == "/srv/disk1/x"
    assert resolve(files, "/mnt/deep/link/x") == "/srv/disk1/x"
    assert resolve(files, "/srv/up/disk1") == "/srv/disk1"
    assert resolve(files, "//missing//y/../z/") == "/missing/z"
    assert resolve(files, "/loop") == "/loop"
    assert resolve(files, "/host/srv") == f"{tmp_path}/srv", "an absolute link must not lead out of the root"
    assert resolve(files, "/") == "/"


def test_links_of_our_own_root_are_followed(tmp_path: Path) -> None:
    write_tree(tmp_path, {"here/x": ""}, {"there": "here"})
    assert resolve(Files("/"), f"{tmp_path}/there/x") == os.path.realpath(f"{tmp_path}/here/x")


WORDS = st.sampled_from(["-", "", "8:1", "/", "/data", "rw", "ext4", "shared:1", "\\040", "\\777", "\n", "é"])
TEXTS = st.text() | st.lists(WORDS, max_size=40).map(" ".join)


@given(TEXTS)
def test_any_text_is_read_without_an_error(text: str) -> None:
    for table in (parse_mountinfo(text), parse_mounts(text)):
        assert len(table) <= text.count("\n") + 1
        found = mount_of("/data/x", table)
        assert found is None or found in table


NAMES = st.text(st.characters(blacklist_characters="/\0", blacklist_categories=["Cs"]), min_size=1)


@given(NAMES, NAMES)
def test_every_name_comes_back_from_the_kernels_spelling(point: str, source: str) -> None:
    """The kernel writes blank, tab, line feed and backslash in octal, and nothing else."""

    def spelled(name: str) -> str:
        return "".join(f"\\{ord(char):03o}" if char in " \t\n\\" else char for char in name)

    line = f"36 35 98:0 / /{spelled(point)} rw master:1 - ext3 {spelled(source)} rw\n"
    assert parse_mountinfo(line) == [Mount(f"/{point}", "ext3", source, "98:0")]


@given(st.lists(st.sampled_from(["a", "ab", "b"]), max_size=4), st.lists(st.sampled_from(["a", "ab", "b"]), max_size=4))
def test_a_mount_holds_a_path_only_by_whole_names(point: list[str], path: list[str]) -> None:
    mount = Mount("/" + "/".join(point), "ext4", "/dev/sda1")
    assert (mount_of("/" + "/".join(path), [mount]) is mount) == (path[: len(point)] == point)
