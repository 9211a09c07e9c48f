"""What NVML is asked about: a GPU or a MIG instance, under a handle that is never older than a sample."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from otel_sysmetrics.collectors.nvidia.calls import closed
from otel_sysmetrics.collectors.nvidia.nvml import NO_PERMISSION, UNKNOWN, Call, CallFailed, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_sysmetrics.collectors.nvidia.nvml import Nvml

Answer = TypeVar("Answer")

UNSUPPORTED_FOR: Final = 300.0
"""Seconds after which a device is asked again for what it does not support: drivers are upgraded, MIG is switched."""

# A GPU that is gone says so to every question, and may take its time over each.
_PATIENCE: Final = 3


class Target:
    """One device; a failed call costs one answer and no other.

    `find` returns its handle and raises CallFailed. `clock` is monotonic and counts seconds. `failure` is the first
    one since it was last cleared that says more than that the device cannot.
    """

    def __init__(self, nvml: Nvml, find: Callable[[], object], clock: Callable[[], float]) -> None:
        self.nvml = nvml
        self.failure: CallFailed | None = None
        self._find = find
        self._clock = clock
        self._handle: object | None = None
        self._refused: dict[Call[Any], float] = {}
        self._missing: set[Call[Any]] = set()
        self._losses: list[CallFailed] = []

    def begin(self) -> None:
        """Look the device up, at the beginning of each sample; raises CallFailed."""
        self._losses.clear()
        self.failure = None
        self.renew()

    def renew(self) -> object:
        """Look the device up anew and return its handle; raises CallFailed."""
        self._handle = None
        self._handle = self._find()
        return self._handle

    @property
    def handle(self) -> object:
        """The device's handle; raises CallFailed.

        After an error that may mean that the device is gone it is looked up anew: NVML crashes on the handle of a GPU
        that fell off the bus (https://github.com/XuehaiPan/nvitop/issues/139).
        """
        return self.renew() if self._handle is None else self._handle

    def ask(self, call: Call[Answer], *further: object) -> Answer | None:
        """Return the answer, or None where there is none; raises CallFailed where the device or NVML is gone."""
        if call in self._refused and not self.supports(call):
            return None
        handle = self.renew() if self._handle is None else self._handle
        try:
            return self.nvml.call(call, handle, *further)
        except CallFailed as failure:
            self.note(call, failure)
            return None

    def first(self, *calls: Call[Answer]) -> Answer | None:
        """Return the answer to the first of several questions that the device supports."""
        for call in calls:
            answer = self.ask(call)
            if answer is not None or self.supports(call):
                return answer
        return None

    def supports(self, call: Call[Any]) -> bool:
        """Tell whether a question is worth asking now."""
        refused = self._refused.get(call)
        return refused is None or self._clock() - refused >= UNSUPPORTED_FOR

    def lacks(self, call: Call[Any]) -> bool:
        """Tell whether driver or binding were found to be older than a question."""
        return call in self._missing

    def forget_refusals(self) -> None:
        """Take everything for worth asking again."""
        self._refused.clear()
        self._missing.clear()

    def forget_failure(self) -> None:
        """Begin to look for failures anew."""
        self.failure = None

    @property
    def loss(self) -> CallFailed | None:
        """What told in this sample that the device is gone."""
        return self._losses[0] if self._losses else None

    def note(self, call: Call[Any], failure: CallFailed) -> None:
        """Remember what a failed call means; raises it where it means that the device or NVML is gone."""
        if closed(self.nvml, failure):
            raise failure
        if failure.outcome is Outcome.UNSUPPORTED:
            self._refused[call] = self._clock()
        if failure.missing:
            self._missing.add(call)
        # Without permission for anything a device is no better than a lost one.
        if self.failure is None and (failure.outcome is not Outcome.UNSUPPORTED or failure.code == NO_PERMISSION):
            self.failure = failure
        if failure.outcome is Outcome.LOST:
            self._losses.append(failure)
        if failure.outcome is Outcome.LOST or failure.code == UNKNOWN:
            self._handle = None
        if len(self._losses) >= _PATIENCE:
            raise failure
