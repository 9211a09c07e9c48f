"""What tests with the real otelcol rest on, tried with the plain SDK."""

import json
import math
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpExporter
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricExporter, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource

from tests.conftest import StartOtelcol
from tests.otelcol import Otelcol, Point

pytestmark = pytest.mark.otelcol


def over_http(backend: Otelcol) -> MetricExporter:
    return HttpExporter(endpoint=f"{backend.http_endpoint}/v1/metrics")


def over_grpc(backend: Otelcol) -> MetricExporter:
    return GrpcExporter(endpoint=backend.grpc_endpoint)


@contextmanager
def exporting(exporter: MetricExporter) -> Iterator[MeterProvider]:
    """Measure one temperature and one traffic counter; leaving exports them."""

    def temperature(_: CallbackOptions) -> list[Observation]:
        return [Observation(54.5, {"part": "core"})]

    resource = Resource({"service.name": "training", "process.command_args": ["a", "b"], "process.pid": 7})
    provider = MeterProvider([PeriodicExportingMetricReader(exporter)], resource)
    meter = provider.get_meter("plain-sdk", "1.2")
    meter.create_observable_gauge("gpu.0.temp", [temperature], unit="Cel")
    meter.create_counter("network./.sent", unit="By").add(3)
    try:
        yield provider
    finally:
        provider.shutdown()


def has(*names: str) -> Callable[[list[Point]], bool]:
    return lambda points: set(names) <= {point.name for point in points}


@pytest.mark.parametrize("exporter", [over_http, over_grpc])
def test_gauge_and_counter_arrive(otelcol: StartOtelcol, exporter: Callable[[Otelcol], MetricExporter]) -> None:
    backend = otelcol()
    before = time.time_ns()
    with exporting(exporter(backend)):
        pass

    points = {point.name: point for point in backend.wait_for(has("gpu.0.temp", "network./.sent"))}

    gauge = points["gpu.0.temp"]
    assert (gauge.kind, gauge.unit, gauge.value, gauge.attributes) == ("gauge", "Cel", 54.5, {"part": "core"})
    assert (gauge.monotonic, gauge.temporality) == (False, None)
    assert (gauge.scope_name, gauge.scope_version) == ("plain-sdk", "1.2")
    assert gauge.resource == {"service.name": "training", "process.command_args": ["a", "b"], "process.pid": 7}
    assert before <= gauge.time_ns <= time.time_ns()

    counter = points["network./.sent"]
    assert (counter.kind, counter.unit, counter.monotonic, counter.temporality) == ("sum", "By", True, "cumulative")
    assert counter.value == 3
    assert isinstance(counter.value, int)
    assert before <= counter.start_time_ns <= counter.time_ns


def test_prometheus_exporter_keeps_names(otelcol: StartOtelcol) -> None:
    backend = otelcol(prometheus=True)
    with exporting(over_http(backend)):
        pass
    backend.wait_for(has("gpu.0.temp"))

    scraped = backend.scrape()

    assert '{"gpu.0.temp",job="training"' in scraped
    assert '{"network./.sent",job="training"' in scraped
    assert 'gpu_0_temp{job="training"' in backend.scrape(accept="text/plain")


def test_restart_keeps_address_and_points(otelcol: StartOtelcol) -> None:
    backend = otelcol()
    with exporting(over_http(backend)) as provider:
        provider.force_flush()
        before = backend.wait_for(bool)
        backend.restart()

    after = backend.wait_for(lambda points: len(points) > len(before))
    assert after[: len(before)] == before


def test_config_is_merged_over_the_base(otelcol: StartOtelcol) -> None:
    backend = otelcol(
        {
            "processors": {"resource": {"attributes": [{"key": "service.name", "action": "delete"}]}},
            "service": {"pipelines": {"metrics": {"processors": ["resource"]}}},
        }
    )
    with exporting(over_http(backend)):
        pass

    assert "service.name" not in backend.wait_for(has("gpu.0.temp"))[0].resource


def test_bad_config_fails_with_the_log(otelcol: StartOtelcol) -> None:
    with pytest.raises(RuntimeError, match="unknown type"):
        otelcol({"processors": {"no_such_processor": {}}})


def test_stale_marker_is_read(otelcol: StartOtelcol) -> None:
    backend = otelcol()
    metric = {"name": "gone", "gauge": {"dataPoints": [{"timeUnixNano": "1", "flags": 1}]}}
    body = json.dumps({"resourceMetrics": [{"scopeMetrics": [{"metrics": [metric]}]}]}).encode()
    headers = {"Content-Type": "application/json"}
    urllib.request.urlopen(urllib.request.Request(f"{backend.http_endpoint}/v1/metrics", body, headers)).close()

    (gone,) = backend.wait_for(has("gone"))
    assert math.isnan(gone.value)
    assert (gone.resource, gone.scope_name, gone.attributes) == ({}, "", {})


def test_wait_for_tells_what_arrived(otelcol: StartOtelcol) -> None:
    with pytest.raises(AssertionError, match=r"0 points of \[\]"):
        otelcol().wait_for(has("nothing"), timeout=0.3)
