"""What one part's thread does: it probes, samples in rhythm, publishes, and says once when something is wrong."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final, Protocol

from otel_sysmetrics.collector import NotHere, Unavailable
from otel_sysmetrics.pacing import paced
from otel_sysmetrics.reading import Reading, Snapshot, shown_text
from otel_sysmetrics.spec import Scope
from otel_sysmetrics.threads import FIRST_GAPS, natively, rhythm

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tenacity import RetryCallState

    from otel_sysmetrics.collector import Collector, Part
    from otel_sysmetrics.threads import Clock

_log: Final = logging.getLogger("otel_sysmetrics")

LONGEST_PAUSE: Final = 300.0
ILL_PAUSE: Final = 60.0
LEAST_WINDOW: Final = 0.25  # of a last sample, in seconds: CPU time is counted in hundredths of a second


class Health:
    """How well a part is; written by its thread, read by callbacks, so each field is replaced whole.

    `seen` tells that it once went well, `well` that the last attempt did, `trouble` why it did not, `samples` how many
    were published. `here` tells that there is something that can be well or ill.
    """

    def __init__(self, kind: str, name: str | None) -> None:
        self.kind = kind
        self.name = name
        self.seen = False
        self.here = False
        self.well = False
        self.samples = 0
        self.trouble: BaseException | None = None
        self.snapshot: Snapshot | None = None

    def success(self, now: float) -> bool:
        """Tell whether the last attempt went well and its snapshot may still be served."""
        return self.well and self.snapshot is not None and self.snapshot.fresh(now)


class Publish(Protocol):
    """Where snapshots go."""

    def __call__(self, health: Health, snapshot: Snapshot) -> None:
        """Take a part's newest snapshot; an empty one withdraws what was served."""


class _Stopped(Exception):
    """The sampler was stopped while a part waited for its next probe."""


