"""A configuration of otelcol that keeps of endpoints what the collector `openmetrics` keeps, under the same names."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs, unquote, urlsplit

from otel_sysmetrics.cli.relabelling import KEPT, OURS, OWN, rules, target_rules
from otel_sysmetrics.cli.secrets import Variable, Variables, authorization
from otel_sysmetrics.collectors.openmetrics.endpoint import UNITS
from otel_sysmetrics.collectors.openmetrics.exposition import BLANKS

if TYPE_CHECKING:
    from otel_sysmetrics.cli.yaml import Node
    from otel_sysmetrics.endpoints import Endpoint
    from otel_sysmetrics.settings import Settings

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]+")
_ILLEGAL: Final = r"[^A-Za-z0-9_.\-/]"
_BLANK: Final = " or ".join(f"value_double == {value!r}" for value in sorted(BLANKS))
# What the scraper adds itself, numbers that are none, a counter below zero, and what DCGM writes for no value.
_DROPPED_POINTS: Final = (
    f'attributes["{KEPT}"] == nil',
    "value_double != value_double",
    "value_double > 1.7976931348623157e+308 or value_double < -1.7976931348623157e+308",
    "metric.type == METRIC_DATA_TYPE_SUM and value_double < 0.0",
    f'IsMatch(metric.name, "^(?i:DCGM_)") and ({_BLANK})',
)
# Info and state sets arrive as sums that are not monotonic.
_DROPPED_METRICS: Final = (
    "type == METRIC_DATA_TYPE_HISTOGRAM or type == METRIC_DATA_TYPE_EXPONENTIAL_HISTOGRAM",
    "type == METRIC_DATA_TYPE_SUMMARY",
    "type == METRIC_DATA_TYPE_SUM and is_monotonic == false",
    "type == METRIC_DATA_TYPE_NONE",
    # What otelcol does not know it takes for gauges.
    'metadata["prometheus.type"] == "gaugehistogram"',
    'metadata["prometheus.type"] == "unknown" and IsMatch(name, "_(gsum|gcount)$")',
)
_FILTER: Final = "filter/openmetrics"


class ScrapeConfig:
    """`tree` is the configuration, `secrets` what each variable in it means, `left_out` says what otelcol cannot do."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._variables = Variables()
        self.left_out: list[str] = []
        receivers: dict[str, Node] = {}
        transforms: dict[str, Node] = {}
        pipelines: dict[str, Node] = {}
        endpoints = settings.openmetrics_endpoints
        plain = all(_NAME.fullmatch(name) for name in endpoints)
        for number, (name, endpoint) in enumerate(endpoints.items()):
            ident = name if plain else str(number)
            receivers[f"prometheus/{ident}"] = {"config": {"scrape_configs": [self._scrape(name, endpoint)]}}
            transforms[f"transform/{ident}"] = _transform(name)
            pipelines[f"metrics/{ident}"] = {
                "receivers": [f"prometheus/{ident}"],
                "processors": [_FILTER, f"transform/{ident}"],
                "exporters": ["otlp_http"],
            }
        dropped = {"metric": list(_DROPPED_METRICS), "datapoint": list(_DROPPED_POINTS)}
        self.secrets = self._variables.meanings
        self.tree: Mapping[str, Node] = {
            "receivers": _escaped(receivers),
            "processors": _escaped({_FILTER: {"metrics": dropped}, **transforms}),
            "exporters": {"otlp_http": {"endpoint": "${env:OTEL_EXPORTER_OTLP_ENDPOINT:-http://localhost:4318}"}},
            # Its own metrics would take port 8888, which another otelcol on this machine may have.
            "service": {"telemetry": {"metrics": {"level": "none"}}, "pipelines": pipelines},
        }

    def _scrape(self, name: str, endpoint: Endpoint) -> dict[str, Node]:
        settings = self._settings
        url = urlsplit(endpoint.url)
        address = url.netloc.rpartition("@")[2]
        target = {"job": f"openmetrics.{name}", "instance": address}
        sent = self._sent(name, endpoint)
        params: dict[str, Node] = {
            key: [self._variables.refer(f"{name} {key}", item, f"parameter {key} of {name}") for item in items]
            for key, items in parse_qs(url.query, keep_blank_values=True).items()
        }
        return {
            "job_name": target["job"],
            "scrape_interval": _duration(settings.sampling_interval),
            "scrape_timeout": _duration(min(endpoint.timeout, settings.sampling_interval)),
            "scheme": url.scheme,
            "metrics_path": unquote(url.path) or "/",
            **({"params": params} if params else {}),
            **sent,
            **({"tls_config": {"ca_file": endpoint.ca_file}} if endpoint.ca_file else {}),
            "proxy_from_environment": True,
            # otelcol would send the headers along to wherever it is redirected.
            "follow_redirects": not sent,
            "body_size_limit": f"{endpoint.body_limit}B",
            "honor_labels": True,
            "honor_timestamps": False,
            "scrape_protocols": ["PrometheusText0.0.4", "OpenMetricsText1.0.0"],
            "fallback_scrape_protocol": "PrometheusText0.0.4",
            "metric_name_escaping_scheme": "underscores",
            "static_configs": [{"targets": [address]}],
            "relabel_configs": target_rules(),
            "metric_relabel_configs": rules(name, target, settings.openmetrics_filters),
        }

    def _sent(self, name: str, endpoint: Endpoint) -> dict[str, Node]:
        """Return what carries headers and credentials; the later of two headers wins, as in the collector."""
        of_all = {key.lower(): (key, value, "") for key, value in self._settings.openmetrics_headers.items()}
        own = {key.lower(): (key, value, name) for key, value in endpoint.headers.items()}
        given = {**of_all, **own}
        authorized = given.pop("authorization", None)
        url = urlsplit(endpoint.url)
        sent: dict[str, Node] = {}
        if endpoint.bearer_token_file:
            sent["authorization"] = {"type": "Bearer", "credentials_file": endpoint.bearer_token_file}
        elif authorized is not None:
            sent.update(self._authorization(*authorized))
        elif url.username is not None:
            sent["basic_auth"] = self._basic(name, unquote(url.username), unquote(url.password or ""))
        headers: dict[str, Node] = {}
        for lower, (key, value, whose) in given.items():
            meaning = _meaning(key, whose)
            if lower in _RESERVED:
                self._leave_out(meaning)
            else:
                headers[key] = {"secrets": [self._variables.refer(f"{whose} {key}", value, meaning)]}
        return {**sent, **({"http_headers": headers} if headers else {})}

    def _authorization(self, key: str, value: str, whose: str) -> dict[str, Node]:
        meaning = _meaning(key, whose)
        credentials = authorization(value)
        if credentials is None:
            self._leave_out(meaning)
            return {}
        scheme, secret = credentials
        if isinstance(secret, tuple):
            return {"basic_auth": self._basic(whose, *secret)}
        variable = self._variables.refer(f"{whose} {key}", secret, f"{meaning}, what follows {scheme}")
        return {"authorization": {"type": scheme, "credentials": variable}}

    def _leave_out(self, meaning: str) -> None:
        line = f"{meaning} is left out: otelcol cannot send it"
        if line not in self.left_out:
            self.left_out.append(line)

    def _basic(self, whose: str, user: str, password: str) -> Node:
        of = whose or "all endpoints"
        return {
            "username": self._variables.refer(f"{whose} username", user, f"user of {of}"),
            "password": self._variables.refer(f"{whose} password", password, f"password of {of}"),
        }


