import builtins
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import psutil
import pytest

from otel_sysmetrics.catalog import host
from otel_sysmetrics.collector import Collector, Context, NotHere, parts
from otel_sysmetrics.reading import AttributeValue, Reading
from otel_sysmetrics.settings import Settings
from otel_sysmetrics.sources.files import Files
from otel_sysmetrics.sources.processes import WatchedProcess
from otel_sysmetrics.sources.remembered import SECONDS
from tests.machines import MACHINES, Machine, diskstats
from tests.trees import write_tree

MIB: Final = 2**20


class Clock:
    """Time that passes when it is told to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


FROZEN: Final = Clock()


def context(files: Files, *paths: str, clock: Callable[[], float] = FROZEN) -> Context:
    settings = Settings(disk_paths=paths or ("/",))
    watched = WatchedProcess(files, lambda: None, tree=False, clock=clock)
    return Context(settings, files, watched, lambda _: True, clock)


def collectors(files: Files, *paths: str, clock: Callable[[], float] = FROZEN) -> dict[str | None, Collector]:
    return {part.name: part.probe() for part in parts("disk", context(files, *paths, clock=clock))}


def values(collector: Collector) -> dict[str, float | None]:
    return {reading.spec.fill(reading.labels): reading.value for reading in collector.sample()}


def origins(collector: Collector) -> list[dict[str, AttributeValue | None]]:
    return [dict(reading.attributes) for reading in collector.sample()]


def replace(files: Files, text: str) -> None:
    Path(files.path("proc/diskstats")).write_text(text, encoding="utf-8")


def test_the_space_of_this_machine_is_what_statvfs_says() -> None:
    before, readings, after = os.statvfs("/"), values(collectors(Files("/"))["/"]), os.statvfs("/")
    used = sorted((space.f_blocks - space.f_bfree) * space.f_frsize for space in (before, after))
    percent = readings["disk./.usagePercent"]
    assert used[0] - MIB <= cast("float", readings["disk./.usageGB"]) * 2**30 <= used[1] + MIB
    assert percent == pytest.approx(used[0] / (used[0] + after.f_bavail * after.f_frsize) * 100, abs=0.1)


def test_case_012_usage_is_space_used_and_traffic_goes_elsewhere() -> None:
    readings = values(collectors(Files("/"))["/"])
    assert readings["disk./.usagePercent"] == pytest.approx(psutil.disk_usage("/").percent, abs=0.1)
    assert (host.DISK_USAGE_PERCENT.unit, host.DISK_USAGE.unit) == ("%", "GiBy")
    assert (host.DISK_IN.unit, host.DISK_OUT.unit) == ("MiBy", "MiBy")
    assert "space" in host.DISK_USAGE_PERCENT.brief.lower()


def test_reserved_blocks_are_neither_used_nor_free(monkeypatch: pytest.MonkeyPatch) -> None:
    def statvfs(_: str) -> SimpleNamespace:
        return SimpleNamespace(f_blocks=1000, f_bfree=400, f_bavail=200, f_frsize=2**20, f_bsize=1, f_fsid=1)

    collector = collectors(Files("/"))["/"]
    monkeypatch.setattr(os, "statvfs", statvfs)
    assert values(collector) == {"disk./.usagePercent": 75.0, "disk./.usageGB": 600 / 1024}


@pytest.mark.parametrize(("blocks", "free", "available"), [(0, 0, 0), (10, 20, 20)])
def test_a_file_system_without_space_or_with_nonsense_says_nothing(
    blocks: int, free: int, available: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def statvfs(_: str) -> SimpleNamespace:
        return SimpleNamespace(f_blocks=blocks, f_bfree=free, f_bavail=available, f_frsize=9, f_bsize=9, f_fsid=1)

    collector = collectors(Files("/"))["/"]
    monkeypatch.setattr(os, "statvfs", statvfs)
    assert values(collector) == {}


def test_proc_has_no_space_to_speak_of() -> None:
    assert values(collectors(Files("/"), "/proc")["/proc"]) == {}


def test_without_statvfs_shutil_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psutil", SimpleNamespace(disk_partitions=list, disk_io_counters=lambda **_: {}))
    monkeypatch.delattr(os, "statvfs")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=400, used=100, free=300))
    (part, _) = parts("disk", context(Files(str(tmp_path)), "/"))
    assert values(part.probe())["disk./.usagePercent"] == 25.0


def test_a_point_says_where_its_path_lies(tmp_path: Path) -> None:
    mountinfo = f"20 1 8:1 / / rw - ext4 /dev/sda1 rw\n21 20 0:52 / {tmp_path}/nfs rw - nfs4 srv:/export rw\n"
    files = write_tree(
        tmp_path / "host",
        {
            "proc/1/mountinfo": mountinfo.replace(str(tmp_path), ""),
            "proc/diskstats": diskstats(("8:0", "sda", 1, 1), ("8:1", "sda1", 1, 1)),
            "nfs/x/y": "",
            "home/y": "",
        },
        {"link": "/nfs/x"},
    )
    found = collectors(files, "/home", "/link")
    assert origins(found["/home"])[0] == {"system.filesystem.mountpoint": "/", "system.device": "sda1"}
    assert origins(found["/link"])[0] == {"system.filesystem.mountpoint": "/nfs", "system.device": "srv:/export"}
    labels = [reading.labels for reading in found["/link"].sample()]
    assert labels == [{"path": "/link"}, {"path": "/link"}]


def test_two_paths_on_one_file_system_both_report(tmp_path: Path) -> None:
    first, second = str(tmp_path), str(tmp_path.parent)
    found = collectors(Files("/"), first, second)
    assert values(found[first]).keys() != values(found[second]).keys()
    assert list(values(found[first]).values()) == pytest.approx(list(values(found[second]).values()), rel=0.01)


def test_case_015_a_missing_path_costs_only_itself_and_comes_back(tmp_path: Path) -> None:
    usb = tmp_path / "usb"
    found = collectors(Files("/"), "/", str(usb))
    assert set(found) == {"/", str(usb), "devices"}, "looking for a missing path must not fail"
    with pytest.raises(FileNotFoundError):
        values(found[str(usb)])
    assert len(values(found["/"])) == 2
    usb.mkdir()
    assert len(values(found[str(usb)])) == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_case_015_a_path_that_is_refused_costs_only_itself(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    (closed / "inside").mkdir(parents=True)
    closed.chmod(0)
    found = collectors(Files("/"), "/", f"{closed}/inside")
    with pytest.raises(PermissionError):
        values(found[f"{closed}/inside"])
    assert len(values(found["/"])) == 2
    closed.chmod(0o700)


def test_case_006_a_refused_path_is_an_os_error_each_time_and_never_logged_here(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The sampler says an OSError once; 100 passes must not say more."""

    def denied(_: str) -> None:
        raise PermissionError

    collector = collectors(Files("/"))["/"]
    monkeypatch.setattr(os, "statvfs", denied)
    with caplog.at_level("DEBUG"):
        for _ in range(100):
            with pytest.raises(PermissionError):
                values(collector)
    assert caplog.records == []


