"""What can fail around a running application, and how it is made to fail: one row per fault.

Each is done at the border where it happens: the vendor's library, the C library, an executable on PATH, a socket.
"""

from __future__ import annotations

import functools
import json
import os
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from tests.collectors.openmetrics_server import serving
from tests.front import Front
from tests.here import ONLY_HOST
from tests.nvml import EVERY_CALL, FOREVER, H100, Answer, Code, NvmlMachine
from tests.parts import program, until
from tests.running import PROGRAMS, SCRIPTS, Running, clean_environment, over

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.collectors.openmetrics_server import Handler
    from tests.otelcol import Otelcol

INTERVAL: Final = 0.4
LIBC: Final = Path(__file__).parent / "stand_ins" / "libc"
HOUR: Final = 3600
CARD: Final = {"GPU use (%)": "5", "Unique ID": "0xA1", "PCI Bus": "0000:63:00.0", "Card Series": "MI210"}
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

    def nvml(self, count: int = 1) -> NvmlMachine:
        """Return a machine with so many H100."""
        folder = self.folder / "nvml"
        folder.mkdir()
        return NvmlMachine(folder, devices=(H100,) * count)

    def start(self, variables: Mapping[str, str], *, own: bool) -> Running:
        """Start the application, with a provider of our `own` or under opentelemetry-instrument."""
        runtime = self.folder / "runtime"
        runtime.mkdir(0o700)
        instrument = () if own else (os.path.join(SCRIPTS, "opentelemetry-instrument"),)
        words = (sys.executable, os.path.join(PROGRAMS, "beating.py"), str(self.folder), *(("configure",) * own))
        common = {
            **over("http/protobuf", self.backend.http_endpoint, round(INTERVAL * 1000)),
            **ONLY_HOST,
            "OTEL_EXPORTER_OTLP_TIMEOUT": "1",
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


def killed_nvml(place: Place) -> Steps:
    """Every call of NVML says UNINITIALIZED, then NVML can be opened again."""
    machine = place.nvml()
    yield {**machine.environment, **collectors("cpu", "memory", "network", "nvidia")}
    machine.set(EVERY_CALL, Answer(code=Code.UNINITIALIZED))
    yield {}
    machine.unset(EVERY_CALL)


def unloaded_driver(place: Place) -> Steps:
    """Every call of NVML says DRIVER_NOT_LOADED, then the driver is loaded again."""
    machine = place.nvml()
    yield {**machine.environment, **collectors("cpu", "memory", "network", "nvidia")}
    machine.set(EVERY_CALL, Answer(code=Code.DRIVER_NOT_LOADED))
    yield {}
    machine.unset(EVERY_CALL)


def lost_gpu(place: Place) -> Steps:
    """Every call for the second GPU of two says GPU_IS_LOST (15), then it is back."""
    machine = place.nvml(2)
    yield {**machine.environment, **collectors("cpu", "memory", "network", "nvidia")}
    machine.set(EVERY_CALL, Answer(code=Code.GPU_IS_LOST), 1)
    yield {}
    machine.unset(EVERY_CALL, 1)


def hung_tool(place: Place) -> Steps:
    """Each run of `rocm-smi` hangs, then it answers."""
    (place.folder / "document").write_text(json.dumps({"card0": CARD}))
    hung = place.folder / "hung"
    program(
        place.folder / "bin",
        "rocm-smi",
        f"while [ -e '{hung}' ]; do sleep 0.05; done; exec cat '{place.folder}/document'\n",
    )
    yield {
        **collectors("cpu", "memory", "network", "amd"),
        "PATH": f"{place.folder / 'bin'}:{os.environ['PATH']}",
    }
    place.order("hung")
    yield {}
    place.recall("hung")


def silent_endpoint(place: Place) -> Steps:
    """An OpenMetrics endpoint accepts and never answers, then it answers."""
    hung = place.folder / "hung"

    def answer(request: Handler) -> None:
        until(lambda: not hung.exists(), 60)
        request.say("# TYPE jobs gauge\njobs 3\n")

    server = place.stack.enter_context(serving(answer))
    yield {
        **collectors("cpu", "memory", "network", "openmetrics"),
        f"{OURS}OPENMETRICS_ENDPOINTS": json.dumps({"node": {"url": server.url, "timeout": 1}}),
    }
    place.order("hung")
    yield {}
    place.recall("hung")


def stepped_clock(place: Place) -> Steps:
    """The wall clock is stepped forward by an hour, then back by two."""
    clock = place.folder / "clock"
    clock.write_bytes(struct.pack("=q", 0))

    def step(seconds: int) -> None:
        with clock.open("r+b", buffering=0) as file:
            file.write(struct.pack("=q", seconds))

    yield {"LD_PRELOAD": shim(), "STAND_IN_CLOCK": str(clock)}
    step(HOUR)
    yield {}
    step(-HOUR)


def vanishing_processes(place: Place) -> Steps:
    """Five short children at a time are made and end without a pause, in the watched process tree."""
    yield {f"{OURS}TRACK_PROCESS_TREE": "true"}
    place.order("storm")
    yield {}
    place.recall("storm")


def used_up_descriptors(place: Place) -> Steps:
    """The application takes every file descriptor that is left, then it gives them back."""
    yield {}
    place.order("descriptors")
    yield {}
    place.recall("descriptors")


def used_up_memory(place: Place) -> Steps:
    """The application takes all memory below a limit (RLIMIT_AS) close to its use, then it gives it back."""
    yield {}
    place.order("memory")
    yield {}
    place.recall("memory")


def refusing_backend(place: Place) -> Steps:
    """Stop otelcol, so that its port refuses, then start it again."""
    yield {}
    place.backend.stop()
    yield {}
    place.backend.start()


def overloaded_backend(place: Place) -> Steps:
    """The backend answers each export with 503, then it takes them."""
    yield from behind(Front(place.backend.http_endpoint), place, "overloaded")


def silent_backend(place: Place) -> Steps:
    """The backend accepts connections and never answers, then it does."""
    yield from behind(Front(place.backend.http_endpoint), place, "silent")


def behind(front: Front, place: Place, mode: str) -> Steps:
    """Put something between the application and otelcol that behaves otherwise for a while."""
    place.stack.enter_context(front)
    yield {"OTEL_EXPORTER_OTLP_ENDPOINT": front.url}
    front.mode = mode
    yield {}
    front.mode = "passing"


FAULTS: Final = (
    Fault("hung NVML call", hung_call, r"gpu\..*", "nvidia", (r"nvidia: no answer for \d+ s", r"nvidia is back")),
    Fault("NVML killed", killed_nvml, r"gpu\..*", "nvidia", (r"nvidia: .*", r"nvidia is back")),
    Fault("driver unloaded", unloaded_driver, r"gpu\..*", "nvidia", (r"nvidia: .*", r"nvidia is back")),
    Fault("GPU lost", lost_gpu, r"gpu\.1\..*", says=(r"nvidia: .*", r"nvidia.* back")),
    Fault(
        "hung mount",
        hung_mount,
        r"disk\..*/mount\..*",
        "disk .*/mount",
        (r"disk .*/mount: no answer for \d+ s", r"disk .*/mount is back"),
    ),
    Fault("hung vendor tool", hung_tool, r"gpu\..*", "amd", (r"amd: no answer for \d+ s", r"amd is back")),
    Fault(
        "silent OpenMetrics endpoint",
        silent_endpoint,
        r"openmetrics\..*",
        "openmetrics node",
        (r"openmetrics node: .*", r"openmetrics node is back"),
    ),
    Fault("clock stepped", stepped_clock),
    Fault("processes that vanish", vanishing_processes),
    Fault("descriptors used up", used_up_descriptors, ".*", own=True),
    Fault("memory used up", used_up_memory, ".*", own=True),
    Fault(
        "backend refuses",
        refusing_backend,
        says=(r"metrics are not exported: .+", r"metrics are exported again"),
        own=True,
        exports=True,
    ),
    Fault(
        "backend answers 503",
        overloaded_backend,
        says=(r"metrics are not exported: .+", r"metrics are exported again"),
        own=True,
        exports=True,
    ),
    Fault(
        "backend never answers",
        silent_backend,
        says=(r"metrics are not exported: .+", r"metrics are exported again"),
        own=True,
        exports=True,
    ),
)
