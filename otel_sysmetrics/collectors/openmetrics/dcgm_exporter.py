"""The GPUs of a dcgm-exporter: from its own page, or from a Prometheus that scrapes one or many."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit

from otel_sysmetrics import values as checked
from otel_sysmetrics.collector import Unavailable
from otel_sysmetrics.collectors.openmetrics.dcgm import FIELDS, PREFIX, values
from otel_sysmetrics.collectors.openmetrics.exposition import NotMetrics, is_blank
from otel_sysmetrics.collectors.openmetrics.scrape import Losses, fetched, read_text
from otel_sysmetrics.reading import Reading
from otel_sysmetrics.sources.reported import reported

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from otel_sysmetrics.collector import Context
    from otel_sysmetrics.endpoints import Endpoint

# In the order in which they are believed; Prometheus adds the last one, the address of what it scraped.
_NODE: Final = ("Hostname", "hostname", "node", "instance")
_UUID: Final = ("UUID", "uuid")
_NAME: Final = ("modelName", "modelname", "model_name")
_MOST_DIGITS: Final = 9  # of a GPU's number


class Gpu(NamedTuple):
    """A GPU, or a MIG instance of one."""

    node: str | None
    gpu: str
    uuid: str | None
    instance: str | None


class DcgmExporter:
    """All GPUs of the address that the settings name, but those that NVML shows in this process."""

    def __init__(self, context: Context, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._headers = context.settings.openmetrics_headers
        self._interval = context.settings.sampling_interval
        self._queried = urlsplit(endpoint.url).path.rstrip("/").endswith("/api/v1/query")
        self._losses = Losses("openmetrics dcgm_exporter")
        self._found: tuple[Gpu, ...] = ()

    def sample(self) -> Iterator[Reading]:
        """Scrape or query once; raises Unavailable."""
        fields: dict[Gpu, dict[str, float]] = {}
        names: dict[Gpu, str | None] = {}
        for name, labels, value in self._samples():
            gpu = _gpu(labels)
            if gpu is None or (gpu.uuid is not None and reported(gpu.uuid)):
                continue
            # A GPU that several containers share comes once for each of them.
            fields.setdefault(gpu, {})[name.removeprefix(PREFIX)] = value
            names[gpu] = _first(labels, _NAME)
        self._found = tuple(fields)
        for gpu, given in fields.items():
            yield from _readings(gpu, names[gpu], given)

    def describe(self) -> str:
        """Say how many GPUs were found."""
        gpus = {(gpu.node, gpu.gpu) for gpu in self._found}
        nodes = {node for node, _ in gpus}
        return f"{len(gpus)} GPU{'s' * (len(gpus) != 1)} of {len(nodes)} node{'s' * (len(nodes) != 1)}"

    def close(self) -> None:
        """Nothing is held."""

    def _samples(self) -> Iterable[tuple[str, Mapping[str, str], float]]:
        if self._queried:
            return fetched(self._endpoint, self._headers, self._interval, _vector)
        limit = self._endpoint.series_limit
        read = partial(read_text, lambda name: () if name in FIELDS else None, limit)
        exposition = fetched(self._endpoint, self._headers, self._interval, read)
        self._losses.say(exposition, limit)
        return [(series.name, dict(series.labels), value) for series, value in exposition.series.items()]


def _readings(gpu: Gpu, model: str | None, fields: Mapping[str, float]) -> Iterator[Reading]:
    labels: dict[str, str | int] = {"gpu": _number_or_name(gpu.gpu)}
    if gpu.instance is not None:
        labels["mig"] = gpu.instance
    attributes = {"hw.id": gpu.uuid, "hw.name": model, "host.name": gpu.node}
    for spec, value in values(fields, instance=gpu.instance is not None):
        yield Reading(spec, value, labels, attributes)


def _gpu(labels: Mapping[str, str]) -> Gpu | None:
    index = labels.get("gpu") or labels.get("device", "").removeprefix("nvidia")
    if not index:
        return None
    node = _first(labels, _NODE)
    if node is not None and node == labels.get("instance"):
        node = _host(node)
    return Gpu(node, index, _first(labels, _UUID), labels.get("GPU_I_ID"))


def _number_or_name(text: str) -> int | str:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS else text


def _host(address: str) -> str | None:
    """Return an address without its port; one that cannot be divided as it is."""
    try:
        return urlsplit(f"//{address}").hostname if address.count(":") == 1 or address.startswith("[") else address
    except ValueError:
        return address


def _first(labels: Mapping[str, str], keys: Iterable[str]) -> str | None:
    return next((labels[key] for key in keys if labels.get(key)), None)


def _vector(pieces: Iterable[bytes]) -> list[tuple[str, dict[str, str], float]]:
    """Read what the API of Prometheus answers to an instant query; raises Unavailable or NotMetrics."""
    try:
        answer: Any = json.loads(b"".join(pieces))
        data = answer["data"]
        kind, results = data["resultType"], data["result"]
    except (KeyError, RecursionError, TypeError, ValueError):
        raise NotMetrics("no answer of Prometheus") from None
    if kind != "vector":
        raise Unavailable("the query gives no instant vector", 'ask for series, such as query={__name__=~"DCGM_.*"}')
    found = []
    for result in results if isinstance(results, list) else ():
        try:
            labels = {str(key): str(value) for key, value in result["metric"].items() if value}
            name, value = labels.pop("__name__", ""), checked.number(result["value"][1])
        except (AttributeError, IndexError, KeyError, TypeError):
            continue
        if name in FIELDS and value is not None and not is_blank(name, value):
            found.append((name, labels, value))
    return found
