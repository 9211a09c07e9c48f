"""What each parser makes of an input: values by what they are values of, checked for whether they can be at all."""

from __future__ import annotations

import json
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from otel_sysmetrics.catalog import CATALOG
from otel_sysmetrics.collector import Context, NotHere, parts
from otel_sysmetrics.collectors.amd import amd_smi
from otel_sysmetrics.collectors.amd.collector import readings as of_gpus
from otel_sysmetrics.collectors.amd.sysfs import Sysfs
from otel_sysmetrics.collectors.apple.accelerator import Accelerator
from otel_sysmetrics.collectors.apple.collector import values as of_apple
from otel_sysmetrics.collectors.apple.told import Told
from otel_sysmetrics.collectors.apple.told import parse as parse_told
from otel_sysmetrics.collectors.ipu import readings as of_ipu
from otel_sysmetrics.collectors.openmetrics.filters import Kept
from otel_sysmetrics.collectors.openmetrics.scrape import read_text
from otel_sysmetrics.collectors.tpu import chips, wire
from otel_sysmetrics.collectors.tpu.collector import readings as of_tpu
from otel_sysmetrics.collectors.tpu.service import ask
from otel_sysmetrics.collectors.trainium import parse as parse_trainium
from otel_sysmetrics.collectors.trainium import readings as of_trainium
from otel_sysmetrics.endpoints import Endpoint
from otel_sysmetrics.environment_variables import PREFIX
from otel_sysmetrics.otlp import export_interval, otlp_protocol
from otel_sysmetrics.patterns import compiled
from otel_sysmetrics.reading import Reading, sane_attributes, sane_value
from otel_sysmetrics.selection import Selection
from otel_sysmetrics.settings import Settings, SettingsError, rank_attributes
from otel_sysmetrics.sources.files import Files
from otel_sysmetrics.sources.http import fetch
from otel_sysmetrics.sources.processes import WatchedProcess
from tests.collectors.openmetrics_server import serving
from tests.fakes import ScriptedClock
from tests.fuzz.corpus import machine
from tests.fuzz.speaker import speaking

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from otel_sysmetrics.collectors.amd.gpu import Gpu
    from otel_sysmetrics.spec import MetricSpec

    Values = Mapping[str, float]

_WATCHED: Final = 7
_BOUNDS: Final = {"%": (0.0, 100.0), "Cel": (-50.0, 200.0), "W": (0.0, 100_000.0)}
_MAY_PASS_100: Final = ("powerPercent", "fanSpeed", "proc.memory.percent")
_WORDS_OF_GPUS: Final = frozenset({"hw.id", "hw.name", "hw.sensor_location"})
NAMES: Final = ("tpu.runtime.hbm.memory.usage.bytes", "tpu.runtime.tensorcore.dutycycle.percent")


def measured(readings: Iterable[Reading]) -> Values:
    """Return the values of readings by tag and what tells their points apart; none may be what it cannot be."""
    found: dict[str, float] = {}
    for reading in readings:
        tag = reading.spec.fill(reading.labels)
        sane_attributes({**reading.attributes, **reading.labels})
        assert not isinstance(reading.value, bool), tag
        value = sane_value(reading.value)
        if value is None:
            continue
        assert reading.spec.any_attributes or set(reading.attributes) <= set(reading.spec.attributes), tag
        low, high = _bounds(reading.spec)
        assert low <= value <= high, (tag, value)
        others = {key: text for key, text in reading.attributes.items() if key not in _WORDS_OF_GPUS}
        found[f"{tag} {sorted(map(str, others.items()))}"] = value
    return found


def _bounds(spec: MetricSpec) -> tuple[float, float]:
    if spec.any_attributes:
        return -float("inf"), float("inf")
    if spec.tag.endswith(_MAY_PASS_100):
        return 0.0, float("inf")
    return _BOUNDS.get(spec.unit, (0.0, float("inf")))


