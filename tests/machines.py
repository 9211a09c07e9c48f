"""Pictures of machines, as far as disks and mounts are concerned."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tests.trees import write_tree

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from otel_sysmetrics.sources.files import Files

    Place = tuple[str, str | None, str | None]


def diskstats(*rows: tuple[str, str, int, int]) -> str:
    """Write /proc/diskstats from rows of (major:minor, name, sectors read, sectors written)."""
    return "".join(
        f"{number.replace(':', ' '):>12} {name} 9 0 {read} 9 9 0 {written} 9 0 9 9 0 0 0 0 0 0\n"
        for number, name, read, written in rows
    )


@dataclass(frozen=True)
class Machine:
    """A machine and the truth about it.

    `blocks` are the rows of diskstats; `sys` the files below /sys/class/block, none where a container hides /sys.
    `physical` are the names of its disks. `places` maps a path to (mount point, block device, label).
    """

    blocks: tuple[tuple[str, str, int, int], ...]
    mountinfo: str
    physical: frozenset[str]
    places: Mapping[str, Place]
    sys: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)

    def write(self, root: Path) -> Files:
        """Write it below `root`."""
        files = {f"sys/class/block/{name}": "" for name in self.sys}
        files["proc/diskstats"] = diskstats(*self.blocks)
        files["proc/1/mountinfo"] = self.mountinfo
        return write_tree(root, {**files, **self.files}, self.links)


MACHINES: Final[Mapping[str, Machine]] = {
    "laptop, LVM on LUKS on nvme": Machine(
        blocks=(
            ("259:0", "nvme0n1", 9000, 900),
            ("259:1", "nvme0n1p1", 100, 10),
            ("259:3", "nvme0n1p3", 8000, 800),
            ("254:0", "dm-0", 7000, 700),
            ("254:1", "dm-1", 6000, 600),
            ("254:2", "dm-2", 500, 50),
            ("252:0", "zram0", 40, 40),
            ("7:0", "loop0", 30, 0),
        ),
        sys=(
            *("nvme0n1/size", "nvme0n1p1/partition", "nvme0n1p3/partition", "zram0/size", "loop0/size"),
            *("dm-0/slaves/nvme0n1p3", "dm-1/slaves/dm-0", "dm-2/slaves/dm-0"),
        ),
        mountinfo="""\
25 1 254:1 / / rw,relatime shared:1 - ext4 /dev/mapper/vg-root rw
30 25 259:1 / /boot/efi rw - vfat /dev/nvme0n1p1 rw
31 25 254:2 / /home rw shared:5 master:2 - xfs /dev/mapper/vg-home rw
40 25 0:40 / /run rw,nosuid - tmpfs tmpfs rw
""",
        physical=frozenset({"nvme0n1"}),
        places={
            "/": ("/", "dm-1", "dm-1"),
            "/home/me": ("/home", "dm-2", "dm-2"),
            "/homework": ("/", "dm-1", "dm-1"),
            "/boot/efi": ("/boot/efi", "nvme0n1p1", "nvme0n1p1"),
            "/run/user": ("/run", None, None),
        },
    ),
    "server, md raid1 of two sata disks, a DVD drive": Machine(
        blocks=(
            ("8:0", "sda", 1000, 1000),
            ("8:1", "sda1", 900, 1000),
            ("8:16", "sdb", 1100, 1000),
            ("8:17", "sdb1", 1000, 1000),
            ("9:127", "md127", 1900, 1000),
            ("259:0", "md127p1", 1900, 1000),
            ("11:0", "sr0", 50, 0),
            ("2:0", "fd0", 5, 0),
        ),
        sys=(
            *("sda/size", "sdb/size", "sda1/partition", "sdb1/partition", "md127p1/partition", "sr0/size", "fd0/size"),
            *("md127/slaves/sda1", "md127/slaves/sdb1"),
        ),
        mountinfo="20 1 259:0 / / rw - ext4 /dev/md127p1 rw\n",
        physical=frozenset({"sda", "sdb"}),
        places={"/srv": ("/", "md127p1", "md127p1")},
    ),
    "cloud VM, vda and /dev/root": Machine(
        blocks=(("254:0", "vda", 500, 50), ("254:1", "vda1", 400, 40), ("254:15", "vda15", 10, 1)),
        sys=("vda/size", "vda1/partition", "vda15/partition"),
        mountinfo="20 1 254:1 / / rw - ext4 /dev/root rw\n",
        physical=frozenset({"vda"}),
        places={"/": ("/", "vda1", "vda1")},
    ),
    "container, overlay root, /sys hidden": Machine(
        blocks=(
            ("259:0", "nvme0n1", 900, 90),
            ("259:1", "nvme0n1p1", 800, 80),
            ("8:0", "sda", 70, 7),
            ("8:1", "sda1", 60, 6),
            ("179:0", "mmcblk0", 50, 5),
            ("179:1", "mmcblk0p1", 40, 4),
            ("179:8", "mmcblk0boot0", 3, 0),
            ("254:0", "dm-0", 60, 6),
            ("43:0", "nbd0", 20, 2),
            ("43:1", "nbd0p1", 10, 1),
            ("230:0", "zd0", 10, 1),
            ("252:0", "bcache0", 10, 1),
            ("147:0", "drbd0", 10, 1),
        ),
        mountinfo="""\
