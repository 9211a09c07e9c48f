"""AWS Trainium and Inferentia, as neuron-monitor reports them: one long-lived program that writes a line per period."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from otel_sysmetrics.catalog import trainium
from otel_sysmetrics.collector import NotHere, Part, Unavailable
from otel_sysmetrics.reading import Reading, sane_value
from otel_sysmetrics.sources.tools import Feed, ToolError, find

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from otel_sysmetrics.collector import Context
    from otel_sysmetrics.spec import MetricSpec

_PROGRAM: Final = "neuron-monitor"
_VENDOR_FOLDER: Final = "/opt/aws/neuron/bin"
_LEAST_PERIOD: Final = 1.0
_PERIODS_KEPT: Final = 3
_LONGEST_PAUSE: Final = 300.0
_MOST_DIGITS: Final = 4  # of a core's number
_FIRST_LINE: Final = 5.0  # seconds that are worth waiting for it: it comes after a period, or is empty and early
_SETTLED: Final = 60.0
_TWICE: Final = 2
_DEFAULT_PERIOD: Final = 5.0  # neuron-monitor's own
_UNKNOWN_PERIOD: Final = 300.0  # rather too long: one that is taken for silent is ended
_FULL: Final = 100.0
_MOST_SHARE: Final = 1000.0  # of a runtime, which measures itself and may pass 100
# As Go reads it (https://pkg.go.dev/time#ParseDuration), with both letters for the millionth.
_GO_TERM: Final = (
    r"([0-9]{1,19}\.?[0-9]{0,19}|\.[0-9]{1,19})(ns|us|\N{MICRO SIGN}s|\N{GREEK SMALL LETTER MU}s|ms|s|m|h)"
)
_SECONDS: Final = {"ns": 1e-9, "us": 1e-6, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}

_USED: Final = ("memory_used", "neuron_runtime_used_bytes")
_HOST: Final = (*_USED, "usage_breakdown", "host")
_CORES: Final = (*_USED, "usage_breakdown", "neuroncore_memory_usage")

# Spec and where its bytes lie in a runtime's report; tools before 2.x say `device`.
_OF_RUNTIME: Final[tuple[tuple[MetricSpec, tuple[tuple[str, ...], ...]], ...]] = (
    (trainium.HOST_MEMORY, ((*_USED, "host"),)),
    (trainium.DEVICE_MEMORY, ((*_USED, "neuron_device"), (*_USED, "device"))),
    (trainium.HOST_APPLICATION, ((*_HOST, "application_memory"),)),
    (trainium.HOST_CONSTANTS, ((*_HOST, "constants"),)),
    (trainium.HOST_DMA_BUFFERS, ((*_HOST, "dma_buffers"),)),
    (trainium.HOST_TENSORS, ((*_HOST, "tensors"),)),
)
# Spec, where the cores lie, and the key below each.
_OF_CORE: Final[tuple[tuple[MetricSpec, tuple[str, ...], str], ...]] = (
    (trainium.UTILIZATION, ("neuroncore_counters", "neuroncores_in_use"), "neuroncore_utilization"),
    (trainium.CORE_CONSTANTS, _CORES, "constants"),
    (trainium.CORE_MODEL_CODE, _CORES, "model_code"),
    (trainium.CORE_SCRATCHPAD, _CORES, "model_shared_scratchpad"),
    (trainium.CORE_RUNTIME, _CORES, "runtime_memory"),
    (trainium.CORE_TENSORS, _CORES, "tensors"),
)
_SPECS: Final = (*(spec for spec, _ in _OF_RUNTIME), *(spec for spec, _, _ in _OF_CORE))


def parts(context: Context) -> tuple[Part, ...]:
    """Return the one part."""
    return (Part("trainium", None, _SPECS, lambda: probe(context)),)


def probe(context: Context) -> TrainiumCollector:
    """Look for a Neuron device and the program that reads it; raises NotHere or Unavailable."""
    devices = [name for name in context.files.names("dev") if name.startswith("neuron") and name[6:].isdecimal()]
    if not devices:
        raise NotHere("no /dev/neuron0")
    path = find(_PROGRAM) or find(_PROGRAM, _VENDOR_FOLDER)
    if path is None:
        raise Unavailable(
            f"{len(devices)} Neuron devices, and no {_PROGRAM} on PATH or in {_VENDOR_FOLDER}",
            "install aws-neuronx-tools",
        )
    return TrainiumCollector(path, len(devices), context)


class TrainiumCollector:
    """What all Neuron runtimes of the host use together."""

    def __init__(self, path: str, devices: int, context: Context) -> None:
        self._path = path
        self._devices = devices
        self._clock = context.clock
        self._config = context.settings.neuron_monitor_config
        interval = max(context.settings.sampling_interval, _LEAST_PERIOD)
        self._period = max(interval, _period_of(self._config)) if self._config else interval
        self._closed = False
        self._feed: Feed | None = None
        self._deaths = 0
        self._not_before = 0.0
        self._since = self._started = 0.0
        self._waited = False
        self._written = 0
        self._report: Mapping[str, Any] | None = None

    def sample(self) -> tuple[Reading, ...]:
        """Return what the newest line says; raises ToolError where the program has died or fallen silent.

        One that was started again is believed once it has written, and one that keeps dying once it has written twice,
        so that it is not well and ill in turn.
        """
        self._read()
        if self._written < min(self._deaths, _TWICE):
            raise ToolError(
                f"{self._path} was started again and has written {'only once' if self._written else 'nothing'} so far"
            )
        return tuple(readings(self._report)) if self._report is not None else ()

    def describe(self) -> str:
        """Say what was found."""
        hardware = _down(self._report, ("neuron_hardware_info",)) or {}
        kind = hardware.get("neuron_device_type") if isinstance(hardware, dict) else None
        runtimes = sum(found is not None for found in _reports(self._report or {}))
        words = [f"{self._devices} {kind or 'Neuron'} device{'s' * (self._devices != 1)} through {self._path}"]
        return ", ".join([*words, f"{runtimes} runtime{'s' * (runtimes != 1)}"] if self._report is not None else words)

    def close(self) -> None:
        """End the program."""
        self._closed = True
        self._end()

    def _end(self) -> None:
        if self._feed is not None:
            self._feed.close()

    def _read(self) -> None:
        now = self._clock()
        if self._feed is None:
            self._start(now)
        assert self._feed is not None  # noqa: S101 - made above
        try:
            lines = self._feed.lines(self._patience())
        except ToolError:
            self._died(now)
            raise
        for line in reversed(lines):
            if (report := parse(line)) is not None:
                self._report, self._since = report, now
                self._written += 1
                if now - self._started > _SETTLED:
                    self._deaths = 0
                return
        if now - self._since > _PERIODS_KEPT * self._period:
            self._died(now)
            raise ToolError(f"{self._path} has written nothing for {_PERIODS_KEPT} periods")

    def _patience(self) -> float:
        """Seconds to wait for a line: the first one, and with a short period the next, are worth it."""
        if self._period <= _LEAST_PERIOD:
            return 2 * _LEAST_PERIOD
        waited, self._waited = self._waited, True
        return 0.0 if waited else min(self._period + _LEAST_PERIOD, _FIRST_LINE)

    def _start(self, now: float) -> None:
        if now < self._not_before:
            raise ToolError(f"{self._path} keeps ending and is started again in {self._not_before - now:.0f} s")
        text = "" if self._config else json.dumps(configuration(self._period))
        self._since = self._started = now
        self._waited = False
        self._written = 0
        self._feed = Feed((self._path, "-c", self._config or "/dev/stdin"), text)
        if self._closed:  # by another thread, while this one was starting it
            self._end()

    def _died(self, now: float) -> None:
        self._end()
        self._feed = self._report = None
        self._deaths += 1
        self._not_before = now + self._pause()

    def _pause(self) -> float:
        """Seconds until it is started anew: at once the first time, ever later while it keeps dying."""
        import tenacity

        state = tenacity.RetryCallState(tenacity.Retrying(), None, (), {})
        state.attempt_number = self._deaths
        wait = tenacity.wait_exponential(multiplier=self._period / 2, max=_LONGEST_PAUSE)
        return wait(state) if self._deaths > 1 else 0.0


def configuration(period: float) -> dict[str, Any]:
    """Return what neuron-monitor is asked for: what our tags need, once per period of seconds.

    The host's memory is asked for as a sign of life: without an application there may be nothing else to say.
    """
    metrics = [{"type": "neuroncore_counters"}, {"type": "memory_used"}]
    return {
        "period": f"{period:g}s",
        "neuron_runtimes": [{"tag_filter": ".*", "metrics": metrics}],
        "system_metrics": [{"type": "memory_info"}],
    }


def parse(line: str) -> Mapping[str, Any] | None:
    """Return the report that a line holds, None for a notice, half a line and whatever else is none."""
    try:
        found = json.loads(line)
    except (RecursionError, ValueError):
        return None
    is_report = isinstance(found, dict) and (
        found.get("neuron_runtime_data", "") is None or isinstance(found.get("neuron_runtime_data"), list)
    )
    return found if is_report else None


def _period_of(path: str) -> float:
    """Return the seconds between two lines that a user's configuration asks for."""
    try:
        with open(path, encoding="utf-8") as file:
            asked = json.load(file)
    except (OSError, RecursionError, ValueError):
        return _UNKNOWN_PERIOD
    if isinstance(asked, dict) and "period" not in asked:
        return _DEFAULT_PERIOD
    found = seconds_of(asked.get("period")) if isinstance(asked, dict) else None
    return _UNKNOWN_PERIOD if found is None else found


