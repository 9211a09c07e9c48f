"""The MIG instances of a GPU, found again in each sample: they are made and unmade while others run."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from otel_sysmetrics.collectors.nvidia import calls
from otel_sysmetrics.collectors.nvidia.nvml import CallFailed, Outcome
from otel_sysmetrics.collectors.nvidia.queries import memory
from otel_sysmetrics.collectors.nvidia.target import Target

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_ENABLED = 1


class Instance(NamedTuple):
    """One GPU instance: its number, its UUID, the used share of its memory in percent, and the used bytes."""

    number: int
    uuid: str | None
    share: float | None
    used: float | None


class Instances:
    """The MIG instances of one GPU."""

    def __init__(self, parent: Target, clock: Callable[[], float]) -> None:
        self._parent = parent
        self._clock = clock
        self._slots: dict[int, Target] = {}

    @property
    def enabled(self) -> bool:
        """Whether the GPU is divided; raises CallFailed where the GPU or NVML is gone."""
        return self._parent.ask(calls.MIG_MODE) == _ENABLED

    def read(self) -> Iterator[Instance]:
        """Yield the instances that there are now; raises CallFailed where the GPU or NVML is gone."""
        seen = set()
        for slot in range(self._parent.ask(calls.MIG_SLOTS) or 0):
            target = self._slots.setdefault(slot, self._target(slot))
            if not _found(target):
                # Slots have holes, and what comes there next is another instance.
                del self._slots[slot]
                continue
            number = target.ask(calls.MIG_ID)
            # Compute instances of one GPU instance share its memory.
            if number is not None and number not in seen:
                seen.add(number)
                yield Instance(number, target.ask(calls.UUID), *memory(target))

    def _target(self, slot: int) -> Target:
        return Target(self._parent.nvml, partial(self._find, slot), self._clock)

    def _find(self, slot: int) -> object:
        # What an instance told of a loss holds for the handle of its GPU, too.
        return self._parent.nvml.call(calls.MIG_HANDLE, self._parent.renew(), slot)


def _found(target: Target) -> bool:
    try:
        target.begin()
    except CallFailed as failure:
        if failure.outcome in {Outcome.LOST, Outcome.CLOSED}:
            raise
        return False
    return True
