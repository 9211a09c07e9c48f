"""One side with a periodic reader that exports over OTLP/HTTP, and the sink that it exports to."""

from __future__ import annotations

import logging
import math
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricExportResult, PeriodicExportingMetricReader

from side_by_side import OURS, THEIRS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from opentelemetry.sdk.metrics.export import Metric, MetricReader, MetricsData

INTERVAL: Final = 15.0
"""Seconds between two cycles on the clock of the sampler, as by default."""
ALIGNED: Final = 8


class Mark(NamedTuple):
    """How many exports there were, and the CPU seconds used until then: by all threads, by the reader's, by exports."""

    exports: int
    process: float
    reader: float
    export: float


class Exporter(OTLPMetricExporter):
    """The real exporter; it notes the CPU time after each export and keeps the last note."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(endpoint=endpoint)
        self.last: MetricsData | None = None
        self._mark = Mark(0, 0.0, 0.0, 0.0)
        self._news = threading.Condition()

    def export(
        self, metrics_data: MetricsData, timeout_millis: float | None = 10_000, **_other: object
    ) -> MetricExportResult:
        """Export, and note what it cost."""
        begun = time.thread_time()
        result = super().export(metrics_data, timeout_millis)
        ended = time.thread_time()
        if result is MetricExportResult.SUCCESS:
            with self._news:
                self.last = metrics_data
                exporting = self._mark.export + ended - begun
                self._mark = Mark(self._mark.exports + 1, time.process_time(), ended, exporting)
                self._news.notify_all()
        return result

    def wait(self, exports: int) -> Mark:
        """Wait until there were so many exports; raises RuntimeError when that takes far too long."""
        with self._news:
            if not self._news.wait_for(lambda: self._mark.exports >= exports, timeout=200):
                message = f"{self._mark.exports} exports in place of {exports}"
                raise RuntimeError(message)
            return self._mark

    def metrics(self) -> list[Metric]:
        """Return the metrics of the last export."""
        resources = self.last.resource_metrics if self.last else ()
        return [metric for one in resources for scope in one.scope_metrics for metric in scope.metrics]

    def points(self) -> int:
        """Return the number of points in the last export."""
        return sum(len(metric.data.data_points) for metric in self.metrics())


class FastClock:
    """A sampler's clock that runs `times` as fast: all that happens in an interval of 15 s happens in less of ours."""

    def __init__(self, times: float) -> None:
        self._times = times

    def now(self) -> float:
        """Return seconds of this clock."""
        return time.monotonic() * self._times

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait for the event at most so many seconds of this clock."""
        return event.wait(seconds / self._times)


def provide(endpoint: str) -> tuple[MeterProvider, MetricReader, Exporter]:
    """Return a provider, its reader, which `tick` makes collect, and its exporter."""
    exporter = Exporter(endpoint)
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=math.inf)
    return MeterProvider(metric_readers=[reader], shutdown_on_exit=False), reader, exporter


def tick(reader: MetricReader, seconds: float, sampled: Callable[[], float] | None = None) -> None:
    """Export every `seconds`, in a thread, from the `ALIGNED`th time on in the middle between two samples.

    `sampled` tells when the last one was taken. With an interval of 15 s the two hardly ever meet, and there are as
    many of the one as of the other. With so short a one they would meet in each cycle or in none, by chance, and then
    wait for each other; and the reader's own thread, which waits so long after each export, would come less often.
    """

    def collect() -> None:
        due = time.monotonic()
        for turn in count(1):
            due += seconds
            if turn == ALIGNED and sampled is not None:
                due = sampled() + 1.5 * seconds
            time.sleep(max(0.0, due - time.monotonic()))
            reader.collect()

    threading.Thread(target=collect, daemon=True).start()


def start(side: str, endpoint: str, seconds: float, **settings: Any) -> Exporter:  # noqa: ANN401 - as of Settings
    """Start a side with a cycle every `seconds`, or with any other name neither: the SDK alone.

    `settings` are for ours; theirs runs in its default configuration.
    """
    provider, reader, exporter = provide(endpoint)
    sampled = None
    if side == OURS:
        from otel_sysmetrics import Settings
        from otel_sysmetrics.instrumentor import Attachment

        # On so fast a clock a moment without a CPU is a part that hangs.
        logging.getLogger("otel_sysmetrics").setLevel(logging.ERROR)
        times = INTERVAL / seconds
        attachment = Attachment(provider, Settings(**settings), clock=FastClock(times))
        attachment.start()

        def sampled() -> float:
            return max(health.snapshot.time for health in attachment.sampler.healths if health.snapshot) / times

    elif side == THEIRS:
        from opentelemetry.instrumentation.system_metrics import SystemMetricsInstrumentor

        SystemMetricsInstrumentor().instrument(meter_provider=provider)
    else:
        provider.get_meter("benchmark").create_counter("nothing").add(1)
    tick(reader, seconds, sampled)
    return exporter


@contextmanager
def sink() -> Iterator[str]:
    """Run an OTLP/HTTP endpoint in this process that takes everything and keeps nothing; yields its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Taker)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1/metrics"
    finally:
        server.shutdown()
        server.server_close()


class _Taker(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # keeps the connection, as collectors do

    def do_POST(self) -> None:
        """Take a request and answer with an empty response."""
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_arguments: object) -> None:
        """Say nothing."""
