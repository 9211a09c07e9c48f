"""All parts of all chosen kinds, each in a thread of its own."""

from __future__ import annotations

import logging
import threading
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from otel_sysmetrics.collector import Context, Part, parts
from otel_sysmetrics.importing import importing
from otel_sysmetrics.reading import Snapshot
from otel_sysmetrics.runner import Runner, said
from otel_sysmetrics.selection import Selection
from otel_sysmetrics.sources.files import Files
from otel_sysmetrics.spec import Scope
from otel_sysmetrics.threads import FIRST_GAPS, Lanes, MonotonicClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager

    from otel_sysmetrics.election import Election
    from otel_sysmetrics.runner import Health, Publish
    from otel_sysmetrics.settings import Settings
    from otel_sysmetrics.sources.processes import WatchedProcess
    from otel_sysmetrics.threads import Clock

_log: Final = logging.getLogger("otel_sysmetrics")

_LOOK: Final = 0.2
_GLANCE: Final = 0.02


class Sampler:
    """All parts of all chosen kinds, each in its own thread.

    `publish` takes the snapshots. `within` makes the context in which each thread lives. `ended` tells that the
    watched process is over and its last snapshot has to stay (`exec`). `first_gaps` are the seconds between the first
    samples, cut to the interval: short, so that a short job has numbers at once. `find` gives the parts of a kind.
    `election` is asked now and every third of an interval, every interval while it is won, whether what belongs to
    the whole host is this process's to report; without one the settings say. `reports` tells whether the process
    reports at all, None while unknown.
    """

    def __init__(  # noqa: PLR0913 - each is a seam of its own
        self,
        settings: Settings,
        watched: WatchedProcess,
        publish: Publish,
        *,
        lanes: Lanes | None = None,
        clock: Clock | None = None,
        within: Callable[[], AbstractContextManager[object]] = nullcontext,
        ended: Callable[[], bool] = lambda: False,
        first_gaps: Sequence[float] = FIRST_GAPS,
        find: Callable[[str, Context], Iterable[Part]] = parts,
        election: Election | None = None,
        reports: Callable[[], bool | None] = lambda: True,
    ) -> None:
        self.settings = settings
        self._first_gaps = first_gaps
        self.clock = clock or MonotonicClock()
        self._publish = publish
        self._within = within
        self._ended = ended
        self._find = find
        self._lanes = lanes or Lanes()
        self._election = election
        self._reports = reports
        self._hosts = settings.host_metrics != "never"
        self._stop = threading.Event()
        self._turn = threading.Event()  # ends the threads of now, which others may follow
        self._runners: tuple[Runner, ...] | None = None
        self._before: dict[tuple[str, str | None], Health] = {}  # served until who follows has something to say
        selection = Selection(settings.metrics_included, settings.metrics_excluded)
        self._context = Context(
            settings=settings,
            files=Files(settings.root_path),
            watched=watched,
            wants=lambda spec: (self._hosts or spec.scope is Scope.PROCESS) and selection.spec(spec),
            clock=self.clock.now,
        )

    def start(self) -> None:
        """Start the threads; returns at once, importing the collectors is left to a thread too."""
        self._lanes.run("start", self._start_runners)

    def stop(self) -> None:
        """End the threads without waiting for any: each closes what it holds; nothing is published any more."""
        self._stop.set()
        self._turn.set()
        if self._election is not None:
            self._election.end()

    def finish(self, seconds: float) -> None:
        """End the threads, each after one last sample, and wait so many seconds for those that answer.

        What a job did right before its end is then in the last export. What was published stays.
        """
        runners = [runner for runner in self._runners or () if runner.collector is not None]
        for runner in runners:
            runner.finishing = True
        self.stop()
        deadline = self.clock.now() + seconds
        for runner in runners:
            self.clock.wait(runner.finished, max(0.0, deadline - self.clock.now()))

    def settle(self, seconds: float) -> None:
        """Wait until each part was sampled once or is known not to be here, at most so many seconds."""
        deadline = self.clock.now() + seconds
        while self._unsettled() and self.clock.now() < deadline:
            self.clock.wait(self._stop, _GLANCE)

    def _unsettled(self) -> bool:
        runners = self._runners
        return runners is None or any(not one.health.samples and one.health.trouble is None for one in runners)

    def close(self) -> None:
        """Close what the collectors hold, from another thread than theirs; used at the interpreter's exit."""
        for runner in self._runners or ():
            runner.close()

    @property
    def healths(self) -> tuple[Health, ...]:
        """How each part is; where another process speaks for the host, that one's are what counts."""
        return tuple(runner.health for runner in self._runners or ()) if self._hosts else ()

    def runners(self) -> tuple[Runner, ...]:
        """Load the chosen kinds and return one runner per part that has anything to send."""
        self._runners = tuple(
            self._runner(part)
            for kind in self.settings.collectors
            for part in self._parts(kind)
            if any(self._context.wants(spec) for spec in part.specs)
        )
        return self._runners

    def _runner(self, part: Part) -> Runner:
        # Only what speaks of the watched process has to stay when that is over.
        ended = self._ended if any(spec.scope is Scope.PROCESS for spec in part.specs) else _never
        interval = self.settings.sampling_interval
        publish = self._publish_all if self._hosts else self._publish_of_process
        return Runner(part, interval, self._turn, publish, self.clock, ended, self._first_gaps)

    def _publish_of_process(self, health: Health, snapshot: Snapshot) -> None:
        self._publish_all(health, _of_process(snapshot))

    def _publish_all(self, health: Health, snapshot: Snapshot) -> None:
        self._publish(health, snapshot)
        # Its first sample is a baseline, which has nothing to say of what is counted between two samples.
        if health.samples and (before := self._before.pop((health.kind, health.name), None)) is not None:
            self._withdraw(before)

    def _withdraw(self, health: Health) -> None:
        self._publish(health, Snapshot((), self.clock.now(), 0.0, self.settings.sampling_interval))

    @property
    def loaded(self) -> bool:
        """Whether it is known which parts there are."""
        return self._runners is not None

    def _parts(self, kind: str) -> tuple[Part, ...]:
        try:
            return tuple(self._find(kind, self._context))
        except BaseException as error:  # noqa: BLE001 - a broken psutil may raise ImportError, OSError or SystemExit
            _log.warning("otel-sysmetrics: %s is left out, it cannot be loaded: %s", kind, said(error))
            return ()

    def _start_runners(self) -> None:
        with importing():
            import tenacity  # noqa: F401 - brings asyncio with it, which an application's start must not wait for

        while (reports := self._reports()) is None:
            if self.clock.wait(self._stop, _LOOK):
                return
        if not reports:
            return
        election = self._election
        if election is not None:
            self._hosts = election.won()
        self._run_all()
        if self._hosts and not self._runners:  # nothing of the host's is chosen either
            if election is not None:
                election.end()
            return
        with suppress(RuntimeError):
            self._lanes.run("watch", self._watch)

    def _run_all(self) -> None:
        with importing():
            runners = self.runners()
        with suppress(RuntimeError):  # at the interpreter's end no thread starts any more
            for runner in runners:
                if not self._stop.is_set():
                    self._lanes.run(runner.lane, self._lane_body(runner))

    def _lane_body(self, runner: Runner) -> Callable[[], None]:
        def body() -> None:
            with self._within():
                runner.run()

        return body

    def _watch(self) -> None:
        """Look which parts hang, and whose turn it is to speak for the host; who waits for it looks more often."""
        interval = self.settings.sampling_interval
        before = self.clock.now()
        while not self.clock.wait(self._stop, gap := interval / 3 if self._election and not self._hosts else interval):
            now = self.clock.now()
            if now - before < 2 * gap + 1:  # else it is this whole process that stood still
                for runner in self._runners or ():
                    runner.look()
            before = now
            if self._election is not None and self._election.won() != self._hosts:
                self._change_hosts()

    def _change_hosts(self) -> None:
        """Begin anew: this process is the one to speak for the host now, or is not any more.

        What was last read of the process is served until whoever follows has something to say, for as long as it is
        fresh; of the host, another process speaks from now on.
        """
        before = tuple(runner.health for runner in self._runners or ())
        self._turn.set()
        self._turn = threading.Event()
        self._hosts = not self._hosts
        self._before = {(health.kind, health.name): health for health in before}
        for health in before if not self._hosts else ():
            if health.snapshot is not None:
                self._publish(health, _of_process(health.snapshot))
        self._run_all()
        following = {(runner.health.kind, runner.health.name) for runner in self._runners or ()}
        for health in before:
            if (health.kind, health.name) not in following:
                self._withdraw(health)
        if self._stop.is_set():
            self._turn.set()


def _of_process(snapshot: Snapshot) -> Snapshot:
    return replace(snapshot, readings=tuple(one for one in snapshot.readings if one.spec.scope is Scope.PROCESS))


def _never() -> bool:
    return False
