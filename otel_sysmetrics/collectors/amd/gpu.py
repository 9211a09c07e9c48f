"""One GPU as any of the sources reports it, and what its numbers can be."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from otel_sysmetrics.reading import sane_value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

FULL: Final = 100.0
_COLDEST: Final = -50.0
_HOTTEST: Final = 200.0
_MOST_WATTS: Final = 100_000.0
_MOST_BYTES: Final = float(2**60)
# What old metrics tables hold where the chip measures nothing: all bits set; as text or as a float the last is rounded.
_SENTINELS: Final = frozenset({2.0**16 - 1, 2.0**32 - 1, 2.0**64})

# What one of each unit is of the unit that is exported. Prefixes are told apart by their case.
_PERCENT: Final = {"%": 1.0}
_CELSIUS: Final = {"C": 1.0, "°C": 1.0, "mC": 1e-3}
_WATTS: Final = {"kW": 1e3, "W": 1.0, "mW": 1e-3, "uW": 1e-6, "µW": 1e-6, "μW": 1e-6}
_JOULES: Final = {"kJ": 1e3, "J": 1.0, "mJ": 1e-3, "uJ": 1e-6, "µJ": 1e-6, "μJ": 1e-6}
# What AMD's tools call MB is the bytes divided by 1024 twice.
_POWERS: Final = {"K": 1, "M": 2, "G": 3, "T": 4}
_BYTES: Final = {"B": 1.0, **{f"{k}{b}": 1024.0**power for k, power in _POWERS.items() for b in ("B", "iB")}}

_NUMBER: Final = re.compile(r"([+-]?[0-9]{1,25}(?:\.[0-9]{0,25})?(?:[eE][+-]?[0-9]{1,3})?)")
_QUANTITY: Final = re.compile(rf"{_NUMBER.pattern}\s*([^\s0-9]{{1,5}})?")
_PCI: Final = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])")
_HEXADECIMAL: Final = re.compile(r"(?:0x)?([0-9a-f]{1,16})")
_NOTHING: Final = ("", "n/a", "na", "none", "null", "unknown", "not supported", "unsupported")


@dataclass(frozen=True, slots=True)
class Gpu:
    """What one GPU says: shares in percent, memory in bytes, power in watts, energy in joules, None where it does not.

    `temperatures` are in degrees Celsius, by sensor, the one that stands for the GPU first.
    `serial` is for `gpu_device_ids` only and never goes out: amd-smi says the driver's unique id under that name.
    """

    index: int
    unique_id: str | None = None
    serial: str | None = None
    pci: str | None = None
    name: str | None = None
    use: float | None = None
    used: float | None = None
    total: float | None = None
    allocated: float | None = None
    activity: float | None = None
    overdrive: float | None = None
    temperatures: tuple[tuple[str, float | None], ...] = ()
    power: float | None = None
    limit: float | None = None
    energy: float | None = None

    @property
    def allocated_bytes(self) -> float | None:
        """The memory in use, in bytes: more than there is cannot be, and without a total a 0 says nothing."""
        if self.used is None or (self.total and self.used > self.total):
            return None
        return self.used if self.total else self.used or None

    @property
    def allocated_share(self) -> float | None:
        """The memory in use, in percent: from bytes, since some tools round the share."""
        used = self.allocated_bytes
        return FULL * used / self.total if used is not None and self.total else self.allocated

    @property
    def power_share(self) -> float | None:
        """The power drawn, in percent of the cap."""
        return FULL * self.power / self.limit if self.power is not None and self.limit else None

    @property
    def temperature(self) -> tuple[str, float] | None:
        """The first sensor that says something, and what it says; a 0 stands only where no other says more."""
        said = [(place, value) for place, value in self.temperatures if value is not None]
        return next((each for each in said if each[1] != 0), said[0] if said else None)

    def named(self, ids: Sequence[str]) -> bool:
        """Tell whether one of the identifiers is this GPU's: index, unique id or PCI address, in any spelling."""
        for each in ids:
            if each.isdecimal() and len(each) <= 5:  # noqa: PLR2004 - as the setting has it; longer is a unique id
                if int(each) == self.index:
                    return True
            elif pci_address(each) in {self.pci} - {None} or unique_id(each) in {self.unique_id, self.serial} - {None}:
                return True
        return False


def first_said(values: Iterable[float | None]) -> float | None:
    """Return the first value, a 0 only where no other says more: that is what sensors say that a chip does not have."""
    said = [value for value in values if value is not None]
    return next(filter(None, said), said[0] if said else None)


def number(value: object) -> float | None:
    """Return the number that a text or a number is, None for `N/A (Secondary die)` and the like."""
    if isinstance(value, str):
        match = _NUMBER.fullmatch(value.strip())
        value = float(match[1]) if match else None
    found = sane_value(value)
    return None if found is None or float(found) in _SENTINELS else found


def share(value: object) -> float | None:
    """Return a share in percent."""
    return _within(_quantity(value, _PERCENT, "%"), 0.0, FULL)


def celsius(value: object, unit: str = "C") -> float | None:
    """Return a temperature; `unit` holds where none is written."""
    return _within(_quantity(value, _CELSIUS, unit), _COLDEST, _HOTTEST)


def watts(value: object, unit: str = "W") -> float | None:
    """Return a power."""
    return _within(_quantity(value, _WATTS, unit), 0.0, _MOST_WATTS)


def cap(value: object, unit: str = "W") -> float | None:
    """Return a power limit; the second die of a board says 0 W, which is none (case 61)."""
    return watts(value, unit) or None


def count(value: object, unit: str = "B") -> float | None:
    """Return bytes."""
    return _within(_quantity(value, _BYTES, unit), 0.0, _MOST_BYTES)


def joules(value: object, unit: str = "J") -> float | None:
    """Return a running total of energy; a card that does not count says 0."""
    found = _quantity(value, _JOULES, unit)
    return found if found is not None and found > 0 else None


def words(value: object) -> str | None:
    """Return a text that says something; a device number in the place of a name does not."""
    text = value.strip() if isinstance(value, str) else ""
    return None if text.lower() in _NOTHING or text.lower().startswith(("n/a", "0x")) else text


def pci_address(value: object) -> str | None:
    """Return a PCI address in the kernel's spelling; some leave the domain out, or write it with eight digits."""
    match = _PCI.fullmatch(value.strip().lower()) if isinstance(value, str) else None
    return f"{int(match[1] or '0', 16):04x}:{match[2]}" if match else None


def unique_id(value: object) -> str | None:
    """Return a unique id in one spelling, whichever source it comes from: tools drop leading zeros and `0x`."""
    match = _HEXADECIMAL.fullmatch(value.strip().lower()) if isinstance(value, str) else None
    found = int(match[1], 16) if match else 0
    return f"0x{found:016x}" if 0 < found < 2**64 - 1 else None


def _quantity(value: object, units: Mapping[str, float], unit: str) -> float | None:
    """Return a value in the unit that is exported: bare, as `214 W`, or as `{"value": 214, "unit": "W"}`.

    `unit` holds where none is written. One that is not known is none that can be guessed.
    """
    if isinstance(value, dict):
        written = value.get("unit")
        value, unit = value.get("value"), unit if written is None or written == "" else str(written)
    if isinstance(value, str) and (match := _QUANTITY.fullmatch(value.strip())):
        value, unit = match[1], match[2] or unit
    found, scale = number(value), units.get(unit.strip())
    return None if found is None or scale is None else found * scale


def _within(value: float | None, least: float, most: float) -> float | None:
    return value if value is not None and least <= value <= most else None
