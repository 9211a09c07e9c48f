from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pytest

from otel_sysmetrics.collector import NotHere, Unavailable
from otel_sysmetrics.reading import Reading
from otel_sysmetrics.runner import Health, Runner, said
from otel_sysmetrics.sampler import Sampler
from otel_sysmetrics.settings import Settings
from otel_sysmetrics.sources.files import Files
from otel_sysmetrics.sources.processes import WatchedProcess
from otel_sysmetrics.spec import MetricSpec, Scope
from otel_sysmetrics.threads import FIRST_GAPS, Lanes
from tests.fakes import COUNT, PATIENCE, SHARE, TOTAL, FakeCollector, FakeKind, ScriptedClock, our_threads, until

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from otel_sysmetrics.collector import Collector, Context, Part
    from otel_sysmetrics.reading import Snapshot

ONE: Final = (Reading(SHARE, 1.0),)
TWO: Final = (Reading(SHARE, 2.0),)


OF_THE_PROCESS: Final = MetricSpec(
    tag="fake.heldBytes", unit="By", brief="A number of the process.", collectors=("cpu",), scope=Scope.PROCESS
)


class Panic(BaseException):
    """What a vendor library raises to get past every `except Exception`."""


class Run:
    """One part's runner on a scripted clock, run to its end in the test's own thread.

    `samples` and `probes` are the moments at which the hardware was read or looked for; `published` holds each
    snapshot with the moment of its publication.
    """

    def __init__(
        self, *found: Collector | BaseException, interval: float = 15, end: float = 60, ended: Callable[[], bool] = bool
    ) -> None:
        self.clock = ScriptedClock(end)
        self.stop = threading.Event()
        self.published: list[tuple[float, Snapshot]] = []
        self.samples: list[float] = []
        self.probes: list[float] = []
        self.kind = FakeKind()
        part = self.kind.add(*found)
        probe = part.probe

        def probing() -> Collector:
            self.probes.append(self.clock.time)
            collector = probe()
            return Watched(collector, lambda: self.samples.append(self.clock.time))

        watched = type(part)(part.kind, part.name, part.specs, probing)
        self.runner = Runner(watched, interval, self.stop, self.publish, self.clock, ended)

    def publish(self, health: Health, snapshot: Snapshot) -> None:
        assert health is self.runner.health
        self.published.append((self.clock.time, snapshot))

    def spend(self, seconds: float) -> Iterable[Reading]:
        """Take so long to read."""
        self.clock.spend(seconds)
        return ONE

    def finish(self) -> None:
        """End, after a last sample."""
        self.runner.finishing = True
        self.stop.set()

    def interrupt(self, readings: Iterable[Reading]) -> Iterable[Reading]:
        """Be stopped while reading."""
        self.stop.set()
        return readings

    def go(self) -> Run:
        self.runner.run()
        return self

    def values(self) -> list[list[float | None]]:
        return [[reading.value for reading in snapshot.readings] for _, snapshot in self.published]


class Watched:
    """A collector that tells when it is read."""

    def __init__(self, collector: Collector, tell: Callable[[], None]) -> None:
        self._collector = collector
        self._tell = tell

    def sample(self) -> Iterable[Reading]:
        self._tell()
        return self._collector.sample()

    def describe(self) -> str:
        return self._collector.describe()

    def close(self) -> None:
        self._collector.close()


def logged(caplog: pytest.LogCaptureFixture, level: int = logging.INFO) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= level]


