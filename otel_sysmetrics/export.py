"""Our own MeterProvider: Resource, OTLP exporter, a reader every 15 s; made anew in a forked child."""

from __future__ import annotations

import atexit
import logging
import os
import socket
import sys
import threading
import uuid
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from opentelemetry import metrics
from opentelemetry.metrics import NoOpMeter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import OTELResourceDetector, Resource

from otel_sysmetrics.election import child_reports
from otel_sysmetrics.exporters import make_exporter, without_secrets
from otel_sysmetrics.importing import importing
from otel_sysmetrics.instruments import METER, is_proxy
from otel_sysmetrics.otlp import export_interval
from otel_sysmetrics.reading import legible_text
from otel_sysmetrics.settings import Settings, SettingsError, rank_attributes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.sdk.metrics.export import MetricReader

    from otel_sysmetrics.reading import AttributeValue

_log: Final = logging.getLogger("otel_sysmetrics")

EXIT_SECONDS: Final = 4.0
EXPORT_SECONDS: Final = 3.0  # of them, for the last export
CHILD_DELAY: Final = 1.0


class Reporting(Protocol):
    """What reports on a provider."""

    def finish(self) -> None:
        """Take a last sample, without waiting for long."""

    def stop(self) -> None:
        """End."""


# Makes what reports on a provider, None where nothing is to be reported.
Attach = Callable[[MeterProvider], Reporting | None]


