"""`otel-sysmetrics run`: the agent of a host."""

from __future__ import annotations

import signal
import socket
import sys
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import click

from otel_sysmetrics.cli.once import OFF
from otel_sysmetrics.otlp import export_interval
from otel_sysmetrics.settings import Settings
from otel_sysmetrics.sources.command import patiently

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics import MeterProvider

    from otel_sysmetrics.export import Attach, Pipeline, Reporting

SERVICE: Final = "otel-sysmetrics"
WINDOW: Final = 1.0
TIMEOUT: Final = 10.0
EXPORTERS: Final = click.Choice(["otlp", "console", "none"])


@click.command("run")
@click.option("--exporter", type=EXPORTERS, default="otlp", show_default=True)
@click.option("--pid", type=click.IntRange(min=1), help="Process to watch, for the process tags.")
@click.option("--once", is_flag=True, help="Export one sample and leave; status 1 when the export failed.")
def command(exporter: str, pid: int | None, *, once: bool) -> None:
    """Sample this host and export until SIGTERM or SIGINT.

    Example: OTEL_EXPORTER_OTLP_ENDPOINT=http://otelcol:4318 otel-sysmetrics run
    """
    settings = Settings.load()
    settings = replace(settings, pid=pid) if pid is not None else settings
    if once:
        sys.exit(_once(settings, exporter))
    from otel_sysmetrics.export import Pipeline
    from otel_sysmetrics.instrumentor import Attachment

    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())

    def attach(provider: MeterProvider) -> Reporting:
        attachment = Attachment(provider, settings, own=True, watch=lambda: settings.pid)
        attachment.start()
        return attachment

    pipeline = Pipeline(
        settings,
        exporter=exporter,
        on_closed=stop.set,
        service_name=SERVICE,
        instance_id=socket.gethostname(),
    )
    start(pipeline, attach)
    patiently(stop)
    pipeline.shutdown()


def start(pipeline: Pipeline, attach: Attach) -> None:
    """Start to report, or say why nothing is reported."""
    pipeline.start(attach)
    if pipeline.off:
        click.echo(f"otel-sysmetrics: {OFF}", err=True)


def _once(settings: Settings, kind: str) -> int:
    from opentelemetry.sdk.metrics.export import MetricExportResult

    from otel_sysmetrics.cli.once import take
    from otel_sysmetrics.export import EXIT_SECONDS, make_resource
    from otel_sysmetrics.exporters import make_exporter

    export_interval(settings.sampling_interval)
    exporter = make_exporter(kind)
    resource = make_resource(SERVICE, socket.gethostname())
    sample = take(settings, window=WINDOW, timeout=TIMEOUT, resource=resource, exporter=exporter)
    data = sample.metrics
    if exporter is None or data is None:
        return 0
    results: list[MetricExportResult] = []
    thread = threading.Thread(target=lambda: results.append(exporter.export(data)), daemon=True)
    thread.start()
    thread.join(EXIT_SECONDS)  # a backend that never answers would hold the exporter for its 10 s and more
    if thread.is_alive():
        exporter.abandon()
        return 1
    exporter.shutdown()
    return 0 if results == [MetricExportResult.SUCCESS] else 1
