import os
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_sysmetrics.sources.disks import Disk, device_of, disks, label_of, parse_diskstats, physical
from otel_sysmetrics.sources.files import Files
from otel_sysmetrics.sources.mounts import Mount, mount_of, mounts
from tests.machines import MACHINES, Machine, diskstats
from tests.trees import WithoutProc, write_tree


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_no_disk_is_counted_twice_and_none_is_forgotten(machine: Machine, tmp_path: Path) -> None:
    files = machine.write(tmp_path)
    assert physical(files, disks(files)) == machine.physical


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_the_device_behind_a_mount_is_found_and_called_by_its_name(machine: Machine, tmp_path: Path) -> None:
    files = machine.write(tmp_path)
    known, table = disks(files), mounts(files)
    for path, (_, device, label) in machine.places.items():
        mount = mount_of(path, table)
        assert mount
        found = device_of(files, mount, known)
        assert (path, found, label_of(mount, found)) == (path, device, label)


def test_a_mapped_name_is_found_by_its_link_where_sysfs_is_hidden(tmp_path: Path) -> None:
    text = diskstats(("253:0", "dm-0", 1, 1))
    files = write_tree(tmp_path, {"proc/diskstats": text, "dev/dm-0": ""}, {"dev/mapper/vg-root": "../dm-0"})
    assert device_of(files, Mount("/", "btrfs", "/dev/mapper/vg-root"), disks(files)) == "dm-0"


def test_dev_root_says_nothing_where_no_number_is_known(tmp_path: Path) -> None:
    mount = Mount("/", "ext4", "/dev/root")
    assert label_of(mount, device_of(Files(str(tmp_path)), mount, {})) is None


def test_sectors_have_512_bytes() -> None:
    assert parse_diskstats(diskstats(("8:0", "sda", 3, 5))) == {"sda": Disk(1536, 2560, "8:0")}


def test_a_partition_of_an_old_kernel_is_left_out() -> None:
    """Its seven columns mean something else."""
    assert parse_diskstats("   8    1 sda1 35486 0 35486 38030\n") == {}


def test_the_counters_are_those_of_this_machine() -> None:
    before = disks(Files("/"))
    theirs = psutil.disk_io_counters(perdisk=True, nowrap=False)
    after = disks(Files("/"))
    assert theirs.keys() <= after.keys()
    for name, io in theirs.items():
        assert before[name].read <= io.read_bytes <= after[name].read
        assert before[name].written <= io.write_bytes <= after[name].written


def test_the_disks_are_those_of_this_machine() -> None:
    """A disk lies on hardware or a hypervisor's bus, all else in /sys/devices/virtual."""
    found = physical(Files("/"), disks(Files("/")))
    listed = {name for name in os.listdir("/sys/block") if "/virtual/" not in os.path.realpath(f"/sys/block/{name}")}
    assert found == {name for name in listed & disks(Files("/")).keys() if not name.startswith(("sr", "fd"))}


def test_without_proc_psutil_is_asked_for_raw_counters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def counters(*, perdisk: bool, nowrap: bool) -> dict[str, SimpleNamespace]:
        assert (perdisk, nowrap) == (True, False)
        return {f"PhysicalDrive{index}": SimpleNamespace(read_bytes=7, write_bytes=8) for index in (0, 1)}

    monkeypatch.setitem(sys.modules, "psutil", SimpleNamespace(disk_io_counters=counters))
    files = WithoutProc(tmp_path)
    assert disks(files) == {"PhysicalDrive0": Disk(7, 8), "PhysicalDrive1": Disk(7, 8)}
    assert physical(files, disks(files)) == {"PhysicalDrive0", "PhysicalDrive1"}


NUMBERS = st.integers(0, 2**64 - 1).map(str)
WORDS = st.sampled_from(["8", "0", "sda", "sda1", "-1", "x", "\n", "9" * 5000]) | NUMBERS
TEXTS = st.text() | st.lists(WORDS, max_size=60).map(" ".join)


@given(TEXTS)
def test_any_text_is_read_without_an_error(text: str) -> None:
    found = parse_diskstats(text)
    assert found.keys() <= set(text.split())
    assert physical(Files("/nowhere"), found) <= found.keys()


@given(st.dictionaries(st.sampled_from(["sda", "nvme0n1", "dm-0"]), st.tuples(NUMBERS, NUMBERS)))
def test_every_counter_comes_back(counters: dict[str, tuple[str, str]]) -> None:
    text = diskstats(*(("8:0", name, int(read), int(written)) for name, (read, written) in counters.items()))
    assert {
        name: (str(disk.read // 512), str(disk.written // 512)) for name, disk in parse_diskstats(text).items()
    } == (counters)


@given(st.sets(st.from_regex(r"(sd[a-c]|nvme[01]n[12]|vda|xvda|mmcblk0)", fullmatch=True), min_size=1), st.data())
def test_by_name_alone_a_partition_never_counts_beside_its_disk(wholes: set[str], data: st.DataObject) -> None:
    numbers = data.draw(st.dictionaries(st.sampled_from(sorted(wholes)), st.integers(1, 128)))
    partitions = {f"{disk}{'p' if disk[-1].isdigit() else ''}{number}" for disk, number in numbers.items()}
    known = dict.fromkeys(sorted(wholes | partitions), Disk(1, 1))
    assert physical(Files("/nowhere"), known) == wholes


@pytest.mark.parametrize("count", ["-1", str(2**64), "9" * 400])
def test_what_no_kernel_counts_is_no_counter(count: str) -> None:
    assert parse_diskstats(f"8 0 sda 1 0 {count} 1 1 0 8 1 0 1 1\n") == {}
    assert parse_diskstats(f"8 0 sda 1 0 8 1 1 0 {count} 1 0 1 1\n") == {}
