"""The configurations of collector-config/, each run as it stands by the real otelcol, some beside a real Prometheus."""

from __future__ import annotations

import os
import re
import subprocess
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from otel_sysmetrics.cli.scrape_config import ScrapeConfig
from otel_sysmetrics.cli.yaml import yaml as yaml_of
from otel_sysmetrics.endpoints import Endpoint
from otel_sysmetrics.settings import Settings
from tests.cli.test_collector_config import OPENMETRICS_PAGE, addressed, read_here, seen
from tests.cli.test_collector_config import PAGE as FULL_PAGE
from tests.cli.test_collector_config import variables as of_collector
from tests.collectors.openmetrics_server import serving
from tests.fakes import until
from tests.otelcol import ACCEPT_UTF8, free_ports, running
from tests.prometheus import prometheus_running
from tests.running import COMMAND, Running, clean_environment, over

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.conftest import StartOtelcol

FOLDER = Path(__file__).parents[1] / "collector-config"
CONFIGS = sorted(path.name for path in FOLDER.glob("*.yaml") if path.name != "builder.yaml")
PAGE = """\
# TYPE DCGM_FI_DEV_GPU_TEMP gauge
DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-0",modelName="NVIDIA H100",Hostname="node-a"} 41
# TYPE DCGM_FI_DEV_FB_USED gauge
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-0",modelName="NVIDIA H100",Hostname="node-a"} 1024
DCGM_FI_DEV_FB_USED{gpu="1",UUID="GPU-1",modelName="NVIDIA A100",Hostname="node-a"} 2147483634
# TYPE DCGM_FI_DEV_ROW_REMAP_PENDING gauge
DCGM_FI_DEV_ROW_REMAP_PENDING{gpu="0"} 0
# TYPE latency histogram
latency_bucket{le="+Inf"} 2
latency_sum 3.5
latency_count 2
"""
SYSMETRICS = "OTEL_PYTHON_SYSMETRICS_"
TAGS = {"gpu.0.temp", "gpu.0.memoryAllocatedBytes", "disk./.usageGB", "memory_percent"}


def scraped(url: str, accept: str) -> str:
    with urllib.request.urlopen(urllib.request.Request(url, headers={"Accept": accept}), timeout=10) as response:
        return str(response.read(), "utf-8")


def test_with_their_defaults_no_otelcol_sends_to_one_that_sends_back() -> None:
    """On one host nothing goes round in a circle, nor where OTEL_EXPORTER_OTLP_ENDPOINT is what applications use."""
    sends: dict[str, set[str]] = {}
    listens: dict[str, set[str]] = {}
    for name in CONFIGS:
        text = Path(config(name)).read_text()
        tree = yaml.safe_load(re.sub(r"\$\{env:\w+:-([^}]*)\}", r"\1", text))
        protocols = tree["receivers"].get("otlp", {}).get("protocols", {}).values()
        listens[name] = {protocol["endpoint"].rpartition(":")[2] for protocol in protocols}
        sends[name] = set(re.findall(r":(\d+)", yaml.safe_dump(tree["exporters"]))) - {"9464"}
        assert not listens[name] or "{env:OTEL_EXPORTER_OTLP_ENDPOINT" not in text, name

    def reaches(name: str, seen: frozenset[str]) -> set[str]:
        following = {other for other in CONFIGS if sends[name] & listens[other]}
        return following | {end for other in following - seen for end in reaches(other, seen | following)}

    assert "gateway.yaml" in reaches("agent.yaml", frozenset())
    assert [name for name in CONFIGS if name in reaches(name, frozenset())] == []


def config(name: str) -> str:
    return str(FOLDER / name)


def ours(endpoint: str, dcgm: str) -> dict[str, str]:
    """Return the environment in which our package reads a dcgm-exporter and the host, and exports to an endpoint."""
    return clean_environment(
        **over("http/protobuf", endpoint),
        **{f"{SYSMETRICS}DCGM_EXPORTER": dcgm, f"{SYSMETRICS}SAMPLING_INTERVAL": "0.5"},
        OTEL_SERVICE_NAME="training",
    )