def gpus(parse: Callable[[str], list[Gpu] | None]) -> Callable[[str], Values]:
    """Read what a tool of AMD's writes."""
    return lambda text: measured(of_gpus(parse(text) or ()))


def amd_smi_both(texts: Mapping[str, str]) -> Values:
    """Read both documents of amd-smi."""
    found = amd_smi.parse(texts.get("metric", "")) or []
    return measured(of_gpus(amd_smi.join(found, amd_smi.parse_static(texts.get("static", "")) or {})))


def accelerators(parse: Callable[[str], list[Accelerator] | None]) -> Callable[[str], Values]:
    """Read what ioreg writes."""

    def read(text: str) -> Values:
        found: dict[str, float] = {}
        for index, each in enumerate(parse(text) or ()):
            sane_attributes({"hw.name": each.model or ""})
            values = of_apple(each, Told(), 16 << 30, None)
            found.update(measured(Reading(spec, value, {"gpu": index}) for spec, value in values))
        return found

    return read


def door(line: str) -> Values:
    """Read a line of the program that calls Apple's private libraries."""
    told = parse_told(line) or Told()
    values = of_apple(Accelerator(), told, None, 40.0)
    return measured(Reading(spec, value, {"gpu": 0}) for spec, value in values)


def neuron(line: str) -> Values:
    """Read a line of neuron-monitor."""
    return measured(of_trainium(parse_trainium(line) or {}))


def ipus(text: str) -> Values:
    """Read what gcipuinfo says of each device, all of it text."""
    try:
        devices = json.loads(text)
    except (RecursionError, ValueError):
        return {}
    known = [device for device in devices if isinstance(device, dict)] if isinstance(devices, list) else []
    return measured(reading for index, device in enumerate(known) for reading in of_ipu(index, device))


def exposition(text: str) -> Values:
    """Read a page of an OpenMetrics endpoint, which comes in pieces."""
    data = text.encode("utf-8", "surrogatepass")
    pieces = [data[start : start + 1000] for start in range(0, len(data), 1000)]
    found = read_text(lambda _: (), 10_000, pieces)
    return {f"{series.name} {series.labels}": value for series, value in found.series.items()}


def exposition_in_bytes(text: str) -> Values:
    """Read the same, one byte at a time."""
    data = text.encode("utf-8", "surrogatepass")
    found = read_text(lambda _: (), 10_000, [data[at : at + 1] for at in range(len(data))])
    return {f"{series.name} {series.labels}": value for series, value in found.series.items()}


def tpus(served: Mapping[str, bytes]) -> Values:
    """Read the messages of a TPU runtime."""
    rows: dict[str, Mapping[int, float]] = {}
    for name, data in served.items():
        wire.fields(data)
        with suppress(wire.Malformed):
            rows[name] = wire.values(data)
        with suppress(wire.Malformed):
            wire.supported(data)
    # Where one row may speak of several devices, which one it speaks of is told by how many rows there are.
    for generation in (chips.UNKNOWN, chips.Generation("v3", 2)):
        measured(of_tpu(rows, generation))
    return measured(of_tpu(rows, chips.Generation("v4", 1)))


@contextmanager
def frames() -> Iterator[Callable[[bytes], Values]]:
    """Read what a TPU runtime's port sends."""
    with speaking() as say:
        yield lambda data: measured(of_tpu(ask(say(data), NAMES, 5), chips.UNKNOWN))


@contextmanager
def fetched() -> Iterator[Callable[[bytes], Values]]:
    """Fetch what a server of HTTP sends, whatever it is."""
    with speaking() as say:

        def read(data: bytes) -> Values:
            endpoint = Endpoint(f"http://127.0.0.1:{say(data)}/", body_limit=1_000_000)
            assert sum(map(len, fetch(endpoint, {}, 5))) <= endpoint.body_limit
            return {}

        yield read


