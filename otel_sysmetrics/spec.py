"""The definition of one metric, and how its tag becomes a legal instrument name."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final
from zlib import crc32

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_NAME_LENGTH: Final = 255

_PLACEHOLDER: Final = re.compile(r"\{(\w+)\}")
_ILLEGAL: Final = re.compile(r"[^A-Za-z0-9_.\-/]")
_MEAN_UNITS: Final = frozenset({"%", "W", "Cel", "MHz"})


class Kind(Enum):
    """How a metric's values are to be read, in the words of OpenTelemetry."""

    GAUGE = "gauge"
    COUNTER = "counter"


class Scope(Enum):
    """Who reports a metric: every process for itself, or one process per job and host."""

    HOST = "host"
    PROCESS = "process"


class Fold(Enum):
    """What a gauge answers when several samples were taken since it was last asked."""

    MEAN = "mean"
    LAST = "last"


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric: its W&B tag as a template, its unit, and what it means.

    `tag` holds placeholders such as `{path}`, which the labels of a Reading fill.
    `labels` maps each placeholder to the attribute that carries the label's original text.
    `attributes` names what else may stand on a point.
    `collectors` names the kinds that read it.
    `fold` follows from the unit unless given: shares, watts, temperatures, frequencies and rates are averaged.
    `from_zero` is false for the one sort of counter that keeps the source's own total (OpenMetrics).
    `any_attributes` tells that the labels of the source stand on a point too, whatever they are called.
    Units are UCUM; W&B's MB and GB are bytes/1024² and bytes/1024³, hence `MiBy` and `GiBy`.
    """

    tag: str
    unit: str
    brief: str
    collectors: tuple[str, ...]
    kind: Kind = Kind.GAUGE
    scope: Scope = Scope.HOST
    on: bool = True
    labels: tuple[tuple[str, str], ...] = ()
    attributes: tuple[str, ...] = ()
    fold: Fold | None = None
    from_zero: bool = True
    any_attributes: bool = False
    placeholders: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.fold is None:
            averaged = self.kind is Kind.GAUGE and (self.unit in _MEAN_UNITS or self.unit.endswith("/s"))
            object.__setattr__(self, "fold", Fold.MEAN if averaged else Fold.LAST)
        object.__setattr__(self, "placeholders", tuple(_PLACEHOLDER.findall(self.tag)))

    def fill(self, labels: Mapping[str, str | int]) -> str:
        """Fill the template and make it a name that OpenTelemetry accepts.

        A name that would be longer than 255 characters is cut and ends in a short stable hash.
        Raises KeyError when a placeholder has no label.
        """
        name = _PLACEHOLDER.sub(lambda match: _ILLEGAL.sub("_", str(labels[match[1]])), self.tag)
        if len(name) <= MAX_NAME_LENGTH:
            return name
        original = _PLACEHOLDER.sub(lambda match: str(labels[match[1]]), self.tag)
        return f"{name[: MAX_NAME_LENGTH - 9]}_{crc32(original.encode('utf-8', 'surrogatepass')):08x}"
