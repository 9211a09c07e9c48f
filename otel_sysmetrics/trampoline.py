"""The callback behind one OpenTelemetry instrument: it looks up the newest snapshots and does nothing else."""

from __future__ import annotations

import threading
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from opentelemetry.metrics import Observation

from otel_sysmetrics.catalog import health as health_catalog
from otel_sysmetrics.pacing import give_way
from otel_sysmetrics.reading import sane_value
from otel_sysmetrics.spec import Fold

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

    from opentelemetry.metrics import CallbackOptions
    from opentelemetry.util.types import Attributes

    from otel_sysmetrics.history import History, Row
    from otel_sysmetrics.instruments import Instruments
    from otel_sysmetrics.reading import AttributeValue
    from otel_sysmetrics.runner import Health
    from otel_sysmetrics.spec import MetricSpec


# Columns of a history, and the attributes of what stands in them.
Columns: TypeAlias = "tuple[tuple[int, Attributes], ...]"


class Total(NamedTuple):
    """A counter's total, and the last value that its source gave."""

    total: float
    last: float

    def after(self, value: float) -> Total:
        """Add what came since; a source that fell was restarted, and counts from 0 again."""
        return Total(self.total + (value if value < self.last else value - self.last), value)


# The SDK keeps at most 2,000 label sets of an instrument, for the life of the process.
MOST_LABEL_SETS: Final = 1_900


class Trampoline:
    """What the SDK calls for one instrument; it lives as long as the provider and serves whoever owns it now."""

    def __init__(self, spec: MetricSpec) -> None:
        self.spec = spec
        self.owner: Instruments | None = None
        self._averaged = spec.fold is Fold.MEAN
        # The columns that are served, and their attributes: replaced whole, so that a callback needs no lock.
        self._served: Mapping[History, Columns] = {}
        self._totals: dict[Hashable, Total] = {}
        self._admitted: set[Hashable] = set()
        self._asked = threading.local()
        self._asked_by_unknown = 0

    def __call__(self, _options: CallbackOptions) -> Sequence[Observation]:
        """Answer a collecting thread, from memory only, and not all at one stretch with the other callbacks."""
        owner = self.owner
        if owner is None:
            return []
        owner.asked()
        give_way()
        return self._answer(owner)

    def _answer(self, owner: Instruments) -> Sequence[Observation]:
        now = owner.clock()
        parts = []
        for history, columns in self._served.items():
            rows = history.rows
            if rows and now <= rows[-1].until:
                parts.append((rows, columns))
        since = self._since(parts) if self._averaged else None
        if len(parts) == 1:
            return _observations(*parts[0], since)
        return _distinct(chain.from_iterable(_observations(rows, columns, since) for rows, columns in parts))

    def serve(self, owner: Instruments, history: History, column: int, attributes: Attributes) -> None:
        """Serve one more column; called by its part's thread."""
        served = dict(self._served)
        served[history] = (*served.get(history, ()), (column, attributes))
        self.owner, self._served = owner, served

    def drop(self, history: History) -> None:
        """Serve no column of a history any more."""
        self._served = {other: columns for other, columns in self._served.items() if other is not history}

    def admit(self, attributes: Mapping[str, AttributeValue]) -> bool:
        """Tell whether a series with these attributes may be served: labels that churn fill what the SDK keeps."""
        key = frozenset(attributes.items())
        if key not in self._admitted and len(self._admitted) >= MOST_LABEL_SETS:
            return False
        self._admitted.add(key)
        return True

    def forget(self, *, totals: bool = False) -> None:
        """Serve nothing; counters later go on from where they were, unless their totals are forgotten too."""
        self._served = {}
        if totals:
            self._totals = {}

    def count(self, key: Hashable, value: float) -> float | None:
        """Return a series' total after a value of its source, None where it has grown beyond what can be sent."""
        before = self._totals.get(key) or Total(0 if self.spec.from_zero else value, value)
        counted = self._totals[key] = before.after(value)
        return sane_value(counted.total)

    def _since(self, parts: Iterable[tuple[Sequence[Row], object]]) -> int:
        """Return the update after which the asking thread was last here, and note of which it hears now.

        A scrape of Prometheus comes in a new thread each time, a periodic reader always in its own: threads never
        seen before share one position.
        """
        update = 0
        for rows, _ in parts:
            update = max(update, rows[-1].update)
        since: int | None = getattr(self._asked, "update", None)
        self._asked.update = update
        if since is None:
            since, self._asked_by_unknown = self._asked_by_unknown, update
        return since


class HealthTrampoline(Trampoline):
    """Answers how the parts are at the moment of asking, so that a hung one shows."""

    def _answer(self, owner: Instruments) -> Sequence[Observation]:
        if not owner.chosen(self.spec):
            return []
        now = owner.clock()
        return [
            Observation(value, owner.health_attributes(health))
            for health in owner.healths()
            if health.here and (value := self._value(health, now)) is not None
        ]

    def _value(self, health: Health, now: float) -> float | None:
        if self.spec is health_catalog.SUCCESS:
            return int(health.success(now))
        return health.snapshot.duration if health.snapshot is not None else None


def _observations(rows: Sequence[Row], columns: Columns, since: int | None) -> list[Observation]:
    """Return what the columns hold: the newest, or where `since` says the mean of what came after that update.

    Where nothing came after it, or the newest row alone, as for most who ask, these are the same.
    """
    answers = []
    if since is None or len(rows) == 1 or rows[-2].update <= since:
        values = rows[-1].values
        width = len(values)
        for column, attributes in columns:
            value = values[column] if column < width else None
            if value is not None:
                answers.append(Observation(value, attributes))
        return answers
    asked = [row for row in rows if row.update > since]
    for column, attributes in columns:
        mean = _mean([row.value(column) for row in asked])
        if mean is not None:
            answers.append(Observation(mean, attributes))
    return answers


def _mean(values: Iterable[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return sane_value(sum(found) / len(found)) if found else None


def _distinct(observations: Iterable[Observation]) -> Sequence[Observation]:
    """Keep the first of points with equal attributes: the SDK would add up two of a counter."""
    first: dict[Hashable, Observation] = {}
    for observation in observations:
        first.setdefault(frozenset((observation.attributes or {}).items()), observation)
    return list(first.values())
