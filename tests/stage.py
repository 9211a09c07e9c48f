"""Where faults are played: a folder, applications, and what of them arrived in a real otelcol."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.here import ONLY_HOST
from tests.nvml import H100, NvmlMachine
from tests.running import PROGRAMS, SCRIPTS, Running, clean_environment, over

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.otelcol import Otelcol, Point

INTERVAL: Final = 0.4
COUNTED: Final = 4
"""Exports that are counted at a time: before a fault, while it lasts, and after it."""
OURS: Final = "OTEL_PYTHON_SYSMETRICS_"
LIBC: Final = Path(__file__).parent / "stand_ins" / "libc"

Series = tuple[str, frozenset[tuple[str, object]]]


@dataclass
class Place:
    """Where one fault is played: a folder, a backend, and applications that are told by files what to do."""

    folder: Path
    backend: Otelcol
    name: str
    stack: ExitStack = field(default_factory=ExitStack)

    def order(self, name: str) -> None:
        """Have the application, or a stand-in, do something until it is recalled."""
        (self.folder / name).touch()

    def recall(self, name: str) -> None:
        """End what was ordered."""
        (self.folder / name).unlink()

    def nvml(self, count: int = 1) -> NvmlMachine:
        """Return a machine with so many H100."""
        folder = self.folder / "nvml"
        folder.mkdir()
        return NvmlMachine(folder, devices=(H100,) * count)

    def start(self, variables: Mapping[str, str], *, own: bool = True, owner: str = "") -> Running:
        """Start an application, with a provider of our `own` or under opentelemetry-instrument.

        All of a place are one job; `owner` tells their exports apart.
        """
        runtime = self.folder / "runtime"
        runtime.mkdir(0o700, exist_ok=True)
        instrument = () if own else (os.path.join(SCRIPTS, "opentelemetry-instrument"),)
        words = (sys.executable, os.path.join(PROGRAMS, "beating.py"), str(self.folder), *(("configure",) * own))
        common = {
            **over("http/protobuf", self.backend.http_endpoint, round(INTERVAL * 1000)),
            **ONLY_HOST,
            "OTEL_EXPORTER_OTLP_TIMEOUT": "1",
            "OTEL_SERVICE_NAME": self.name.replace(" ", "-"),
            "OTEL_RESOURCE_ATTRIBUTES": f"process.owner={owner or self.name}".replace(" ", "%20"),
            "OTEL_METRICS_EXPORTER": "otlp",
            "OTEL_TRACES_EXPORTER": "none",
            "OTEL_LOGS_EXPORTER": "none",
            "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "system_metrics",
            f"{OURS}SAMPLING_INTERVAL": str(INTERVAL),
            "XDG_RUNTIME_DIR": str(runtime),
        }
        environment = clean_environment(**{**common, **variables})
        return self.stack.enter_context(Running(*instrument, *words, environment=environment))


class Export(NamedTuple):
    """One export of one process."""

    time_ns: int
    values: Mapping[Series, float]

    def has(self, tag: str) -> bool:
        """Tell whether a tag came with it."""
        return any(name == tag for name, _ in self.values)


def settled(exports: list[Export]) -> bool:
    """Tell whether several exports in turn had the same series."""
    last = [one.values.keys() for one in exports[-COUNTED:]]
    return len(last) == COUNTED and all(one == last[0] for one in last)


class Backend:
    """An otelcol that several threads look at."""

    def __init__(self, otelcol: Otelcol) -> None:
        self.otelcol = otelcol
        self._lock = threading.Lock()
        self._seen = 0
        self._points: defaultdict[object, list[Point]] = defaultdict(list)

    def exports(self, owner: str) -> list[Export]:
        """Return what arrived from a process, by export, in the order of arrival."""
        with self._lock:
            points = self.otelcol.points()
            for point in points[self._seen :]:
                self._points[point.resource.get("process.owner")].append(point)
            self._seen = len(points)
            found = list(self._points[owner])
        return [Export(time, _values(points)) for time, points in groupby(found, lambda point: point.time_ns)]


def _values(points: Iterator[Point]) -> dict[Series, float]:
    found: dict[Series, float] = {}
    for point in points:
        series = (point.name, frozenset(point.attributes.items()))
        assert series not in found, series
        found[series] = point.value
    return found


@functools.cache
def shim() -> str:
    """Build what stands before the C library, once per process, and return its path."""
    built = os.path.join(tempfile.mkdtemp(prefix="libc-stand-in-"), "shim.so")
    flags = ("-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared")
    subprocess.run(["cc", *flags, *map(str, sorted(LIBC.glob("*.c"))), "-o", built, "-ldl"], check=True)  # noqa: S607
    return built
