"""Stand-ins for time and hardware, and the ways to look at what comes out, for the tests of the core."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.sdk.metrics import MeterProvider, ObservableCounter
from opentelemetry.sdk.metrics.export import AggregationTemporality, InMemoryMetricReader
from opentelemetry.sdk.resources import Resource

from otel_sysmetrics.collector import Part
from otel_sysmetrics.instruments import Instruments
from otel_sysmetrics.reading import Reading, Snapshot
from otel_sysmetrics.runner import Health
from otel_sysmetrics.selection import Selection
from otel_sysmetrics.spec import Kind, MetricSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from opentelemetry import metrics
    from opentelemetry.sdk.metrics.export import MetricsData

    from otel_sysmetrics.collector import Collector
    from otel_sysmetrics.reading import AttributeValue

PATIENCE: Final = 20.0
"""How long a test waits for what happens in another thread, in seconds; far longer than it ever takes."""

REPOSITORY: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

SHARE: Final = MetricSpec(tag="fake.busyPercent", unit="%", brief="A share, averaged.", collectors=("cpu",))
COUNT: Final = MetricSpec(tag="fake.openFiles", unit="{file}", brief="A number, the last holds.", collectors=("cpu",))
TOTAL: Final = MetricSpec(tag="fake.sentBytes", unit="By", brief="A total.", collectors=("cpu",), kind=Kind.COUNTER)
PER_PATH: Final = MetricSpec(
    tag="fake.{path}.usageGB",
    unit="GiBy",
    brief="A number per path.",
    collectors=("cpu",),
    labels=(("path", "fake.path"),),
    attributes=("fake.mountpoint",),
)
PER_DEVICE: Final = MetricSpec(
    tag="fake.{dev}.in",
    unit="By",
    brief="A total per device.",
    collectors=("cpu",),
    kind=Kind.COUNTER,
    labels=(("dev", "fake.device"),),
)


class ScriptedClock:
    """Time that passes only where somebody waits or takes time; whoever waits at `end` is told to stop.

    `waits` are the seconds that were waited, in turn.
    """

    def __init__(self, end: float = 0.0) -> None:
        self.time = 0.0
        self.end = end
        self.waits: list[float] = []
        self._hooks: list[tuple[float, Callable[[], None]]] = []

    def now(self) -> float:
        """Return the seconds since the test began."""
        return self.time

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Let so much time pass at once."""
        self.waits.append(seconds)
        self.spend(seconds)
        if self.time > self.end:
            event.set()
        return event.is_set()

    def at(self, moment: float, hook: Callable[[], None]) -> None:
        """Let something happen at a moment."""
        self._hooks.append((moment, hook))

    def spend(self, seconds: float) -> None:
        """Let time pass, and let happen what is due."""
        self.time += seconds
        due = [hook for moment, hook in self._hooks if moment <= self.time]
        self._hooks = [(moment, hook) for moment, hook in self._hooks if moment > self.time]
        for hook in due:
            hook()


class FakeCollector:
    """Hardware that does in each pass what the test says: gives readings, raises, or is called; the last step stays."""

    def __init__(self, *steps: Iterable[Reading] | BaseException | Callable[[], Iterable[Reading]]) -> None:
        self._steps = list(steps)
        self.samples = 0
        self.closed = 0

    def sample(self) -> Iterable[Reading]:
        """Do the next step."""
        step = self._steps[min(self.samples, len(self._steps) - 1)]
        self.samples += 1
        if isinstance(step, BaseException):
            raise step
        return step() if callable(step) else step

    def describe(self) -> str:
        """Say what it is."""
        return "a fake"

    def close(self) -> None:
        """Note that it was closed."""
        self.closed += 1


@dataclass
class FakeKind:
    """The parts of a kind, as a collector's module gives them; `probed` counts how often each was looked for."""

    parts: list[Part] = field(default_factory=list)
    probed: int = 0

    def add(
        self,
        *probes: Collector | BaseException,
        kind: str = "cpu",
        name: str | None = None,
        specs: tuple[MetricSpec, ...] = (SHARE, COUNT, TOTAL),
    ) -> Part:
        """Add a part that is found, or not, as the test says; the last answer stays."""
        answers = list(probes)

        def probe() -> Collector:
            self.probed += 1
            answer = answers.pop(0) if len(answers) > 1 else answers[0]
            if isinstance(answer, BaseException):
                raise answer
            return answer

        part = Part(kind, name, specs, probe)
        self.parts.append(part)
        return part


def in_memory(*, delta: bool = False) -> InMemoryMetricReader:
    """Return a reader that collects when it is told to, cumulative or delta."""
    chosen: dict[type, AggregationTemporality] = {ObservableCounter: AggregationTemporality.DELTA} if delta else {}
    return InMemoryMetricReader(preferred_temporality=chosen)


def provider_of(*readers: Any, **resource: AttributeValue) -> MeterProvider:  # noqa: ANN401 - of any class of reader
    """Return a real provider with these readers, and with a Resource that says this and no more."""
    attributes = {key.replace("__", "."): value for key, value in resource.items()}
    return MeterProvider(readers, Resource(attributes), shutdown_on_exit=False)