def dcgm(path: str) -> Callable[[], Any]:
    """Read a dcgm-exporter's page, or a reply of Prometheus, over HTTP."""

    @contextmanager
    def reader() -> Iterator[Callable[[str], Values]]:
        body = [b""]
        with serving(lambda request: request.say(body[0])) as server:
            (part,) = parts("openmetrics", _context(Files("/"), dcgm_exporter=server.url + path))
            collector = part.probe()

            def read(text: str) -> Values:
                body[0] = text.encode("utf-8", "surrogatepass")
                found = measured(collector.sample())
                assert collector.describe()
                return found

            yield read

    return reader


class Shown(Files):
    """Files that are only told of."""

    def __init__(self, files: Mapping[str, str]) -> None:
        super().__init__("/nowhere")
        self.files = files

    def text(self, *parts: str) -> str | None:
        """Return the text of one, None where it is not told of."""
        return self.files.get("/".join(part.strip("/") for part in parts))

    def names(self, *parts: str) -> list[str]:
        """Return the names right below a folder."""
        folder = "/".join(part.strip("/") for part in parts) + "/"
        return sorted({name[len(folder) :].split("/")[0] for name in self.files if name.startswith(folder)})

    def exists(self, *parts: str) -> bool:
        """Tell whether one is told of, or something below it."""
        path = "/".join(part.strip("/") for part in parts)
        return path in self.files or bool(self.names(path))


def _context(files: Files, **settings: Any) -> Context:  # noqa: ANN401 - of any setting
    clock = ScriptedClock()
    watched = WatchedProcess(files, lambda: _WATCHED, tree=True, clock=clock.now)
    chosen = Settings(root_path=files.root, **settings)
    return Context(settings=chosen, files=files, watched=watched, wants=lambda _: True, clock=clock.now)


def host(kind: str) -> Callable[[Mapping[str, str]], Values]:
    """Read a machine's files: after those of a sound one, a minute before, and then with nothing before."""

    def read(files: Mapping[str, str]) -> Values:
        shown = Shown(machine(0))
        context = _context(shown)
        part = tuple(parts(kind, context))[-1]
        collector = part.probe()
        tuple(collector.sample())
        shown.files = files
        context.clock.__self__.spend(60)  # type: ignore[attr-defined] # the scripted one
        found: dict[str, float] = {}
        with suppress(NotHere):
            found.update(measured(collector.sample()))
        with suppress(NotHere):
            anew = tuple(parts(kind, _context(shown)))[-1].probe()
            measured(anew.sample())
            assert anew.describe()
        return found

    return read


def amdgpu(files: Mapping[str, str]) -> Values:
    """Read the files of AMD's driver."""
    return measured(of_gpus(Sysfs(Shown(files)).read()))


def pci(files: Mapping[str, str]) -> Values:
    """Look for a TPU on the PCI bus."""
    chips.find(Shown(files))
    return {}


def pattern(text: str) -> Values:
    """Search for a pattern."""
    compiled(text)("node1.gpu_temp_1" + 2000 * "a")
    return {}


def environment(environ: Mapping[str, str]) -> Values:
    """Load settings and use them; what cannot be read is a SettingsError of one line that names a variable."""
    said: list[str] = []
    lenient = Settings.load(environ=environ, report=lambda error: said.append(str(error)))
    assert all(text.startswith(PREFIX) and ": expected " in text and "\n" not in text for text in said), said
    Selection(lenient.metrics_included, lenient.metrics_excluded).tag(CATALOG["cpu"], "cpu")
    Kept("node", lenient.openmetrics_filters)("metric")
    sane_attributes({**lenient.attributes, **rank_attributes(environ)})
    for standard in (lambda: export_interval(15, environ), lambda: otlp_protocol(environ)):
        with suppress(SettingsError):
            standard()
    strict = Settings.load(environ=environ)
    assert strict == lenient
    assert not said
    return {}
