"""What ioreg shows of accelerators, as a property list or as text."""

from __future__ import annotations

import plistlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from otel_sysmetrics.reading import sane_value

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_STATISTICS: Final = "PerformanceStatistics"
_CLASSES: Final = ("IOClass", "IOObjectClass", "IORegistryEntryName")
_FULL: Final = 100.0

_ENTRY: Final = re.compile(r"^\+-o [^<\n]*<class ([^,>\n]+)", re.MULTILINE)
_PROPERTY: Final = re.compile(r'^[ |]*"([^"\n]+)" = (.+)$', re.MULTILINE)
# A number that is cut off at the end of a line is another number, so what comes after it must be there.
_NUMBER: Final = re.compile(r'"([^"\n]+)"=(-?\d{1,20})(?=[,}])')


@dataclass(frozen=True, slots=True)
class Accelerator:
    """A GPU of Apple's: its load in percent, the bytes allocated on it by all processes, and what it is."""

    load: float | None = None
    allocated: float | None = None
    model: str | None = None
    cores: int | None = None


def of_plist(text: str) -> list[Accelerator] | None:
    """Return Apple's accelerators in `ioreg -a`'s output, none where it is empty, None where it is no such list."""
    if not text.strip():
        return []
    try:
        found = plistlib.loads(text.encode("utf-8", "replace"), fmt=plistlib.FMT_XML)
    except Exception:  # noqa: BLE001 - malformed documents fail in as many ways as expat and the readers of values have
        return None
    if not isinstance(found, list):
        return None
    return _apples(entry for entry in found if isinstance(entry, dict))


def of_text(text: str) -> list[Accelerator] | None:
    """Return Apple's accelerators in ioreg's text, none where it is empty, None where it shows no entry."""
    heads = list(_ENTRY.finditer(text))
    if not heads:
        return None if text.strip() else []
    ends = [head.start() for head in heads[1:]] + [len(text)]
    return _apples(_entry(head[1], text[head.end() : end]) for head, end in zip(heads, ends, strict=True))


def _entry(name: str, text: str) -> dict[str, Any]:
    entry: dict[str, Any] = {"IOObjectClass": name}
    for key, value in _PROPERTY.findall(text):
        if key == _STATISTICS:
            entry[key] = {each: int(number) for each, number in _NUMBER.findall(value)}
        else:
            entry[key] = int(value) if re.fullmatch(r"\d{1,9}", value) else value.strip('"')
    return entry


def _apples(entries: Iterator[dict[str, Any]]) -> list[Accelerator]:
    found = [entry for entry in entries if _is_apples(entry)]
    found.sort(key=lambda entry: not isinstance(entry.get(_STATISTICS), dict))
    return [_accelerator(entry) for entry in found]


def _is_apples(entry: Mapping[str, Any]) -> bool:
    """Tell whether an entry is a GPU of Apple's own, and neither an Intel Mac's nor a virtual machine's."""
    model = entry.get("model")
    names = [entry.get(key) for key in _CLASSES]
    return any(isinstance(name, str) and name.startswith("AGX") for name in names) or (
        isinstance(model, str) and model.startswith("Apple M")
    )


def _accelerator(entry: Mapping[str, Any]) -> Accelerator:
    statistics = entry.get(_STATISTICS)
    numbers: Mapping[str, Any] = statistics if isinstance(statistics, dict) else {}
    model, cores = entry.get("model"), sane_value(entry.get("gpu-core-count"))
    load = sane_value(numbers.get("Device Utilization %"))
    # Not "In use system memory", which is almost nothing while a model that is loaded waits; its neighbour
    # "In use system memory (driver)" is always 0.
    allocated = sane_value(numbers.get("Alloc system memory"))
    return Accelerator(
        load=load if load is not None and 0 <= load <= _FULL else None,
        allocated=allocated if allocated is not None and allocated >= 0 else None,
        model=model.rstrip("\0") or None if isinstance(model, str) else None,
        cores=int(cores) if cores is not None and cores > 0 else None,
    )
