"""What OpenTelemetry's own variables say of the export, read as the SDK's exporters read them."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from otel_sysmetrics import values
from otel_sysmetrics.settings import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping

_OTLP_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_OTLP_HEADERS: Final = ("OTEL_EXPORTER_OTLP_METRICS_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS")
_HOST: Final = re.compile(r"([A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.%]+\])(:[0-9]{1,5})?")


def otlp_endpoint(environ: Mapping[str, str] | None = None) -> str:
    """Return where the standard variables have metrics sent to: scheme, host and port, and nothing that is secret."""
    given = os.environ if environ is None else environ
    default = "http://localhost:4317" if otlp_protocol(given) == "grpc" else "http://localhost:4318"
    endpoint = next((given[name].strip() for name in _OTLP_ENDPOINTS if given.get(name, "").strip()), default)
    scheme, found, rest = endpoint.rpartition("://")
    host, *others = re.split("[/?#]", rest, maxsplit=1)
    host = host.rpartition("@")[2]
    if "@" in "".join(others) or not _HOST.fullmatch(host):  # what looks like a host may be half a password
        host = "an address that cannot be read"
    return scheme + found + host


def otlp_secrets(environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return the secret words of the standard variables, the longest first: of headers, user info and queries."""
    given = os.environ if environ is None else environ
    texts = [given.get(name, "") for name in _OTLP_HEADERS]
    for endpoint in (given.get(name, "").rpartition("://")[2] for name in _OTLP_ENDPOINTS):
        texts += [endpoint.rpartition("@")[0], endpoint.partition("?")[2]]
    words = {word for text in texts for each in (text, unquote(text)) for word in re.split("[^A-Za-z0-9_.~-]+", each)}
    return tuple(sorted(filter(None, words), key=len, reverse=True))


def otlp_protocol(environ: Mapping[str, str] | None = None) -> str:
    """Return the OTLP protocol that the standard variables name, `http/protobuf` where they name none."""
    given = os.environ if environ is None else environ
    for variable in ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        protocol = given.get(variable, "").strip().lower()
        if protocol in {"http/protobuf", "grpc"}:
            return protocol
        if protocol:
            raise SettingsError(variable, given[variable], "http/protobuf or grpc")
    return "http/protobuf"


def check_http_endpoint(environ: Mapping[str, str] | None = None) -> None:
    """Raise SettingsError where the standard variables name an endpoint for HTTP without http:// or https://."""
    given = os.environ if environ is None else environ
    for variable in _OTLP_ENDPOINTS:
        endpoint = given.get(variable, "").strip()
        if endpoint and not endpoint.lower().startswith(("http://", "https://")):
            raise SettingsError(variable, endpoint, "a URL with http:// or https://", secret="@" in endpoint)
        if endpoint:
            return


def export_interval(default: float, environ: Mapping[str, str] | None = None) -> float:
    """Return the seconds between two exports: OTEL_METRIC_EXPORT_INTERVAL (milliseconds), else `default`."""
    given = (os.environ if environ is None else environ).get("OTEL_METRIC_EXPORT_INTERVAL", "").strip()
    if not given:
        return default
    milliseconds = values.number(given)
    if milliseconds is None or not 0 < milliseconds <= values.MAX_SECONDS * 1000:
        raise SettingsError("OTEL_METRIC_EXPORT_INTERVAL", given, "a number of milliseconds above 0")
    return milliseconds / 1000
