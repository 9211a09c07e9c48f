"""One total over devices that come, go, restart and wrap."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class Total:
    """What a set of devices has counted since the first look; it starts at 0 and never falls.

    A device seen for the first time adds nothing: what it counted before is not ours.
    A counter that fell began again at 0, by a reset or by a wrap of 32 bits, which cannot be told apart: what it
    shows now is added, and what it counted between the last look and its fall is lost
    (https://github.com/giampaolo/psutil/issues/802).
    A device that is gone is forgotten.
    """

    def __init__(self) -> None:
        self._value = 0
        self._last: dict[str, int] = {}

    def advance(self, counters: Mapping[str, int]) -> int:
        """Take the devices' own counters as they are now and return the total, in their unit."""
        for device, count in counters.items():
            before = self._last.get(device, count)
            self._value += count - before if count >= before else count
        self._last = dict(counters)
        return self._value