def listening(*names: str) -> tuple[dict[str, str], list[int]]:
    ports = free_ports(len(names))
    return {name: f"127.0.0.1:{port}" for name, port in zip(names, ports, strict=True)}, ports


@pytest.mark.otelcol
@pytest.mark.parametrize("name", CONFIGS)
def test_is_valid_with_nothing_set(otelcol_binary: str, name: str) -> None:
    """Every address has a default."""
    environment = {"PATH": os.environ["PATH"]}
    subprocess.run([otelcol_binary, "validate", "--config", config(name)], check=True, env=environment)


@pytest.mark.parametrize("name", CONFIGS)
def test_says_which_variables_it_takes_and_readme_says_what_it_is_for(name: str) -> None:
    """Head and content name the same variables."""
    text = (FOLDER / name).read_text(encoding="utf-8")
    head = "".join(line for line in text.splitlines(keepends=True) if line.startswith("#"))
    assert set(re.findall(r"\$\{env:(\w+)", text)) == set(re.findall(r"\b[A-Z]+_[A-Z_]+\b", head))
    assert f"[{name}]({name})" in (FOLDER / "README.md").read_text(encoding="utf-8")


@pytest.mark.otelcol
def test_from_our_package_through_agent_and_gateway(otelcol_binary: str, otelcol: StartOtelcol, tmp_path: Path) -> None:
    """What is sent while the gateway is away is on the agent's disk, outlives the agent, and arrives later."""
    backend = otelcol()
    listen, (http, grpc, agent) = listening("GATEWAY_LISTEN_HTTP", "GATEWAY_LISTEN_GRPC", "AGENT_LISTEN")
    of_agent = {
        "AGENT_LISTEN": listen["AGENT_LISTEN"],
        "AGENT_EXPORT_ENDPOINT": f"http://{listen['GATEWAY_LISTEN_HTTP']}",
        "OTELCOL_STORAGE": str(tmp_path / "queue"),
    }
    of_gateway = {**listen, "GATEWAY_EXPORT_ENDPOINT": backend.http_endpoint}
    run_agent = (otelcol_binary, "--config", config("agent.yaml"))
    with serving(PAGE) as server:
        with running(run_agent, [agent], of_agent):
            environment = ours(f"http://{listen['AGENT_LISTEN']}", f"{server.url}/metrics")
            subprocess.run([*COMMAND, "run", "--once"], env=environment, check=True)
        assert backend.points() == []
        with (
            running((otelcol_binary, "--config", config("gateway.yaml")), [http, grpc], of_gateway),
            running(run_agent, [agent], of_agent),
        ):
            points = backend.wait_for(lambda points: {each.name for each in points} >= TAGS)
    values = {each.name: (each.value, each.unit, each.resource["service.name"]) for each in points}
    assert values["gpu.0.temp"] == (41, "Cel", "training")
    assert values["gpu.0.memoryAllocatedBytes"] == (2**30, "By", "training")


@pytest.mark.otelcol
def test_openmetrics_filters_and_sends_on(otelcol_binary: str, otelcol: StartOtelcol) -> None:
    """Only what the patterns find arrives, under our names, and no histogram."""
    backend = otelcol()
    with serving(PAGE) as server:
        environment = {
            "OPENMETRICS_TARGET": server.url.partition("//")[2],
            "OPENMETRICS_NAME": "node1",
            "OPENMETRICS_PATTERN": "^node1\\.DCGM_.*_(TEMP|USED)$|latency",
            "OPENMETRICS_LABEL": "modelName",
            "OPENMETRICS_LABEL_PATTERN": "H100|A100",
            "SCRAPE_INTERVAL": "1s",
            "OTEL_EXPORTER_OTLP_ENDPOINT": backend.http_endpoint,
        }
        with running((otelcol_binary, "--config", config("openmetrics.yaml")), (), environment):
            backend.wait_for(lambda points: len(points) >= 4)
    found = {(each.name, each.value, each.attributes["modelName"]) for each in backend.points()}
    assert found == {
        ("openmetrics.node1.DCGM_FI_DEV_GPU_TEMP", 41, "NVIDIA H100"),
        ("openmetrics.node1.DCGM_FI_DEV_FB_USED", 1024, "NVIDIA H100"),
    }


