"""What a collector is to the sampler, and where each kind's module lies."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

from otel_sysmetrics.catalog import KINDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from otel_sysmetrics.reading import Reading
    from otel_sysmetrics.settings import Settings
    from otel_sysmetrics.sources.files import Files
    from otel_sysmetrics.sources.processes import WatchedProcess
    from otel_sysmetrics.spec import MetricSpec


class NotHere(Exception):
    """There is no such hardware here; the argument says what was looked for. Never logged, asked again rarely."""


class Unavailable(Exception):
    """The hardware is here and cannot be read; the argument says why, `remedy` what a person can do."""

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason)
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class Context:
    """What a collector may know: the settings, the doors, and what is wanted of it.

    `wants` tells whether any tag of a spec can be chosen by the settings, so that a costly query may be left out;
    the sampler drops what is not chosen in any case.
    `clock` is monotonic and counts seconds.
    """

    settings: Settings
    files: Files
    watched: WatchedProcess
    wants: Callable[[MetricSpec], bool]
    clock: Callable[[], float]


class Collector(Protocol):
    """Hardware that was found and can be read; used by one thread only."""

    def sample(self) -> Iterable[Reading]:
        """Read everything once; the first call is the baseline of whatever is a difference.

        Any exception costs this pass only; NotHere sends the part back to its probe.
        """

    def describe(self) -> str:
        """Say in one line what was found, for `doctor`."""

    def close(self) -> None:
        """Let go of what is held; harmless when called twice."""


@dataclass(frozen=True, slots=True)
class Part:
    """One thread's share of a kind: most kinds have one part, `disk` one per path.

    `name` tells the parts of a kind apart (a path, an endpoint's name), and is None where there is one.
    `probe` looks for the hardware; it raises NotHere or Unavailable, may block, and runs in the part's own thread.
    """

    kind: str
    name: str | None
    specs: tuple[MetricSpec, ...]
    probe: Callable[[], Collector]


def parts(kind: str, context: Context) -> Iterable[Part]:
    """Return the parts of a kind; its module is imported here, and looks at nothing yet."""
    if kind not in KINDS:
        message = f"unknown collector {kind!r}"
        raise ValueError(message)
    module = import_module(f"otel_sysmetrics.collectors.{kind}")
    return tuple(module.parts(context))