class TestRhythm:
    @pytest.mark.parametrize(
        ("interval", "moments"),
        [
            (15, [0, 1, 2, 4, 8, 23, 38, 53]),
            (60, [0, 1, 2, 4, 8]),
            (3, [0, 1, 2, 4, 7, 10, 13, 16, 19, 22, 25, 28, 31, 34, 37, 40, 43, 46, 49, 52, 55, 58]),
            (20, [0, 1, 2, 4, 8, 28, 48]),
        ],
    )
    def test_samples_come_after_0_1_1_2_and_4_seconds_and_then_every_interval(
        self, interval: float, moments: list[float]
    ) -> None:
        assert Run(FakeCollector(ONE), interval=interval).go().samples == moments

    def test_the_time_that_a_sample_takes_does_not_shift_the_rhythm(self) -> None:
        run = Run(FakeCollector(lambda: run.spend(0.5)), end=60)

        assert run.go().samples == [0, 1, 2, 4, 8, 23, 38, 53]

    def test_a_sample_that_overruns_skips_the_missed_ticks_and_makes_no_burst(self) -> None:
        slow = [ONE] * 4
        run = Run(FakeCollector(*slow, lambda: run.spend(40), ONE), end=100)

        assert run.go().samples == [0, 1, 2, 4, 8, 48, 63, 78, 93]

    def test_a_sample_that_always_overruns_is_taken_again_at_once(self) -> None:
        run = Run(FakeCollector(lambda: run.spend(20)), end=100)

        assert run.go().samples == [0, 20, 40, 60, 80, 100]

    def test_a_snapshot_tells_when_it_was_taken_how_long_that_took_and_when_the_next_comes(self) -> None:
        run = Run(FakeCollector(lambda: run.spend(0.25)), end=8)

        assert [(at, s.time, s.duration, s.interval) for at, s in run.go().published] == [
            (0.25, 0.25, 0.25, 1),
            (1.25, 1.25, 0.25, 1),
            (2.25, 2.25, 0.25, 2),
            (4.25, 4.25, 0.25, 4),
            (8.25, 8.25, 0.25, 15),
        ]


class TestFailure:
    def test_a_failing_sample_withdraws_what_was_served(self) -> None:
        run = Run(FakeCollector(ONE, RuntimeError("lost"), TWO), end=2).go()

        assert run.values() == [[1.0], [], [2.0]]

    def test_a_sample_that_fails_halfway_publishes_nothing_of_it(self) -> None:
        def half() -> Iterator[Reading]:
            yield Reading(SHARE, 1.0)
            raise OSError("torn off")

        assert Run(FakeCollector(half), end=0).go().values() == [[]]

    def test_a_failure_is_logged_once_and_so_is_the_recovery(self, caplog: pytest.LogCaptureFixture) -> None:
        run = Run(FakeCollector(ONE, RuntimeError("lost"), RuntimeError("lost"), ValueError("else"), ONE), end=40).go()

        assert run.runner.health.well
        assert logged(caplog) == ["otel-sysmetrics: cpu: RuntimeError: lost", "otel-sysmetrics: cpu is back"]
        assert {record.levelno for record in caplog.records} == {logging.WARNING}

    def test_a_hundred_failing_passes_are_one_line(self, caplog: pytest.LogCaptureFixture) -> None:
        run = Run(FakeCollector(ONE, RuntimeError("lost")), interval=1, end=100).go()

        assert len(run.samples) == 101
        assert logged(caplog) == ["otel-sysmetrics: cpu: RuntimeError: lost"]

    def test_each_change_from_well_to_ill_is_logged_anew(self, caplog: pytest.LogCaptureFixture) -> None:
        Run(FakeCollector(ONE, RuntimeError("one"), ONE, RuntimeError("two"), ONE), end=8).go()

        assert logged(caplog) == [
            "otel-sysmetrics: cpu: RuntimeError: one",
            "otel-sysmetrics: cpu is back",
            "otel-sysmetrics: cpu: RuntimeError: two",
            "otel-sysmetrics: cpu is back",
        ]

    @pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), GeneratorExit(), Panic("away")])
    def test_an_exception_that_is_no_exception_costs_the_pass_only(self, error: BaseException) -> None:
        run = Run(FakeCollector(ONE, error, TWO), end=2).go()

        assert run.values() == [[1.0], [], [2.0]]
        assert run.runner.health.well

    @pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), Panic("away")])
    def test_an_exception_that_is_no_exception_does_not_end_the_looking(self, error: BaseException) -> None:
        run = Run(error, FakeCollector(ONE), end=60).go()

        assert (run.probes, run.samples) == ([0, 60], [60])

    def test_health_follows_what_happens(self) -> None:
        health = Health("cpu", None)
        assert (health.seen, health.well, health.success(0)) == (False, False, False)

        run = Run(FakeCollector(ONE, RuntimeError("lost")), end=1).go()
        health = run.runner.health

        assert (health.seen, health.well, health.samples, str(health.trouble)) == (True, False, 2, "lost")
        assert not health.success(run.clock.time)

    def test_health_is_no_success_once_its_snapshot_is_stale(self) -> None:
        health = Run(FakeCollector(ONE), end=0).go().runner.health

        assert health.trouble is None
        assert health.success(3.0)
        assert not health.success(3.1)


