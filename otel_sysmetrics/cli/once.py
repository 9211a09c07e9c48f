"""One sample, taken the way it is exported: for `sample` and `run --once`."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import click
from opentelemetry.metrics import NoOpMeter
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from otel_sysmetrics.export import make_provider
from otel_sysmetrics.instrumentor import Attachment
from otel_sysmetrics.instruments import METER
from otel_sysmetrics.threads import MonotonicClock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.sdk.metrics.export import MetricExporter, MetricsData
    from opentelemetry.sdk.resources import Resource

    from otel_sysmetrics.runner import Health
    from otel_sysmetrics.settings import Settings
    from otel_sysmetrics.threads import Clock

OFF = "nothing is measured: OTEL_SDK_DISABLED or OTEL_PYTHON_SYSMETRICS_DISABLED is true"
POLL_SECONDS = 0.02
AS_OFTEN = 2  # the baseline, and the sample that ends the window


class Sample(NamedTuple):
    """What was read, and the parts that did not answer in time."""

    metrics: MetricsData | None
    silent: Sequence[Health]


def take(  # noqa: PLR0913 - each is an option of the commands
    settings: Settings,
    *,
    window: float,
    timeout: float,
    resource: Resource | None = None,
    exporter: MetricExporter | None = None,
    clock: Clock | None = None,
) -> Sample:
    """Take the baseline, wait for the window in seconds, sample once, and return it.

    Waits for every part whose hardware is here, at most `timeout` seconds beyond the window.
    The exporter, where one is given, says which temporality it wants. Raises ClickException where all is off.
    """
    clock = clock or MonotonicClock()
    reader = InMemoryMetricReader(
        preferred_temporality=exporter._preferred_temporality if exporter else None,  # noqa: SLF001 - as the SDK's readers do
        preferred_aggregation=exporter._preferred_aggregation if exporter else None,  # noqa: SLF001 - likewise
    )
    provider = make_provider([reader], resource)
    if settings.disabled or isinstance(provider.get_meter(METER), NoOpMeter):
        raise click.ClickException(OFF)
    attachment = Attachment(
        provider,
        replace(settings, sampling_interval=window, host_metrics="always"),
        own=True,
        watch=lambda: settings.pid,
        clock=clock,
        first_gaps=(),
    )
    attachment.start()
    deadline = clock.now() + window + timeout
    _wait_for(attachment, 1, deadline, clock)
    reader.get_metrics_data()  # what is averaged begins anew here, so that the baseline is not in it
    _wait_for(attachment, AS_OFTEN, deadline, clock)
    data = reader.get_metrics_data()
    silent = [health for health in attachment.sampler.healths if not _answered(health, AS_OFTEN)]
    attachment.stop()
    provider.shutdown()
    return Sample(data, silent)


def _answered(health: Health, samples: int) -> bool:
    return health.samples >= samples or (health.trouble is not None and not health.seen)


def _wait_for(attachment: Attachment, samples: int, deadline: float, clock: Clock) -> None:
    never = threading.Event()
    while clock.now() < deadline:
        healths = attachment.sampler.healths
        if attachment.sampler.loaded and all(_answered(health, samples) for health in healths):
            return
        clock.wait(never, POLL_SECONDS)
