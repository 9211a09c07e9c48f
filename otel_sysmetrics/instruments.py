"""One OpenTelemetry instrument per tag, made once per provider and filled from snapshots.

Three facts of the SDK shape this module. Instruments cannot be removed and a second creation drops its callback
silently, so each name is created once per provider, with a trampoline to whatever is sampled now. Creating one inside
a callback deadlocks the process for ever (https://github.com/ray-project/ray/issues/64946), so sampling threads do it.
The SDK lower-cases names (https://github.com/open-telemetry/opentelemetry-python/issues/3207), so they are handed
over as TagName.
"""

from __future__ import annotations

import logging
import math
import threading
import weakref
from itertools import count
from typing import TYPE_CHECKING, Final

from opentelemetry import metrics

from otel_sysmetrics.catalog import health as health_catalog
from otel_sysmetrics.history import UNSENT, Counting, History, Row, where
from otel_sysmetrics.pacing import paced
from otel_sysmetrics.reading import sane_attributes, sane_value
from otel_sysmetrics.spec import Fold, Kind
from otel_sysmetrics.trampoline import MOST_LABEL_SETS, HealthTrampoline, Trampoline
from otel_sysmetrics.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping

    from opentelemetry.metrics import MeterProvider

    from otel_sysmetrics.reading import AttributeValue, Reading, Snapshot
    from otel_sysmetrics.runner import Health
    from otel_sysmetrics.selection import Selection
    from otel_sysmetrics.spec import MetricSpec

_log: Final = logging.getLogger("otel_sysmetrics")

METER: Final = "otel_sysmetrics"
HISTORY_SECONDS: Final = 330.0  # 22 samples: Python 3.11 and 3.12 hoard 2,000 dead tuples of just 20


class TagName(str):
    """A name that stays as it is spelled where the SDK asks for it in lower case."""

    __slots__ = ()

    def lower(self) -> str:
        """Return the name as it is."""
        return self


class Entry:
    """What was created on one provider; holds no instrument, so that an old SDK can let go of them."""

    def __init__(self, provider: MeterProvider) -> None:
        self._provider = weakref.ref(provider)
        self._made_on_proxy = is_proxy(provider)
        self.meter = metrics.get_meter(METER, __version__, provider)
        self.trampolines: dict[Hashable, Trampoline] = {}

    @property
    def dead(self) -> bool:
        """Whether the provider is gone."""
        return self._provider() is None

    def made_on(self, provider: MeterProvider) -> bool:
        """Tell whether what was created here reports to `provider`: proxies hand over to the global one."""
        if self._provider() is provider:
            return True
        return self._made_on_proxy and provider is metrics.get_meter_provider()

    def trampoline(self, spec: MetricSpec, name: str) -> Trampoline:
        """Return the one trampoline of a name, creating its instrument at the first call.

        The SDK does not tell names apart by case; names that meet share an instrument and differ by attribute.
        """
        key = (name.lower(), spec.kind, spec.unit, spec.brief)
        if (known := self.trampolines.get(key)) is not None:
            return known
        made = HealthTrampoline(spec) if spec in _HEALTH else Trampoline(spec)
        trampoline = self.trampolines.setdefault(key, made)
        if trampoline is made:
            create = (
                self.meter.create_observable_counter
                if spec.kind is Kind.COUNTER
                else self.meter.create_observable_gauge
            )
            create(TagName(name), callbacks=[trampoline], unit=spec.unit, description=spec.brief)
        return trampoline


_HEALTH: Final = (health_catalog.SUCCESS, health_catalog.DURATION)
_updates: Final = count(1)
_entries: list[Entry] = []  # per provider, for the life of the process: the SDK's own instruments last as long


def entry_of(provider: MeterProvider) -> Entry:
    """Return what was created on a provider, or on the proxy that hands over to it."""
    _entries[:] = [entry for entry in _entries if not entry.dead]
    for entry in _entries:
        if entry.made_on(provider):
            return entry
    entry = Entry(provider)
    _entries.append(entry)
    return entry


def forget_all() -> None:
    """Silence everything in a forked child; takes no lock, since a thread of the parent may have held it."""
    for entry in tuple(_entries):
        for trampoline in tuple(entry.trampolines.values()):
            trampoline.owner = None
            trampoline.forget(totals=True)


def is_proxy(provider: MeterProvider) -> bool:
    """Tell whether this is a stand-in for a provider that is set later: the API's, or a vendor's such as logfire's."""
    return "Proxy" in type(provider).__name__


