"""NVIDIA GPUs through NVML: all of them once per sample, one after the other, in one thread."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from otel_sysmetrics.collector import NotHere, Part, Unavailable
from otel_sysmetrics.collectors.nvidia import calls
from otel_sysmetrics.collectors.nvidia.chosen import Chosen
from otel_sysmetrics.collectors.nvidia.description import about, about_driver
from otel_sysmetrics.collectors.nvidia.device import PROCESS_SPECS, SPECS, Device, plan
from otel_sysmetrics.collectors.nvidia.nvml import CallFailed
from otel_sysmetrics.collectors.nvidia.power import Sleepers
from otel_sysmetrics.collectors.nvidia.processes import Tree, computes, pids_are_the_hosts
from otel_sysmetrics.collectors.nvidia.session import Session, remedy
from otel_sysmetrics.selection import DEFAULT, Selection
from otel_sysmetrics.sources.reported import report

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_sysmetrics.collector import Context
    from otel_sysmetrics.collectors.nvidia.device import Plan
    from otel_sysmetrics.collectors.nvidia.nvml import Nvml
    from otel_sysmetrics.reading import Reading

_log: Final = logging.getLogger("otel_sysmetrics")

_LET_GO_EVERY: Final = 300.0


def parts(context: Context) -> tuple[Part, ...]:
    """Return the one part."""
    return (Part("nvidia", None, SPECS, lambda: probe(context)),)


def probe(context: Context) -> NvidiaCollector:
    """Open NVML and return the collector; raises NotHere or Unavailable. GPUs that all sleep are not woken."""
    collector = NvidiaCollector(context)
    collector.look()
    return collector


class NvidiaCollector:
    """All GPUs that NVML shows, under NVML's indices."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._sleepers = Sleepers(context.files, context.clock)
        self._session = Session(context.files, context.clock, self._sleepers.any_here)
        self._opening = 0
        self._devices: dict[int, Device] = {}
        self._heard: set[int] = set()
        self._silent: dict[int, Unavailable] = {}
        self._chosen = Chosen(context.settings.gpu_device_ids)
        self._let_go_at: float | None = None
        globs = [glob for glob in context.settings.metrics_included if glob != DEFAULT]
        self._plan = plan(context.wants, Selection(globs, context.settings.metrics_excluded).tag)

    def look(self) -> None:
        """Find out whether there is a GPU; raises NotHere or Unavailable."""
        if self._sleepers.all_asleep():
            return
        try:
            count = self._count(self._open())
        except CallFailed as failure:
            raise Unavailable(f"NVML does not stay open: {failure.reason}") from None
        except Unavailable:
            self._session.close()
            raise
        if count == 0:
            self._session.close()
            raise NotHere("the NVIDIA driver is here and shows no GPU")

    def sample(self) -> tuple[Reading, ...]:
        """Read every GPU once; raises Unavailable where none answers."""
        if self._sleepers.all_asleep():
            return ()
        try:
            readings = self._sample()
        except CallFailed:
            # A surplus nvmlShutdown of another library closed NVML under us.
            self._session.forget()
            try:
                readings = self._sample()
            except CallFailed as failure:
                self._session.forget()
                raise Unavailable(f"NVML does not stay open: {failure.reason}") from None
        self._let_sleep()
        return readings

    def describe(self) -> str:
        """Say what was found: driver, CUDA version, and each GPU."""
        if self._sleepers.all_asleep():
            return "every NVIDIA GPU is asleep, and not woken"
        nvml = self._open()
        try:
            count = self._count(nvml)
        except CallFailed as failure:
            return f"NVML fails: {failure.reason}"
        indices = [*range(count), *sorted(index for index in self._silent if index >= count)]
        words = [about_driver(nvml), *(f"GPU {index}: {self._about(nvml, index)}" for index in indices)]
        unmatched = self._chosen.unmatched(count)
        return "; ".join([*words, f"gpu_device_ids: no GPU is {', '.join(unmatched)}"] if unmatched else words)

    def close(self) -> None:
        """Shut NVML down, where this is the thread that uses it."""
        if self._session.is_ours:
            report("nvidia", ())
            self._forget_devices(free=True)
            self._session.close()

    def _sample(self) -> tuple[Reading, ...]:
        """Read every GPU; raises CallFailed where NVML is not open any more."""
        nvml = self._open()
        count = self._count(nvml)
        what = self._plan._replace(tree=self._tree())
        readings: list[Reading] = []
        asked: list[int] = []
        for index in range(count):
            if self._left_out(index, count):
                continue
            try:
                found = self._read(nvml, index, what)
            except CallFailed as failure:
                if calls.closed(nvml, failure):
                    raise
                self._forget(index)
                if self._chosen.may_have(index):
                    asked.append(index)
                    self._went_silent(index, Unavailable(failure.reason, remedy(failure)))
            else:
                if found is not None:
                    asked.append(index)
                    self._answered(index)
                    readings += found
        self._forget_beyond(count)
        self._judge(count, asked)
        self._chosen.warn(count)
        report(
            "nvidia", {device.uuid for index, device in self._devices.items() if index in self._heard and device.uuid}
        )
        return tuple(readings)

    def _read(self, nvml: Nvml, index: int, what: Plan) -> Sequence[Reading] | None:
        """Return what a GPU says, None where it is not chosen; raises CallFailed."""
        device = self._devices.get(index) or Device(nvml, index, self._context.clock)
        if not device.begin():
            device.gpm.free()
            device = Device(nvml, index, self._context.clock)
            device.begin()
        self._devices[index] = device
        failure = device.target.failure
        if device.uuid is not None or failure is None:
            self._chosen.learn(index, device.uuid)
        if self._chosen.has(index):
            return device.read(what)
        if failure is not None and self._chosen.may_have(index):
            raise failure
        return None

    def _open(self) -> Nvml:
        nvml = self._session.open()
        if self._opening != self._session.openings:
            # NVML frees its buffers when it is shut down: to free them again would crash.
            self._forget_devices(free=False)
            self._opening = self._session.openings
        return nvml

    def _count(self, nvml: Nvml) -> int:
        try:
            return nvml.call(calls.COUNT)
        except CallFailed as failure:
            if calls.closed(nvml, failure):
                raise
            self._session.doubt()
            raise Unavailable(f"NVML does not say how many GPUs there are: {failure.reason}") from None

    def _judge(self, count: int, asked: Sequence[int]) -> None:
        """Raise Unavailable where none of the GPUs answers that were asked, or that are gone where none was."""
        silent = asked or sorted(index for index in self._silent if index >= count)
        if any(index not in self._silent for index in asked):
            self._session.trust()
        elif not count:
            self._session.doubt()
            raise Unavailable("the NVIDIA driver shows no GPU any more")
        elif silent:
            self._session.doubt()
            why = self._silent[silent[-1]]
            raise Unavailable(f"none of {len(silent)} GPUs answers: {why}", why.remedy)

    def _tree(self) -> Tree | None:
        context = self._context
        if not any(map(context.wants, PROCESS_SPECS)):
            return None
        if not (context.settings.shared_pid_namespace or pids_are_the_hosts(context.files)):
            return None
        pid = context.watched.pid()
        return None if pid is None else Tree(context.watched, pid)

    def _left_out(self, index: int, count: int) -> bool:
        """Tell whether a GPU is not even looked up: it sleeps, or the settings name others by their indices."""
        if self._chosen.leaves_out(index):
            return True
        known = self._devices.get(index)
        return self._sleepers.asleep(known.address if known else self._sleepers.address(index, count))

    def _went_silent(self, index: int, why: Unavailable) -> None:
        self._heard.discard(index)
        if index not in self._silent:
            _log.warning("otel-sysmetrics: nvidia: GPU %d does not answer: %s", index, why)
        self._silent[index] = why

    def _answered(self, index: int) -> None:
        self._heard.add(index)
        if self._silent.pop(index, None) is not None:
            _log.warning("otel-sysmetrics: nvidia: GPU %d is back", index)

    def _forget(self, index: int) -> None:
        device = self._devices.pop(index, None)
        if device is not None:
            device.gpm.free()

    def _forget_beyond(self, count: int) -> None:
        for index in [index for index in self._devices if index >= count]:
            self._forget(index)
        for index in sorted(index for index in self._heard if index >= count):
            self._went_silent(index, Unavailable("NVML does not show it any more"))

    def _forget_devices(self, *, free: bool) -> None:
        devices, self._devices = self._devices, {}
        for device in devices.values() if free else ():
            device.gpm.free()

    def _let_sleep(self) -> None:
        """Close NVML where every GPU sleeps at times and nobody computes: an open session alone keeps it awake.

        Where it does not fall asleep then, somebody else keeps it awake, and NVML is not closed again so soon
        (https://github.com/henrygd/beszel/issues/1522).
        """
        now = self._context.clock()
        if (self._let_go_at is None or now >= self._let_go_at) and self._sleepers.all_do_sleep() and self._idle():
            self._let_go_at = now + _LET_GO_EVERY
            self._forget_devices(free=True)
            self._session.close()

    def _idle(self) -> bool:
        try:
            return not any(computes(device.target) for device in self._devices.values())
        except CallFailed:
            return False

    def _about(self, nvml: Nvml, index: int) -> str:
        why = self._silent.get(index)
        if why is None:
            device = self._devices.get(index) or Device(nvml, index, self._context.clock)
            try:
                device.begin()
                self._chosen.learn(index, device.uuid)
                return about(device) if self._chosen.has(index) else "left out by gpu_device_ids"
            except CallFailed as failure:
                why = Unavailable(failure.reason, remedy(failure))
        return f"does not answer: {why} ({why.remedy})" if why.remedy else f"does not answer: {why}"
