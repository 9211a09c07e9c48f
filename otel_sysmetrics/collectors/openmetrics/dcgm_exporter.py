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
    from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

    from otel_sysmetrics.collector import Context
    from otel_sysmetrics.collectors.openmetrics.exposition import Keeps
    from otel_sysmetrics.endpoints import Endpoint

# In the order in which they are believed; Prometheus adds the last one, the address of what it scraped.
_NODE: Final = ("Hostname", "hostname", "node", "instance")
_UUID: Final = ("UUID", "uuid")
_NAME: Final = ("modelName", "modelname", "model_name")
_MOST_DIGITS: Final = 9  # of a GPU's number
_EXPORTER: Final = "name a dcgm-exporter's page, such as http://localhost:9400/metrics"
_QUERY: Final = 'ask for series, such as query={__name__=~"DCGM_.*"}'


class Gpu(NamedTuple):
    """A GPU, or a MIG instance of one."""

    node: str | None
    gpu: str
    uuid: str | None
    instance: str | None


class Row(NamedTuple):
    """One series: a field of a GPU. `doubt` is the greater, the less the label is believed that its node is from."""

    gpu: Gpu
    doubt: int
    model: str | None
    field: str
    value: float


class DcgmExporter:
    """All GPUs of the address that the settings name, but those that NVML shows in this process."""

    def __init__(self, context: Context, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._headers = context.settings.openmetrics_headers
        self._interval = context.settings.sampling_interval
        self._queried = urlsplit(endpoint.url).path.rstrip("/").endswith("/api/v1/query")
        self._losses = Losses("openmetrics dcgm_exporter")
        self._dcgm = False
        self._found: tuple[Gpu, ...] = ()

    def sample(self) -> Iterator[Reading]:
        """Scrape or query once; raises Unavailable."""
        self._dcgm = False
        rows = [row for sample in self._samples() if (row := _row(*sample)) is not None]
        if not self._dcgm:
            raise Unavailable(f"no {PREFIX}… series", _QUERY if self._queried else _EXPORTER)
        gpus = {_same(rows): rows for rows in _grouped(rows)}
        self._found = tuple(gpus)
        for gpu, rows in gpus.items():
            yield from _readings(gpu, rows)

    def describe(self) -> str:
        """Say how many GPUs were found."""
        gpus = {gpu.uuid or (gpu.node, gpu.gpu) for gpu in self._found}
        nodes = {gpu.node for gpu in self._found}
        return f"{len(gpus)} GPU{'s' * (len(gpus) != 1)} of {len(nodes)} node{'s' * (len(nodes) != 1)}"

    def close(self) -> None:
        """Nothing is held."""

    def _samples(self) -> Iterable[tuple[str, Mapping[str, str], float]]:
        if self._queried:
            return fetched(self._endpoint, self._headers, self._interval, partial(_vector, self._keeps))
        limit = self._endpoint.series_limit
        exposition = fetched(self._endpoint, self._headers, self._interval, partial(read_text, self._keeps, limit))
        self._losses.say(exposition, limit)
        return [(series.name, dict(series.labels), value) for series, value in exposition.series.items()]

    def _keeps(self, name: str) -> tuple[()] | None:
        self._dcgm = self._dcgm or name.startswith(PREFIX)
        return () if name in FIELDS else None


def _grouped(rows: Sequence[Row]) -> Iterable[list[Row]]:
    """Return the rows of each GPU: those of its UUID, whatever address shows them, and those without at its place."""
    at: dict[tuple[str | None, str], set[str]] = {}
    for (node, number, uuid, _), *_ in rows:
        if uuid is not None:
            at.setdefault((node, number), set()).add(uuid)
    groups: dict[Hashable, list[Row]] = {}
    # A GPU that several containers share comes once for each of them. Rows with a UUID come last, and count.
    for row in sorted(rows, key=lambda row: row.gpu.uuid is not None):
        node, number, _, instance = row.gpu
        there = {row.gpu.uuid} if row.gpu.uuid is not None else at.get((node, number), set())
        uuid = next(iter(there)) if len(there) == 1 else None
        if uuid is None or not reported(uuid):
            groups.setdefault((uuid or (node, number), instance), []).append(row)
    return groups.values()


def _same(rows: Sequence[Row]) -> Gpu:
    """Return the one GPU of some rows, in any order of them the same."""
    best = min(rows, key=lambda row: (row.doubt, row.gpu.node or "", row.gpu.gpu)).gpu
    return best._replace(uuid=rows[-1].gpu.uuid)


def _readings(gpu: Gpu, rows: Sequence[Row]) -> Iterator[Reading]:
    labels: dict[str, str | int] = {"gpu": _number_or_name(gpu.gpu)}
    if gpu.instance is not None:
        labels["mig"] = _number_or_name(gpu.instance)
    model = min((row.model for row in rows if row.model is not None), default=None)
    # An exporter shows the UUID of the GPU only, which an instance's own is not.
    attributes = {"hw.id": None if gpu.instance else gpu.uuid, "hw.name": model, "host.name": gpu.node}
    fields = {row.field: row.value for row in rows}
    for spec, value in values(fields, instance=gpu.instance is not None):
        yield Reading(spec, value, labels, attributes)


def _row(name: str, labels: Mapping[str, str], value: float) -> Row | None:
    number = labels.get("gpu") or labels.get("device", "").removeprefix("nvidia")
    if not number:
        return None
    doubt = next((doubt for doubt, key in enumerate(_NODE) if labels.get(key)), len(_NODE))
    node = labels[_NODE[doubt]] if doubt < len(_NODE) else None
    if node is not None and node == labels.get("instance"):
        node = _host(node)
    gpu = Gpu(node, number, _first(labels, _UUID), labels.get("GPU_I_ID") or None)
    return Row(gpu, doubt, _first(labels, _NAME), name.removeprefix(PREFIX), value)


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


def _vector(keeps: Keeps, pieces: Iterable[bytes]) -> list[tuple[str, dict[str, str], float]]:
    """Read what the API of Prometheus answers to an instant query; raises Unavailable or NotMetrics."""
    try:
        answer: Any = json.loads(b"".join(pieces))
        data = answer["data"]
        kind, results = data["resultType"], data["result"]
    except (KeyError, RecursionError, TypeError, ValueError):
        raise NotMetrics("no answer of Prometheus") from None
    if kind != "vector":
        raise Unavailable("the query gives no instant vector", _QUERY)
    found = []
    for result in results if isinstance(results, list) else ():
        try:
            labels = {str(key): str(value) for key, value in result["metric"].items() if value}
            name, value = labels.pop("__name__", ""), checked.number(result["value"][1])
        except (AttributeError, IndexError, KeyError, TypeError):
            continue
        if keeps(name) is not None and value is not None and not is_blank(name, value):
            found.append((name, labels, value))
    return found