500 400 0:90 / / rw,relatime master:3 - overlay overlay rw,lowerdir=/var/lib/docker/a-b
501 500 0:91 / /dev/shm rw - tmpfs shm rw
502 500 8:1 /var/lib/docker/volumes/v/_data /data rw - ext4 /dev/sda1 rw
""",
        physical=frozenset({"nvme0n1", "sda", "mmcblk0", "mmcblk0boot0", "nbd0"}),
        places={
            "/": ("/", None, None),
            "/dev/shm": ("/dev/shm", None, None),  # noqa: S108 - a mount point, not a temporary file
            "/data/x": ("/data", "sda1", "sda1"),
            "/database": ("/", None, None),
        },
    ),
    "xen VM, xvda1 without an xvda, /sys hidden": Machine(
        blocks=(("202:1", "xvda1", 500, 50), ("202:80", "xvdf", 40, 4), ("202:81", "xvdf1", 30, 3)),
        mountinfo="20 1 202:1 / / rw - ext4 /dev/xvda1 rw\n",
        physical=frozenset({"xvda1", "xvdf"}),
        places={"/": ("/", "xvda1", "xvda1")},
    ),
    "xen VM, xvda1 without an xvda": Machine(
        blocks=(("202:1", "xvda1", 500, 50),),
        sys=("xvda1/size",),
        mountinfo="20 1 202:1 / / rw - ext4 /dev/xvda1 rw\n",
        physical=frozenset({"xvda1"}),
        places={"/": ("/", "xvda1", "xvda1")},
    ),
    "nvme multipath, since Linux 6.3": Machine(
        blocks=(
            ("0:0", "nvme0c0n1", 300, 30),
            ("0:0", "nvme0c1n1", 200, 20),
            ("259:1", "nvme0n1", 500, 50),
            ("259:2", "nvme0n1p1", 400, 40),
        ),
        sys=("nvme0c0n1/hidden", "nvme0c1n1/hidden", "nvme0n1/size", "nvme0n1p1/partition"),
        mountinfo="20 1 259:2 / / rw - xfs /dev/nvme0n1p1 rw\n",
        physical=frozenset({"nvme0n1"}),
        places={"/": ("/", "nvme0n1p1", "nvme0n1p1")},
    ),
    "nvme multipath, before Linux 6.3": Machine(
        blocks=(("0:0", "nvme3c33n1", 16148, 17174264), ("259:13", "nvme3n1", 0, 0)),
        sys=("nvme3c33n1/hidden", "nvme3n1/size"),
        mountinfo="20 1 259:13 / / rw - xfs /dev/nvme3n1 rw\n",
        physical=frozenset({"nvme3c33n1"}),
        places={"/": ("/", "nvme3n1", "nvme3n1")},
    ),
    "dm-multipath": Machine(
        blocks=(
            ("8:0", "sda", 300, 30),
            ("8:16", "sdb", 200, 20),
            ("253:0", "dm-0", 500, 50),
            ("253:1", "dm-1", 400, 40),
        ),
        sys=("sda/size", "sdb/size", "dm-0/slaves/sda", "dm-0/slaves/sdb", "dm-1/slaves/dm-0"),
        mountinfo="20 1 253:1 / / rw - xfs /dev/mapper/mpatha1 rw\n",
        physical=frozenset({"sda", "sdb"}),
        places={"/": ("/", "dm-1", "dm-1")},
    ),
    "btrfs subvolumes, on a partition, on LVM and by uuid": Machine(
        blocks=(
            ("8:0", "sda", 500, 50),
            ("8:2", "sda2", 400, 40),
            ("253:0", "dm-0", 30, 3),
            ("253:1", "dm-1", 20, 2),
        ),
        sys=("sda/size", "sda2/partition", "dm-0/slaves/sda2", "dm-1/slaves/sda2"),
        files={"sys/block/dm-0/dm/name": "vg-home\n", "sys/block/dm-1/dm/name": "vg-var\n"},
        links={"dev/disk/by-uuid/12-34": "../../sda2", "dev/vg/var": "../dm-1"},
        mountinfo="""\
