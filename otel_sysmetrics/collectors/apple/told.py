"""What a line of the door tells: load, power and temperature, worked out of what the system counts."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from otel_sysmetrics.reading import sane_value

if TYPE_CHECKING:
    from collections.abc import Iterator

_IDLE: Final = frozenset({"OFF", "IDLE", "DOWN"})
_STATES: Final = (re.compile(r"GPUPH"), re.compile(r"DIE_\d+_GPUPH"))
# The first that names a channel counts. A chip of two dies has a channel for each, which are added up (case 80).
_ENERGY: Final = tuple(map(re.compile, (r"GPU Energy", r"DIE_\d+_GPU Energy", r"GPU", r"DIE_\d+_GPU")))
_JOULES: Final = {"mJ": 1e-3, "uJ": 1e-6, "µJ": 1e-6, "μJ": 1e-6, "nJ": 1e-9}
# More than any such chip draws: what was counted while the machine slept.
_MOST_WATTS: Final = 2000.0
# Apple's computers are made for rooms of 10 °C and more; an M2 Ultra says a tenth of the truth now and then, an M4
# 9.8 °C, and a sensor that sleeps 0.
_COLDEST: Final = 10.0
_HOTTEST: Final = 150.0


@dataclass(frozen=True, slots=True)
class Told:
    """Load in percent, power in watts, temperature in °C; `error` is why the door can tell nothing at all."""

    load: float | None = None
    watts: float | None = None
    celsius: float | None = None
    error: str | None = None


def parse(line: str) -> Told | None:
    """Return what a line tells, None where it is none of the door's."""
    try:
        found = json.loads(line)
    except (RecursionError, ValueError):
        return None
    if not isinstance(found, dict):
        return None
    if isinstance(found.get("error"), str):
        return Told(error=" ".join(found["error"].split()))
    if not {"seconds", "macmon"} & found.keys():
        return None
    library = found.get("macmon")
    said = library if isinstance(library, dict) else {}
    sensors = ([[None, said.get("celsius")]], found.get("smc"), found.get("hid"))
    # macmon-lib first where it is installed, since it is tried on many Macs; it says 0 for what it does not know.
    return Told(
        load=load(found.get("states")),
        watts=_watts(said.get("watts")) or power(found.get("energies"), found.get("seconds")),
        celsius=next(filter(None, map(temperature, sensors)), None),
    )


def load(states: object) -> float | None:
    """Return the share of time in which the GPU was in a state that works, of channels of state residencies."""
    channels = list(_rows(states, 2))
    for pattern in _STATES:
        shares = [_active(residencies) for name, residencies in channels if pattern.fullmatch(str(name))]
        if shares:
            known = [share for share in shares if share is not None]
            return sum(known) / len(known) if len(known) == len(shares) else None
    return None


def _active(residencies: object) -> float | None:
    rows = [(str(name), _count(ticks)) for name, ticks in _rows(residencies, 2)]
    ticks = [found for _, found in rows if found is not None]
    idle = [found for name, found in rows if name in _IDLE and found is not None]
    # Without a state that is known to be idle all of them would look like work.
    if not idle or len(ticks) != len(rows) or not sum(ticks):
        return None
    return 100 * (1 - sum(idle) / sum(ticks))


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63 else None


def power(energies: object, seconds: object) -> float | None:
    """Return the GPU's watts, of energies that were used within so many seconds, each in a unit of its own."""
    elapsed = sane_value(seconds)
    if elapsed is None or elapsed <= 0:
        return None
    channels = list(_rows(energies, 3))
    for pattern in _ENERGY:
        joules = [_joules(unit, delta) for name, unit, delta in channels if pattern.fullmatch(str(name).strip())]
        if joules:
            known = [each for each in joules if each is not None]
            return _watts(sum(known) / elapsed) if len(known) == len(joules) else None
    return None


def _joules(unit: object, delta: object) -> float | None:
    factor = _JOULES.get(str(unit).strip())
    count = sane_value(delta)
    return count * factor if factor is not None and count is not None and count >= 0 else None


def _watts(value: object) -> float | None:
    found = sane_value(value)
    return found if found is not None and 0 <= found <= _MOST_WATTS else None


def temperature(sensors: object) -> float | None:
    """Return the mean in °C of the sensors that tell what can be."""
    values = (sane_value(celsius) for _, celsius in _rows(sensors, 2))
    known = [celsius for celsius in values if celsius is not None and _COLDEST < celsius < _HOTTEST]
    return sum(known) / len(known) if known else None


def _rows(found: object, width: int) -> Iterator[list[Any]]:
    """Yield the rows of a table that have the right number of columns."""
    for row in found if isinstance(found, list) else ():
        if isinstance(row, list) and len(row) == width:
            yield row
