"""Google TPUs, through a gRPC server that stands in for the runtime's."""

from __future__ import annotations

import itertools
import json
import os
import re
import socket
import struct
import sys
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_sysmetrics.collector import NotHere
from otel_sysmetrics.collectors.tpu import wire
from otel_sysmetrics.collectors.tpu.chips import UNKNOWN, Generation, find
from otel_sysmetrics.collectors.tpu.collector import readings
from otel_sysmetrics.collectors.tpu.service import ask
from otel_sysmetrics.sources.files import Files
from tests.fakes import run_script
from tests.parts import CAPTURES, SHARED, Bench, tree, values
from tests.tpu import Runtime, response

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SAMPLES: Final = SHARED / "samples" / "tpu"
USED: Final = "tpu.runtime.hbm.memory.usage.bytes"
TOTAL: Final = "tpu.runtime.hbm.memory.total.bytes"
DUTY: Final = "tpu.runtime.tensorcore.dutycycle.percent"
GIB: Final = 2**30
AS_SERVED: Final = {
    TOTAL: "hbmCapacityTotal",
    "tpu.runtime.hbm.utilization.percent": "runtimeHbmUtilization",
    "tpu.runtime.tensorcore.idle_duration.seconds": "tensorcoreIdleDuration",
}
TWO: Final[dict[str, dict[int, float]]] = {
    USED: {0: GIB, 1: 0},
    TOTAL: {0: 4 * GIB, 1: 4 * GIB},
    DUTY: {0: 75.5, 1: 0.0},
}
TAGS_OF_TWO: Final = {
    "tpu.0.memoryUsageBytes": GIB,
    "tpu.1.memoryUsageBytes": 0,
    "tpu.0.memoryUsage": 25,
    "tpu.1.memoryUsage": 0,
    "tpu.0.hbmCapacityTotal": 4 * GIB,
    "tpu.1.hbmCapacityTotal": 4 * GIB,
    "tpu.0.dutyCycle": 75.5,
    "tpu.1.dutyCycle": 0,
}
PCI: Final = {"v2": ("0x0027", "0x004e"), "v3": ("0x0027", "0x004f"), "v4": ("0x005e", "0x0000")}
PCI_LATER: Final = {"v5e": "0x0063", "v5p": "0x0062", "v6e": "0x006f", "7x": "0x0076"}


def machine(root: Path, generation: str = "v4") -> Path:
    device, subsystem = PCI.get(generation) or (PCI_LATER[generation], "0x0001")
    folder = "sys/bus/pci/devices/0000:00:04.0"
    return tree(
        root,
        {
            f"{folder}/vendor": "0x1ae0\n",
            f"{folder}/device": f"{device}\n",
            f"{folder}/subsystem_device": f"{subsystem}\n",
        },
    )


@contextmanager
def running(served: Mapping[str, Mapping[int, float]], **options: Any) -> Iterator[Runtime]:  # noqa: ANN401 - as the server's
    runtime = Runtime(served, **options)
    try:
        yield runtime
    finally:
        runtime.stop()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_what_a_workload_serves_gives_exactly_its_tags(tmp_path: Path) -> None:
    with running(TWO) as runtime:
        bench = Bench("tpu", machine(tmp_path), tpu_runtime_ports=(runtime.port,))

        found = bench.readings()

    assert values(found) == TAGS_OF_TWO
    assert {reading.attributes["hw.name"] for reading in found} == {"TPU v4"}
    assert bench.collector.describe() == f"TPU v4: 2 devices on port {runtime.port}"


@pytest.mark.parametrize("capture", sorted((CAPTURES / "tpu").glob("*.json")), ids=lambda path: path.stem)
def test_what_each_generation_serves_gives_exactly_its_tags(capture: Path, tmp_path: Path) -> None:
    recorded = json.loads(capture.read_text())
    served = {name: {int(device): value for device, value in rows.items()} for name, rows in recorded["served"].items()}
    with running(served) as runtime:
        bench = Bench("tpu", machine(tmp_path, recorded["generation"]), tpu_runtime_ports=(runtime.port,))
        assert bench.tags() == recorded["tags"]