20 1 0:30 /@ / rw - btrfs /dev/sda2 rw,subvol=/@
21 20 0:30 /@home /home rw - btrfs /dev/mapper/vg-home rw,subvol=/@home
22 20 0:31 / /srv rw - btrfs /dev/disk/by-uuid/12-34 rw
23 20 0:32 / /var rw - btrfs /dev/vg/var rw
24 20 0:33 / /gone rw - btrfs /dev/mapper/nobody rw
25 20 0:34 / /both rw - bcachefs /dev/sda2:/dev/dm-0 rw
26 20 0:35 / /unlinked rw - btrfs /dev/vg/sda rw
""",
        physical=frozenset({"sda"}),
        places={
            "/": ("/", "sda2", "sda2"),
            "/home": ("/home", "dm-0", "dm-0"),
            "/srv": ("/srv", "sda2", "sda2"),
            "/var": ("/var", "dm-1", "dm-1"),
            "/gone": ("/gone", None, "mapper/nobody"),
            "/both": ("/both", None, "sda2:/dev/dm-0"),
            "/unlinked": ("/unlinked", None, "vg/sda"),
        },
    ),
    "zfs": Machine(
        blocks=(("8:0", "sda", 500, 50), ("8:1", "sda1", 500, 50), ("230:0", "zd0", 300, 30)),
        sys=("sda/size", "sda1/partition", "zd0/size"),
        mountinfo="20 1 0:26 / / rw - zfs rpool/ROOT/debian rw\n21 20 0:27 / /tank rw - zfs tank rw\n",
        physical=frozenset({"sda"}),
        places={"/": ("/", None, "rpool/ROOT/debian"), "/tank": ("/tank", None, None)},
    ),
    "NFS, bind mounts, a mount over a mount, spaces": Machine(
        blocks=(("8:0", "sda", 500, 50), ("8:1", "sda1", 400, 40), ("8:16", "sdb", 300, 30)),
        sys=("sda/size", "sda1/partition", "sdb/size"),
        mountinfo="""\
20 1 8:1 / / rw - ext4 /dev/sda1 rw
21 20 8:16 / /mnt/my\\040disk rw - ext4 /dev/sdb rw
22 20 8:16 /sets /data rw - ext4 /dev/sdb rw
23 20 0:50 / /net rw - autofs systemd-1 rw,fd=44
24 23 0:51 / /net rw - nfs4 server:/export/a\\134b rw,addr=10.0.0.9
25 20 0:52 / /win rw - cifs //server/share rw
26 20 0:53 / /empty rw - tmpfs  rw
""",
        physical=frozenset({"sda", "sdb"}),
        places={
            "/mnt/my disk/x": ("/mnt/my disk", "sdb", "sdb"),
            "/mnt/my": ("/", "sda1", "sda1"),
            "/data": ("/data", "sdb", "sdb"),
            "/net/x": ("/net", None, "server:/export/a\\b"),
            "/win": ("/win", None, "//server/share"),
            "/empty": ("/empty", None, None),
        },
    ),
    "old server, cciss": Machine(
        blocks=(("104:0", "cciss/c0d0", 500, 50), ("104:1", "cciss/c0d0p1", 400, 40)),
        sys=("cciss!c0d0/size", "cciss!c0d0p1/partition"),
        mountinfo="20 1 0:30 / / rw - btrfs /dev/cciss/c0d0p1 rw\n",
        physical=frozenset({"cciss/c0d0"}),
        places={"/": ("/", "cciss/c0d0p1", "cciss/c0d0p1")},
    ),
}