def test_a_path_given_twice_is_one_part() -> None:
    assert [part.name for part in parts("disk", context(Files("/"), "/", "/"))] == ["/", "devices"]


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_traffic_starts_at_0_and_counts_each_disk_once(machine: Machine, tmp_path: Path) -> None:
    files = machine.write(tmp_path)
    collector = collectors(files)["devices"]
    first = values(collector)
    replace(files, diskstats(*((number, name, in_ + 2048, out + 4096) for number, name, in_, out in machine.blocks)))
    second = values(collector)
    disks = len(machine.physical)
    assert (first["disk.in"], first["disk.out"]) == (0, 0)
    assert (second["disk.in"], second["disk.out"]) == (disks, 2 * disks)


def test_each_device_behind_a_watched_path_has_its_own_traffic(tmp_path: Path) -> None:
    files = MACHINES["laptop, LVM on LUKS on nvme"].write(tmp_path)
    readings = values(collectors(files, "/", "/home", "/home/me", "/boot/efi", "/run")["devices"])
    assert {name: value for name, value in readings.items() if name.count(".") == 2} == {
        "disk.dm-1.in": 6000 / 2048,
        "disk.dm-1.out": 600 / 2048,
        "disk.dm-2.in": 500 / 2048,
        "disk.dm-2.out": 50 / 2048,
        "disk.nvme0n1p1.in": 100 / 2048,
        "disk.nvme0n1p1.out": 10 / 2048,
    }


def test_a_container_keeps_the_totals_where_no_device_is_known(tmp_path: Path) -> None:
    files = MACHINES["container, overlay root, /sys hidden"].write(tmp_path)
    assert values(collectors(files, "/")["devices"]).keys() == {"disk.in", "disk.out"}


def test_a_device_that_does_not_count_sends_no_0(tmp_path: Path) -> None:
    """A namespace before Linux 6.3 stands at 0 while its hidden path counts."""
    files = MACHINES["nvme multipath, before Linux 6.3"].write(tmp_path)
    assert values(collectors(files, "/")["devices"]).keys() == {"disk.in", "disk.out"}


def test_a_linked_path_is_followed_by_its_own_part_and_heard_by_the_devices(tmp_path: Path) -> None:
    machine = MACHINES["laptop, LVM on LUKS on nvme"]
    files = machine.write(tmp_path)
    write_tree(tmp_path, {"home/me/x": ""}, {"data": "/home/me"})
    found = collectors(files, "/data")
    values(found["/data"])
    assert {"disk.dm-2.in", "disk.dm-2.out"} < values(found["devices"]).keys()
    (tmp_path / "data").unlink()
    with pytest.raises(FileNotFoundError):
        values(found["/data"])
    assert values(found["devices"]).keys() == {"disk.in", "disk.out"}, "what is missing has no device behind it"