CLASSIC, OPEN = "text/plain; version=0.0.4", "application/openmetrics-text; version=1.0.0"
OPENMETRICS: Mapping[str, tuple[str, str, object, Mapping[str, str]]] = {
    "everything": (FULL_PAGE, CLASSIC, None, {}),
    "everything of OpenMetrics": (OPENMETRICS_PAGE, OPEN, None, {}),
    "a name": (FULL_PAGE, CLASSIC, ["^node1.depth"], {"OPENMETRICS_PATTERN": "^node1.depth"}),
    "a label that has to be there": (
        *(FULL_PAGE, CLASSIC, {"node1": {"modelName": ".*"}}),
        {"OPENMETRICS_LABEL": "modelName"},
    ),
    "a label that the scraper needs": (
        *(FULL_PAGE, CLASSIC, {"node1": {"job": "web|^openmetrics.node1$"}}),
        {"OPENMETRICS_LABEL": "job", "OPENMETRICS_LABEL_PATTERN": "web|^openmetrics.node1$"},
    ),
}


def as_it_stands(name: str) -> Any:  # noqa: ANN401 - a tree of YAML
    """Return what otelcol reads where no variable is set."""
    text = (FOLDER / name).read_text(encoding="utf-8")
    return yaml.safe_load(re.sub(r"\$\{env:\w+:-([^}]*)\}", r"\1", text).replace("$$", "$"))


def test_openmetrics_is_what_collector_config_writes() -> None:
    """Both scrape alike, drop the same and name the same; only the rules that keep series are the file's own."""
    settings = Settings(openmetrics_endpoints={"endpoint": Endpoint("http://localhost:9400/metrics", timeout=15)})
    ours: Any = yaml.safe_load(yaml_of(ScrapeConfig(settings).tree).replace("$$", "$"))
    theirs = as_it_stands("openmetrics.yaml")

    assert theirs["processors"]["filter"] == ours["processors"]["filter/openmetrics"]
    assert theirs["processors"]["transform"] == ours["processors"]["transform/endpoint"]
    (made,), (file,) = (
        tree["receivers"][f"prometheus{name}"]["config"]["scrape_configs"]
        for tree, name in ((ours, "/endpoint"), (theirs, ""))
    )
    assert made.keys() == file.keys()
    own = {"job_name", "metric_relabel_configs"}
    assert {key: file[key] for key in file.keys() - own} == {key: made[key] for key in made.keys() - own}


@pytest.mark.otelcol
@pytest.mark.parametrize("case", OPENMETRICS)
def test_openmetrics_keeps_what_the_collector_keeps(otelcol_binary: str, otelcol: StartOtelcol, case: str) -> None:
    """Same names, labels, values, units and kinds, in both formats of text and under each sort of filter."""
    page, version, filters, variables = OPENMETRICS[case]
    backend = otelcol()
    with serving(addressed(page, version)) as server:
        expected = read_here(of_collector(f"{server.url}/metrics", filters))
        environment = {
            "OPENMETRICS_TARGET": server.url.partition("//")[2],
            "OPENMETRICS_NAME": "node1",
            "SCRAPE_INTERVAL": "1s",
            "OTEL_EXPORTER_OTLP_ENDPOINT": backend.http_endpoint,
            **variables,
        }
        server.seen.clear()
        with running((otelcol_binary, "--config", config("openmetrics.yaml")), (), environment):
            until(lambda: len(server.seen) >= 3)
    backend.stop()  # which writes all that it holds
    assert seen(backend.points()) == expected
    assert expected


