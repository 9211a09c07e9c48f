"""The GPUs of a dcgm-exporter, from its own page and from a Prometheus."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import pytest

from otel_sysmetrics.catalog import gpu
from otel_sysmetrics.collector import Unavailable
from otel_sysmetrics.sources.reported import report
from tests.collectors.openmetrics_server import serving
from tests.collectors.test_openmetrics import by_name, collector
from tests.fakes import Desk

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

GPU: Final = 'gpu="{}",UUID="GPU-{}",device="nvidia{}",modelName="NVIDIA H100",{}="node-a"'


def dcgm_page(node: str = "Hostname") -> str:
    fields = (
        *(("DEV_GPU_TEMP", 41), ("DEV_POWER_USAGE", 350), ("DEV_POWER_MGMT_LIMIT", 700), ("DEV_FB_USED", 100)),
        *(("DEV_FB_FREE", 280), ("DEV_FB_RESERVED", 20), ("PROF_SM_ACTIVE", 0.5), ("DEV_GPU_UTIL", 4294967295)),
        *(("DEV_TOTAL_ENERGY_CONSUMPTION", 5000), ("PROF_PCIE_TX_BYTES", 9223372036854775792)),
    )
    return "".join(f"DCGM_FI_{name}{{{GPU.format(0, 'a', 0, node)}}} {value}\n" for name, value in fields)


EXPECTED: Final = {
    "gpu.0.temp": 41,
    "gpu.0.powerWatts": 350,
    "gpu.0.enforcedPowerLimitWatts": 700,
    "gpu.0.powerPercent": 50,
    "gpu.0.memoryAllocatedBytes": 100 * 2**20,
    "gpu.0.memoryAllocated": 25,
    "gpu.0.smActive": 50,
    "gpu.0.energyJoules": 5,
}


@pytest.mark.parametrize("node", ["Hostname", "hostname", "node", "instance"])
def test_a_page_of_dcgm_exporter_becomes_the_tags_of_its_gpus(node: str) -> None:
    with serving(dcgm_page(node)) as server:
        readings = tuple(collector(dcgm=f"{server.url}/metrics").sample())

    assert by_name(readings) == EXPECTED
    for reading in readings:
        assert reading.attributes == {"hw.id": "GPU-a", "hw.name": "NVIDIA H100", "host.name": "node-a"}
        assert reading.labels == {"gpu": 0}


def test_a_query_to_prometheus_gives_the_same() -> None:
    result = []
    for line in dcgm_page().splitlines():
        name, _, rest = line.partition("{")
        labels, _, value = rest.rpartition("} ")
        pairs = (label.split("=") for label in labels.split(","))
        metric = {"__name__": name, "instance": "10.0.0.1:9400"} | {key: text.strip('"') for key, text in pairs}
        result.append({"metric": metric, "value": [1700000000, value]})
    answer = {"status": "success", "data": {"resultType": "vector", "result": [*result, {"metric": 3}]}}
    with serving(json.dumps(answer)) as server:
        url = f"{server.url}/prefix/api/v1/query?query=%7Bjob%3D%22dcgm%22%7D"
        assert by_name(collector(dcgm=url).sample()) == EXPECTED
        assert server.seen[0][0] == "/prefix/api/v1/query?query=%7Bjob%3D%22dcgm%22%7D"
        server.answer = lambda request: request.say('{"data": {"resultType": "scalar", "result": [1, "2"]}}')
        with pytest.raises(Unavailable, match="no instant vector"):
            tuple(collector(dcgm=url).sample())


@pytest.mark.parametrize("value", [10**400, True, None, {}, "1_0", "9" * 5000])
def test_a_value_that_is_none_costs_its_row_of_the_reply(value: object) -> None:
    rows = [
        {"metric": {"__name__": f"DCGM_FI_DEV_{field}", "gpu": "0"}, "value": [1, each]}
        for field, each in (("GPU_TEMP", value), ("GPU_UTIL", "12"))
    ]
    with serving(json.dumps({"data": {"resultType": "vector", "result": rows}})) as server:
        assert by_name(collector(dcgm=f"{server.url}/api/v1/query").sample()) == {"gpu.0.gpu": 12}


@pytest.mark.parametrize("label", [f'gpu="{5000 * "1"}"', 'gpu="2",instance="[::1"', 'gpu="2",instance="\u2100:80"'])
def test_an_odd_label_of_one_gpu_costs_no_other_one(label: str) -> None:
    page = f'DCGM_FI_DEV_GPU_TEMP{{{label}}} 41\nDCGM_FI_DEV_GPU_TEMP{{gpu="1"}} 42\n'
    with serving(page) as server:
        found = {
            reading.labels["gpu"]: reading.value for reading in collector(dcgm=server.url).sample() if reading.value
        }

    assert len(found) == 2
    assert found[1] == 42


def test_a_gpu_that_nvml_shows_here_comes_once() -> None:
    with serving(dcgm_page()) as server:
        exporter = collector(dcgm=server.url)
        report("nvidia", ["gpu-A"])
        try:
            assert by_name(exporter.sample()) == {}
        finally:
            report("nvidia", ())
        assert by_name(exporter.sample()) == EXPECTED


def test_a_mig_instance_has_its_own_tags() -> None:
    labels = GPU.format(2, "m", 2, "Hostname") + ',GPU_I_PROFILE="1g.10gb",GPU_I_ID="7"'
    body = (
        f"DCGM_FI_DEV_FB_USED{{{labels}}} 10\nDCGM_FI_DEV_FB_FREE{{{labels}}} 30\nDCGM_FI_DEV_GPU_TEMP{{{labels}}} 3\n"
    )
    desk = Desk()
    with serving(body) as server:
        desk.give(*collector(dcgm=server.url).sample())

    points = desk.ask()
    assert {point.name: point.value for point in points} == {
        "gpu.2.mig.7.memoryAllocatedBytes": 10 * 2**20,
        "gpu.2.mig.7.memoryAllocated": 25,
    }
    for point in points:  # not the parent's UUID, which is no instance's
        assert point.attributes == {
            "gpu.index": 2,
            "gpu.mig.id": 7,
            "hw.name": "NVIDIA H100",
            "host.name": "node-a",
        }


A: Final = {"gpu": "0", "UUID": "GPU-a", "modelName": "NVIDIA H100", "Hostname": "node-a"}
A_0: Final = (0, "GPU-a", "node-a")


def without(*keys: str, **more: str) -> dict[str, str]:
    return {key: value for key, value in A.items() if key not in keys} | more


ONE_GPU: Final = {
    "the exporter was scraped twice": ([A, A], A_0),
    "by two addresses": (
        [without("Hostname", instance="node-a:9400"), without("Hostname", instance="zone.node-a:9400")],
        A_0,
    ),
    "its own word for the node, and Prometheus'": ([A, without("Hostname", instance="10.0.0.1:9400")], A_0),
    "both spellings": ([A, without("Hostname", "UUID", uuid="GPU-a", hostname="node-a")], A_0),
    "rows without a UUID": ([A, without("UUID")], A_0),
    "rows without a UUID, and the other without a node": (
        [without("Hostname"), without("Hostname", "UUID")],
        (0, "GPU-a", None),
    ),
    "shared by two pods": ([{**A, "pod": "x"}, {**A, "pod": "y"}], A_0),
    "a number of the container's": ([A, {**A, "gpu": "1"}], A_0),
}


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("case", ONE_GPU)
def test_a_gpu_that_is_shown_in_two_ways_comes_once_and_whole(case: str, *, turned: bool) -> None:
    """Its fields come together, half of them shown one way, and the order of the rows does not matter."""
    (first, second), (number, uuid, node) = ONE_GPU[case]
    rows = [
        *(row("POWER_USAGE", 350, first), row("GPU_TEMP", 41, first), row("GPU_TEMP", 41, second)),
        row("POWER_MGMT_LIMIT", 700, second),
    ]
    with serving(reply(rows[::-1] if turned else rows)) as server:
        exporter = collector(dcgm=f"{server.url}/api/v1/query?query=x")
        readings = [reading for reading in exporter.sample() if reading.value is not None]

    assert by_name(readings) == {
        "gpu.0.powerWatts": 350,
        "gpu.0.enforcedPowerLimitWatts": 700,
        "gpu.0.powerPercent": 50,
        "gpu.0.temp": 41,
    }
    for reading in readings:
        assert (reading.labels["gpu"], reading.attributes["hw.id"], reading.attributes["host.name"]) == (
            number,
            uuid,
            node,
        )
    assert exporter.describe() == "1 GPU of 1 node"


TWO_GPUS: Final = {
    "two numbers": (A, {**A, "gpu": "1", "UUID": "GPU-b"}),
    "one number on two nodes": (A, {**A, "UUID": "GPU-b", "Hostname": "node-b"}),
    "one number behind one address": (A, {**A, "UUID": "GPU-b"}),
    "no UUIDs": (without("UUID"), without("UUID", Hostname="node-b")),
    "instances of one GPU": ({**A, "GPU_I_ID": "7"}, {**A, "GPU_I_ID": "8"}),
}


@pytest.mark.parametrize("case", TWO_GPUS)
def test_two_gpus_stay_two(case: str) -> None:
    field = "FB_USED"
    with serving(reply([row(field, 1, TWO_GPUS[case][0]), row(field, 2, TWO_GPUS[case][1])])) as server:
        readings = tuple(collector(dcgm=f"{server.url}/api/v1/query").sample())

    assert sorted(reading.value for reading in readings if reading.value is not None) == [2**20, 2**21]


def test_a_gpu_that_nvml_shows_here_has_no_row_without_its_uuid_either() -> None:
    with serving(reply([row("GPU_TEMP", 41, A), row("GPU_UTIL", 5, without("UUID"))])) as server:
        exporter = collector(dcgm=f"{server.url}/api/v1/query")
        report("nvidia", ["GPU-a"])
        try:
            assert by_name(exporter.sample()) == {}
        finally:
            report("nvidia", ())


def row(field: str, value: float, labels: Mapping[str, str]) -> object:
    """Return a row of Prometheus' reply."""
    return {"metric": {"__name__": f"DCGM_FI_DEV_{field}", **labels}, "value": [1700000000, str(value)]}