def seconds_of(text: object) -> float | None:
    """Return the seconds of a duration as Go writes it (`1m30s`), None where it is none."""
    if not isinstance(text, str) or not re.fullmatch(f"\\+?({_GO_TERM})+", text):
        return None
    return sum(float(number) * _SECONDS.get(unit, 1e-6) for number, unit in re.findall(_GO_TERM, text))


def readings(report: Mapping[str, Any]) -> Iterator[Reading]:
    """Yield what a report says, summed over all runtimes: each lists every core, with zeros for those of others."""
    runtimes = list(_reports(report))
    for spec, paths in _OF_RUNTIME:
        known = [
            next((found for path in paths if (found := _bytes(_down(of, path))) is not None), None) for of in runtimes
        ]
        yield Reading(spec, _sum(known))
    for spec, path, key in _OF_CORE:
        sane: Callable[[object], float | None] = _share if spec is trainium.UTILIZATION else _bytes
        cores: dict[int, list[float | None]] = {}
        tables = [found for of in runtimes if isinstance(found := _down(of, path), dict)]
        silent: list[None] = [None] * (len(runtimes) - len(tables))  # each of which may use any core
        for table in tables:
            for name, values in table.items():
                if name.isascii() and name.isdecimal() and len(name) <= _MOST_DIGITS:
                    cores.setdefault(int(name), []).append(sane(_down(values, (key,))))
        for core, parts_of_it in sorted(cores.items()):
            total = _sum([*parts_of_it, *silent])
            if spec is trainium.UTILIZATION and total is not None:
                total = min(total, _FULL)
            yield Reading(spec, total, {"core": core})


def _reports(report: Mapping[str, Any]) -> Iterator[object]:
    """Yield what each runtime says, None for one that cannot say it."""
    found = report.get("neuron_runtime_data")
    for runtime in found if isinstance(found, list) else ():
        yield None if not isinstance(runtime, dict) or runtime.get("error") else runtime.get("report")


def _down(found: object, path: tuple[str, ...]) -> Any:  # noqa: ANN401 - whatever JSON has there
    for key in path:
        if not isinstance(found, dict) or found.get("error"):  # beside which stand zeros
            return None
        found = found.get(key)
    return found


def _bytes(value: object) -> float | None:
    found = sane_value(value)
    return found if found is not None and found >= 0 else None


def _share(value: object) -> float | None:
    found = sane_value(value)
    return found if found is not None and 0 <= found <= _MOST_SHARE else None


def _sum(values: list[float | None]) -> float | None:
    """Add up what is known; a 0 that only some of them say is not known."""
    total = sum(value for value in values if value is not None)
    return total if total or (values and None not in values) else None