class Desk:
    """Instruments under a provider, fed by hand with what parts read, on a clock that stands still until it is moved.

    Without a `provider` there is a real one; `reader` collects from it.
    """

    def __init__(  # noqa: PLR0913 - what a test may choose
        self,
        provider: metrics.MeterProvider | None = None,
        *,
        included: Sequence[str] = ("*",),
        excluded: Sequence[str] = (),
        interval: float = 15.0,
        attributes: Mapping[str, AttributeValue] | None = None,
        delta: bool = False,
        reader: InMemoryMetricReader | None = None,
        on_ask: Callable[[], None] | None = None,
    ) -> None:
        self.reader = reader or in_memory(delta=delta)
        self.provider = provider or provider_of(self.reader)
        self.clock = ScriptedClock()
        self.interval = interval
        self.healths: dict[tuple[str, str | None], Health] = {}
        healths = self.healths  # like an Attachment, the instruments may not keep the provider alive
        self.instruments = Instruments(
            self.provider,
            Selection(included, excluded),
            interval=interval,
            clock=self.clock.now,
            attributes=lambda: attributes or {},
            healths=lambda: tuple(healths.values()),
            on_ask=on_ask,
        )
        self.instruments.attach()

    def part(self, kind: str = "cpu", name: str | None = None) -> Health:
        """Return the health of a part, made when it is first named."""
        return self.healths.setdefault((kind, name), Health(kind, name))

    def give(self, *readings: Reading, name: str | None = None, kind: str = "cpu", well: bool = True) -> None:
        """Publish what a part read in one pass, which took no time; a pass that failed reads nothing."""
        health = self.part(kind, name)
        health.well, health.seen, health.here = well, health.seen or well, True
        health.snapshot = Snapshot(readings, self.clock.time, 0.0, self.interval)
        self.instruments.publish(health, health.snapshot)
        health.samples += 1

    def ask(self) -> list[Point]:
        """Collect, and return all points but those of our own health."""
        return points(self.reader.get_metrics_data())

    def value(self, spec: MetricSpec) -> float | None:
        """Collect, and return the one value of a tag without placeholders, None where there is no point."""
        found = [point.value for point in self.ask() if point.name == spec.tag]
        assert len(found) < 2, found
        return found[0] if found else None

    def close(self) -> None:
        """Let the instruments serve nothing any more, as `uninstrument()` does."""
        self.instruments.detach()


class Point(NamedTuple):
    """One exported point."""

    name: str
    attributes: Mapping[str, Any]
    value: float


def points(data: MetricsData | None, scope: str = "otel_sysmetrics") -> list[Point]:
    """Return what a reader collected of ours, without our own health."""
    return [point for point in all_points(data, scope) if not point.name.startswith("sysmetrics.")]


def all_points(data: MetricsData | None, scope: str = "otel_sysmetrics") -> list[Point]:
    """Return all that a reader collected of ours."""
    return [
        Point(metric.name, dict(point.attributes or {}), getattr(point, "value", 0.0))
        for resource in (data.resource_metrics if data else ())
        for scoped in resource.scope_metrics
        if scoped.scope.name == scope
        for metric in scoped.metrics
        for point in metric.data.data_points
    ]


def values(data: MetricsData | None) -> dict[str, float]:
    """Return what a reader collected of ours by name, where a name has one series."""
    return {point.name: point.value for point in points(data)}


def encoded_names(data: MetricsData | None) -> list[str]:
    """Encode what a reader collected as OTLP, as an exporter does, and return the names of its metrics."""
    assert data is not None
    request = encode_metrics(data)
    assert request.SerializeToString()
    return [
        metric.name
        for resource in request.resource_metrics
        for scoped in resource.scope_metrics
        for metric in scoped.metrics
    ]


def until(happened: Callable[[], bool], what: str = "it") -> None:
    """Wait for what another thread does, and fail when it takes too long."""
    never = threading.Event()
    deadline = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < deadline, f"{what} did not happen within {PATIENCE} s"
        never.wait(0.005)


def our_threads() -> list[str]:
    """Return the names of the threads that this package runs in this process."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("otel-sysmetrics")]


def run_script(script: str, *arguments: str, seconds: float = 40) -> Any:  # noqa: ANN401 - JSON
    """Run a program in a Python of its own, within a time limit, and return the JSON that its last line holds.

    The program gets no variable of OpenTelemetry, and may print nothing to stderr.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(script), *arguments],
        env=inherited,
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def machine(**kilobytes: int) -> dict[str, str]:
    """Write the /proc of a small machine; other sizes can be given as they stand in /proc/meminfo."""
    sizes = {"MemTotal": 1_048_576, "MemAvailable": 262_144, "SwapTotal": 0, "SwapFree": 0, **kilobytes}
    return {
        "proc/meminfo": "".join(f"{key}: {size} kB\n" for key, size in sizes.items()),
        "proc/stat": "cpu 10 0 10 80 0 0 0 0 0 0\ncpu0 10 0 10 80 0 0 0 0 0 0\n",
        "proc/loadavg": "0.10 0.20 0.30 1/100 1234\n",
    }