# https://pkg.go.dev/github.com/prometheus/common/config#pkg-variables
_RESERVED: Final = frozenset(
    {
        "host",
        "content-encoding",
        "content-length",
        "content-type",
        "user-agent",
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "www-authenticate",
        "accept-encoding",
        "x-prometheus-remote-write-version",
        "x-prometheus-remote-read-version",
        "x-prometheus-scrape-timeout-seconds",
        "x-amz-date",
        "x-amz-security-token",
        "x-amz-content-sha256",
    }
)


def _meaning(header: str, whose: str) -> str:
    return f"header {header} of {whose or 'all endpoints'}"


def _transform(name: str) -> Node:
    illegal = json.dumps(_ILLEGAL)
    restored = [
        f'set(attributes["{label}"], attributes["{aside}"]) where attributes["{aside}"] != nil'
        for label, aside in OWN.items()
    ]
    endpoint = json.dumps(name, ensure_ascii=False)
    return {
        "metric_statements": [
            {
                "context": "datapoint",
                "statements": [
                    f'set(attributes["openmetrics.metric"], metric.name) where IsMatch(metric.name, {illegal})',
                    f'set(attributes["openmetrics.endpoint"], {endpoint})',
                    *restored,
                    f'delete_matching_keys(attributes, "^{OURS}({"|".join(("kept", *OWN))})$")',
                ],
            },
            {
                "context": "metric",
                "statements": [
                    f'set(name, Concat(["openmetrics", {endpoint}, name], "."))',
                    f'replace_pattern(name, {illegal}, "_")',
                    *(f'set(unit, "{ours}") where unit == "{word}"' for word, ours in UNITS.items()),
                ],
            },
        ]
    }


def _duration(seconds: float) -> str:
    return f"{seconds:.0f}s" if float(seconds).is_integer() else f"{max(round(seconds * 1000), 1)}ms"


def _escaped(node: Node) -> Node:
    """Return what otelcol reads as this: it takes $ in a value for the beginning of a variable, and $$ for $."""
    if isinstance(node, Variable):
        return str(node)
    if isinstance(node, str):
        return node.replace("$", "$$")
    if isinstance(node, Mapping):
        return {key: _escaped(value) for key, value in node.items()}
    return node if isinstance(node, int) else [_escaped(item) for item in node]
