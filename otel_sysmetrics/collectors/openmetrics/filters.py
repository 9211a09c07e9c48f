"""Which series of an endpoint are kept: W&B's filters, searched in `<endpoint>.<metric>`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from otel_sysmetrics.patterns import compiled

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from otel_sysmetrics.endpoints import Filters

    Condition = Callable[[Mapping[str, str]], bool]
    Search = Callable[[str], object]


class Kept:
    """The settings' filters for one endpoint: entries are alternatives, and no entry keeps everything."""

    def __init__(self, endpoint: str, filters: Filters) -> None:
        self._endpoint = endpoint
        self._entries = tuple(
            (compiled(pattern), tuple((label, compiled(wanted)) for label, wanted in labels))
            for pattern, labels in filters
        )

    def __call__(self, metric: str) -> tuple[Condition, ...] | None:
        """Return None for a metric that is not kept, else conditions, any of which has to hold for its labels."""
        if not self._entries:
            return ()
        text = f"{self._endpoint}.{metric}"
        found = [labels for search, labels in self._entries if search(text)]
        if not found:
            return None
        return tuple(partial(_all_found, labels) for labels in found) if all(found) else ()


def _all_found(wanted: Sequence[tuple[str, Search]], labels: Mapping[str, str]) -> bool:
    """Tell whether each label is there and its pattern is found in it."""
    return all(label in labels and search(labels[label]) for label, search in wanted)