class Pipeline:
    """A MeterProvider of ours with what reports on it, for this process and for each forked child of it.

    Locks that the SDK held while forking stay held in the child for ever, so a child never uses the parent's
    provider: it makes its own. Raises SettingsError where a standard variable cannot be read.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        exporter: str = "otlp",
        on_closed: Callable[[], None] = lambda: None,
        service_name: str | None = None,
        instance_id: str | None = None,
    ) -> None:
        self._settings = settings
        self._exporter = exporter
        self._on_closed = on_closed
        self._service_name = service_name
        self._instance_id = instance_id
        self._attach: Attach | None = None
        self._build()

    def _build(self, *, forked: bool = False) -> None:
        with importing():
            exporter = self._used = make_exporter(self._exporter, self._on_closed)
        milliseconds = export_interval(self._settings.sampling_interval) * 1000
        readers = [PeriodicExportingMetricReader(exporter, export_interval_millis=milliseconds)] if exporter else []
        self.provider = make_provider(readers, make_resource(self._service_name, self._instance_id, forked=forked))
        self._attachment: Reporting | None = None
        self._exit = threading.Event()
        self._exited = threading.Event()
        threading.Thread(target=self._last_flush, name="otel-sysmetrics exit", daemon=True).start()
        self._pid = os.getpid()  # from here on the end is this process's business
        atexit.register(self.shutdown)
        _at_multiprocessing_exit(self.shutdown)

    @property
    def off(self) -> bool:
        """Whether OTEL_SDK_DISABLED or the setting `disabled` switches everything off."""
        return self._settings.disabled or isinstance(self.provider.get_meter(METER), NoOpMeter)

    def start(self, attach: Attach) -> None:
        """Let `attach` make the sampling side for the provider, now and in each forked child."""
        if self.off:
            return
        self._attach = attach
        self._attachment = attach(self.provider)
        _pipelines.add(self)

    def _last_flush(self) -> None:
        """Wait for the exit in a thread that is started before it: at exit Python 3.12 starts none any more."""
        self._exit.wait()
        try:
            if self._attachment is not None:
                self._attachment.finish()
            if not _is_shut_down(self.provider):
                self.provider.shutdown(timeout_millis=EXPORT_SECONDS * 1000)
        except Exception as error:  # noqa: BLE001 - the SDK raises bare exceptions; there is nobody left to raise to
            _log.debug("the last export failed: %s", type(error).__name__)
        finally:
            self._exited.set()

    def shutdown(self) -> None:
        """Export what there is and end, within 4 s even if the backend never answers; harmless when called twice.

        In a child forked since, it does nothing.
        """
        if os.getpid() != self._pid:
            return
        for pipeline in (self, *_pipelines):
            pipeline._exit.set()  # noqa: SLF001 - our own; several that wait one after the other would take too long
        self._exited.wait(EXIT_SECONDS)
        if self._attachment is not None:
            self._attachment.stop()
        atexit.unregister(self.shutdown)

    def supersede(self) -> None:
        """Report nothing in children any more; what the script itself measures here is exported as before."""
        self._attach = None

    def after_fork(self) -> None:
        """Make a provider for this child once it has lived for a second; a shorter one costs a thread and no more."""
        if self._settings.children == "never":
            return
        if self._attach is not None and not _is_shut_down(self.provider):
            body = self._say_broken if self._used and self._used.breaks_at_a_fork else self._start_in_child
            threading.Thread(target=body, name="otel-sysmetrics fork", daemon=True).start()

    def _say_broken(self) -> None:
        if not threading.Event().wait(CHILD_DELAY):
            _log.warning(
                "otel-sysmetrics is off in process %d: it was forked during an export over gRPC, "
                "which gRPC does not survive (OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf does)",
                os.getpid(),
            )

    def _start_in_child(self) -> None:
        if threading.Event().wait(CHILD_DELAY) or not child_reports(self._settings.children):
            return
        attach = self._attach
        if attach is None:
            return
        try:
            self._build(forked=True)
            self._attachment = attach(self.provider)
            if self._attach is None and self._attachment is not None:  # uninstrumented meanwhile
                self._attachment.stop()
        except Exception as error:  # noqa: BLE001 - whatever the SDK raises, the child's own work goes on
            _log.warning("otel-sysmetrics is off in process %d: %s", os.getpid(), without_secrets(str(error)))


def configure(settings: Settings | None = None, **keywords: object) -> MeterProvider:
    """Report hardware metrics from a script that has no OpenTelemetry yet, and return the MeterProvider.

    Takes the fields of Settings as keywords, over the environment. Exports over OTLP every `sampling_interval` to
    where the standard OTEL_EXPORTER_OTLP_* variables point, and once more at exit. The provider becomes the global
    one where none is set; in a forked child the script's own instruments stay on the parent's.
    Raises SettingsError for a setting that cannot be read.
    """
    from otel_sysmetrics.instrumentor import SysMetricsInstrumentor

    chosen = settings or Settings.load(keywords)
    instrumentor = SysMetricsInstrumentor()

    def attach(provider: MeterProvider) -> Reporting | None:
        return instrumentor.report_on(provider, chosen, pipeline.supersede)

    pipeline = Pipeline(chosen)
    pipeline.start(attach)
    if is_proxy(metrics.get_meter_provider()):
        metrics.set_meter_provider(pipeline.provider)
    return pipeline.provider


def make_provider(readers: Sequence[MetricReader], resource: Resource | None = None) -> MeterProvider:
    """Return a MeterProvider that leaves its end to us; raises SettingsError."""
    try:
        return MeterProvider(metric_readers=readers, resource=resource, shutdown_on_exit=False)
    except ValueError as error:  # it reads variables too, and its error names none
        raise SettingsError("OTEL_*", str(error), "values that the SDK accepts") from error


def make_resource(service_name: str | None, instance_id: str | None, *, forked: bool = False) -> Resource:
    """Return what all points of this process have in common; what the environment says comes first.

    A forked child always has an instance id of its own, also where one is configured: two processes under one
    identity would write one stream.
    """
    found = Resource.create({})
    configured = OTELResourceDetector().detect().attributes
    ours: dict[str, AttributeValue] = dict(rank_attributes())
    ours["host.name"] = socket.gethostname()
    if service_name and str(found.attributes.get("service.name", "")).startswith("unknown_service"):
        ours["service.name"] = service_name
    if forked or "service.instance.id" not in configured:
        ours["service.instance.id"] = str(uuid.uuid4()) if forked or not instance_id else instance_id
    kept = {key: value for key, value in ours.items() if key not in configured or (forked and "instance" in key)}
    whole = {**found.attributes, **kept}
    # Undecodable bytes (of a command's name, of a variable) would cost a traceback at each export.
    legible = {key: legible_text(value) if isinstance(value, str) else value for key, value in whole.items()}
    return Resource(legible, found.schema_url)


def _is_shut_down(provider: MeterProvider) -> bool:
    # The script may have done it itself; a second time would be a warning on its stderr.
    return bool(getattr(provider, "_shutdown", False))


def _at_multiprocessing_exit(end: Callable[[], object]) -> None:
    """Have `end` called in a multiprocessing child, which runs no atexit unless it was spawned."""
    multiprocessing = sys.modules.get("multiprocessing.process")
    if multiprocessing is not None and multiprocessing.parent_process() is not None:
        from multiprocessing.util import Finalize

        Finalize(None, end, exitpriority=0)


_pipelines: Final[weakref.WeakSet[Pipeline]] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for pipeline in tuple(_pipelines):
        pipeline.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
