"""What `rocm-smi -a --showmeminfo vram --json` of ROCm 4 to 7 says."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from otel_sysmetrics.collectors.amd.document import find_documents
from otel_sysmetrics.collectors.amd.gpu import (
    Gpu,
    cap,
    celsius,
    count,
    first_said,
    joules,
    pci_address,
    share,
    unique_id,
    watts,
    words,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

PROGRAM: Final = "rocm-smi"
ARGUMENTS: Final = ("-a", "--showmeminfo", "vram", "--json")

_CARD: Final = re.compile(r"card([0-9]{1,4})")
_TOTAL: Final = "vram total memory (b)"
_POWERS: Final = ("average graphics package power (w)", "current socket graphics package power (w)")
# Instinct has no edge sensor since MI300, an APU has nothing else.
_SENSORS: Final = ("memory", "junction", "edge")


def parse(text: str) -> list[Gpu] | None:
    """Return the GPUs in the order of their numbers, None where there is no document."""
    cards: dict[int, Mapping[str, Any]] = {}
    documents = list(find_documents(text, _is_ours))
    for document in documents:
        for index, card in _cards(document):
            cards.setdefault(index, card)  # what is written twice counts once (case 64)
    return [_gpu(index, card) for index, card in sorted(cards.items())] if documents else None


def _is_ours(document: object) -> bool:
    return isinstance(document, dict) and ("system" in document or any(_cards(document)))


def _cards(document: Mapping[str, Any]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for key, card in document.items():
        if (match := _CARD.fullmatch(key)) and isinstance(card, dict):
            yield int(match[1]), card


def _gpu(index: int, card: Mapping[str, Any]) -> Gpu:
    # Their case changes from release to release (`Card series`), and so does a final colon.
    keys: dict[str, object] = {}
    for key, value in card.items():
        name = key.strip().rstrip(":").lower()
        if words(keys.get(name)) is None:  # of two that meet, one may say nothing
            keys[name] = value

    def first(read: Callable[[object], Any], *names: str) -> Any:  # noqa: ANN401 - whatever `read` returns
        return next((found for name in names if (found := read(keys.get(name))) is not None), None)

    # Never `GPU memory use (%)`: up to ROCm 6.0 that is how busy the memory is, despite its name.
    allocated = first(share, "gpu memory allocated (vram%)")
    total = first(count, _TOTAL)
    if _TOTAL in keys and not total:  # of a total that it cannot read the tool makes 0 %
        allocated = allocated or None
    return Gpu(
        index,
        unique_id=first(unique_id, "unique id"),
        pci=first(pci_address, "pci bus"),
        name=first(words, "card series", "device name"),
        use=first(share, "gpu use (%)"),
        used=first(count, "vram total used memory (b)"),
        total=total,
        allocated=allocated,
        activity=first(share, "gpu memory read/write activity (%)", "gpu memory use (%)"),
        overdrive=first(share, "gpu memory overdrive value (%)"),
        temperatures=tuple((place, first(celsius, f"temperature (sensor {place}) (c)")) for place in _SENSORS),
        power=first_said(watts(keys.get(name)) for name in _POWERS),
        limit=first(cap, "max graphics package power (w)"),
        energy=first(lambda value: joules(value, "uJ"), "accumulated energy (uj)"),
    )
