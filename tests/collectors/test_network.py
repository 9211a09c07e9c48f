import sys
from collections.abc import Callable, Mapping
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Final

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_sysmetrics.collector import Collector, Context, NotHere, parts
from otel_sysmetrics.collectors.network import Link, Traffic, choose, parse_dev, parse_retransmits, read_link
from otel_sysmetrics.settings import Settings
from otel_sysmetrics.sources.files import Files
from otel_sysmetrics.sources.processes import WatchedProcess
from tests.trees import WithoutProc, write_tree

UP: Final = "0x1003\n"
DOWN: Final = "0x1002\n"
LOOPS: Final = "0x9\n"
SNMP: Final = """\
Ip: Forwarding DefaultTTL
Ip: 1 64
Tcp: RtoAlgorithm RtoMin RtoMax MaxConn RetransSegs InErrs
Tcp: 1 200 120000 -1 4711 0
"""


class Clock:
    """Time that passes when it is told to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


FROZEN: Final = Clock()


def dev(traffic: Mapping[str, tuple[int, int]]) -> str:
    """Write /proc/net/dev from interface to (received, sent)."""
    rows = [f"{name:>6}: {received} 9 0 0 0 0 0 9 {sent} 9 0 0 0 0 0 0" for name, (received, sent) in traffic.items()]
    return "\n".join(["Inter-| Receive | Transmit", " face |bytes packets |bytes packets", *rows, ""])


def network(files: Files, *patterns: str, clock: Callable[[], float] = FROZEN) -> Collector:
    settings = Settings(network_interfaces=patterns)
    watched = WatchedProcess(files, lambda: None, tree=False, clock=clock)
    context = Context(settings, files, watched, lambda _: True, clock)
    (part,) = parts("network", context)
    return part.probe()


def values(collector: Collector) -> dict[str, float]:
    return {reading.spec.tag: reading.value for reading in collector.sample() if reading.value is not None}


# What /sys/class/net holds of each interface: flags, and `master` and `lower_*` as links.
HOSTS: Final[Mapping[str, tuple[Mapping[str, Mapping[str, str]], set[str]]]] = {
    "plain": ({"lo": {"flags": LOOPS}, "eth0": {"flags": UP}}, {"eth0"}),
    "loopback by another name": ({"dummy7": {"flags": LOOPS}, "lo1": {"flags": UP}}, {"lo1"}),
    "docker": (
        {
            "lo": {"flags": LOOPS},
            "eth0": {"flags": UP},
            "docker0": {"flags": UP, "lower_veth1": "../veth1", "lower_veth2": "../veth2"},
            "veth1": {"flags": UP, "master": "../docker0", "upper_docker0": "../docker0"},
            "veth2": {"flags": UP, "master": "../docker0", "upper_docker0": "../docker0"},
            "veth3": {"flags": UP},
        },
        {"eth0", "docker0", "veth3"},
    ),
    "bond with a VLAN on it": (
        {
            "eth0": {"flags": UP, "master": "../bond0"},
            "eth1": {"flags": UP, "master": "../bond0"},
            "bond0": {"flags": UP, "lower_eth0": "../eth0", "lower_eth1": "../eth1", "upper_bond0.7": "../bond0.7"},
            "bond0.7": {"flags": UP, "lower_bond0": "../bond0"},
        },
        {"bond0"},
    ),
    "VLAN on VLAN, macvlan": (
        {
            "eth0": {"flags": UP},
            "eth0.5": {"flags": UP, "lower_eth0": "../eth0"},
            "eth0.5.6": {"flags": UP, "lower_eth0.5": "../eth0.5"},
            "macvlan0": {"flags": UP, "lower_eth0": "../eth0"},
        },
        {"eth0"},
    ),
    "VM host: bridge over a VLAN of a bond": (
        {
            "eth0": {"flags": UP, "master": "../bond0"},
            "bond0": {"flags": UP, "lower_eth0": "../eth0"},
            "bond0.7": {"flags": UP, "lower_bond0": "../bond0", "master": "../br7"},
            "br7": {"flags": UP, "lower_bond0.7": "../bond0.7", "lower_tap0": "../tap0"},
            "tap0": {"flags": UP, "master": "../br7"},
        },
        {"bond0"},
    ),
    "VLAN beside a bridge port": (
        {
            "eth0": {"flags": UP, "master": "../br0"},
            "br0": {"flags": UP, "lower_eth0": "../eth0"},
            "eth0.5": {"flags": UP, "lower_eth0": "../eth0"},
        },
        {"br0", "eth0.5"},
    ),
    "Open vSwitch, whose master stands at 0": (
        {
            "eth0": {"flags": UP, "master": "../ovs-system"},
            "ovs-system": {"flags": DOWN, "lower_eth0": "../eth0"},
        },
        {"eth0", "ovs-system"},
    ),
    "master in another namespace": ({"eth0": {"flags": UP, "master": "../gone"}}, {"eth0"}),
    "VLAN whose lower is in another namespace": ({"eth0": {"flags": UP, "lower_gone": "../gone"}}, {"eth0"}),
    "sysfs hidden": ({"lo": {}, "eth0": {}, "Loopback Pseudo-Interface 1": {}, "lowpan0": {}}, {"eth0", "lowpan0"}),
}


def write_host(root: Path, interfaces: Mapping[str, Mapping[str, str]]) -> Files:
    """Write a host below `root` whose interfaces received 1, 10, 100 … and sent twice that."""
    traffic = {name: (10**index, 2 * 10**index) for index, name in enumerate(interfaces)}
    facts = {f"sys/class/net/{name}/{fact}": text for name, of in interfaces.items() for fact, text in of.items()}
    files = {path: text for path, text in facts.items() if not text.startswith("../")}
    links = {path: text for path, text in facts.items() if text.startswith("../")}
    return write_tree(root, {"proc/1/net/dev": dev(traffic), **files}, links)


@pytest.mark.parametrize(("interfaces", "counted"), HOSTS.values(), ids=HOSTS)
def test_no_byte_counts_twice(interfaces: Mapping[str, Mapping[str, str]], counted: set[str], tmp_path: Path) -> None:
    files = write_host(tmp_path, interfaces)
    assert choose({name: read_link(files, name) for name in interfaces}, ()) == counted


def test_bytes_start_at_0_and_are_those_of_the_counted_interfaces(tmp_path: Path) -> None:
    files = write_host(tmp_path, HOSTS["docker"][0])
    collector = network(files)
    assert values(collector) == {"network.sent": 0, "network.recv": 0}
    grown = {"lo": (9, 9), "eth0": (10 + 5, 20 + 7), "docker0": (100 + 50, 200 + 70), "veth1": (9999, 9999)}
    write_tree(tmp_path, {"proc/1/net/dev": dev({**grown, "veth2": (10**4, 2 * 10**4), "veth3": (10**5, 2 * 10**5)})})
    assert values(collector) == {"network.sent": 77, "network.recv": 55}


PATTERNS = {
    "exclusion only keeps the rule": (("!eth*",), {"docker0"}),
    "chosen ones alone": (("eth0",), {"eth0"}),
    "a port whose master is not chosen": (("veth1", "eth0"), {"veth1", "eth0"}),
    "a port whose master is chosen": (("veth*", "docker0"), {"docker0"}),
    "chosen minus excluded": (("*", "!docker0", "!veth2"), {"lo", "eth0", "veth1"}),
    "loopback by its name": (("lo",), {"lo"}),
    "none": (("!*",), set()),
    "no such interface": (("wlan*",), set()),
    "case counts": (("ETH0",), set()),
}


@pytest.mark.parametrize(("patterns", "counted"), PATTERNS.values(), ids=PATTERNS)
def test_patterns_choose_first_and_membership_holds_among_the_chosen(
    patterns: tuple[str, ...], counted: set[str]
) -> None:
    links = {
        "lo": Link(loopback=True),
        "eth0": Link(loopback=False),
        "docker0": Link(loopback=False, lowers=("veth1", "veth2")),
        "veth1": Link(loopback=False, master="docker0"),
        "veth2": Link(loopback=False, master="docker0"),
    }
    assert choose(links, patterns) == counted


def test_a_nic_that_joins_a_bond_is_noticed_within_a_minute(tmp_path: Path) -> None:
    files = write_host(tmp_path, {"eth0": {"flags": UP}, "bond0": {"flags": UP}})
    clock = Clock()
    collector = network(files, clock=clock)
    values(collector)
    write_tree(tmp_path, {}, {"sys/class/net/eth0/master": "../bond0", "sys/class/net/bond0/lower_eth0": "../eth0"})
    clock.now = 60.0
    before = values(collector)["network.recv"]
    write_tree(tmp_path, {"proc/1/net/dev": dev({"eth0": (1 + 500, 2), "bond0": (10 + 500, 20)})})
    assert values(collector)["network.recv"] - before == 500


def test_an_interface_that_comes_adds_nothing_of_its_past(tmp_path: Path) -> None:
    files = write_host(tmp_path, {"eth0": {"flags": UP}})
    collector = network(files)
    values(collector)
    write_tree(tmp_path, {"proc/1/net/dev": dev({"eth0": (3, 2), "usb0": (10**9, 10**9)})})
    assert values(collector) == {"network.sent": 0, "network.recv": 2}
    write_tree(tmp_path, {"proc/1/net/dev": dev({"usb0": (10**9 + 1, 10**9)})})
    assert values(collector) == {"network.sent": 0, "network.recv": 3}


def test_case_018_a_wrap_of_32_bits_never_makes_the_total_fall(tmp_path: Path) -> None:
    sent = []
    collector = None
    for count in (4287347239, 4288453273, 2345855, 4557891):
        files = write_tree(tmp_path, {"proc/1/net/dev": dev({"eth0": (0, count)})})
        collector = collector or network(files)
        sent.append(values(collector)["network.sent"])
    assert sent == [0, 1106034, 1106034 + 2345855, 1106034 + 4557891]


def test_retransmits_are_the_kernels_own_count(tmp_path: Path) -> None:
    files = write_tree(tmp_path, {"proc/1/net/snmp": SNMP})
    assert values(network(files)) == {"network.tcpRetransmits": 4711}


def test_a_moved_root_has_the_interfaces_of_its_process_1(tmp_path: Path) -> None:
    """`/proc/net` leads through `/proc/self` into our own namespace."""
    ours = {"proc/self/net/dev": dev({"eth0": (5, 5)}), "proc/net/dev": dev({"eth0": (6, 6)})}
    with pytest.raises(NotHere):
        network(write_tree(tmp_path, ours))


def test_the_counters_are_those_of_this_machine() -> None:
    text = Files("/").text("/proc/self/net/dev")
    theirs = psutil.net_io_counters(pernic=True, nowrap=False)
    ours = parse_dev(text)
    assert ours.keys() == theirs.keys()
    for name, io in theirs.items():
        assert ours[name].received == pytest.approx(io.bytes_recv, abs=2**20)
        assert ours[name].sent == pytest.approx(io.bytes_sent, abs=2**20)
    assert "lo" not in choose({name: read_link(Files("/"), name) for name in ours}, ())
    assert values(network(Files("/"))).keys() >= {"network.tcpRetransmits"}


@pytest.mark.parametrize("interfaces", [{"lo": {"flags": LOOPS}}, {}])
def test_case_017_without_a_network_there_are_no_bytes(
    interfaces: Mapping[str, Mapping[str, str]], tmp_path: Path
) -> None:
    files = write_host(tmp_path, interfaces)
    write_tree(tmp_path, {"proc/1/net/snmp": SNMP})
    assert values(network(files)) == {"network.tcpRetransmits": 4711}


def nothing(**_: object) -> None:
    """Answer as psutil does where there are no interfaces."""


def failing(error: Exception) -> Callable[..., None]:
    def counters(**_: object) -> None:
        raise error

    return counters


@pytest.mark.parametrize("counters", [nothing, failing(RuntimeError()), failing(FileNotFoundError())])
def test_case_017_psutil_without_interfaces_is_no_error(
    counters: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "psutil", SimpleNamespace(net_io_counters=counters))
    with pytest.raises(NotHere):
        network(Files(str(tmp_path)))


def test_case_017_an_interface_that_vanishes_while_psutil_reads_costs_one_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = {"en0": SimpleNamespace(bytes_recv=5, bytes_sent=6), "lo0": SimpleNamespace(bytes_recv=900, bytes_sent=900)}

    def counters(*, pernic: bool, nowrap: bool) -> dict[str, SimpleNamespace]:
        assert (pernic, nowrap) == (True, False)
        if not now:
            raise OSError
        return now

    monkeypatch.setitem(sys.modules, "psutil", SimpleNamespace(net_io_counters=counters))
    collector = network(WithoutProc(tmp_path))
    assert values(collector) == {"network.sent": 0, "network.recv": 0}
    now.clear()
    assert values(collector) == {}
    now["en0"] = SimpleNamespace(bytes_recv=15, bytes_sent=26)
    assert values(collector) == {"network.sent": 20, "network.recv": 10}


def test_it_says_what_it_counts(tmp_path: Path) -> None:
    collector = network(write_host(tmp_path, HOSTS["docker"][0]))
    assert collector.describe() == "interfaces: docker0, eth0, veth3"
    collector.close()
    collector.close()


def test_names_and_numbers_may_touch() -> None:
    assert parse_dev("eth0:1234 9 0 0 0 0 0 9 77 9 0 0 0 0 0 0") == {"eth0": Traffic(received=1234, sent=77)}


WORDS = st.sampled_from(["eth0:", "lo:", "1", "-", "\n", "Tcp:", "RetransSegs", "9" * 5000]) | st.integers().map(str)
TEXTS = st.text() | st.lists(WORDS, max_size=60).map(" ".join)


@given(TEXTS)
def test_any_text_is_read_without_an_error(text: str) -> None:
    assert all(name in text for name in parse_dev(text))
    found = parse_retransmits(text)
    assert found is None or str(abs(found)) in text


@pytest.mark.parametrize("text", [None, "", "Tcp: RetransSegs\n", "Tcp: A\nTcp: 1\n", "Tcp: RetransSegs\nTcp: x\n"])
def test_retransmits_that_are_not_said_are_absent(text: str | None) -> None:
    assert parse_retransmits(text) is None


COUNTERS = st.dictionaries(
    st.from_regex(r"[a-z][a-z0-9.@-]{0,14}", fullmatch=True),
    st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)),
)


@given(COUNTERS)
def test_every_counter_comes_back(traffic: dict[str, tuple[int, int]]) -> None:
    assert parse_dev(dev(traffic)) == {name: Traffic(*counts) for name, counts in traffic.items()}


NAMES = ["a", "b", "c", "d"]
LINKS = st.builds(
    Link,
    loopback=st.booleans(),
    up=st.booleans(),
    master=st.none() | st.sampled_from(NAMES),
    lowers=st.lists(st.sampled_from(NAMES), unique=True).map(tuple),
)


@given(st.dictionaries(st.sampled_from(NAMES), LINKS))
def test_no_two_counted_interfaces_are_master_and_port_or_upper_and_lower(links: dict[str, Link]) -> None:
    counted = choose(links, ())
    assert counted <= links.keys()
    for one, other in combinations(sorted(counted), 2):
        for port, master in ((one, other), (other, one)):
            assert links[port].master != master or not links[master].up
        for upper, lower in ((one, other), (other, one)):
            assert lower not in links[upper].lowers or links[lower].master == upper


@pytest.mark.parametrize("count", ["-1", str(2**64), "9" * 400])
def test_what_no_kernel_counts_is_no_counter(count: str) -> None:
    assert parse_dev(f"eth0: {count} 1 0 0 0 0 0 0 5 1 0 0 0 0 0 0\n") == {}
    assert parse_dev(f"eth0: 5 1 0 0 0 0 0 0 {count} 1 0 0 0 0 0 0\n") == {}
    assert parse_retransmits(f"Tcp: RtoMin RetransSegs\nTcp: 200 {count}\n") is None
