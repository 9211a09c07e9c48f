"""One OpenMetrics endpoint: each of its series under its own name, its labels as attributes."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final

from otel_sysmetrics.catalog import openmetrics
from otel_sysmetrics.collectors.openmetrics.filters import Kept
from otel_sysmetrics.collectors.openmetrics.scrape import Losses, fetched, read_text
from otel_sysmetrics.reading import Reading
from otel_sysmetrics.spec import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_sysmetrics.collector import Context
    from otel_sysmetrics.collectors.openmetrics.exposition import Exposition, Series
    from otel_sysmetrics.endpoints import Endpoint
    from otel_sysmetrics.spec import MetricSpec

# OpenMetrics writes units as words, OpenTelemetry as UCUM.
UNITS: Final = {
    "days": "d",
    "hours": "h",
    "minutes": "min",
    "seconds": "s",
    "milliseconds": "ms",
    "microseconds": "us",
    "nanoseconds": "ns",
    "bytes": "By",
    "bits": "bit",
    "meters": "m",
    "volts": "V",
    "amperes": "A",
    "joules": "J",
    "watts": "W",
    "grams": "g",
    "celsius": "Cel",
    "hertz": "Hz",
    "ratio": "1",
    "percent": "%",
}
_UNIT: Final = re.compile(r"[\x21-\x7e]{1,63}")
_LEGAL: Final = re.compile(r"[A-Za-z0-9_.\-/]+")


class OpenMetrics:
    """An endpoint that the settings name; it is first asked when it is sampled, since it may come up after us."""

    def __init__(self, context: Context, name: str, endpoint: Endpoint) -> None:
        settings = context.settings
        self._name = name
        self._endpoint = endpoint
        self._headers = settings.openmetrics_headers
        self._interval = settings.sampling_interval
        self._kept = Kept(name, settings.openmetrics_filters)
        self._losses = Losses(f"openmetrics {name}")
        self._scraped: Exposition | None = None
        # By name in lower case: how it is spelled, None once it was seen in several spellings.
        self._spellings: dict[str, str | None] = {}

    def sample(self) -> Iterator[Reading]:
        """Scrape once; raises Unavailable."""
        limit = self._endpoint.series_limit
        read = partial(read_text, self._kept, limit)
        exposition = fetched(self._endpoint, self._headers, self._interval, read)
        self._losses.say(exposition, limit)
        self._scraped = exposition
        self._learn({series.name for series in exposition.series})
        for series, value in exposition.series.items():
            yield self._reading(series, value)

    def describe(self) -> str:
        """Say how much the last scrape gave."""
        if self._scraped is None:
            return "not scraped yet"
        lost = (f"{self._scraped.bad} bad lines", f"{self._scraped.dropped} series too many")
        return ", ".join([f"{len(self._scraped.series)} series", *(words for words in lost if words[:2] != "0 ")])

    def close(self) -> None:
        """Nothing is held."""

    def _learn(self, names: set[str]) -> None:
        """Note for good which names the SDK takes for one: a series keeps its attributes over all scrapes."""
        for name in names:
            if self._spellings.setdefault(name.lower(), name) != name:
                self._spellings[name.lower()] = None

    def _reading(self, series: Series, value: float) -> Reading:
        attributes = dict(series.labels)
        if not _LEGAL.fullmatch(series.name) or self._spellings[series.name.lower()] is None:
            attributes["openmetrics.metric"] = series.name
        return Reading(
            _spec(series.counts, series.unit), value, {"endpoint": self._name, "metric": series.name}, attributes
        )


@lru_cache(maxsize=256)
def _spec(counts: bool, unit: str) -> MetricSpec:  # noqa: FBT001 - a key of two
    """Return the catalogue's row as it holds for a series."""
    known = UNITS.get(unit, unit)
    return replace(
        openmetrics.SERIES,
        kind=Kind.COUNTER if counts else Kind.GAUGE,
        unit=known if _UNIT.fullmatch(known) else "",
    )
