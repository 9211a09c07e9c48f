"""What `amd-smi metric --json` and `amd-smi static --json` of ROCm 6 and 7 say."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from otel_sysmetrics.collectors.amd.document import AT_A_LINES_BEGIN, find_documents
from otel_sysmetrics.collectors.amd.gpu import (
    Gpu,
    cap,
    celsius,
    count,
    first_said,
    joules,
    number,
    pci_address,
    share,
    unique_id,
    watts,
    words,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

PROGRAM: Final = "amd-smi"
METRIC: Final = ("metric", "--json")
STATIC: Final = ("static", "--json")

_MOST_GPUS: Final = 4096
_POWERS: Final = ("power.socket_power", "power.apu_average_socket_power")
_SENSORS: Final = (("memory", "mem"), ("junction", "hotspot"), ("edge", "edge"), ("gfx", "apu_temperature_gfx"))


def parse(text: str) -> list[Gpu] | None:
    """Return the GPUs of a `metric` document in the order of their numbers, None where there is none."""
    found = _rows(text)
    return None if found is None else [_metric(index, row) for index, row in sorted(found.items())]


def parse_static(text: str) -> dict[int, Gpu] | None:
    """Return what stays the same of each GPU, by its number, None where there is no `static` document."""
    found = _rows(text)
    return None if found is None else {index: _static(index, row) for index, row in found.items()}


def join(gpus: Sequence[Gpu], static: Mapping[int, Gpu]) -> list[Gpu]:
    """Return GPUs with what stays the same of them."""
    return [
        replace(each, serial=same.serial, pci=same.pci, name=same.name, limit=same.limit)
        if (same := static.get(each.index)) is not None
        else each
        for each in gpus
    ]


def _rows(text: str) -> dict[int, Mapping[str, Any]] | None:
    found = [_list(document) for document in find_documents(text, lambda document: _list(document) is not None)]
    # Where each GPU is a document of its own. Inside of a line it may be what is left of a list that breaks off.
    found = found or [[row] for row in find_documents(text, _is_row, AT_A_LINES_BEGIN)]
    rows: dict[int, Mapping[str, Any]] = {}
    for row in (row for each in found for row in each or ()):
        index = number(row.get("gpu")) if isinstance(row, dict) else None
        if index is not None and 0 <= index < _MOST_GPUS and index == int(index):
            rows.setdefault(int(index), row)  # some releases write a GPU twice (case 64)
    return rows if found else None


def _is_row(document: object) -> bool:
    return isinstance(document, dict) and "gpu" in document


def _list(document: object) -> list[Any] | None:
    """Return the list of GPUs: bare up to ROCm 6, below `gpu_data` since 7."""
    found = document.get("gpu_data") if isinstance(document, dict) else document
    if not isinstance(found, list):
        return None
    # An empty list that is bare may stand in a warning.
    empty = not found and isinstance(document, dict)
    return found if empty or any(map(_is_row, found)) else None


def _metric(index: int, row: Mapping[str, Any]) -> Gpu:
    return Gpu(
        index,
        use=_first(row, share, "usage.gfx_activity", "usage.apu_average_gfx_activity"),
        used=_first(row, _memory, "mem_usage.used_vram"),
        total=_first(row, _memory, "mem_usage.total_vram"),
        activity=_first(row, share, "usage.umc_activity"),
        overdrive=_first(row, share, "mem_overdrive"),
        temperatures=tuple((place, _first(row, celsius, f"temperature.{key}")) for place, key in _SENSORS),
        power=first_said(watts(_leaf(row, path)) for path in _POWERS),
        energy=_first(row, joules, "energy.total_energy_consumption"),
    )


def _static(index: int, row: Mapping[str, Any]) -> Gpu:
    return Gpu(
        index,
        serial=_first(row, unique_id, "asic.asic_serial"),
        pci=_first(row, pci_address, "bus.bdf"),
        name=_first(row, words, "asic.market_name"),
        limit=_first(row, cap, "limit.ppt0.socket_power_limit", "limit.socket_power", "limit.max_power"),
    )


def _memory(value: object) -> float | None:
    return count(value, "MB")


def _first(row: Mapping[str, Any], read: Callable[[object], Any], *paths: str) -> Any:  # noqa: ANN401 - as `read`
    return next((found for path in paths if (found := read(_leaf(row, path))) is not None), None)


def _leaf(row: Mapping[str, Any], path: str) -> object:
    """Return what stands under a path; a whole section may be `N/A`."""
    found: Any = row
    for key in path.split("."):
        found = found.get(key) if isinstance(found, dict) else None
    return found