def test_the_devices_part_never_touches_a_watched_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Asking for anything of a path on a dead NFS server never returns."""
    touched: list[str] = []

    def heard(door: Callable[..., Any]) -> Callable[..., Any]:
        def listen(path: object, *arguments: Any, **keywords: Any) -> Any:  # noqa: ANN401 - hands on what it is given
            touched.append(str(path))
            return door(path, *arguments, **keywords)

        return listen

    files = MACHINES["NFS, bind mounts, a mount over a mount, spaces"].write(tmp_path)
    for name in ("open", "stat", "lstat", "readlink", "statvfs", "listdir", "scandir"):
        monkeypatch.setattr(os, name, heard(getattr(os, name)))
    monkeypatch.setattr(builtins, "open", heard(open))
    readings = values(collectors(files, "/", "/net/sets", "/win")["devices"])
    assert "disk.sda1.in" in readings
    assert f"{tmp_path}/proc/diskstats" in touched
    assert not [path for path in touched if path.startswith((f"{tmp_path}/net", f"{tmp_path}/win"))]


def test_a_disk_that_comes_and_goes_never_makes_the_total_fall(tmp_path: Path) -> None:
    files = write_tree(tmp_path, {"proc/diskstats": diskstats(("8:0", "sda", 2048, 0))})
    collector = collectors(files)["devices"]
    totals = [values(collector)["disk.in"]]
    for rows in (
        [("8:0", "sda", 4096, 0), ("8:16", "sdb", 999999, 0)],
        [("8:0", "sda", 4096, 0), ("8:16", "sdb", 1002047, 0)],
        [("8:0", "sda", 6144, 0)],
        [("8:0", "sda", 2048, 0)],
    ):
        replace(files, diskstats(*rows))
        totals.append(values(collector)["disk.in"])
    assert totals == [0, 1, 2, 3, 4]


def test_a_disk_that_becomes_part_of_an_array_is_noticed(tmp_path: Path) -> None:
    rows = ("8:0", "sda", 0, 0), ("94:0", "dasda", 0, 0)
    files = write_tree(tmp_path, {"proc/diskstats": diskstats(*rows), "sys/class/block/dasda/size": ""})
    clock = Clock()
    collector = collectors(files, clock=clock)["devices"]
    assert values(collector)["disk.in"] == 0
    write_tree(tmp_path, {"sys/class/block/dasda/slaves/sda": ""})
    clock.now = SECONDS
    values(collector)
    replace(files, diskstats(("8:0", "sda", 2048, 0), ("94:0", "dasda", 2048, 0)))
    assert values(collector)["disk.in"] == 1


def test_the_traffic_of_this_machine_is_that_of_diskstats() -> None:
    collector = collectors(Files("/"))["devices"]
    readings = values(collector)
    assert (readings["disk.in"], readings["disk.out"]) == (0, 0)
    counted = psutil.disk_io_counters(perdisk=True, nowrap=False)
    for name, value in readings.items():
        if name.count(".") == 2:
            _, device, way = name.split(".")
            io = counted[device]
            assert value == pytest.approx({"in": io.read_bytes, "out": io.write_bytes}[way] / MIB, abs=64)


def nothing(**_: object) -> None:
    """Answer as psutil does where there are no disks."""


def failing(error: Exception) -> Callable[..., None]:
    def counters(**_: object) -> None:
        raise error

    return counters


@pytest.mark.parametrize(
    "counters",
    [nothing, *map(failing, (RuntimeError(), FileNotFoundError(), PermissionError(), NotImplementedError()))],
)
def test_case_013_no_disks_leaves_usage_alone(
    counters: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = SimpleNamespace(disk_io_counters=counters, disk_partitions=list)
    monkeypatch.setitem(sys.modules, "psutil", stub)
    space, devices = parts("disk", context(Files(str(tmp_path)), "/"))
    assert len(values(space.probe())) == 2
    with pytest.raises(NotHere):
        devices.probe()


def test_case_014_denied_files_of_proc_leave_usage_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file of /proc that is refused reads like one that is missing."""
    files = write_tree(tmp_path, {"proc/version": ""})
    with caplog.at_level("DEBUG"):
        space, devices = parts("disk", context(files, "/"))
        assert len(values(space.probe())) == 2
        assert origins(space.probe()) == [{}, {}]
        with pytest.raises(NotHere):
            devices.probe()
    assert caplog.records == []


def test_block_devices_that_vanish_send_the_part_back_to_its_probe(tmp_path: Path) -> None:
    files = write_tree(tmp_path, {"proc/diskstats": diskstats(("8:0", "sda", 2048, 0))})
    collector = collectors(files)["devices"]
    replace(files, "")
    with pytest.raises(NotHere):
        values(collector)


def test_every_reading_is_one_that_the_part_declares(tmp_path: Path) -> None:
    files = MACHINES["laptop, LVM on LUKS on nvme"].write(tmp_path)
    for part in parts("disk", context(files, "/")):
        collector = part.probe()
        readings: list[Reading] = list(collector.sample())
        assert {reading.spec for reading in readings} == set(part.specs)
        assert all(set(reading.attributes) <= set(reading.spec.attributes) for reading in readings)
        assert collector.describe()
        collector.close()
        collector.close()