def test_the_recordings_give_the_tags_of_the_rule() -> None:
    if not SAMPLES.exists():
        pytest.skip("the recordings are not here")
    expected = json.loads((SAMPLES / "expected_tags.json").read_text())["files"]
    for name, of_file in expected.items():
        recorded = json.loads((SAMPLES / name).read_text())["responses"]
        served = {metric: dict(map(of_row, answer["metric"].get("metrics", ()))) for metric, answer in recorded.items()}
        per_row = 2 if of_file["chip"] in {"v2", "v3"} else 1
        found = values(list(readings(served, Generation(of_file["chip"], per_row))))
        as_served = {
            f"tpu.{device}.{key}": value
            for metric, key in AS_SERVED.items()
            for device, value in served.get(metric, {}).items()
        }
        assert found == pytest.approx(of_file["tags"] | as_served, rel=1e-5, abs=1e-5), name


def of_row(row: dict[str, Any]) -> tuple[int, float]:
    gauge = row["gauge"]
    value = int(gauge["as_int"]) if "as_int" in gauge else float(gauge["as_double"])
    return int(row["attribute"]["value"]["int_attr"]), value


@pytest.mark.parametrize("generation", [*PCI, *PCI_LATER])
def test_each_generation_is_known_by_its_pci_id(generation: str, tmp_path: Path) -> None:
    found = find(Files(str(machine(tmp_path, generation))))

    assert found == Generation(generation, 2 if generation in {"v2", "v3"} else 1)


def test_a_generation_that_is_not_known_is_found_by_its_devices(tmp_path: Path) -> None:
    """By /dev/accel0 up to v4, later by Google's device that vfio hands to a process."""
    assert find(Files(str(tree(tmp_path / "old", {"dev/accel0": ""})))) == UNKNOWN

    later = tree(tmp_path / "later", {"sys/bus/pci/drivers/vfio-pci/bind": "", "sys/bus/pci/drivers/gvnic/bind": ""})
    folder = "sys/bus/pci/devices/0000:00:05.0"
    tree(later, {f"{folder}/vendor": "0x1ae0\n", f"{folder}/device": "0x00ff\n"})
    driver = later / folder / "driver"
    driver.symlink_to("../../drivers/gvnic")
    assert find(Files(str(later))) is None
    driver.unlink()
    driver.symlink_to("../../drivers/vfio-pci")
    assert find(Files(str(later))) == UNKNOWN


def test_a_machine_without_a_tpu_is_asked_for_nothing(tmp_path: Path) -> None:
    with pytest.raises(NotHere):
        _ = Bench("tpu", tmp_path).collector
    with pytest.raises(NotHere):
        _ = Bench("tpu", tree(tmp_path, {"dev/accel/accel0": ""})).collector, "another vendor's accelerator"


def test_the_default_port_is_no_sign_of_a_tpu(tmp_path: Path) -> None:
    with pytest.raises(NotHere):
        _ = Bench("tpu", tmp_path).collector
    assert Bench("tpu", machine(tmp_path)).collector.describe().startswith("TPU v4: no metrics on port 8431,")