@pytest.mark.otelcol
@pytest.mark.prometheus
@pytest.mark.parametrize("way", ["scraped", "sent"])
def test_names_arrive_in_prometheus_as_they_are(
    otelcol_binary: str, prometheus_binary: str, tmp_path: Path, way: str
) -> None:
    """Both where Prometheus scrapes otelcol and where otelcol sends to it; attributes and Resource are labels."""
    listen, ports = listening("OTLP_LISTEN", "PROMETHEUS_LISTEN")
    scrape = {
        "job_name": "otelcol",
        "scrape_interval": "500ms",
        "honor_labels": True,
        "static_configs": [{"targets": [listen["PROMETHEUS_LISTEN"]]}],
    }
    configuration = {
        "otlp": {"translation_strategy": "NoTranslation", "promote_all_resource_attributes": True},
        "scrape_configs": [scrape] if way == "scraped" else [],
    }
    with serving(PAGE) as server, prometheus_running(prometheus_binary, str(tmp_path), configuration) as prometheus:
        environment = {
            **listen,
            "PROMETHEUS_EXPORTER": "prometheus" if way == "scraped" else "otlp_http/prometheus",
            "PROMETHEUS_URL": prometheus.url,
        }
        command = (otelcol_binary, "--config", config("prometheus.yaml"))
        package = ours(f"http://{listen['OTLP_LISTEN']}", f"{server.url}/metrics")
        with (
            running(command, ports if way == "scraped" else ports[:1], environment),
            Running(*COMMAND, "run", environment=package),
        ):
            for tag in TAGS:
                prometheus.query(f'{{"{tag}"}}')
            ((labels, value),) = prometheus.query('{__name__=~"gpu\\\\.\\\\d+\\\\.temp", "service.name"="training"}')
            assert value == 41
            assert labels["host.name"] == "node-a"  # the point's own, not that of the Resource
            ((labels, _),) = prometheus.query('{"memory_percent"}')
            assert labels["host.name"] not in {"", "node-a"}
            ((labels, value),) = prometheus.query('avg by ("service.name") ({"gpu.0.memoryAllocatedBytes"})')
            assert (labels, value) == ({"service.name": "training"}, 2**30)
            assert not any("gpu_0" in name for name in prometheus.get("label/__name__/values"))


@pytest.mark.prometheus
def test_our_package_sends_to_prometheus_without_an_otelcol(prometheus_binary: str, tmp_path: Path) -> None:
    """README's short way: its own receiver of OTLP, names and Resource as they are."""
    configuration = {"otlp": {"translation_strategy": "NoTranslation", "promote_all_resource_attributes": True}}
    with serving(PAGE) as server, prometheus_running(prometheus_binary, str(tmp_path), configuration) as prometheus:
        environment = ours(f"{prometheus.url}/api/v1/otlp", f"{server.url}/metrics")
        subprocess.run([*COMMAND, "run", "--once"], env=environment, check=True)
        for tag in TAGS:
            ((labels, _),) = prometheus.query(f'{{"{tag}"}}')
            assert labels["service.name"] == "training"


@pytest.mark.otelcol
def test_what_is_gone_is_gone_after_metric_expiration(otelcol_binary: str) -> None:
    """The Prometheus exporter forgets a series, and mangles names only for scrapers that want it."""
    listen, ports = listening("OTLP_LISTEN", "PROMETHEUS_LISTEN")
    environment = {**listen, "METRIC_EXPIRATION": "2s"}
    url = f"http://{listen['PROMETHEUS_LISTEN']}/metrics"
    with serving(PAGE) as server, running((otelcol_binary, "--config", config("prometheus.yaml")), ports, environment):
        package = ours(f"http://{listen['OTLP_LISTEN']}", f"{server.url}/metrics")
        subprocess.run([*COMMAND, "run", "--once"], env=package, check=True)
        until(lambda: '{"gpu.0.temp",' in scraped(url, ACCEPT_UTF8))
        assert "gpu_0_temp{" in scraped(url, "text/plain")
        until(lambda: "temp" not in scraped(url, ACCEPT_UTF8))


@pytest.mark.prometheus
def test_rules_about_our_names_are_accepted(promtool_binary: str, tmp_path: Path) -> None:
    """Recording and alerting rules that quote our names pass promtool."""
    rules = [
        {"alert": "Ill", "expr": '{"sysmetrics.collector.success"} == 0'},
        {"record": "job:gpu_temp:max", "expr": 'max by ("service.name") ({__name__=~"gpu\\\\.\\\\d+\\\\.temp"})'},
    ]
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "hardware", "rules": rules}]}), encoding="utf-8")
    subprocess.run([promtool_binary, "check", "rules", str(path)], check=True, capture_output=True)
