"""Graphcore IPUs through gcipuinfo, the Python module that comes with the Poplar SDK."""

from __future__ import annotations

import logging
import re
import sys
from dataclasses import replace
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_sysmetrics.catalog import ipu
from otel_sysmetrics.collector import NotHere, Part, Unavailable
from otel_sysmetrics.importing import importing
from otel_sysmetrics.reading import Reading, sane_value

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from otel_sysmetrics.collector import Context
    from otel_sysmetrics.spec import MetricSpec

_log: Final = logging.getLogger("otel_sysmetrics")

_MODULE: Final = "gcipuinfo"
_REMEDY: Final = "source the enable.sh of the Poplar SDK that fits the driver, and see what `gc-info -l` says"
_SENSORLESS: Final = "without power and temperature: they need GCDA_MONITOR=1 in the program that uses the IPUs"

_ID: Final = "id"
_USER: Final = "user process id"
# Who uses a device is nobody's business; a serial number and the configuration's number of 47 bits measure nothing,
# and a version of two parts only looks like a number.
_NEVER: Final = re.compile(r"\buser\b|serial|config domain|(?<!major )(?<!minor )(?<!patch )version")
_NUMBER: Final = re.compile(r"([-+]?[0-9]{1,19}(?:\.[0-9]{1,19})?)\s*([A-Za-z%/]*)")
_SMALL: Final = re.compile(r"[0-9]{1,9}")
_OTHER_THAN_WORDS: Final = re.compile(r"[^A-Za-z0-9]+")


class Quantity(NamedTuple):
    """What a number is, told by the end of its key.

    `said` is its unit as gcipuinfo and W&B write it, `unit` the same in UCUM, `least` and `most` are what it can be.
    """

    said: str
    unit: str
    least: float
    most: float


_TEMPERATURE: Final = Quantity("C", "Cel", -50, 200)
_CLOCK: Final = Quantity("MHz", "MHz", 0, 1e6)
_POWER: Final = Quantity("W", "W", 0, 1e5)
_SHARE: Final = Quantity("%", "%", 0, 100)
_SPEED: Final = Quantity("GT/s", "{GT}/s", 0, 1e4)
# Of counts, sizes and numbers that name something none is below 0: there -1 stands for an unknown one.
_PLAIN: Final = Quantity("", "", 0, 2**63)
_SIZE: Final = _PLAIN._replace(unit="By")
_QUANTITIES: Final = (
    ("temp", _TEMPERATURE),
    ("clock", _CLOCK),
    ("power", _POWER),
    ("utilisation", _SHARE),
    ("utilisation (session)", _SHARE),
    ("speed", _SPEED),
    ("(bytes)", _SIZE),
)
_SPECS: Final[Mapping[str, MetricSpec]] = {
    "average board temp": ipu.BOARD_TEMPERATURE,
    "average die temp": ipu.DIE_TEMPERATURE,
    "clock": ipu.CLOCK,
    "ipu power": ipu.POWER,
    "total board power": ipu.BOARD_POWER,
    "ipu utilisation": ipu.UTILIZATION,
    "ipu utilisation (session)": ipu.SESSION_UTILIZATION,
    "link speed": ipu.LINK_SPEED,
}
_SENSORS: Final = tuple(key for key in _SPECS if key.endswith(("temp", "power")))


def parts(context: Context) -> tuple[Part, ...]:
    """Return the one part."""
    return (Part("ipu", None, (*_SPECS.values(), ipu.OTHER), lambda: probe(context)),)


def probe(context: Context) -> IpuCollector:
    """Look for IPUs; raises NotHere where gcipuinfo is missing or shows none, Unavailable where it fails."""
    collector = IpuCollector(context)
    collector.look()
    return collector


class IpuCollector:
    """The IPUs that the watched process or a descendant of it uses; all of them where no process is watched."""

    def __init__(self, context: Context) -> None:
        self._watched = context.watched
        self._wants_other = context.wants(ipu.OTHER)
        self._inventory: Any = None
        self._seen: Mapping[int, Mapping[str, object]] = {}
        self._doubles = frozenset[int]()

    def sample(self) -> Iterator[Reading]:
        """Read all IPUs once; raises Unavailable where gcipuinfo fails, and NotHere where it shows none any more."""
        for index, device in self._ours(self.look()):
            for reading in readings(index, device):
                if self._wants_other or reading.spec.tag != ipu.OTHER.tag:
                    yield reading

    def look(self) -> Mapping[int, Mapping[str, object]]:
        """Return the attributes of every IPU by its id; what failed before is opened anew. Raises as `sample`."""
        if self._inventory is None:
            self._inventory = open_inventory()
        try:
            self._seen, doubles = _by_id(map(_attributes, self._inventory.getDevices()))
        except BaseException as error:  # noqa: BLE001 - the extension may raise anything
            self._inventory = None
            raise Unavailable(f"{_MODULE} cannot list the IPUs: {_said(error)}", _REMEDY) from None
        if not doubles <= self._doubles:
            _log.warning("otel-sysmetrics: ipu: %s", _said_of(doubles))
        self._doubles |= doubles
        if not self._seen:
            raise NotHere(f"{_MODULE} shows no IPU: there is none, or no partition is active")
        return self._seen

    def describe(self) -> str:
        """Say how many IPUs of which boards there are, and why sensors are missing."""
        count = len(self._seen)
        boards = sorted({str(device.get("board type", "of an unknown board")) for device in self._seen.values()})
        sensors = (parse_metric(key, device.get(key)) for device in self._seen.values() for key in _SENSORS)
        what = f"{count} IPU{'s' * (count != 1)} ({', '.join(boards)}) through {_MODULE}"
        if self._doubles:
            what = f"{what}, {_said_of(self._doubles)}"
        return what if any(sensors) else f"{what}, {_SENSORLESS}"

    def close(self) -> None:
        """Let go of the inventory."""
        self._inventory = None

    def _ours(self, devices: Mapping[int, Mapping[str, object]]) -> list[tuple[int, Mapping[str, object]]]:
        """Keep the IPUs of the watched process: under a launcher (poprun) a descendant uses them."""
        if not self._watched.is_asked_for():
            return list(devices.items())
        users = {index: _small(device.get(_USER)) for index, device in devices.items()}
        used = any(user is not None for user in users.values())
        pids = self._watched.tree() if used else frozenset()  # a walk over the threads of all descendants
        return [(index, device) for index, device in devices.items() if users[index] in pids]


