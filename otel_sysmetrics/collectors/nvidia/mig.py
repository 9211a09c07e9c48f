"""The MIG instances of a GPU, found again in each sample: they are made and unmade while others run."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from otel_sysmetrics.collectors.nvidia import calls
from otel_sysmetrics.collectors.nvidia.nvml import CallFailed
from otel_sysmetrics.collectors.nvidia.queries import memory
from otel_sysmetrics.collectors.nvidia.target import Target

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator

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
        self._mode: int | None = None

    @property
    def enabled(self) -> bool:
        """Whether the GPU is divided; raises CallFailed where the GPU or NVML is gone."""
        mode = self._parent.ask(calls.MIG_MODE)
        if mode is not None:
            if self._mode not in {None, mode}:
                # A GPU supports less while it is divided.
                self._parent.forget_refusals()
            self._mode = mode
        return mode == _ENABLED

    def read(self) -> Iterator[Instance]:
        """Yield the instances that there are now; raises CallFailed where the GPU or NVML is gone."""
        seen: set[int] = set()
        for slot in range(self._parent.ask(calls.MIG_SLOTS) or 0):
            instance = self._read(slot, seen)
            if instance is not None:
                seen.add(instance.number)
                yield instance

    def _read(self, slot: int, seen: Container[int]) -> Instance | None:
        target = self._slots.setdefault(slot, self._target(slot))
        try:
            target.begin()
            number = target.ask(calls.MIG_ID)
            # Compute instances of one GPU instance share its memory.
            if number is None or number in seen:
                return None
            return Instance(number, target.ask(calls.UUID), *memory(target))
        except CallFailed as failure:
            if calls.closed(self._parent.nvml, failure):
                raise
        # Slots have holes, and what comes there next is another instance; where the whole GPU is gone, this raises.
        del self._slots[slot]
        self._parent.renew()
        return None

    def _target(self, slot: int) -> Target:
        return Target(self._parent.nvml, partial(self._find, slot), self._clock)

    def _find(self, slot: int) -> object:
        # What an instance told of a loss holds for the handle of its GPU, too.
        return self._parent.nvml.call(calls.MIG_HANDLE, self._parent.renew(), slot)
