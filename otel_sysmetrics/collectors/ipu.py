"""Graphcore IPUs through gcipuinfo, the module that comes with the Poplar SDK."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from otel_sysmetrics.catalog import ipu
from otel_sysmetrics.collector import NotHere, Part, Unavailable
from otel_sysmetrics.importing import importing
from otel_sysmetrics.reading import Reading, sane_value

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from otel_sysmetrics.collector import Context
    from otel_sysmetrics.spec import MetricSpec

_MODULE: Final = "gcipuinfo"
_PID: Final = "user process id"
# Who uses a device, and serial numbers, are nobody's business; identifiers are labels and no metrics.
_NEVER: Final = re.compile(r"user|serial|\bid\b|config domain|name|executable|version")
_VALUE: Final = re.compile(r"([-+]?\d{1,18}(?:\.\d{1,18})?(?:[eE][-+]?\d{1,3})?)\s*([A-Za-z%/]*)")
_OTHER_THAN_WORDS: Final = re.compile(r"[^A-Za-z0-9]+")

# Word of a key, the unit group that W&B gives the key, its unit, and what the value may be.
_UNITS: Final = (
    ("temp", " (C)", "Cel", -50.0, 200.0),
    ("clock", " (MHz)", "MHz", 0.0, 1e6),
    ("power", " (W)", "W", 0.0, 1e5),
    ("utilisation", " (%)", "%", 0.0, 100.0),
    ("speed", " (GT/s)", "{GT}/s", 0.0, 1e6),
)
_SPECS: Final[Mapping[str, MetricSpec]] = {
    spec.tag.rpartition(".")[2]: spec
    for spec in (
        ipu.BOARD_TEMPERATURE,
        ipu.DIE_TEMPERATURE,
        ipu.CLOCK,
        ipu.POWER,
        ipu.BOARD_POWER,
        ipu.UTILIZATION,
        ipu.SESSION_UTILIZATION,
        ipu.LINK_SPEED,
    )
}


def parts(context: Context) -> tuple[Part, ...]:
    """Return the one part."""
    return (Part("ipu", None, (*_SPECS.values(), ipu.OTHER), lambda: probe(context)),)


def probe(context: Context) -> IpuCollector:
    """Import gcipuinfo and open its inventory; raises NotHere or Unavailable."""
    try:
        known = find_spec(_MODULE)
    except (ImportError, ValueError):
        known = None
    if known is None:
        raise NotHere(f"no Python module {_MODULE}")
    try:
        with importing():
            import gcipuinfo  # type: ignore[import-not-found,unused-ignore]

        inventory = gcipuinfo.gcipuinfo()
        inventory.setUpdateMode(True)  # without it the first look's values come for ever
    except BaseException as error:
        raise Unavailable(f"{_MODULE} fails: {error}", "source the Poplar SDK's enable.sh") from error
    return IpuCollector(inventory, context)


class IpuCollector:
    """The IPUs that the watched process or a descendant uses, all where none is watched."""

    def __init__(self, inventory: Any, context: Context) -> None:  # noqa: ANN401 - the module has no types
        self._inventory: Any = inventory
        self._watched = context.watched
        self._seen = 0

    def sample(self) -> tuple[Reading, ...]:
        """Return what the IPUs say; raises whatever gcipuinfo raises."""
        devices = [device for device in self._inventory.getDevices() if isinstance(device, dict)]
        self._seen = len(devices)
        return tuple(reading for device in self._ours(devices) for reading in sample(device))

    def describe(self) -> str:
        """Say what was found."""
        return f"{self._seen} IPU{'s' * (self._seen != 1)} through {_MODULE}"

    def close(self) -> None:
        """Let go of the inventory."""
        self._inventory = None

    def _ours(self, devices: list[dict[str, object]]) -> list[dict[str, object]]:
        if not self._watched.is_asked_for():
            return devices
        pids = self._watched.tree()
        return [device for device in devices if _whole(device.get(_PID)) in pids]


def sample(device: Mapping[str, object]) -> Iterator[Reading]:
    """Yield what one device says: its attributes are texts by name."""
    index = _whole(device.get("id"))
    if index is None or index < 0:
        return
    for key, text in device.items():
        if not isinstance(key, str) or _NEVER.search(key):
            continue
        found = parse_metric(key, text)
        if found is None:
            continue
        name, value = found
        short = _OTHER_THAN_WORDS.sub("_", key).strip("_")
        unit = next((unit for word, _, unit, *_ in _UNITS if word in key), "")
        spec = _SPECS.get(short) or _other(short, unit)
        yield Reading(spec, value, {"ipu": index}, {"hw.id": str(index), "wandb.key": name})


def parse_metric(key: str, text: object) -> tuple[str, float] | None:
    """Return W&B's key, with its unit group, and the number that a text holds, None where it holds none.

    The unit stands at the number's end, with a blank or without: `1300MHz`, `12.6 W`, `8 GT/s`. One of another
    meaning, and what the thing cannot be, is no number.
    """
    match = _VALUE.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        return None
    value = sane_value(float(match[1]) if set(match[1]) & set(".eE") else int(match[1]))
    if value is None:
        return None
    for word, group, _, least, most in _UNITS:
        if word in key:
            is_of_it = match[2] in {"", group.strip(" ()")}
            return (key + group, value) if is_of_it and least <= value <= most else None
    return (key, value) if not match[2] else None


@lru_cache(maxsize=256)
def _other(name: str, unit: str) -> MetricSpec:
    return replace(ipu.OTHER, tag=ipu.OTHER.tag.replace("{key}", name), unit=unit, labels=ipu.CLOCK.labels, fold=None)


def _whole(text: object) -> int | None:
    if isinstance(text, int) and not isinstance(text, bool):
        return text
    return int(text) if isinstance(text, str) and text.isascii() and text.isdecimal() and len(text) < 10 else None  # noqa: PLR2004 - digits that an index or a pid may have
