"""The callback behind one OpenTelemetry instrument: it looks up the newest snapshots and does nothing else."""

from __future__ import annotations

import threading
from array import array
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from opentelemetry.metrics import Observation

from otel_sysmetrics.catalog import health as health_catalog
from otel_sysmetrics.pacing import give_way
from otel_sysmetrics.reading import sane_value
from otel_sysmetrics.spec import Fold, Kind

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

    from opentelemetry.metrics import CallbackOptions
    from opentelemetry.util.types import Attributes

    from otel_sysmetrics.instruments import Instruments
    from otel_sysmetrics.reading import AttributeValue
    from otel_sysmetrics.runner import Health
    from otel_sysmetrics.spec import MetricSpec


# One sane value: a key that tells its series from the others of a part, its attributes, and the value.
Point: TypeAlias = "tuple[Hashable, Mapping[str, AttributeValue], float]"

# One series that is averaged: its attributes, and update and value in turn of each sample that is still of use, in an
# array, since to copy a tuple touches each object in it. There are hundreds of both, hence plain tuples.
Series: TypeAlias = "tuple[Attributes, array[float]]"


class Served(NamedTuple):
    """What one part gave at its last update.

    `newest` answers whoever has asked since the update before that one, as most do; `series` are for the others.
    """

    update: int
    newest: Mapping[Hashable, Observation]
    series: Mapping[Hashable, Series]

    def since(self, since: int) -> list[Observation]:
        """Return the answer for whoever was last here after the update `since`."""
        if since >= self.update - 1:
            return list(self.newest.values())
        return [
            Observation(mean, attributes)
            for attributes, samples in self.series.values()
            if (mean := _mean(samples, since)) is not None
        ]


class Total(NamedTuple):
    """A counter's total, and the last value that its source gave."""

    total: float
    last: float

    def after(self, value: float) -> Total:
        """Add what came since; a source that fell was restarted, and counts from 0 again."""
        return Total(self.total + (value if value < self.last else value - self.last), value)


# The SDK keeps at most 2,000 label sets of an instrument, for the life of the process.
MOST_LABEL_SETS: Final = 1_900

NOTHING: Final[Mapping[Hashable, Series]] = {}


class Trampoline:
    """What the SDK calls for one instrument; it lives as long as the provider and serves whoever owns it now."""

    def __init__(self, spec: MetricSpec) -> None:
        self.spec = spec
        self.owner: Instruments | None = None
        self._averaged = spec.fold is Fold.MEAN
        self._counts = spec.kind is Kind.COUNTER
        # How many updates there were, and what the parts gave: replaced whole, so that a callback needs no lock.
        self._state: tuple[int, Mapping[Health, Served]] = (0, {})
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
        updates, parts = self._state
        since = self._since(updates) if self._averaged else updates
        now = owner.clock()
        answers = [
            served.since(since)
            for health, served in parts.items()
            if health.snapshot is not None and health.snapshot.fresh(now)
        ]
        return answers[0] if len(answers) == 1 else _distinct(chain.from_iterable(answers))

    def update(self, health: Health, points: Sequence[Point], keep: int) -> bool:
        """Take a part's newest values and keep so many samples of each; called by that part's thread.

        Returns whether anything of the part is still to be served.
        """
        updates, others = self._state
        update = updates + 1
        averaged, counts = self._averaged, self._counts
        newest: dict[Hashable, Observation] = {}
        for key, attributes, given in points:
            # A total may grow beyond what can be sent.
            value = sane_value(self._count(key, given)) if counts else float(given) if averaged else given
            if value is not None:
                newest[key] = Observation(value, attributes)
        parts = dict(others)
        before = parts.pop(health, None)
        series = _series(newest, NOTHING if before is None else before.series, update, keep) if averaged else NOTHING
        if newest or series:
            parts[health] = Served(update, newest, series)
        self._state = (update, parts)
        return health in parts

    def admit(self, attributes: Mapping[str, AttributeValue]) -> bool:
        """Tell whether a series with these attributes may be served: labels that churn fill what the SDK keeps."""
        key = frozenset(attributes.items())
        if key not in self._admitted and len(self._admitted) >= MOST_LABEL_SETS:
            return False
        self._admitted.add(key)
        return True

    def forget(self, *, totals: bool = False) -> None:
        """Serve nothing; counters later go on from where they were, unless their totals are forgotten too."""
        self._state = (self._state[0], {})
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
        since: int | None = getattr(self._asked, "updates", None)
        self._asked.updates = updates
        if since is None:
            since, self._asked_by_unknown = self._asked_by_unknown, updates
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
            if health.seen and (value := self._value(health, now)) is not None
        ]

    def _value(self, health: Health, now: float) -> float | None:
        if self.spec is health_catalog.SUCCESS:
            return int(health.success(now))
        return health.snapshot.duration if health.snapshot is not None else None


def _series(
    newest: Mapping[Hashable, Observation], before: Mapping[Hashable, Series], update: int, keep: int
) -> Mapping[Hashable, Series]:
    """Return what was kept before, at most `keep` samples of each series with the newest ones."""
    series: dict[Hashable, Series] = {}
    known = 0
    for key, observation in newest.items():
        old = before.get(key)
        known += old is not None
        samples = array("d") if old is None or keep == 1 else old[1][2 * (1 - keep) :]
        samples.append(update)
        samples.append(observation.value)
        series[key] = (observation.attributes, samples)
    if known < len(before):
        # A sample that no reader has asked for yet outlives the device that gave it.
        series |= {key: old for key, old in before.items() if key not in newest and old[1][-2] > update - keep}
    return series


def _mean(samples: array[float], since: int) -> float | None:
    """Return the mean of the samples after an update, None where there is none."""
    found = [value for stamp, value in zip(samples[::2], samples[1::2], strict=True) if stamp > since]
    return sane_value(sum(found) / len(found)) if found else None


def _distinct(observations: Iterable[Observation]) -> Sequence[Observation]:
    """Keep the first of points with equal attributes: the SDK would add up two of a counter."""
    first: dict[Hashable, Observation] = {}
    for observation in observations:
        first.setdefault(frozenset((observation.attributes or {}).items()), observation)
    return list(first.values())