@pytest.mark.parametrize("text", ["8431,-1", "8431,foo", "local", "localhost:8431", "0", "70000", "[8431"])
def test_what_googles_variable_cannot_mean_is_said_and_the_default_port_holds(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By `doctor`, and once in the log; where there is no TPU the log is silent."""
    monkeypatch.setenv("TPU_RUNTIME_METRICS_PORTS", text)
    complaint = f"; TPU_RUNTIME_METRICS_PORTS={text!r}: expected a list"
    with pytest.raises(NotHere, match=re.escape(complaint)):
        _ = Bench("tpu", tmp_path).collector
    assert caplog.messages == []

    bench = Bench("tpu", machine(tmp_path))
    bench.tags()

    assert bench.collector.describe().startswith("TPU v4: no metrics on port 8431,")
    assert complaint in bench.collector.describe()
    (said,) = caplog.messages
    assert said.startswith("otel-sysmetrics: tpu: ")
    assert complaint in said

    caplog.clear()
    assert "TPU_RUNTIME" not in Bench("tpu", tmp_path, tpu_runtime_ports=(free_port(),)).collector.describe()
    assert caplog.messages == []


def test_a_port_of_the_users_that_answers_suffices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(TWO) as runtime:
        monkeypatch.setenv("TPU_RUNTIME_METRICS_PORTS", f" {runtime.port} ")
        assert Bench("tpu", tmp_path).tags() == TAGS_OF_TWO


def test_of_a_device_that_two_ports_speak_of_the_first_is_believed(tmp_path: Path) -> None:
    """Case 87 (c): use and size of two runtimes that both call their chip 0 are not mixed into one that nobody has."""
    first_served: dict[str, dict[int, float]] = {USED: {0: 1}, TOTAL: {0: 8}, DUTY: {0: 5.0}}
    with running(first_served) as first, running({USED: {0: 2, 1: 3}, TOTAL: {0: 4}, DUTY: {0: 6.0}}) as second:
        bench = Bench("tpu", machine(tmp_path), tpu_runtime_ports=(first.port, second.port))
        assert bench.tags() == {
            "tpu.0.memoryUsageBytes": 1,
            "tpu.0.memoryUsage": 12.5,
            "tpu.0.hbmCapacityTotal": 8,
            "tpu.0.dutyCycle": 5,
            "tpu.1.memoryUsageBytes": 3,
        }
        assert bench.collector.describe() == f"TPU v4: 2 devices on ports {first.port}, {second.port}"


@pytest.mark.parametrize(
    ("served", "hangs"),
    [(TWO, USED), (TWO, TOTAL), (TWO, DUTY), *(({name: TWO[name]}, "") for name in TWO), ({}, "")],
    ids=["hangs at use", "hangs at size", "hangs at duty", "only use", "only size", "only duty", "nothing"],
)
@pytest.mark.parametrize("comes", ["first", "last"])
def test_what_one_port_does_not_say_another_does(
    served: dict[str, dict[int, float]], hangs: str, comes: str, tmp_path: Path
) -> None:
    """Wherever a port is cut short, or serves little, nothing is lost that another on the host serves."""
    with running(served, hangs=hangs) as poor, running(TWO) as whole:
        ports = (poor.port, whole.port) if comes == "first" else (whole.port, poor.port)
        bench = Bench("tpu", machine(tmp_path), tpu_runtime_ports=ports)
        assert bench.tags() == TAGS_OF_TWO


def test_use_and_size_are_of_one_port(tmp_path: Path) -> None:
    with running({USED: {0: 3}}) as first, running({TOTAL: {0: 4}}) as second:
        bench = Bench("tpu", machine(tmp_path), tpu_runtime_ports=(first.port, second.port))
        assert bench.tags() == {"tpu.0.memoryUsageBytes": 3}


def test_each_process_of_an_old_generation_gives_its_chips_duty_cycle_to_its_cores(tmp_path: Path) -> None:
    """Neither the cores nor the chips of a process need begin at 0, and chips may be named by number or first core."""
    with (
        running({USED: {4: 1, 5: 1}, DUTY: {2: 8.0}}) as first,
        running({USED: {6: 1, 7: 1}, DUTY: {6: 9.0}}) as second,
    ):
        found = Bench("tpu", machine(tmp_path, "v3"), tpu_runtime_ports=(first.port, second.port)).tags()

    assert {tag: value for tag, value in found.items() if tag.endswith("dutyCycle")} == {
        "tpu.4.dutyCycle": 8,
        "tpu.5.dutyCycle": 8,
        "tpu.6.dutyCycle": 9,
        "tpu.7.dutyCycle": 9,
    }


@pytest.mark.parametrize(
    ("per_row", "used", "duty", "expected"),
    [
        pytest.param(2, 0, {3: 5.0}, {6: 5, 7: 5}, id="no memory is served"),
        pytest.param(2, 8, {0: 1.0, 1: 2.0, 2: 3.0}, {}, id="a chip is missing for a moment"),
        pytest.param(2, 2, {0: 1.0, 1: 2.0}, {0: 1, 1: 2}, id="as many rows as cores"),
        pytest.param(None, 4, {0: 1.0, 1: 2.0}, {0: 1, 1: 1, 2: 2, 3: 2}, id="unknown, with half as many rows"),
        pytest.param(None, 3, {0: 1.0, 1: 2.0}, {0: 1, 1: 2}, id="unknown, as reported"),
        pytest.param(1, 4, {0: 1.0, 1: 2.0}, {0: 1, 1: 2}, id="a device per chip, as reported"),
    ],
)
def test_a_duty_cycle_is_given_only_to_whom_it_belongs(
    per_row: int | None, used: int, duty: dict[int, float], expected: dict[int, float]
) -> None:
    served: dict[str, dict[int, float]] = {USED: dict.fromkeys(range(used), 0), DUTY: duty}
    found = values(list(readings(served, Generation("", per_row))))

    assert {tag: value for tag, value in found.items() if tag.endswith("dutyCycle")} == {
        f"tpu.{device}.dutyCycle": value for device, value in expected.items()
    }


def test_several_ports_that_each_answer_for_all_give_no_duplicates(tmp_path: Path) -> None:
    with running(TWO) as first, running(TWO) as second:
        bench = Bench("tpu", machine(tmp_path), tpu_runtime_ports=(first.port, free_port(), second.port))
        assert bench.tags() == TAGS_OF_TWO


@pytest.mark.parametrize("shape", ["int", "text", "listed int", "listed text"])
@pytest.mark.parametrize("key", ["device_id", "device-id", "device_ordinal"])
def test_the_device_is_the_attributes_value_whatever_its_key_and_order(key: str, shape: str, tmp_path: Path) -> None:
    with running({USED: {13: 3, 8: 1}}, key=key, shape=shape) as runtime:
        bench = Bench("tpu", machine(tmp_path), tpu_runtime_ports=(runtime.port,))
        assert bench.tags() == {"tpu.8.memoryUsageBytes": 1, "tpu.13.memoryUsageBytes": 3}


def test_case_81_tpu_import_abort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither jax nor tensorflow nor libtpu is imported: their import may abort the process."""
    for name in ("jax", "libtpu", "tensorflow", "torch"):
        (tmp_path / f"{name}.py").write_text("import os\nos.abort()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with running(TWO) as runtime:
        assert Bench("tpu", machine(tmp_path / "root"), tpu_runtime_ports=(runtime.port,)).tags()

    assert not {"jax", "libtpu", "tensorflow"} & set(sys.modules)


test_case_85_tpu_sdk_segv = test_case_81_tpu_import_abort


def test_case_82_tpu_late_service(tmp_path: Path) -> None:
    """A service that comes and goes with its workload is found at each sample, and its absence is no failure."""
    port = free_port()
    bench = Bench("tpu", machine(tmp_path), tpu_runtime_ports=(port,))
    for _ in range(2):
        assert bench.tags() == bench.tags() == {}
        assert bench.collector.describe().startswith(f"TPU v4: no metrics on port {port}")
        with running(TWO, port=port):
            assert bench.tags() == TAGS_OF_TWO
    assert bench.tags() == {}


def test_case_84_tpu_no_workload(tmp_path: Path) -> None:
    """Empty metrics are no series and no failure."""
    with running({USED: {}, TOTAL: {}, DUTY: {}}) as runtime:
        assert Bench("tpu", machine(tmp_path), tpu_runtime_ports=(runtime.port,)).tags() == {}


def test_case_86_tpu_metrics_unavailable(tmp_path: Path) -> None:
    """A runtime that cannot list its metrics is asked for each; one that it does not know costs itself."""
    with running({DUTY: {0: 5.0}}, lists=False) as runtime:
        bench = Bench("tpu", machine(tmp_path), tpu_runtime_ports=(runtime.port,))
        assert bench.tags() == {"tpu.0.dutyCycle": 5}


@pytest.mark.parametrize(
    "says", [b"", b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"], ids=["nothing", "http"]
)
def test_case_87_tpu_multi_process_ports(says: bytes, tmp_path: Path) -> None:
    """Another program on the port gives no series and no exception, and costs the other ports nothing."""
    connections = []

    def serve(server: socket.socket) -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            connections.append(connection)
            if says:
                connection.sendall(says)
                connection.close()

    with socket.create_server(("127.0.0.1", 0)) as server, running(TWO) as runtime:
        threading.Thread(target=serve, args=(server,), daemon=True).start()
        ports = (server.getsockname()[1], runtime.port)
        assert Bench("tpu", machine(tmp_path), tpu_runtime_ports=ports).tags() == TAGS_OF_TWO
        server.shutdown(socket.SHUT_RDWR)
    for connection in connections:
        connection.close()


@pytest.mark.parametrize("proxy", ["http://127.0.0.1:9", "10.0.0.1:3128"])
def test_case_88_tpu_grpc_http_proxy(proxy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", proxy)
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    monkeypatch.delenv("no_proxy", raising=False)
    with running(TWO) as runtime:
        assert Bench("tpu", machine(tmp_path), tpu_runtime_ports=(runtime.port,)).tags() == TAGS_OF_TWO


def test_what_a_value_cannot_be_is_absent(tmp_path: Path) -> None:
    served: dict[str, dict[int, float]] = {
        USED: {0: -1, 1: 5 * GIB},
        TOTAL: {0: GIB, 1: GIB},
        DUTY: {0: 101.0, 1: float("nan"), 2: -0.5},
    }
    with running(served) as runtime:
        bench = Bench("tpu", machine(tmp_path), tpu_runtime_ports=(runtime.port,))
        assert bench.tags() == {"tpu.0.hbmCapacityTotal": GIB, "tpu.1.hbmCapacityTotal": GIB}


@pytest.mark.parametrize(
    ("used", "total", "expected"),
    [
        (0, 0, {}),
        (0, -1, {}),
        (5, 0, {"memoryUsageBytes": 5}),
        (5, 4, {"hbmCapacityTotal": 4}),
        (0, None, {"memoryUsageBytes": 0}),
        (5, None, {"memoryUsageBytes": 5}),
        (None, 0, {}),
        (0, 4, {"memoryUsageBytes": 0, "memoryUsage": 0, "hbmCapacityTotal": 4}),
        (4, 4, {"memoryUsageBytes": 4, "memoryUsage": 100, "hbmCapacityTotal": 4}),
    ],
)
def test_memory_that_is_not_known_is_no_0_and_none_is_more_than_there_is(
    used: int | None, total: int | None, expected: dict[str, float]
) -> None:
    said = {USED: used, TOTAL: total}
    served: dict[str, dict[int, float]] = {name: {0: value} for name, value in said.items() if value is not None}

    found = values(list(readings(served, UNKNOWN)))

    assert found == {f"tpu.0.{key}": value for key, value in expected.items()}


def test_a_metric_that_gets_no_answer_costs_none_that_was_read_before(tmp_path: Path) -> None:
    with running(TWO, hangs=DUTY) as runtime:
        bench = Bench("tpu", machine(tmp_path), tpu_runtime_ports=(runtime.port,))
        assert bench.tags() == {tag: value for tag, value in TAGS_OF_TWO.items() if "dutyCycle" not in tag}


def test_ports_that_never_answer_leave_time_for_those_after_them(tmp_path: Path) -> None:
    """Together they take less than the 2 seconds that each may take alone."""
    with ExitStack() as stack:
        silent = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        runtime = stack.enter_context(running(TWO))
        ports = (*(server.getsockname()[1] for server in silent), runtime.port)
        bench = Bench("tpu", machine(tmp_path), tpu_runtime_ports=ports)
        begun = time.monotonic()
        assert bench.tags() == TAGS_OF_TWO
        assert time.monotonic() - begun < 2 * len(silent)


@pytest.mark.parametrize("host", ["[::1]", "[::]"])
def test_a_service_that_listens_on_ip_6_is_found(host: str, tmp_path: Path) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    with running(TWO, host=host) as runtime:
        assert Bench("tpu", tmp_path, tpu_runtime_ports=(runtime.port,)).tags() == TAGS_OF_TWO


@pytest.mark.parametrize("age", [1, 5, 20])
def test_a_service_that_ends_each_connection_soon_costs_nothing(age: int, tmp_path: Path) -> None:
    """It says so while a call is running, or before it hears one."""
    with running(TWO, age=age) as runtime:
        bench = Bench("tpu", machine(tmp_path), tpu_runtime_ports=(runtime.port,))
        for _ in range(10):
            assert bench.tags() == TAGS_OF_TWO


@pytest.mark.parametrize(
    ("refused", "expected"), [(1, TAGS_OF_TWO), (2, TAGS_OF_TWO), (1000, {})], ids=["once", "twice", "always"]
)
def test_a_call_that_was_not_heard_is_made_anew_a_few_times(
    refused: int, expected: dict[str, float], tmp_path: Path
) -> None:
    """A GOAWAY names the last call that is answered; here none is, on so many connections."""
    go_away = struct.pack(">I", 8)[1:] + struct.pack(">BBIII", 7, 0, 0, 0, 0)

    def serve(server: socket.socket, port: int) -> None:
        for count in itertools.count():
            try:
                connection, _ = server.accept()
            except OSError:
                return
            connections.append(connection)
            if count < refused:
                connection.sendall(go_away)
                continue
            other = socket.create_connection(("127.0.0.1", port))
            connections.append(other)
            for source, target in ((connection, other), (other, connection)):
                threading.Thread(target=relay, args=(source, target), daemon=True).start()

    def relay(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                target.sendall(data)

    connections: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server, running(TWO) as runtime:
        threading.Thread(target=serve, args=(server, runtime.port), daemon=True).start()
        bench = Bench("tpu", machine(tmp_path), tpu_runtime_ports=(server.getsockname()[1],))
        assert bench.tags() == expected
        server.shutdown(socket.SHUT_RDWR)
    assert len(connections) < 10
    for connection in connections:
        connection.close()


def test_no_connection_outlives_a_sample(tmp_path: Path) -> None:
    with running(TWO) as runtime:
        bench = Bench("tpu", machine(tmp_path), tpu_runtime_ports=(runtime.port,))
        bench.tags()
        lines = Path("/proc/self/net/tcp").read_text(encoding="ascii").splitlines()[1:]
        ends = [(fields[2], fields[3]) for fields in map(str.split, lines)]
    assert [end for end in ends if end[0].endswith(f":{runtime.port:04X}") and end[1] == "01"] == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")
def test_case_145_tpu_grpc_fork(tmp_path: Path) -> None:
    """Children that are forked during a call, and call in turn, all end well, in silence; grpc is never loaded."""
    with running(TWO) as runtime:
        statuses, tags, loaded = run_script(
            """
            import json
            import os
            import signal
            import sys
            import threading
            import warnings
            from pathlib import Path

            from tests.parts import Bench

            warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12, of forks where threads are
            bench = Bench("tpu", Path(sys.argv[1]), tpu_runtime_ports=sys.argv[2])
            first = bench.tags()
            over = threading.Event()

            def go_on():
                while not over.is_set():
                    bench.tags()

            thread = threading.Thread(target=go_on, daemon=True)
            thread.start()
            children = []
            for _ in range(20):
                child = os.fork()
                if not child:
                    signal.alarm(20)
                    os._exit(0 if bench.tags() == first else 1)
                children.append(child)
            statuses = [os.waitpid(child, 0)[1] for child in children]
            over.set()
            thread.join()
            print(json.dumps([statuses, first, "grpc" in sys.modules]))
            """,
            str(machine(tmp_path)),
            str(runtime.port),
        )

    assert statuses == [0] * 20
    assert tags == TAGS_OF_TWO
    assert not loaded


FRAMES: Final = st.builds(
    lambda kind, flags, stream, payload: (
        struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload
    ),
    st.integers(0, 10),
    st.integers(0, 15),
    st.integers(0, 3),
    st.binary(max_size=20) | st.binary(max_size=20).map(lambda data: struct.pack(">BI", 0, len(data)) + data),
)


def test_no_bytes_of_a_server_escape_as_an_exception_or_make_a_value() -> None:
    says = [b""]

    def serve(server: socket.socket) -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection, suppress(OSError):
                connection.sendall(says[0])
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65_536):
                    pass

    @settings(max_examples=150, deadline=None)
    @given(st.binary() | st.lists(FRAMES).map(b"".join))
    def answers(data: bytes) -> None:
        says[0] = data
        assert all(rows == {} for rows in ask(server.getsockname()[1], (USED, DUTY), 5).values())

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, args=(server,), daemon=True).start()
        answers()
        server.shutdown(socket.SHUT_RDWR)


@given(st.dictionaries(st.integers(0, 2**31 - 1), st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False)))
def test_what_protobuf_encodes_is_read_back(rows: dict[int, float]) -> None:
    assert wire.values(response("x", rows)) == rows


@given(st.binary())
def test_no_bytes_make_the_parser_fail_otherwise_than_malformed(data: bytes) -> None:
    for parse in (wire.values, wire.supported):
        try:
            found = parse(data)
        except wire.Malformed:
            continue
        assert isinstance(found, dict | frozenset)


def test_a_row_without_a_value_is_no_0() -> None:
    row = b"\x0a\x04\x12\x02\x18\x03"  # an attribute whose value is the int 3, and no gauge
    metric = b"\x1a" + bytes([len(row)]) + row

    assert wire.values(b"\x0a" + bytes([len(metric)]) + metric) == {}
