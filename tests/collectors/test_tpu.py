"""Google TPUs, through a gRPC server that stands in for the runtime's."""

from __future__ import annotations

import json
import socket
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_sysmetrics.collector import NotHere
from otel_sysmetrics.collectors.tpu import wire
from otel_sysmetrics.collectors.tpu.chips import Generation, find
from otel_sysmetrics.collectors.tpu.collector import readings
from otel_sysmetrics.sources.files import Files
from tests.parts import CAPTURES, SHARED, Bench, tree, values
from tests.tpu import Runtime, response

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SAMPLES: Final = SHARED / "samples" / "tpu"
USED: Final = "tpu.runtime.hbm.memory.usage.bytes"
TOTAL: Final = "tpu.runtime.hbm.memory.total.bytes"
DUTY: Final = "tpu.runtime.tensorcore.dutycycle.percent"
GIB: Final = 2**30
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
    assert bench.collector.describe() == f"TPU v4: 1 of 1 serve metrics on port {runtime.port}"


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
        for tag, value in of_file["tags"].items():
            assert found[tag] == pytest.approx(value, rel=1e-5, abs=1e-5), (name, tag)


def of_row(row: dict[str, Any]) -> tuple[int, float]:
    gauge = row["gauge"]
    value = int(gauge["as_int"]) if "as_int" in gauge else float(gauge["as_double"])
    return int(row["attribute"]["value"]["int_attr"]), value


@pytest.mark.parametrize("generation", [*PCI, *PCI_LATER])
def test_each_generation_is_known_by_its_pci_id(generation: str, tmp_path: Path) -> None:
    found = find(Files(str(machine(tmp_path, generation))))

    assert found == Generation(generation, 2 if generation in {"v2", "v3"} else 1)


def test_a_machine_without_a_tpu_is_asked_for_nothing(tmp_path: Path) -> None:
    with pytest.raises(NotHere):
        _ = Bench("tpu", tmp_path).collector
    with pytest.raises(NotHere):
        _ = Bench("tpu", tree(tmp_path, {"dev/accel/accel0": ""})).collector, "another vendor's accelerator"


def test_a_port_of_the_users_that_answers_suffices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(TWO) as runtime:
        monkeypatch.setenv("TPU_RUNTIME_METRICS_PORTS", f" {runtime.port} ")
        assert Bench("tpu", tmp_path).tags() == TAGS_OF_TWO


def test_several_ports_that_each_answer_for_all_give_no_duplicates(tmp_path: Path) -> None:
    with running(TWO) as first, running(TWO) as second:
        bench = Bench("tpu", machine(tmp_path), tpu_runtime_ports=(first.port, free_port(), second.port))
        assert bench.tags() == TAGS_OF_TWO


def test_the_device_is_the_attributes_value_whatever_its_key_and_order(tmp_path: Path) -> None:
    with running({USED: {13: 3, 8: 1}}, key="device_id") as runtime:
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
    with running(TWO) as runtime:
        port = runtime.port
    bench = Bench("tpu", machine(tmp_path), tpu_runtime_ports=(port,))
    assert bench.tags() == {}
    assert bench.tags() == {}

    with running(TWO) as later:
        assert Bench("tpu", machine(tmp_path), tpu_runtime_ports=(later.port,)).tags() == TAGS_OF_TWO
        bench = Bench("tpu", machine(tmp_path), tpu_runtime_ports=(later.port,))
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
        assert bench.tags() == {
            "tpu.0.hbmCapacityTotal": GIB,
            "tpu.1.hbmCapacityTotal": GIB,
            "tpu.1.memoryUsageBytes": 5 * GIB,
        }


def test_no_connection_outlives_a_sample(tmp_path: Path) -> None:
    """One that lives while the application forks makes gRPC hang or abort the child."""
    with running(TWO) as runtime:
        bench = Bench("tpu", machine(tmp_path), tpu_runtime_ports=(runtime.port,))
        bench.tags()
        lines = Path("/proc/self/net/tcp").read_text(encoding="ascii").splitlines()[1:]
        ends = [(fields[2], fields[3]) for fields in map(str.split, lines)]
    assert [end for end in ends if end[0].endswith(f":{runtime.port:04X}") and end[1] == "01"] == []


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
