"""One GPU as the collector knows it: who it is, and everything that is read of it in one sample."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from otel_sysmetrics.catalog import gpu
from otel_sysmetrics.collectors.nvidia import calls
from otel_sysmetrics.collectors.nvidia.gpm import SPECS as GPM_SPECS
from otel_sysmetrics.collectors.nvidia.gpm import Gpm
from otel_sysmetrics.collectors.nvidia.mig import Instances
from otel_sysmetrics.collectors.nvidia.processes import NOT_ASKED, use_of
from otel_sysmetrics.collectors.nvidia.queries import BLOCKING, COPIES, QUERIES, answers, hollow
from otel_sysmetrics.collectors.nvidia.target import Target
from otel_sysmetrics.reading import Reading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from otel_sysmetrics.collectors.nvidia.nvml import Nvml
    from otel_sysmetrics.collectors.nvidia.processes import Tree, Use
    from otel_sysmetrics.collectors.nvidia.queries import Query
    from otel_sysmetrics.spec import MetricSpec

INSTANCE_SPECS = (gpu.INSTANCE_MEMORY_ALLOCATED, gpu.INSTANCE_MEMORY_ALLOCATED_BYTES)
PROCESS_SPECS = (*COPIES.values(), gpu.PROCESS_HELD_BYTES)
SPECS = (
    *(spec for query in QUERIES for spec in query.specs),
    *GPM_SPECS,
    *INSTANCE_SPECS,
    *PROCESS_SPECS,
)


class Plan(NamedTuple):
    """What one sample asks of each GPU.

    `device` is asked of every GPU, `used` of those that the process tree uses. `wanted` holds the tag templates that
    may be sent, `tree` the pids, none where nothing is asked of processes. Of `blocking` a GPU without GPM is asked
    what is `named` for it.
    """

    wanted: frozenset[str]
    device: tuple[Query, ...]
    used: tuple[Query, ...]
    blocking: tuple[Query, ...]
    named: Callable[[MetricSpec, str], bool]
    gpm: bool
    mig: bool
    tree: Tree | None


def plan(wants: Callable[[MetricSpec], bool], named: Callable[[MetricSpec, str], bool]) -> Plan:
    """Plan the samples: `wants` tells what may be sent at all, `named` which tags the user's patterns ask for."""
    wanted = frozenset(spec.tag for spec in SPECS if wants(spec))

    def device(spec: MetricSpec) -> bool:
        return spec.tag in wanted

    def used(spec: MetricSpec) -> bool:
        return device(spec) or (spec.tag in COPIES and device(COPIES[spec.tag]))

    return Plan(
        wanted,
        tuple(query for query in QUERIES if any(map(device, query.specs))),
        tuple(query for query in QUERIES if any(map(used, query.specs))),
        tuple(query for query in BLOCKING if any(map(device, query.specs))),
        named,
        gpm=any(map(device, GPM_SPECS)),
        mig=any(map(device, INSTANCE_SPECS)),
        tree=None,
    )


class Device:
    """One GPU under its index. Every method raises CallFailed where the GPU or NVML is gone."""

    def __init__(self, nvml: Nvml, index: int, clock: Callable[[], float]) -> None:
        self.index = index
        self.uuid: str | None = None
        self.name: str | None = None
        self.address: str | None = None
        self.target = Target(nvml, partial(nvml.call, calls.HANDLE, index), clock)
        self.gpm = Gpm(self.target, clock)
        self.instances = Instances(self.target, clock)

    def begin(self) -> bool:
        """Look the GPU up; False where another one now has its index, so that what is known here is void."""
        self.target.begin()
        uuid = self.target.ask(calls.UUID)
        if uuid is not None and self.uuid is not None and uuid != self.uuid:
            return False
        self.uuid = uuid or self.uuid
        self.name = self.name or self.target.ask(calls.NAME)
        self.address = self.address or self.target.ask(calls.PCI)
        return True

    def read(self, what: Plan) -> list[Reading]:
        """Read the GPU once, after `begin`: all of it, or CallFailed.

        One that fails and gives no value is as good as lost, though NVML may still find it.
        """
        self.target.forget_failure()
        use = use_of(self.target, what.tree) if what.tree else NOT_ASKED
        queries = what.used if use.used else what.device
        values = answers(self.target, queries)
        if not values and self.target.loss is not None:
            raise self.target.loss
        readings = list(self._readings(what, use, values))
        failure = self.target.failure
        quiet = not values and (queries or not use.known) and all(reading.value is None for reading in readings)
        if failure is not None and quiet:
            raise failure
        return readings

    def _readings(self, what: Plan, use: Use, known: list[tuple[MetricSpec, float]]) -> Iterator[Reading]:
        # The same for all readings: what comes behind works out once what it makes of them.
        labels = {"gpu": self.index}
        attributes = {"hw.id": self.uuid, "hw.name": self.name}
        wanted = what.wanted
        for values in self._answers(what, known):
            for spec, value in values:
                if spec.tag in wanted:
                    yield Reading(spec, value, labels, attributes)
                if use.used and (copy := COPIES.get(spec.tag)) is not None and copy.tag in wanted:
                    yield Reading(copy, value, labels, attributes)
        if use.held is not None and gpu.PROCESS_HELD_BYTES.tag in wanted:
            yield Reading(gpu.PROCESS_HELD_BYTES, use.held, labels, attributes)
        if what.mig and self.instances.enabled:
            yield from self._instances()

    def _answers(self, what: Plan, known: list[tuple[MetricSpec, float]]) -> Iterator[list[tuple[MetricSpec, float]]]:
        if hollow(known):
            return
        yield known
        if what.gpm and self.gpm.supported:
            yield self.gpm.answers()
            return
        self.gpm.free()
        for query in what.blocking:
            if any(what.named(spec, spec.fill({"gpu": self.index})) for spec in query.specs):
                yield answers(self.target, (query,))

    def _instances(self) -> Iterator[Reading]:
        for instance in self.instances.read():
            labels = {"gpu": self.index, "mig": instance.number}
            attributes = {"hw.id": instance.uuid, "hw.name": self.name}
            for spec, value in zip(INSTANCE_SPECS, (instance.share, instance.used), strict=True):
                yield Reading(spec, value, labels, attributes)
