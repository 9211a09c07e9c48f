"""One GPU as any of the sources reports it, and what its numbers can be."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from otel_sysmetrics.reading import sane_value

if TYPE_CHECKING:
    from collections.abc import Sequence

FULL: Final = 100.0
_COLDEST: Final = -50.0
_HOTTEST: Final = 200.0
_MOST_WATTS: Final = 100_000.0
_MOST_BYTES: Final = float(2**60)
# What old metrics tables hold where the chip measures nothing: all bits set.
_SENTINELS: Final = frozenset({2**16 - 1, 2**32 - 1, 2**64 - 1})

_NUMBER: Final = re.compile(r"([+-]?[0-9]{1,25}(?:\.[0-9]{0,25})?(?:[eE][+-]?[0-9]{1,3})?)\s*(?:%|[A-Za-z°]{1,3})?")
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
    def allocated_share(self) -> float | None:
        """The memory in use, in percent: from bytes, since some tools round the share."""
        if self.used is not None and self.total and self.used <= self.total:
            return FULL * self.used / self.total
        return self.allocated

    @property
    def power_share(self) -> float | None:
        """The power drawn, in percent of the cap."""
        return FULL * self.power / self.limit if self.power is not None and self.limit else None

    @property
    def temperature(self) -> tuple[str, float] | None:
        """The first sensor that says something, and what it says."""
        return next(((place, value) for place, value in self.temperatures if value is not None), None)

    def named(self, ids: Sequence[str]) -> bool:
        """Tell whether one of the identifiers is this GPU's: index, unique id or PCI address, in any spelling."""
        for each in ids:
            if each.isdecimal() and len(each) <= 5:  # noqa: PLR2004 - as the setting has it; longer is a unique id
                if int(each) == self.index:
                    return True
            elif pci_address(each) in {self.pci} - {None} or unique_id(each) in {self.unique_id, self.serial} - {None}:
                return True
        return False


def number(value: object) -> float | None:
    """Return the number that a text or a number is, None for `N/A (Secondary die)` and the like."""
    if isinstance(value, str):
        match = _NUMBER.fullmatch(value.strip())
        value = float(match[1]) if match else None
    found = sane_value(value)
    return None if found in _SENTINELS else found


def share(value: object) -> float | None:
    """Return a share in percent."""
    return _within(number(value), 0.0, FULL)


def celsius(value: object) -> float | None:
    """Return a temperature."""
    return _within(number(value), _COLDEST, _HOTTEST)


def watts(value: object) -> float | None:
    """Return a power."""
    return _within(number(value), 0.0, _MOST_WATTS)


def cap(value: object) -> float | None:
    """Return a power limit; the second die of a board says 0 W, which is none (case 61)."""
    return watts(value) or None


def count(value: object, scale: float = 1.0) -> float | None:
    """Return bytes."""
    found = number(value)
    return _within(None if found is None else found * scale, 0.0, _MOST_BYTES)


def joules(value: object, scale: float = 1.0) -> float | None:
    """Return a running total of energy; a card that does not count says 0."""
    found = number(value)
    return found * scale if found is not None and found > 0 else None


def words(value: object) -> str | None:
    """Return a text that says something; a device number in the place of a name does not."""
    text = value.strip() if isinstance(value, str) else ""
    return None if text.lower() in _NOTHING or text.lower().startswith(("n/a", "0x")) else text


def pci_address(value: object) -> str | None:
    """Return a PCI address in the kernel's spelling."""
    match = _PCI.fullmatch(value.strip().lower()) if isinstance(value, str) else None
    return f"{match[1] or '0000'}:{match[2]}" if match else None


def unique_id(value: object) -> str | None:
    """Return a unique id in one spelling, whichever source it comes from: tools drop leading zeros and `0x`."""
    match = _HEXADECIMAL.fullmatch(value.strip().lower()) if isinstance(value, str) else None
    found = int(match[1], 16) if match else 0
    return f"0x{found:016x}" if 0 < found < 2**64 - 1 else None


def _within(value: float | None, least: float, most: float) -> float | None:
    return value if value is not None and least <= value <= most else None
