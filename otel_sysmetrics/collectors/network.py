"""Network: bytes over the counted interfaces, and TCP segments that had to be sent again."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

from otel_sysmetrics.catalog import host
from otel_sysmetrics.collector import NotHere, Part
from otel_sysmetrics.reading import Reading
from otel_sysmetrics.sources.files import Files, counted
from otel_sysmetrics.sources.remembered import Remembered
from otel_sysmetrics.sources.totals import Total

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from otel_sysmetrics.collector import Context

_SPECS: Final = (host.NETWORK_SENT, host.NETWORK_RECEIVED, host.NETWORK_TCP_RETRANSMITS)
_LOOPBACK: Final = re.compile(r"lo\d*|loopback.*", re.IGNORECASE)
_SENT: Final = 8  # the column of the bytes sent
_UP: Final = 0x1
_LOOPS: Final = 0x8


@dataclass(frozen=True, slots=True)
class Traffic:
    """What an interface has received and sent since it came, in bytes."""

    received: int
    sent: int


@dataclass(frozen=True, slots=True)
class Link:
    """How an interface stands to the others.

    `master` is the bridge, bond or team that it is a port of. `lowers` are the interfaces that it lies on: the ports
    of a bridge or bond, and what a VLAN, macvlan or vxlan sends through.
    """

    loopback: bool
    up: bool = True
    master: str | None = None
    lowers: tuple[str, ...] = ()


def parts(context: Context) -> tuple[Part, ...]:
    """Return the one part."""
    return (Part("network", None, _SPECS, lambda: Network(context)),)


class Network:
    """All interfaces of the host's network namespace, or of our own where no root is given.

    Raises NotHere where the system shows neither interfaces nor TCP.
    """

    def __init__(self, context: Context) -> None:
        self._files = context.files
        self._patterns = context.settings.network_interfaces
        self._counted = Remembered[frozenset[str]](context.clock)
        self._sent = Total()
        self._received = Total()
        if not (self._find_traffic() or self._find_retransmits() is not None):
            message = "no interfaces in /proc/net/dev, and none known to psutil"
            raise NotHere(message)

    def sample(self) -> Iterator[Reading]:
        """Read all counters once; nothing is sent for a host without a counted interface."""
        traffic = self._find_traffic()
        counted = self._counted.get(frozenset(traffic), lambda: self._find_counted(traffic))
        if counted:
            sent = self._sent.advance({name: traffic[name].sent for name in counted})
            received = self._received.advance({name: traffic[name].received for name in counted})
            yield Reading(host.NETWORK_SENT, sent)
            yield Reading(host.NETWORK_RECEIVED, received)
        yield Reading(host.NETWORK_TCP_RETRANSMITS, self._find_retransmits())

    def describe(self) -> str:
        """Name the counted interfaces."""
        return "interfaces: " + (", ".join(sorted(self._find_counted(self._find_traffic()))) or "none")

    def close(self) -> None:
        """Nothing is held."""

    def _find_traffic(self) -> dict[str, Traffic]:
        if self._files.root != "/" or self._files.exists("/proc"):  # another machine's root is not psutil's machine
            return parse_dev(self._files.text(_proc_net(self._files), "dev"))
        return _traffic_of_psutil()

    def _find_retransmits(self) -> int | None:
        return parse_retransmits(self._files.text(_proc_net(self._files), "snmp"))

    def _find_counted(self, names: Iterable[str]) -> frozenset[str]:
        return choose({name: read_link(self._files, name) for name in names}, self._patterns)


def choose(links: Mapping[str, Link], patterns: Iterable[str]) -> frozenset[str]:
    """Return the names of the interfaces that count, so that no byte counts twice.

    Patterns are globs, with `!` they exclude; without a positive one everything but loopback is taken.
    Among what is taken, a port of a bridge, bond or team gives way to that master, and what lies on another
    interface in any other way (VLAN, macvlan, ipvlan, vxlan, a bridge over a VLAN) gives way to the lower one.
    A master that is down carries nothing and takes no port's place: `ovs-system` is such a one, always at 0.
    """
    taken = _take(links, tuple(patterns))
    ports = {name for name, link in taken.items() if link.master in taken and taken[link.master].up}
    tops = taken.keys() - ports
    return frozenset(name for name in tops if not (_lies_on(name, links) & tops))


def parse_dev(text: str | None) -> dict[str, Traffic]:
    """Read the text of `/proc/net/dev`; lines that are none of its kind are left out."""
    rows = (line.rpartition(":") for line in (text or "").splitlines())  # old kernels leave no blank: `eth0:1234`
    return {name.strip(): traffic for name, _, row in rows if (traffic := _traffic(row.split())) is not None}


def parse_retransmits(text: str | None) -> int | None:
    """Read `RetransSegs` from the text of `/proc/net/snmp`, where a row of names stands above a row of values."""
    match [line.split() for line in (text or "").splitlines() if line.startswith("Tcp:")]:
        case [names, values]:
            return counted(dict(zip(names, values, strict=False)).get("RetransSegs"))
    return None


def read_link(files: Files, name: str) -> Link:
    """Read an interface's standing from /sys; by name alone where /sys does not show it."""
    home = f"/sys/class/net/{name}"
    facts = files.names(home)
    flags = _hexadecimal(files.text(home, "flags"))
    return Link(
        loopback=bool(_LOOPBACK.fullmatch(name)) if flags is None else bool(flags & _LOOPS),
        up=flags is None or bool(flags & _UP),
        master=os.path.basename(files.resolve(home, "master")) if "master" in facts else None,
        lowers=tuple(fact.removeprefix("lower_") for fact in facts if fact.startswith("lower_")),
    )


def _traffic(row: list[str]) -> Traffic | None:
    received, sent = (counted(row[0]), counted(row[_SENT])) if len(row) > _SENT else (None, None)
    return None if received is None or sent is None else Traffic(received, sent)


def _take(links: Mapping[str, Link], patterns: tuple[str, ...]) -> dict[str, Link]:
    wanted = [pattern for pattern in patterns if not pattern.startswith("!")]
    unwanted = [pattern[1:] for pattern in patterns if pattern.startswith("!")]
    return {
        name: link
        for name, link in links.items()
        if (_matches(name, wanted) if wanted else not link.loopback) and not _matches(name, unwanted)
    }


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _lies_on(name: str, links: Mapping[str, Link]) -> set[str]:
    """Find all interfaces below, except those that are reached through ports alone."""
    found: set[str] = set()
    seen: set[str] = set()
    pending = [name]
    while pending:
        upper = pending.pop()
        if upper in seen or upper not in links:
            continue
        seen.add(upper)
        lowers = links[upper].lowers
        found.update(lower for lower in lowers if lower not in links or links[lower].master != upper)
        pending.extend(lowers)
    return found


def _proc_net(files: Files) -> str:
    # Below a moved root /proc/net would be our own namespace's: it leads through /proc/self.
    return "/proc/self/net" if files.root == "/" else "/proc/1/net"


def _traffic_of_psutil() -> dict[str, Traffic]:
    import psutil

    try:
        # nowrap would keep state that the application's own calls of psutil share.
        found = psutil.net_io_counters(pernic=True, nowrap=False)
    except (OSError, RuntimeError):
        return {}
    return {name: Traffic(io.bytes_recv, io.bytes_sent) for name, io in (found or {}).items()}


def _hexadecimal(text: str | None) -> int | None:
    try:
        return int(text, 16) if text is not None else None
    except ValueError:
        return None
