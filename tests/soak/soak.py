"""Many sampling cycles of everything at once, while things go wrong at random; nothing may grow.

A cycle is a turn of the clock in which each thread of a real Attachment samples once; every 4th one a reader of the SDK
collects. What takes longer belongs to attachments that do so more rarely: servers every 4th cycle, and every 20th
the programs that are started for each sample (rocm-smi, ioreg), with a host whose files lie in a tree.
Now and then the attachments end and begin anew, under the same provider or another, and the instrumentor itself
instruments and uninstruments.
"""

from __future__ import annotations

import faulthandler
import logging
import random
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics

from otel_sysmetrics.instrumentor import Attachment, SysMetricsInstrumentor
from otel_sysmetrics.settings import Settings
from otel_sysmetrics.threads import Lanes
from tests.fakes import in_memory, provider_of
from tests.soak.growth import LOOKS, Held, grown, held
from tests.soak.turns import Turns, ours

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    from tests.soak.machine import Fault, Machine

INTERVAL: Final = 15
SELDOM: Final = 20
"""Cycles to one sample of what starts programs."""
COLLECTED: Final = 4
"""Cycles to one look of a reader: it may well be slower than the sampler."""
SOMETIMES: Final = 4
"""Cycles to one sample of what asks servers."""

_PATIENCE: Final = 30.0
_STUCK: Final = 180.0
_HANGING: Final = 0.015  # real seconds for the others to have done their turn while one thread hangs
_HANGS: Final = ("silent", "hang", "slow")
_MOST_FAULTS: Final = 4
_RECOVERY: Final = 4  # samples in which all has to be back
_OFTEN: Final = ("cpu", "memory", "network", "nvidia", "ipu")
_SOMETIMES: Final = ("disk", "tpu", "openmetrics")
_RARELY: Final = ("cpu", "memory", "disk", "network", "amd", "apple", "trainium")


class Share:
    """An attachment with its provider and its reader, made anew when it is told to; it samples at `every` cycle."""

    def __init__(self, clock: Turns, every: int, **settings: Any) -> None:  # noqa: ANN401 - of any setting
        self.every = every
        self._settings = Settings(sampling_interval=INTERVAL * every, metrics_included=("*",), **settings)
        self._clock = clock
        self._lanes = Lanes()
        self.points = 0
        self.renew()
        self.start()

    def renew(self) -> None:
        """Take another provider."""
        self.reader: InMemoryMetricReader = in_memory()
        self.provider: MeterProvider = provider_of(self.reader, service__instance__id="soak")

    def start(self) -> None:
        """Begin."""
        gaps = (self._settings.sampling_interval,)
        self.attachment = Attachment(
            self.provider, self._settings, clock=self._clock, lanes=self._lanes, first_gaps=gaps
        )
        self.attachment.start()

    def stop(self) -> None:
        """End."""
        self.attachment.stop()
        self._clock.wake()

    def collect(self, *, encode: bool) -> None:
        """Have the reader collect, and what it gives encoded as an exporter would."""
        data = self.reader.get_metrics_data()
        if encode and data is not None:
            self.points = sum(
                len(metric.data.data_points)
                for resource in data.resource_metrics
                for scope in resource.scope_metrics
                for metric in scope.metrics
            )
            encode_metrics(data)

    def ill(self) -> list[str]:
        """Name the parts that are not well, all where none is known."""
        now = self._clock.now()
        healths = self.attachment.sampler.healths
        ill = [each for each in healths if not each.success(now)]
        return [f"{each.kind} {each.name or ''}: {each.trouble!r}" for each in ill] if healths else ["all"]


