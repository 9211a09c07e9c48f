"""The values that flow from a collector to the instruments."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_sysmetrics.spec import MetricSpec

AttributeValue = str | bool | int | float

_INT64: Final = 2**63
_CONTROLS: Final = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))}


_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class Reading(NamedTuple):
    """One value of one metric, or its absence.

    `value` is `None` when the hardware did not say.
    `labels` fill the placeholders of the spec's tag and become attributes under the keys that the spec gives them.
    `attributes` stand on the point as they are; a value of `None` is left out.
    """

    spec: MetricSpec
    value: float | None
    labels: Mapping[str, str | int] = _NOTHING
    attributes: Mapping[str, AttributeValue | None] = _NOTHING


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What one part read in one pass.

    `time` is when the pass ended and `duration` how long it took, both in seconds of the sampler's clock.
    `interval` is the time to the next pass, in seconds.
    """

    readings: tuple[Reading, ...]
    time: float
    duration: float
    interval: float

    @property
    def until(self) -> float:
        """When this may not be served any more: a hung part must not repeat yesterday's values."""
        return self.time + 2 * max(self.interval, self.duration) + 1

    def fresh(self, now: float) -> bool:
        """Tell whether this may still be served at `now`."""
        return now <= self.until


def sane_value(value: object) -> float | None:
    """Return the value as an int or float that every exporter can encode, or None.

    OTLP loses the whole request of the whole application over one bool, NaN or integer beyond 64 bits.
    """
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value) if -_INT64 <= value < _INT64 else None
    return None


def sane_attributes(attributes: Mapping[str, object]) -> dict[str, AttributeValue]:
    """Return the attributes that every exporter can encode: text without surrogates, bools, and sane numbers.

    Text that holds undecodable bytes (a mount point, a label) keeps what can be read of it.
    """
    sane: dict[str, AttributeValue] = {}
    for name, value in attributes.items():
        key = legible_text(name)
        if isinstance(value, str):
            sane[key] = legible_text(value)
        elif isinstance(value, bool):
            sane[key] = value
        elif (number := sane_value(value)) is not None:
            sane[key] = number
    return sane


def in_one_line(text: str) -> str:
    """Return a text as it is said to people: what cannot be seen in it is written out."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def legible_text(text: str) -> str:
    """Return a text that can be encoded, with a question mark for each byte that could not be read."""
    return text.encode("utf-8", "replace").decode("utf-8")


def shown_text(text: str) -> str:
    """Return a text as a terminal may show it: what a device or an endpoint says must not colour or retitle it."""
    return text.translate(_CONTROLS)