class Runner:
    """What one part's thread does."""

    def __init__(  # noqa: PLR0913 - made in one place only
        self,
        part: Part,
        interval: float,
        stop: threading.Event,
        publish: Publish,
        clock: Clock,
        ended: Callable[[], bool],
        first_gaps: Sequence[float] = FIRST_GAPS,
    ) -> None:
        self.part = part
        self.health = Health(part.kind, part.name)
        self.lane = part.kind if part.name is None else f"{part.kind} {part.name}"
        self.collector: Collector | None = None
        self._interval = interval
        self._first_gaps = first_gaps
        self._stop = stop
        self._publish = publish
        self._clock = clock
        self._ended = ended
        self._failing = False
        self._probing_since: float | None = None
        self.finishing = False
        self.finished = threading.Event()

    def run(self) -> None:
        """Probe until the hardware is here, then sample in rhythm, until stopped."""
        try:
            while not self._stop.is_set():
                collector = self._find()
                if collector is None:
                    return
                self.collector = collector
                try:
                    self._serve(collector)
                finally:
                    self.close()
        finally:
            self.finished.set()

    def close(self) -> None:
        """Let go of the hardware."""
        if self.collector is not None:
            try:
                self.collector.close()
            except BaseException as error:  # noqa: BLE001 - a vendor library may raise anything, and we are leaving
                _log.debug("%s: closing failed: %s", self.lane, said(error))

    def look(self) -> None:
        """Say that a part hangs, in a sample or in its search: it cannot say so itself. Called by another thread."""
        snapshot, now = self.health.snapshot, self._clock.now()
        if self._failing or self._stop.is_set() or self._ended():
            return
        if self._probing_since is not None:
            since, hangs = self._probing_since, now - self._probing_since > 2 * self._interval + 1
        elif self.health.well and snapshot is not None:
            since, hangs = snapshot.time, not snapshot.fresh(now)
        else:
            return
        if hangs:
            self._failing = self.health.here = True
            _log.warning("otel-sysmetrics: %s: no answer for %.0f s", self.lane, now - since)

    def _find(self) -> Collector | None:
        import tenacity

        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(lambda _error: True),
            wait=self._pause,
            sleep=self._sleep,
            before_sleep=lambda state: self._failed(state.outcome.exception() if state.outcome else None),
        )
        try:
            return retrying(self._probe)
        except _Stopped:
            return None

    def _probe(self) -> Collector:
        self._probing_since = self._clock.now()
        try:
            return natively(self.part.probe)
        finally:
            self._probing_since = None

    def _sleep(self, seconds: float) -> None:
        if self._clock.wait(self._stop, seconds):
            raise _Stopped

    def _pause(self, state: RetryCallState) -> float:
        """Seconds to the next probe: soon for what was once seen well, ever more rarely for what never was."""
        import tenacity

        if self.health.seen:
            return self._interval
        error = state.outcome.exception() if state.outcome else None
        first = self._interval if isinstance(error, NotHere) else ILL_PAUSE
        return tenacity.wait_exponential(multiplier=min(first, LONGEST_PAUSE), max=LONGEST_PAUSE)(state)

    def _serve(self, collector: Collector) -> None:
        due = self._clock.now()
        for gap in rhythm(self._interval, self._first_gaps):
            if not self._sample(collector, gap):
                self._clock.wait(self._stop, self._interval)  # what probes well and is gone again keeps no CPU busy
                return
            now = self._clock.now()
            due = max(due + gap, now)
            if self._clock.wait(self._stop, due - now):
                if self.finishing and self._clock.now() - now >= LEAST_WINDOW:
                    self._sample(collector, gap, last=True)
                return

    def _sample(self, collector: Collector, gap: float, *, last: bool = False) -> bool:
        """Take one sample; returns whether the collector is of any further use."""
        begun = self._clock.now()
        readings: tuple[Reading, ...] = ()
        error: BaseException | None = None
        try:
            readings = natively(lambda: tuple(paced(collector.sample())))
        except BaseException as caught:  # noqa: BLE001 - vendor calls fail with exceptions that are not their library's
            error = caught
        now = self._clock.now()
        if self._stop.is_set() and not (last and error is None):
            return True
        if self._ended() and self.health.snapshot is not None:
            return True
        snapshot = Snapshot(self._of_the_job(readings) if last else readings, now, now - begun, gap)
        if error is not None:
            self._failed(error)
        self.health.snapshot = snapshot
        if error is None:
            self._recovered()
        self._publish(self.health, snapshot)
        self.health.samples += 1
        return not isinstance(error, NotHere)

    def _of_the_job(self, readings: tuple[Reading, ...]) -> tuple[Reading, ...]:
        """Return the last readings: a process that is ending has let go of its memory, and the job is what counts."""
        before = self.health.snapshot.readings if self.health.snapshot is not None else ()
        host = (reading for reading in readings if reading.spec.scope is Scope.HOST)
        process = (reading for reading in before if reading.spec.scope is Scope.PROCESS)
        return (*host, *process)

    def _recovered(self) -> None:
        self.health.well = self.health.seen = self.health.here = True
        self.health.trouble = None
        if self._failing:
            self._failing = False
            _log.warning("otel-sysmetrics: %s is back", self.lane)

    def _failed(self, error: BaseException | None) -> None:
        self.health.well = False
        self.health.trouble = error
        self.health.here = self.health.seen or not isinstance(error, NotHere)
        if not self.health.here:
            _log.debug("%s: not here: %s", self.lane, said(error))
        elif not self._failing:
            self._failing = True
            _log.warning("otel-sysmetrics: %s: %s", self.lane, said(error))


def said(error: BaseException | None) -> str:
    """Say an error in one line, with its remedy where one is known."""
    if error is None:
        return "no reason given"
    text = shown_text(" ".join(str(error).split())) or type(error).__name__
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    if not isinstance(error, NotHere | Unavailable | OSError):
        text = f"{type(error).__name__}: {text}"
    remedy = error.remedy if isinstance(error, Unavailable) else ""
    return f"{text} ({remedy})" if remedy else text