class Soak:
    """The cycles; `leak` is called in each, for whoever wants to see one found."""

    def __init__(
        self, machine: Machine, ports: Mapping[str, int], seed: int, leak: Callable[[], None] = lambda: None
    ) -> None:
        self._machine = machine
        self._random = random.Random(seed)
        self._leak = leak
        self._clock = Turns()
        self._wrong: list[Fault] = []
        self.cycles = 0
        self.faults = 0
        self.looks: list[Held] = []
        pages = {name: f"http://127.0.0.1:{port}/metrics" for name, port in ports.items()}
        often = Share(self._clock, 1, collectors=_OFTEN, track_process_tree=True, host_metrics="always")
        sometimes = Share(
            self._clock,
            SOMETIMES,
            collectors=_SOMETIMES,
            disk_paths=("/", str(machine.data)),
            openmetrics_endpoints={"page": pages["openmetrics"]},
            dcgm_exporter=pages["dcgm"],
            tpu_runtime_ports=(ports["tpu"],),
            host_metrics="always",
        )
        rarely = Share(self._clock, SELDOM, collectors=_RARELY, pid=7, root_path=str(machine.root))
        self._shares = (often, sometimes, rarely)

    def run(self, cycles: int, say: Callable[[str], None] = lambda _: None) -> list[str]:
        """Run so many cycles and return what has grown."""
        begun = time.monotonic()
        while self.cycles < cycles:
            if self.cycles % SELDOM == 0:
                faulthandler.dump_traceback_later(_STUCK, exit=True)
            self._spoil()
            self._cycle()
            if self.cycles % 97 == 0:
                self._begin_anew()
            if self.cycles >= (len(self.looks) + 1) * cycles // LOOKS:
                self._mend()
                self.looks.append(held(self.cycles))
                rate = self.cycles / (time.monotonic() - begun)
                say(f"{self.looks[-1]}, {self.faults} faults, {rate:.0f} cycles per second")
        return grown(self.looks)

    def close(self) -> None:
        """End everything."""
        for share in self._shares:
            share.stop()
        self._settle()

    def _cycle(self) -> None:
        self.cycles += 1
        self._leak()
        if self.cycles % SELDOM == 0:
            self._machine.step(self.cycles)
        hangs = any(word in fault.name for fault in self._wrong for word in _HANGS)
        if not self._clock.pass_on(INTERVAL, _HANGING if hangs else _PATIENCE):
            assert hangs, f"a thread takes more than {_PATIENCE} s: {self._wrong}"
        for share in self._shares:
            if self.cycles % max(share.every, COLLECTED) == 0:
                share.collect(encode=share.every > 1 or self.cycles % SELDOM == 0)

    def _spoil(self) -> None:
        """Let something go wrong now and then, and mend it a few cycles later."""
        if self._wrong and self._random.random() < 0.15:
            self._wrong.pop(self._random.randrange(len(self._wrong))).end()
        if len(self._wrong) < _MOST_FAULTS and self._random.random() < 0.1:
            about = {fault.name.split()[0] for fault in self._wrong}
            fault = self._random.choice(self._machine.faults)
            if fault.name.split()[0] not in about:
                fault.begin()
                self._wrong.append(fault)
                self.faults += 1

    def _mend(self) -> None:
        """Mend everything and wait until what samples often is well again."""
        while self._wrong:
            self._wrong.pop().end()
        self._settle()
        ill: list[str] = []
        for _ in range(_RECOVERY * SOMETIMES):
            self._cycle()
            ill = [part for share in self._shares[:2] for part in share.ill()]
            if not ill:
                break
        assert not ill, f"after {self.cycles} cycles these do not come back: {ill}"

    def recover(self) -> list[str]:
        """Mend everything and return what is not well again after three samples of it."""
        self._mend()
        for _ in range(3 * SELDOM):
            self._cycle()
        return [part for share in self._shares for part in share.ill()]

    def points(self) -> int:
        """Return how many points came last."""
        return sum(share.points for share in self._shares)

    def _settle(self) -> None:
        assert self._clock.pass_on(0, _PATIENCE), [thread.name for thread in ours()]

    def _begin_anew(self) -> None:
        """End and begin one of them, under another provider sometimes, and let the instrumentor do the same."""
        share = self._random.choice(self._shares)
        share.stop()
        if self._random.random() < 0.3:
            share.provider.shutdown()
            share.renew()
        share.start()
        if self._random.random() < 0.3:
            SysMetricsInstrumentor().instrument(
                meter_provider=share.provider, collectors=("cpu", "memory", "network"), host_metrics="never"
            )
            share.collect(encode=False)
            SysMetricsInstrumentor().uninstrument()
            share.attachment.instruments.attach()


def quietly() -> ExitStack:
    """Keep the log of what goes wrong to itself."""
    stack = ExitStack()
    log = logging.getLogger("otel_sysmetrics")
    before = log.level
    log.setLevel(logging.CRITICAL)
    stack.callback(log.setLevel, before)
    return stack
