"""What can fail around a running application, and how it is made to fail: one row per fault.

Each is done at the border where it happens: the vendor's library, the C library, an executable on PATH, a socket.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from tests.here import ONLY_HOST
from tests.nvml import EVERY_CALL, FOREVER, H100, Answer, NvmlMachine
from tests.running import PROGRAMS, SCRIPTS, Running, clean_environment, over

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.otelcol import Otelcol

INTERVAL: Final = 0.4
LIBC: Final = Path(__file__).parent / "stand_ins" / "libc"
OURS: Final = "OTEL_PYTHON_SYSMETRICS_"

# Each of a fault's three steps ends in a yield: what the application is started with, the fault, its end.
Steps: TypeAlias = Iterator[Mapping[str, str]]


@dataclass
class Place:
    """Where one fault is played: a folder, a backend, and an application that is told by files what to do."""

    folder: Path
    backend: Otelcol
    service: str
    stack: ExitStack = field(default_factory=ExitStack)

    def order(self, name: str) -> None:
        """Have the application, or a stand-in, do something until it is recalled."""
        (self.folder / name).touch()

    def recall(self, name: str) -> None:
        """End what was ordered."""
        (self.folder / name).unlink()

    def nvml(self) -> NvmlMachine:
        """Return a machine with one H100."""
        folder = self.folder / "nvml"
        folder.mkdir()
        return NvmlMachine(folder, devices=(H100,))

    def start(self, variables: Mapping[str, str], *, own: bool) -> Running:
        """Start the application, with a provider of our `own` or under opentelemetry-instrument."""
        runtime = self.folder / "runtime"
        runtime.mkdir(0o700)
        instrument = () if own else (os.path.join(SCRIPTS, "opentelemetry-instrument"),)
        words = (sys.executable, os.path.join(PROGRAMS, "beating.py"), str(self.folder), *(("configure",) * own))
        common = {
            **over("http/protobuf", self.backend.http_endpoint, round(INTERVAL * 1000)),
            **ONLY_HOST,
            "OTEL_SERVICE_NAME": self.service,
            "OTEL_METRICS_EXPORTER": "otlp",
            "OTEL_TRACES_EXPORTER": "none",
            "OTEL_LOGS_EXPORTER": "none",
            "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "system_metrics",
            f"{OURS}SAMPLING_INTERVAL": str(INTERVAL),
            "XDG_RUNTIME_DIR": str(runtime),
        }
        environment = clean_environment(**{**common, **variables})
        return self.stack.enter_context(Running(*instrument, *words, environment=environment))


class Fault(NamedTuple):
    """One thing that fails.

    `tags` is a pattern for the tags that are absent meanwhile, and `part` the collector and part that are ill.
    `says` are patterns for the lines of the application's log, in turn.
    `own` plays it under our own provider; `exports` tells that it is the export that fails.
    """

    name: str
    steps: Callable[[Place], Steps]
    tags: str = ""
    part: str = ""
    says: tuple[str, ...] = ()
    own: bool = False
    exports: bool = False

    @property
    def done(self) -> str:
        """What is done, in words."""
        return " ".join((self.steps.__doc__ or "").split()).rstrip(".")


@functools.cache
def shim() -> str:
    """Build what stands before the C library, once per process, and return its path."""
    built = os.path.join(tempfile.mkdtemp(prefix="libc-stand-in-"), "shim.so")
    flags = ("-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared")
    subprocess.run(["cc", *flags, *map(str, sorted(LIBC.glob("*.c"))), "-o", built, "-ldl"], check=True)  # noqa: S607
    return built


def collectors(*kinds: str) -> dict[str, str]:
    """Return the variable that chooses kinds."""
    return {f"{OURS}COLLECTORS": ",".join(kinds)}


def hung_call(place: Place) -> Steps:
    """No call of NVML returns, then they do."""
    machine = place.nvml()
    yield {**machine.environment, **collectors("cpu", "memory", "network", "nvidia")}
    machine.set(EVERY_CALL, Answer(delay=FOREVER))
    yield {}
    machine.unset(EVERY_CALL)


def hung_mount(place: Place) -> Steps:
    """`statvfs` of a path in `disk_paths` does not return, then it does."""
    mount = place.folder / "mount"
    mount.mkdir()
    yield {
        **collectors("cpu", "memory", "disk"),
        f"{OURS}DISK_PATHS": f"/,{mount}",
        "LD_PRELOAD": shim(),
        "STAND_IN_MOUNT": str(mount),
        "STAND_IN_HUNG": str(place.folder / "hung"),
    }
    place.order("hung")
    yield {}
    place.recall("hung")


def refusing_backend(place: Place) -> Steps:
    """The otelcol is stopped, so its port refuses, then it is started again."""
    yield {"OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
    place.backend.stop()
    yield {}
    place.backend.start()


FAULTS: Final = (
    Fault("hung NVML call", hung_call, r"gpu\..*", "nvidia", (r"nvidia: no answer for \d+ s", r"nvidia is back")),
    Fault(
        "hung mount",
        hung_mount,
        r"disk\..*/mount\..*",
        "disk .*/mount",
        (r"disk .*/mount: no answer for \d+ s", r"disk .*/mount is back"),
    ),
    Fault(
        "backend refuses",
        refusing_backend,
        says=(r"metrics are not exported: .+", r"metrics are exported again"),
        own=True,
        exports=True,
    ),
)
