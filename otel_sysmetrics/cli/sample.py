"""`otel-sysmetrics sample`: what is measured here and now."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, TypedDict

import click
from opentelemetry.sdk.metrics.export import NumberDataPoint, Sum

from otel_sysmetrics.catalog import CATALOG
from otel_sysmetrics.cli.once import take
from otel_sysmetrics.cli.options import Seconds
from otel_sysmetrics.cli.render import number, print_table
from otel_sysmetrics.selection import Selection
from otel_sysmetrics.settings import Settings
from otel_sysmetrics.sources.files import Files
from otel_sysmetrics.sources.processes import WatchedProcess
from otel_sysmetrics.threads import MonotonicClock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.sdk.metrics.export import MetricsData


class Point(TypedDict):
    """One point as `--format json` prints it."""

    name: str
    value: float
    unit: str
    kind: str
    attributes: dict[str, object]


@click.command("sample")
@click.option("--pid", type=click.IntRange(min=1), help="Process to watch, for the process tags.")
@click.option(
    "--window",
    type=Seconds(0.1),
    default=1.0,
    show_default=True,
    help="Seconds between the baseline and the sample.",
)
@click.option(
    "--timeout",
    type=Seconds(0),
    default=10.0,
    show_default=True,
    help="Seconds to wait for a collector that does not answer.",
)
@click.option("--format", "style", type=click.Choice(["table", "json"]), default="table", show_default=True)
def command(pid: int | None, window: float, timeout: float, style: str) -> None:
    """Take one sample and print it.

    Example: otel-sysmetrics sample --pid 4242 --format json
    """
    settings = Settings.load()
    settings = replace(settings, pid=pid) if pid is not None else settings
    sample = take(settings, window=window, timeout=timeout)
    points = sorted(_points(sample.metrics), key=lambda point: (point["name"], json.dumps(point["attributes"])))
    if style == "json":
        click.echo(json.dumps(points, indent=2))
    elif points:
        _print(points)
    if not points:
        click.echo(f"otel-sysmetrics: {_why_nothing(settings)}", err=True)
    for health in sample.silent:
        name = health.kind if health.name is None else f"{health.kind} {health.name}"
        click.echo(f"otel-sysmetrics: {name} did not answer within {window + timeout:g} s", err=True)
    if settings.pid is None:
        click.echo("otel-sysmetrics: no process is watched; --pid adds its tags", err=True)
    elif not exists(settings):
        click.echo(f"otel-sysmetrics: there is no process {settings.pid}", err=True)


def exists(settings: Settings) -> bool:
    """Tell whether the process that the settings name is there."""
    clock = MonotonicClock()
    return (
        WatchedProcess(Files(settings.root_path), lambda: settings.pid, tree=False, clock=clock.now).pid() is not None
    )


def _why_nothing(settings: Settings) -> str:
    chosen = Selection(settings.metrics_included, settings.metrics_excluded).spec
    if not any(map(chosen, CATALOG.values())):
        return "no metric is chosen by metrics_included and metrics_excluded"
    return "nothing could be read; `otel-sysmetrics doctor` says why"


def _points(data: MetricsData | None) -> Iterator[Point]:
    """Yield what a reader collected as plain values."""
    scopes = (scope for resource in (data.resource_metrics if data else ()) for scope in resource.scope_metrics)
    for metric in (metric for scope in scopes for metric in scope.metrics):
        for point in metric.data.data_points:
            if isinstance(point, NumberDataPoint):
                yield Point(
                    name=metric.name,
                    value=point.value,
                    unit=metric.unit or "",
                    kind="counter" if isinstance(metric.data, Sum) else "gauge",
                    attributes=dict(point.attributes or {}),
                )


def _print(points: list[Point]) -> None:
    rows = [
        (
            (point["name"], number(point["value"]), point["unit"]),
            [f"{key}={value}" for key, value in sorted(point["attributes"].items())],
        )
        for point in points
    ]
    print_table(("metric", "value", "unit", "attributes"), rows, right=("value",))