def open_inventory() -> Any:  # noqa: ANN401 - the module has no types
    """Return a gcipuinfo that looks anew each time; raises NotHere where there is no such module, and Unavailable."""
    if not _is_installed():
        raise NotHere(f"no Python module {_MODULE}")
    try:
        with importing():
            module = import_module(_MODULE)
        inventory = module.gcipuinfo()
        inventory.setUpdateMode(True)  # else what the first look showed comes for ever (case 96)
    except BaseException as error:  # noqa: BLE001 - an extension whose libraries are missing may raise anything
        raise Unavailable(f"{_MODULE} cannot be used: {_said(error)}", _REMEDY) from None
    return inventory


def readings(index: int, device: Mapping[str, object]) -> Iterator[Reading]:
    """Yield what one IPU says."""
    for key, text in device.items():
        found = None if _NEVER.search(key) else parse_metric(key, text)
        if found is None:
            continue
        name, value = found
        attributes = {"hw.id": str(index), "wandb.key": name}
        if key in _SPECS:
            yield Reading(_SPECS[key], value, {"ipu": index}, attributes)
        elif short := _OTHER_THAN_WORDS.sub("_", key).strip("_"):
            yield Reading(_other(_quantity(key).unit), value, {"ipu": index, "key": short}, attributes)


def parse_metric(key: str, text: object) -> tuple[str, float] | None:
    """Return the key as W&B has it, with its unit, and the number that a text holds; None where it holds none.

    The unit stands behind the number with a blank or without (`1300MHz`, `12.6 W`, `8 GT/s`), or nowhere. With another
    unit than the key speaks of, and outside of what such a thing can be, it is no number.
    """
    match = _NUMBER.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        return None
    digits, unit = match.groups()
    quantity = _quantity(key)
    value = sane_value(float(digits) if "." in digits else int(digits))
    if value is None or unit not in {"", quantity.said} or not quantity.least <= value <= quantity.most:
        return None
    return f"{key} ({quantity.said})" if quantity.said else key, value


def _quantity(key: str) -> Quantity:
    return next((quantity for end, quantity in _QUANTITIES if key.endswith(end)), _PLAIN)


@cache
def _other(unit: str) -> MetricSpec:
    """Return the row of other numbers with a unit; its key in the tag is not the original, which `wandb.key` holds."""
    return replace(ipu.OTHER, unit=unit, fold=None, labels=(("ipu", "ipu.index"),), attributes=("hw.id", "wandb.key"))


def _is_installed() -> bool:
    if _MODULE in sys.modules:
        return True
    try:
        return find_spec(_MODULE) is not None
    except (ImportError, ValueError):
        return False


def _attributes(device: Any) -> Mapping[str, object]:  # noqa: ANN401 - a map of C++ behind its binding
    """Copy what one IPU says; one that cannot say it costs itself only."""
    try:
        return {key: text for key, text in device.items() if isinstance(key, str)}
    except BaseException:  # noqa: BLE001 - as the extension
        return {}


def _by_id(devices: Iterable[Mapping[str, object]]) -> tuple[Mapping[int, Mapping[str, object]], frozenset[int]]:
    """Return each IPU under its id, which names it in tags, and the ids that several have: the first keeps it.

    One without an id has no name.
    """
    found: dict[int, Mapping[str, object]] = {}
    doubles = set()
    for device in devices:
        index = _small(device.get(_ID))
        if index in found:
            doubles.add(index)
        elif index is not None:
            found[index] = device
    return found, frozenset(doubles)


def _said_of(doubles: frozenset[int]) -> str:
    return f"several IPUs have the id {', '.join(map(str, sorted(doubles)))}: only the first of each is read"


def _small(text: object) -> int | None:
    """Return an index or a pid, neither of which is large."""
    match = _SMALL.fullmatch(str(text).strip()) if isinstance(text, str | int) else None
    return int(match[0]) if match else None


def _said(error: BaseException) -> str:
    try:
        text = " ".join(str(error).split())
    except BaseException:  # noqa: BLE001 - an extension's error may fail to say what it is
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
