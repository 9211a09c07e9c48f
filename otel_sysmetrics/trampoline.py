"""The callback behind one OpenTelemetry instrument: it looks up the newest snapshots and does nothing else."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Final, NamedTuple

from opentelemetry.metrics import Observation

from otel_sysmetrics.catalog import health as health_catalog
from otel_sysmetrics.reading import sane_value
from otel_sysmetrics.spec import Fold, Kind

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from opentelemetry.metrics import CallbackOptions

    from otel_sysmetrics.instruments import Instruments
    from otel_sysmetrics.reading import AttributeValue
    from otel_sysmetrics.runner import Health
    from otel_sysmetrics.spec import MetricSpec


class Point(NamedTuple):
    """One sane value with its attributes; `key` tells its series from the others of a part."""

    key: Hashable
    attributes: Mapping[str, AttributeValue]
    value: float


class Series(NamedTuple):
    """One series: its attributes, and (update, value) of each sample that is still of use."""

    attributes: Mapping[str, AttributeValue]
    samples: tuple[tuple[int, float], ...]


class Served(NamedTuple):
    """What one part gave at its last update."""

    update: int
    series: Mapping[Hashable, Series]


class State(NamedTuple):
    """What a trampoline serves, replaced whole, so that a callback needs no lock."""

    updates: int
    parts: Mapping[Health, Served]


class Total(NamedTuple):
    """A counter's total, and the last value that its source gave."""

    total: float
    last: float

    def after(self, value: float) -> Total:
        """Add what came since; a source that fell was restarted, and counts from 0 again."""
        return Total(self.total + (value if value < self.last else value - self.last), value)


NOTHING: Final[Mapping[Hashable, Series]] = {}


class Trampoline:
    """What the SDK calls for one instrument; it lives as long as the provider and serves whoever owns it now."""

    def __init__(self, spec: MetricSpec) -> None:
        self.spec = spec
        self.owner: Instruments | None = None
        self._state = State(0, {})
        self._totals: dict[Hashable, Total] = {}
        self._asked: weakref.WeakKeyDictionary[threading.Thread, int] = weakref.WeakKeyDictionary()
        self._asked_by_unknown = 0

    def __call__(self, _options: CallbackOptions) -> Sequence[Observation]:
        """Answer a collecting thread, from memory only."""
        owner = self.owner
        if owner is None:
            return []
        owner.asked()
        return self._answer(owner)

    def _answer(self, owner: Instruments) -> Sequence[Observation]:
        state = self._state
        since = self._since(state.updates)
        now = owner.clock()
        observations = [
            Observation(value, series.attributes)
            for health, served in state.parts.items()
            if health.snapshot is not None and health.snapshot.fresh(now)
            for series in served.series.values()
            if (value := sane_value(self._fold(series, since, served.update))) is not None
        ]
        return _distinct(observations) if len(state.parts) > 1 else observations

    def update(self, health: Health, points: Sequence[Point], keep: int) -> bool:
        """Take a part's newest values and keep so many samples of each; called by that part's thread.

        Returns whether anything of the part is still to be served.
        """
        update = self._state.updates + 1
        averaged = self.spec.fold is Fold.MEAN
        before = self._state.parts[health].series if health in self._state.parts else NOTHING
        series: dict[Hashable, Series] = {}
        for key, attributes, given in points:
            value = self._count(key, given) if self.spec.kind is Kind.COUNTER else given
            samples = before[key].samples[1 - keep :] if averaged and keep > 1 and key in before else ()
            series[key] = Series(attributes, (*samples, (update, value)))
        if averaged:
            # A sample that no reader has asked for yet outlives the device that gave it.
            for key, old in before.items():
                if key not in series and old.samples[-1][0] > update - keep:
                    series[key] = old
        others = {other: served for other, served in self._state.parts.items() if other is not health}
        self._state = State(update, {**others, health: Served(update, series)} if series else others)
        return bool(series)

    def forget(self, *, totals: bool = False) -> None:
        """Serve nothing; counters later go on from where they were, unless their totals are forgotten too."""
        self._state = State(self._state.updates, {})
        if totals:
            self._totals = {}

    def _count(self, key: Hashable, value: float) -> float:
        before = self._totals.get(key) or Total(0 if self.spec.from_zero else value, value)
        counted = self._totals[key] = before.after(value)
        return counted.total

    def _since(self, updates: int) -> int:
        """Return where the asking thread was last; threads never seen before share one position.

        A scrape of Prometheus comes in a new thread each time, a periodic reader always in its own.
        """
        thread = threading.current_thread()
        since = self._asked.get(thread)
        self._asked[thread] = updates
        if since is None:
            since, self._asked_by_unknown = self._asked_by_unknown, updates
        return since

    def _fold(self, series: Series, since: int, update: int) -> float | None:
        stamp, last = series.samples[-1]
        if self.spec.fold is not Fold.MEAN:
            return last
        if stamp <= since:
            return float(last) if stamp == update else None
        values = [value for stamp, value in series.samples if stamp > since]
        return float(sum(values) / len(values))


class HealthTrampoline(Trampoline):
    """Answers how the parts are at the moment of asking, so that a hung one shows."""

    def _answer(self, owner: Instruments) -> Sequence[Observation]:
        if not owner.chosen(self.spec):
            return []
        now = owner.clock()
        return [
            Observation(value, owner.health_attributes(health))
            for health in owner.healths()
            if health.seen and (value := self._value(health, now)) is not None
        ]

    def _value(self, health: Health, now: float) -> float | None:
        if self.spec is health_catalog.SUCCESS:
            return int(health.success(now))
        return health.snapshot.duration if health.snapshot is not None else None


def _distinct(observations: Sequence[Observation]) -> Sequence[Observation]:
    """Keep the first of points with equal attributes: the SDK would add up two of a counter."""
    first: dict[Hashable, Observation] = {}
    for observation in observations:
        first.setdefault(frozenset((observation.attributes or {}).items()), observation)
    return list(first.values())