class TestNotHere:
    def test_what_never_was_here_is_looked_for_ever_more_rarely(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.DEBUG)
        run = Run(NotHere("no /dev/nvidia0"), end=1400).go()

        assert run.probes == [0, 15, 45, 105, 225, 465, 765, 1065, 1365]
        assert run.published == []
        assert not run.runner.health.seen
        assert logged(caplog, logging.INFO) == []
        assert "cpu: not here: no /dev/nvidia0" in logged(caplog, logging.DEBUG)

    def test_after_years_it_is_still_looked_for_every_five_minutes(self) -> None:
        run = Run(NotHere("nothing"), end=3000 * 300).go()

        assert {late - early for early, late in zip(run.probes[6:], run.probes[7:], strict=False)} == {300}
        assert len(run.probes) > 3000

    def test_what_turns_up_late_begins_with_its_baseline(self) -> None:
        run = Run(NotHere("not yet"), NotHere("not yet"), FakeCollector(ONE), end=50).go()

        assert (run.probes, run.samples) == ([0, 15, 45], [45, 46, 47, 49])

    def test_what_was_once_seen_well_is_looked_for_at_each_interval(self, caplog: pytest.LogCaptureFixture) -> None:
        lost = FakeCollector(ONE, NotHere("fallen off the bus"))
        gone = NotHere("fallen off the bus")
        run = Run(lost, *[gone] * 40, FakeCollector(TWO), end=1 + 42 * 15).go()

        assert run.probes == [0, *(1 + 15 * turn for turn in range(1, 42))]
        assert run.values()[:2] == [[1.0], []]
        assert run.values()[-1] == [2.0]
        assert logged(caplog) == ["otel-sysmetrics: cpu: fallen off the bus", "otel-sysmetrics: cpu is back"]

    def test_a_collector_that_lost_its_hardware_is_closed_before_the_next_is_made(self) -> None:
        lost, found = FakeCollector(ONE, NotHere("gone")), FakeCollector(lambda: [Reading(COUNT, lost.closed)])
        run = Run(lost, found, end=16).go()

        assert run.values() == [[1.0], [], [1]]

    def test_hardware_that_probes_well_and_is_not_here_when_read_keeps_no_cpu_busy(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        run = Run(FakeCollector(NotHere("empty")), end=60).go()

        assert run.probes == [0, 15, 30, 45, 60]
        assert logged(caplog) == []


class TestUnavailable:
    def test_it_waits_one_to_five_minutes_and_is_said_once_with_the_remedy(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        run = Run(Unavailable("no permission", "add the group video"), end=1200).go()

        assert run.probes == [0, 60, 180, 420, 720, 1020]
        assert logged(caplog) == ["otel-sysmetrics: cpu: no permission (add the group video)"]

    def test_it_is_said_when_it_is_over(self, caplog: pytest.LogCaptureFixture) -> None:
        run = Run(Unavailable("version mismatch"), FakeCollector(ONE), end=61).go()

        assert run.samples == [60, 61]
        assert logged(caplog) == ["otel-sysmetrics: cpu: version mismatch", "otel-sysmetrics: cpu is back"]

    def test_any_other_error_of_a_probe_waits_as_long(self) -> None:
        assert Run(ImportError("libfoo.so.1"), end=200).go().probes == [0, 60, 180]

    def test_once_seen_well_it_is_tried_at_each_interval(self) -> None:
        run = Run(FakeCollector(ONE, NotHere("reset")), Unavailable("driver is loading"), end=50).go()

        assert run.probes == [0, 16, 31, 46]


class TestEnd:
    def test_what_is_read_while_stop_comes_is_published_no_more(self) -> None:
        run = Run(FakeCollector(ONE, lambda: run.interrupt(TWO)), end=60)
        run.go()

        assert run.values() == [[1.0]]
        assert run.samples == [0, 1]

    def test_a_failure_while_stop_comes_is_neither_published_nor_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        def torn() -> Iterable[Reading]:
            run.stop.set()
            raise RuntimeError("closed under me")

        run = Run(FakeCollector(ONE, torn), end=60)
        run.go()

        assert run.values() == [[1.0]]
        assert logged(caplog) == []

    def test_a_last_sample_has_what_was_done_right_before_the_end(self) -> None:
        """A checkpoint written after the newest sample would else be in no export."""
        run = Run(FakeCollector(ONE, ONE, TWO), end=60)
        run.clock.at(1.5, run.finish)
        run.go()

        assert run.samples == [0, 1, 2]
        assert run.values() == [[1.0], [1.0], [2.0]]

    def test_of_the_process_what_was_before_its_end_stays(self) -> None:
        """At its end a process has let go of its memory, and the job is what counts."""
        held, freed = (Reading(OF_THE_PROCESS, 300.0), *ONE), (Reading(OF_THE_PROCESS, 4.0), *TWO)
        run = Run(FakeCollector(held, held, freed), end=60)
        run.clock.at(1.5, run.finish)
        run.go()

        assert set(run.values()[-1]) == {2.0, 300.0}

    def test_a_last_sample_that_fails_leaves_what_was_published(self, caplog: pytest.LogCaptureFixture) -> None:
        run = Run(FakeCollector(ONE, ONE, RuntimeError("closed under me")), end=60)
        run.clock.at(1.5, run.finish)
        run.go()

        assert run.values() == [[1.0], [1.0]]
        assert logged(caplog) == []

    def test_right_after_a_sample_there_is_no_other(self) -> None:
        """CPU time is counted in hundredths of a second: a share of so short a window is noise."""
        run = Run(FakeCollector(ONE, TWO), interval=0.2, end=60)
        run.clock.at(0.1, run.finish)
        run.go()

        assert run.samples == [0]

    def test_a_part_that_was_found_while_stop_came_is_closed(self) -> None:
        collector = FakeCollector(ONE)
        run = Run(collector, end=60)
        run.clock.at(0, run.stop.set)
        probe = run.runner.part.probe

        def late() -> Collector:
            run.clock.spend(1)
            return probe()

        run.runner.part = type(run.runner.part)("cpu", None, run.runner.part.specs, late)
        run.go()

        assert run.published == []
        assert collector.closed

    def test_a_part_that_waits_for_its_hardware_ends_at_once(self) -> None:
        run = Run(NotHere("nothing"), end=1e9)
        run.clock.at(100, run.stop.set)

        assert run.go().probes == [0, 15, 45]

    def test_what_is_held_is_closed_at_the_end(self) -> None:
        collector = FakeCollector(ONE)
        Run(collector, end=5).go()

        assert collector.closed == 1

    @pytest.mark.parametrize("error", [RuntimeError("in use"), SystemExit(1), Panic("away")])
    def test_an_error_of_closing_is_harmless(self, error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
        class Stubborn(FakeCollector):
            def close(self) -> None:
                raise error

        run = Run(Stubborn(ONE), end=5).go()

        assert run.samples == [0, 1, 2, 4]
        assert logged(caplog) == []

    def test_the_last_snapshot_of_an_ended_command_stays(self) -> None:
        run = Run(FakeCollector(ONE, TWO, RuntimeError("no such process")), end=60, ended=lambda: len(run.samples) > 2)
        run.go()

        assert len(run.samples) > 3
        assert run.values() == [[1.0], [2.0]]
        assert run.runner.health.well


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (None, "no reason given"),
        (NotHere("no rocm-smi on PATH"), "no rocm-smi on PATH"),
        (Unavailable("no permission"), "no permission"),
        (Unavailable("no permission", "run as root"), "no permission (run as root)"),
        (RuntimeError("a\n  b"), "RuntimeError: a b"),
        (RuntimeError(), "RuntimeError: RuntimeError"),
        (RuntimeError("\x1b[31mred\x07"), r"RuntimeError: \x1b[31mred\x07"),
        (FileNotFoundError(2, "No such file or directory", "/proc/x"), "No such file or directory: /proc/x"),
        (OSError(5, "Input/output error"), "Input/output error"),
        (OSError("torn off"), "torn off"),
        (SystemExit(1), "SystemExit: 1"),
    ],
)
def test_an_error_is_said_in_one_line(error: BaseException | None, words: str) -> None:
    assert said(error) == words


Kind = FakeKind | BaseException | Callable[[], "Iterable[Part]"]


class Bench:
    """A sampler over fake kinds with real threads; `kinds` maps a kind to what its module gives or raises."""

    def __init__(self, kinds: Mapping[str, Kind], **seams: Any) -> None:  # noqa: ANN401
        settings = Settings(sampling_interval=0.1, collectors=tuple(kinds), metrics_included=("*",))
        watched = WatchedProcess(Files(), lambda: None, tree=False, clock=lambda: 0.0)
        self.kinds = kinds
        self.published: list[tuple[str, int]] = []
        self.served: dict[Health, frozenset[str]] = {}
        chosen = seams.pop("settings", settings)
        self.sampler = Sampler(chosen, watched, self.publish, find=self.find, **seams)

    def find(self, kind: str, _context: Context) -> Iterable[Part]:
        found = self.kinds[kind]
        if isinstance(found, BaseException):
            raise found
        return found.parts if isinstance(found, FakeKind) else found()

    def publish(self, health: Health, snapshot: Snapshot) -> None:
        self.published.append((health.name or health.kind, len(snapshot.readings)))
        self.served[health] = frozenset(reading.spec.tag for reading in snapshot.readings)

    def tags(self) -> set[str]:
        """Return what is served now."""
        return {tag for tags in tuple(self.served.values()) for tag in tags}

    def times(self, name: str) -> int:
        return sum(part == name for part, _ in self.published)


class Stage:
    """Where samplers run with real threads, over hardware that may hang until `release` is set."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self._benches: list[Bench] = []

    def bench(self, kinds: Mapping[str, Kind], **seams: Any) -> Bench:  # noqa: ANN401
        """Return a sampler over these kinds, not yet started."""
        self._benches.append(Bench(kinds, **seams))
        return self._benches[-1]

    def hung(self) -> tuple[FakeCollector, threading.Event]:
        """Return hardware that hangs, and what tells that it does."""
        begun = threading.Event()

        def hang() -> Iterable[Reading]:
            begun.set()
            assert self.release.wait(PATIENCE)
            return ONE

        return FakeCollector(hang), begun

    def close(self) -> None:
        for bench in self._benches:
            bench.sampler.stop()
        self.release.set()
        until(lambda: not our_threads(), "the end of all threads")


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    yield stage
    stage.close()


def kind_of(kind: str, **parts: Collector | BaseException) -> FakeKind:
    fake = FakeKind()
    for name, collector in parts.items():
        fake.add(collector, kind=kind, name=name)
    return fake


def test_a_hung_part_leaves_the_rhythm_of_the_others_alone(stage: Stage) -> None:
    collector, begun = stage.hung()
    bench = stage.bench(
        {
            "disk": kind_of("disk", nfs=collector, local=FakeCollector(ONE)),
            "cpu": kind_of("cpu", cpu=FakeCollector(ONE)),
        }
    )
    bench.sampler.start()

    assert begun.wait(PATIENCE)
    already = bench.times("local"), bench.times("cpu")
    until(lambda: bench.times("local") > already[0] + 3 and bench.times("cpu") > already[1] + 3)
    assert bench.times("nfs") == 0


def test_a_hung_part_gets_no_second_thread_from_the_next_sampler(stage: Stage) -> None:
    lanes = Lanes()
    collector, begun = stage.hung()
    first = stage.bench({"disk": kind_of("disk", nfs=collector, local=FakeCollector(ONE))}, lanes=lanes)
    first.sampler.start()
    assert begun.wait(PATIENCE)
    first.sampler.stop()
    second = stage.bench({"disk": kind_of("disk", nfs=FakeCollector(ONE), local=FakeCollector(ONE))}, lanes=lanes)
    second.sampler.start()

    until(lambda: second.times("local") > 2)
    assert our_threads().count("otel-sysmetrics disk nfs") == 1
    assert second.times("nfs") == 0
    stage.release.set()
    until(lambda: second.times("nfs") > 0, "the lane's next turn")
    assert first.times("nfs") == 0
    assert collector.closed


def test_stop_ends_all_threads_without_waiting_and_publishes_nothing_any_more(stage: Stage) -> None:
    collector, begun = stage.hung()
    bench = stage.bench({"disk": kind_of("disk", nfs=collector, local=FakeCollector(ONE))})
    bench.sampler.start()
    assert begun.wait(PATIENCE)
    until(lambda: bench.times("local") > 0)

    bench.sampler.stop()
    until(lambda: our_threads() == ["otel-sysmetrics disk nfs"])
    published = list(bench.published)
    stage.release.set()
    until(lambda: not our_threads())

    assert bench.published == published


def test_start_returns_at_once_although_a_kinds_import_hangs(stage: Stage) -> None:
    begun = threading.Event()

    def slow() -> Iterable[Part]:
        begun.set()
        assert stage.release.wait(PATIENCE)
        return ()

    bench = stage.bench({"cpu": slow})
    bench.sampler.start()

    assert begun.wait(PATIENCE)
    assert not bench.sampler.loaded
    assert bench.sampler.healths == ()


@pytest.mark.parametrize("error", [ImportError("psutil is broken"), OSError("wrong ELF class"), SystemExit(1)])
def test_a_kind_that_cannot_be_loaded_is_left_out_and_said_once(
    error: BaseException, stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    bench = stage.bench({"cpu": error, "memory": kind_of("memory", memory=FakeCollector(ONE))})

    assert [runner.lane for runner in bench.sampler.runners()] == ["memory memory"]
    assert bench.sampler.loaded
    assert logged(caplog) == [f"otel-sysmetrics: cpu is left out, it cannot be loaded: {said(error)}"]


def test_a_part_that_has_nothing_to_send_is_not_run(stage: Stage) -> None:
    kind = FakeKind()
    kind.add(FakeCollector(ONE), name="shares", specs=(SHARE,))
    kind.add(FakeCollector(ONE), name="both", specs=(SHARE, TOTAL))
    settings = Settings(collectors=("cpu",), metrics_included=("fake.sent*",))
    bench = stage.bench({"cpu": kind}, settings=settings)

    assert [runner.lane for runner in bench.sampler.runners()] == ["cpu both"]


def test_only_the_chosen_kinds_are_loaded(stage: Stage) -> None:
    bench = stage.bench(
        {"cpu": kind_of("cpu", cpu=FakeCollector(ONE)), "disk": AssertionError("no")},
        settings=Settings(collectors=("cpu",), metrics_included=("*",)),
    )

    assert [runner.health.kind for runner in bench.sampler.runners()] == ["cpu"]


def test_each_sampling_thread_lives_in_the_context_that_the_sampler_was_given(stage: Stage) -> None:
    inside: dict[str, int] = {}
    collector, _ = stage.hung()

    @contextmanager
    def within() -> Iterator[None]:
        inside[threading.current_thread().name] = inside.get(threading.current_thread().name, 0) + 1
        yield
        inside[threading.current_thread().name] -= 1

    def look() -> Iterable[Reading]:
        return [Reading(COUNT, inside[threading.current_thread().name])]

    kind = kind_of("disk", a=FakeCollector(look), b=FakeCollector(look), nfs=collector)
    bench = stage.bench({"disk": kind}, within=within)
    bench.sampler.start()

    until(lambda: bench.times("a") > 0 and bench.times("b") > 0)
    assert inside["otel-sysmetrics disk a"] == inside["otel-sysmetrics disk b"] == 1
    stage.close()
    until(lambda: inside["otel-sysmetrics disk a"] == inside["otel-sysmetrics disk b"] == 0)


def test_an_interpreter_that_starts_no_thread_any_more_costs_the_rest_of_the_parts_and_no_error(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    class Ending(Lanes):
        """Lanes at the end of the interpreter: the thread that starts the others is there, they are not."""

        def run(self, name: str, body: Callable[[], None]) -> None:
            if name == "start":
                body()
            else:
                raise RuntimeError("can't start new thread at interpreter shutdown")

    bench = stage.bench({"cpu": kind_of("cpu", cpu=FakeCollector(ONE))}, lanes=Ending())
    bench.sampler.start()

    assert bench.published == []
    assert logged(caplog) == []


def test_closing_from_outside_closes_what_every_part_holds(stage: Stage) -> None:
    collector, begun = stage.hung()
    other = FakeCollector(ONE)
    bench = stage.bench(
        {"cpu": kind_of("cpu", nfs=collector, local=other), "disk": kind_of("disk", never=NotHere("no"))}
    )
    bench.sampler.start()
    assert begun.wait(PATIENCE)
    until(lambda: bench.times("local") > 0)

    bench.sampler.close()

    assert (collector.closed, other.closed) == (1, 1)


def test_the_default_first_gaps_are_1_1_2_4() -> None:
    assert FIRST_GAPS == (1, 1, 2, 4)


def test_a_part_that_hangs_is_said_once_and_so_is_its_return(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever looks at it says so, as the part itself cannot, and not before its snapshot is too old to be served."""

    def hang() -> Iterable[Reading]:
        for _ in range(4):
            run.clock.spend(10)
            run.runner.look()
            heard.append((run.clock.time, [record.message for record in caplog.records]))
        return ONE

    heard: list[tuple[float, list[str]]] = []
    run = Run(FakeCollector(ONE, hang, ONE), interval=10, end=60)
    run.go()

    line = "otel-sysmetrics: cpu: no answer for 11 s"
    assert heard == [(11, [line]), (21, [line]), (31, [line]), (41, [line])]
    assert [record.message for record in caplog.records] == [line, "otel-sysmetrics: cpu is back"]


def test_a_search_that_hangs_is_said_once_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    """A driver may hang in its first call: that is ill and not absent."""
    run = Run(FakeCollector(ONE), interval=10, end=90)
    search = run.runner.part.probe

    def hang() -> Collector:
        for _ in range(4):
            run.clock.spend(10)
            run.runner.look()
            heard.append((run.runner.health.here, [record.message for record in caplog.records]))
        return search()

    heard: list[tuple[bool, list[str]]] = []
    run.runner.part = replace(run.runner.part, probe=hang)
    run.go()

    line = "otel-sysmetrics: cpu: no answer for 30 s"
    assert heard == [(False, []), (False, []), (True, [line]), (True, [line])]
    assert [record.message for record in caplog.records] == [line, "otel-sysmetrics: cpu is back"]


@pytest.mark.parametrize(
    ("trouble", "here"),
    [(NotHere("none"), False), (Unavailable("broken"), True), (OSError("ill"), True), (RuntimeError("odd"), True)],
)
def test_what_is_ill_from_the_start_is_here_and_what_is_absent_is_not(trouble: BaseException, *, here: bool) -> None:
    run = Run(trouble)
    run.go()
    assert run.runner.health.here is here


@pytest.mark.parametrize("step", [ONE, OSError("ill")])
def test_looking_at_a_part_that_does_not_hang_says_nothing(
    caplog: pytest.LogCaptureFixture, step: Iterable[Reading] | BaseException
) -> None:
    """Neither of one that is well, nor of one that has said itself that it is ill, nor after the end."""
    run = Run(FakeCollector(ONE, step), interval=10, end=60)
    for moment in range(1, 90, 5):
        run.clock.at(moment, run.runner.look)
    run.go()
    run.clock.spend(100)
    run.runner.look()
    assert not any("no answer" in record.message for record in caplog.records)


class Seat:
    """Whose turn it is to speak for the host, as the test says."""

    def __init__(self, *, mine: bool) -> None:
        self.mine = mine

    def won(self) -> bool:
        return self.mine

    def end(self) -> None:
        self.mine = False


OF_PROCESS: Final = replace(SHARE, tag="fake.ofProcess", scope=Scope.PROCESS)


@pytest.mark.parametrize("mine", [False, True])
def test_who_speaks_for_the_host_may_change_and_what_is_said_of_the_process_goes_on(
    stage: Stage, *, mine: bool
) -> None:
    """Each part begins anew, with a baseline of which nothing of the process can be said yet."""
    baseline = threading.Event()
    both = (Reading(SHARE, 1), Reading(OF_PROCESS, 2))

    def begin() -> Iterable[Reading]:
        assert baseline.wait(PATIENCE)
        return ONE[:0]

    kind = FakeKind()
    kind.add(FakeCollector(both), FakeCollector(begin, both), specs=(SHARE, OF_PROCESS))
    seat = Seat(mine=mine)
    bench = stage.bench({"cpu": kind}, election=seat)
    bench.sampler.start()
    until(lambda: bench.tags() == {OF_PROCESS.tag, *([SHARE.tag] if mine else [])}, "the first samples")

    seat.mine = not mine
    until(lambda: kind.probed == 2, "the change")
    assert OF_PROCESS.tag in bench.tags()
    baseline.set()
    until(lambda: bench.tags() == {OF_PROCESS.tag, *([] if mine else [SHARE.tag])}, "the samples after it")
    until(lambda: sum(map(bool, bench.served.values())) == 1, "the end of what was served before")
