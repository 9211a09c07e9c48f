"""Where our own provider exports to, and what is said when that fails: once, in one line, and once when it is over."""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, MetricExporter, MetricExportResult
from opentelemetry.util.re import parse_env_headers

from otel_sysmetrics.otlp import check_http_endpoint, otlp_protocol, otlp_secrets
from otel_sysmetrics.settings import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from opentelemetry.sdk.metrics.export import MetricsData

_log: Final = logging.getLogger("otel_sysmetrics")

_LONG: Final = 4


def make_exporter(kind: str, on_closed: Callable[[], None] = lambda: None) -> SaidOnce | None:
    """Return the exporter of a kind: `otlp` (by the standard variables), `console` (JSON on stdout) or `none`.

    `on_closed` is called when nobody reads our stdout any more. Raises SettingsError.
    """
    if kind == "none":
        return None
    if kind == "console":
        return SaidOnce(ConsoleMetricExporter(out=sys.stdout), on_closed)
    try:
        with _headers_checked():
            return SaidOnce(_make_otlp_exporter())
    except SettingsError:
        raise
    except Exception as error:
        # The exporter reads a dozen variables, its error names none, and is of any class.
        raise SettingsError(
            "OTEL_EXPORTER_OTLP_*", without_secrets(str(error)), "values that the exporter accepts"
        ) from error


@contextmanager
def _headers_checked() -> Iterator[None]:
    """Raise SettingsError for headers that the SDK cannot read: it warns with their text, which is secret."""
    thread, wrong = threading.get_ident(), []

    def hold_back(record: logging.LogRecord) -> bool:
        if record.thread != thread:
            return True
        wrong.append(record)
        return False

    logger = logging.getLogger(parse_env_headers.__module__)
    logger.addFilter(hold_back)
    try:
        yield
    finally:
        logger.removeFilter(hold_back)
    if wrong:
        raise SettingsError("OTEL_EXPORTER_OTLP_HEADERS", None, "key=value pairs, divided by commas", secret=True)


def _make_otlp_exporter() -> MetricExporter:
    if otlp_protocol() == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcExporter

        return GrpcExporter()
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpExporter

    check_http_endpoint()
    return HttpExporter()


class SaidOnce(MetricExporter):
    """An exporter that says that it fails and that it works again, where the SDK logs each retry of each export.

    Only what is logged inside our own exports is held back: the application's exporters share those loggers.
    """

    def __init__(self, exporter: MetricExporter, on_closed: Callable[[], None] = lambda: None) -> None:
        super().__init__(
            preferred_temporality=exporter._preferred_temporality,  # noqa: SLF001 - as the SDK's readers do
            preferred_aggregation=exporter._preferred_aggregation,  # noqa: SLF001 - likewise
        )
        self._exporter = exporter
        self._on_closed = on_closed
        self._exporting_thread: int | None = None
        self._failing = False
        for base in type(exporter).__mro__:
            logging.getLogger(base.__module__).addFilter(self._hold_back)

    @property
    def breaks_at_a_fork(self) -> bool:
        """Whether an export over gRPC is under way: a child forked now would abort at its own first use of gRPC."""
        return self._exporting_thread is not None and "grpc" in type(self._exporter).__module__

    def export(
        self,
        metrics_data: MetricsData,
        timeout_millis: float = 10_000,
        **kwargs: Any,  # noqa: ANN401 - the signature is OpenTelemetry's
    ) -> MetricExportResult:
        """Export, and raise nothing: a reader logs a traceback for each exception."""
        self._exporting_thread = threading.get_ident()
        try:
            result = self._exporter.export(metrics_data, timeout_millis, **kwargs)
        except BrokenPipeError:
            # What is still buffered would be complained about at the end: docs.python.org/3/library/signal.html
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            self._on_closed()
            return MetricExportResult.FAILURE
        except Exception as error:  # noqa: BLE001 - the SDK's exporters raise what their transport raises
            self._fails(f"{type(error).__name__}: {error}")
            return MetricExportResult.FAILURE
        finally:
            self._exporting_thread = None
        if result is not MetricExportResult.SUCCESS:
            self._fails("no reason given")
        elif self._failing:
            self._failing = False
            _log.warning("otel-sysmetrics: metrics are exported again")
        return result

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """Flush the exporter."""
        return self._exporter.force_flush(timeout_millis)

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:  # noqa: ANN401 - OpenTelemetry's
        """End the exporter; an export that is still under way is lost."""
        if self._exporting_thread is not None:
            self.abandon()
        self._exporter.shutdown(timeout_millis, **kwargs)

    def abandon(self) -> None:
        """Say that an export got no answer, and leave it to itself: an old gRPC exporter ends only after its export."""
        self._fails("no answer before the end")

    def _fails(self, reason: str) -> None:
        if not self._failing:
            self._failing = True
            _log.warning("otel-sysmetrics: metrics are not exported: %s", without_secrets(" ".join(reason.split())))

    def _hold_back(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING or self._exporting_thread != threading.get_ident():
            return True
        self._fails(_reason(record))
        return False


def without_secrets(text: str) -> str:
    """Return a text of an exporter's with dots in the place of what is secret: it may repeat its address or a header.

    A short word is only taken out where it stands alone.
    """
    for word in otlp_secrets():
        found = re.escape(word)
        text = re.sub(found if len(word) >= _LONG else rf"(?<![A-Za-z0-9]){found}(?![A-Za-z0-9])", "…", text)
    return text


def _reason(record: logging.LogRecord) -> str:
    """Return what a failed export's record says; of a chain of exceptions the innermost, which has no URL in it."""
    for argument in record.args if isinstance(record.args, tuple) else ():
        if isinstance(argument, Exception):
            inner = getattr(argument.args[0] if argument.args else None, "reason", None)
            return str(inner or argument)
    return record.getMessage()
