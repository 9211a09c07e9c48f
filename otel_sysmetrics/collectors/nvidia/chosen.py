"""Which GPUs the settings name, by NVML's index or by UUID."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_log: Final = logging.getLogger("otel_sysmetrics")


class Chosen:
    """The setting `gpu_device_ids`, and the UUIDs of the GPUs as far as they are known, in any case.

    A GPU that does not answer keeps the UUID that it had.
    """

    def __init__(self, ids: Sequence[str] | None) -> None:
        self._ids = None if ids is None else frozenset(each.lower() for each in ids)
        self._unmet = {each.lower(): each for each in ids or ()}
        self._told = frozenset[str]()
        self._uuids: dict[int, str] = {}

    def learn(self, index: int, uuid: str | None) -> None:
        """Note who a GPU is; None is one that has no UUID."""
        self._uuids[index] = (uuid or "").lower()
        self._unmet.pop(self._uuids[index], None)

    def leaves_out(self, index: int) -> bool:
        """Tell whether a GPU is left out whoever it is, since all are named by their indices."""
        return self._ids is not None and str(index) not in self._ids and all(map(str.isdecimal, self._ids))

    def has(self, index: int) -> bool:
        """Tell whether a GPU is named."""
        return self._ids is None or str(index) in self._ids or self._uuids.get(index) in self._ids

    def may_have(self, index: int) -> bool:
        """Tell whether a GPU is named, or may be: one of unknown UUID, while a UUID was not found yet."""
        return self.has(index) or (index not in self._uuids and not all(map(str.isdecimal, self._unmet)))

    def unmatched(self, count: int) -> tuple[str, ...]:
        """Return what names none of so many GPUs, and never did; of UUIDs that is known once all GPUs are."""
        every = all(index in self._uuids for index in range(count))
        for index in map(str, range(count)):
            self._unmet.pop(index, None)
        return tuple(given for name, given in self._unmet.items() if every or name.isdecimal())

    def warn(self, count: int) -> None:
        """Say once what names none of so many GPUs."""
        if not self._unmet:
            return
        new = [name for name in self.unmatched(count) if name not in self._told]
        if new:
            self._told |= frozenset(new)
            _log.warning("otel-sysmetrics: nvidia: gpu_device_ids: no GPU is %s", ", ".join(new))
