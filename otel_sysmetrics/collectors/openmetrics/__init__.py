"""OpenMetrics endpoints, one part each, and a dcgm-exporter as the GPUs that it shows."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from otel_sysmetrics.catalog import openmetrics
from otel_sysmetrics.collector import Part
from otel_sysmetrics.collectors.openmetrics.dcgm import SPECS
from otel_sysmetrics.endpoints import DCGM_PART, Endpoint

if TYPE_CHECKING:
    from otel_sysmetrics.collector import Collector, Context

__all__ = ["parts"]


def parts(context: Context) -> tuple[Part, ...]:
    """Return one part for each endpoint that the settings name, none where they name none."""
    settings = context.settings
    found = [
        Part("openmetrics", name, (openmetrics.SERIES,), partial(_probe, context, name, endpoint))
        for name, endpoint in settings.openmetrics_endpoints.items()
    ]
    if settings.dcgm_exporter is not None:
        endpoint = Endpoint(settings.dcgm_exporter)
        found.append(Part("openmetrics", DCGM_PART, SPECS, partial(_probe_dcgm, context, endpoint)))
    return tuple(found)


def _probe(context: Context, name: str, endpoint: Endpoint) -> Collector:
    # Not at the top: TLS and HTTP are loaded only where something is fetched.
    from otel_sysmetrics.collectors.openmetrics.endpoint import OpenMetrics

    return OpenMetrics(context, name, endpoint)


def _probe_dcgm(context: Context, endpoint: Endpoint) -> Collector:
    from otel_sysmetrics.collectors.openmetrics.dcgm_exporter import DcgmExporter

    return DcgmExporter(context, endpoint)
