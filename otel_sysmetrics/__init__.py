"""Hardware metrics of ML workloads under the W&B names, through OpenTelemetry."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from otel_sysmetrics.version import __version__

if TYPE_CHECKING:
    from otel_sysmetrics.export import configure
    from otel_sysmetrics.instrumentor import SysMetricsInstrumentor
    from otel_sysmetrics.settings import Settings

__all__ = ["Settings", "SysMetricsInstrumentor", "__version__", "configure"]

# Loaded on first use: BaseInstrumentor alone imports for 100 ms.
_HOMES: Final = {
    "Settings": "otel_sysmetrics.settings",
    "SysMetricsInstrumentor": "otel_sysmetrics.instrumentor",
    "configure": "otel_sysmetrics.export",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