class Instruments:
    """What a sampler's snapshots become under one provider.

    `attributes` stand on every point. `healths` tells how the parts are. `on_ask` is called once, in the first
    callback; `asks` counts them all. Everything that reaches an Observation passes `publish`, which lets only sane
    values through.
    """

    def __init__(  # noqa: PLR0913 - each is a seam of its own
        self,
        provider: MeterProvider,
        selection: Selection,
        *,
        interval: float,
        clock: Callable[[], float],
        attributes: Callable[[], Mapping[str, AttributeValue]] = dict,
        healths: Callable[[], Iterable[Health]] = tuple,
        on_ask: Callable[[], None] | None = None,
    ) -> None:
        self.clock = clock
        self.healths = healths
        self._entry = entry_of(provider)
        self._selection = selection
        self._keep = max(2, math.ceil(HISTORY_SECONDS / interval))
        self._common = attributes
        self._attributes: Mapping[str, AttributeValue] | None = None
        self._on_ask = on_ask
        self.asks = 0
        self._lock = threading.Lock()
        self._detached = False
        self._histories: dict[Health, History] = {}
        self._of_health: dict[Health, dict[str, AttributeValue]] = {}
        self._refused: set[str] = set()
        self._too_many: dict[str, int] = {}

    def attach(self, *, create: bool = True) -> None:
        """Make what was created before serve from here, and see to it that there is something to be asked.

        Without `create` nothing new is made: in the fork hook a lock of the SDK may be held for ever.
        """
        for trampoline in tuple(self._entry.trampolines.values()):
            trampoline.owner = self
        if not create:
            return
        for spec in _HEALTH:
            if spec is health_catalog.SUCCESS or self.chosen(spec):
                self._entry.trampoline(spec, spec.tag).owner = self

    def detach(self) -> None:
        """Serve nothing any more, also not what a thread is about to publish."""
        with self._lock:
            self._detached = True
            for trampoline in tuple(self._entry.trampolines.values()):
                if trampoline.owner is self:
                    trampoline.owner = None
                    trampoline.forget()

    def chosen(self, spec: MetricSpec) -> bool:
        """Tell whether a spec without placeholders is sent."""
        return self._selection.tag(spec, spec.tag)

    def asked(self) -> None:
        """Note that a reader asks; never raises into the application's export."""
        self.asks += 1
        if self._on_ask is not None:
            hook, self._on_ask = self._on_ask, None
            try:
                hook()
            except Exception:  # noqa: BLE001 - a thread that cannot start at the interpreter's end is one of many
                _log.debug("sampling did not start", exc_info=True)

    def health_attributes(self, health: Health) -> dict[str, AttributeValue]:
        """Return what tells a part's health points apart."""
        if health not in self._of_health:
            part = {} if health.name is None else {"part": health.name}
            self._of_health[health] = sane_attributes({**self._everywhere(), "collector": health.kind, **part})
        return self._of_health[health]

    def publish(self, health: Health, snapshot: Snapshot) -> None:
        """Take a part's newest snapshot: what is not in it is absent from now on."""
        before = self._histories.get(health)
        history = before
        if history is None or history.crowded(len(snapshot.readings)):
            history = self._histories[health] = History()
        values = self._values(history, snapshot)
        for column, trampoline, key in history.counting:
            if (value := values[column]) is not None:
                values[column] = trampoline.count(key, value)
        for name in tuple(self._too_many):
            self._say_too_many(name)
        history.keep(Row(next(_updates), snapshot.until, values), self._keep)
        if before is not None and before is not history:  # not sooner: what is served must not be nothing in between
            self._drop(before)

    def _values(self, history: History, snapshot: Snapshot) -> list[float | None]:
        """Return what each column of a part's history is in a snapshot, giving new series theirs."""
        values: list[float | None] = [None] * history.width
        columns: dict[str, int] = {}
        labels: Mapping[str, object] | None = None
        attributes: Mapping[str, object] | None = None
        for reading in paced(snapshot.readings):
            value = sane_value(reading.value)
            if value is None:
                continue
            if reading.labels is not labels or reading.attributes is not attributes:
                # The readings of a device come one after the other and may share these.
                labels, attributes = reading.labels, reading.attributes
                try:
                    columns = history.columns(reading)
                except Exception as error:  # noqa: BLE001 - the hash of what is no text, bool or number
                    self._refuse(reading.spec, error)
                    labels = None
                    continue
            column = columns.get(reading.spec.tag)
            if column is None:
                column = self._place(history, columns, reading)
                values += [None] * (history.width - len(values))
            if column != UNSENT:
                values[column] = float(value) if reading.spec.fold is Fold.MEAN else value
        return values

    def _drop(self, history: History) -> None:
        """Serve no column of a history any more."""
        with self._lock:
            for trampoline in tuple(self._entry.trampolines.values()):
                trampoline.drop(history)

    def _refuse(self, spec: MetricSpec, error: Exception) -> None:
        """Say once why a tag cannot be sent: it costs itself and no other, and no sampling thread."""
        if spec.tag not in self._refused:
            self._refused.add(spec.tag)
            _log.warning("otel-sysmetrics: %s cannot be sent: %s: %s", spec.tag, type(error).__name__, error)

    def _say_too_many(self, name: str) -> None:
        """Say once that an instrument has all the label sets that it can have."""
        count = self._too_many.pop(name, 0)
        if count and name not in self._refused:
            self._refused.add(name)
            _log.warning(
                "otel-sysmetrics: %s: %d label sets over the limit of %d are left out: for labels that change all "
                "the time, use otelcol",
                *(name, count, MOST_LABEL_SETS),
            )

    def _place(self, history: History, columns: dict[str, int], reading: Reading) -> int:
        """Work out what becomes of a series, once per series, and return its column."""
        spec = reading.spec
        try:
            name = spec.fill(reading.labels)
            if not self._selection.tag(spec, name):
                return history.add(columns, spec.tag, sent=False)
            labels = {attribute: reading.labels[label] for label, attribute in spec.labels}
            attributes = sane_attributes({**self._everywhere(), **reading.attributes, **labels})
            trampoline = self._entry.trampoline(spec, name)
        except Exception as error:  # noqa: BLE001 - what cannot be sent, the SDK refuses with a bare Exception
            self._refuse(spec, error)
            return UNSENT
        if not trampoline.admit(attributes):
            self._too_many[name] = self._too_many.get(name, 0) + 1
            return history.add(columns, spec.tag, sent=False)
        column = history.add(columns, spec.tag, sent=True)
        if spec.kind is Kind.COUNTER:
            key = (spec.tag, where(reading.labels, reading.attributes))
            history.counting.append(Counting(column, trampoline, key))
        with self._lock:
            if not self._detached:
                trampoline.serve(self, history, column, attributes)
        return column

    def _everywhere(self) -> Mapping[str, AttributeValue]:
        if self._attributes is None:
            self._attributes = self._common()
        return self._attributes