def reply(rows: Sequence[object]) -> str:
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": rows}})


@pytest.mark.parametrize(
    ("path", "body", "remedy"),
    [
        ("metrics", "a 1\n", "name a dcgm-exporter's page"),
        ("metrics", "", "name a dcgm-exporter's page"),
        ("api/v1/query", reply([]), "ask for series"),
        ("api/v1/query", reply([{"metric": {"__name__": "up"}, "value": [1, "1"]}]), "ask for series"),
    ],
)
def test_what_shows_nothing_of_dcgm_is_ill_and_says_what_to_name(path: str, body: str, remedy: str) -> None:
    with serving(body) as server, pytest.raises(Unavailable, match=r"^no DCGM_FI_… series$") as error:
        tuple(collector(dcgm=f"{server.url}/{path}").sample())
    assert error.value.remedy.startswith(remedy)


@pytest.mark.parametrize("name", ["DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_GPU_TEMP"])
def test_dcgm_without_a_value_for_us_is_well(name: str) -> None:
    """Fields that have no tag, and those that DCGM does not know now."""
    rows = [{"metric": {"__name__": name, **A}, "value": [1, "9223372036854775794"]}]
    for path, body in (("metrics", f'{name}{{gpu="0"}} 9223372036854775794\n'), ("api/v1/query", reply(rows))):
        with serving(body) as server:
            exporter = collector(dcgm=f"{server.url}/{path}")
            assert by_name(exporter.sample()) == {}
            assert exporter.describe() == "0 GPUs of 0 nodes"


def test_gpus_of_two_nodes_share_a_tag_and_differ_by_host() -> None:
    other = dcgm_page().replace("node-a", "node-b").replace("GPU-a", "GPU-b")
    with serving(dcgm_page() + other) as server:
        readings = tuple(collector(dcgm=server.url).sample())

    hosts = {reading.attributes["host.name"] for reading in readings if reading.spec is gpu.TEMPERATURE}
    assert hosts == {"node-a", "node-b"}
