"""What can fail around a running application, and how it is made to fail: one row per fault.

Each is done at the border where it happens: the vendor's library, the C library, an executable on PATH, a socket.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from tests.collectors.openmetrics_server import serving
from tests.front import Front
from tests.nvml import EVERY_CALL, FOREVER, Answer, Code
from tests.parts import program, until
from tests.stage import OURS, shim

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.collectors.openmetrics_server import Handler
    from tests.stage import Place

HOUR: Final = 3600
CARD: Final = {"GPU use (%)": "5", "Unique ID": "0xA1", "PCI Bus": "0000:63:00.0", "Card Series": "MI210"}

# Each of a fault's three steps ends in a yield: what the application is started with, the fault, its end.
Steps: TypeAlias = Iterator[Mapping[str, str]]


class Fault(NamedTuple):
    """One thing that fails.

    `tags` is a pattern for the tags that are absent meanwhile, and `part` the collector and part that are ill.
    `says` are patterns for the lines of the application's log: first what is said of the change, then of the recovery.
    `own` plays it under our own provider; `exports` tells that it is the export that fails.
    """

    name: str
    steps: Callable[[Place], Steps]
    tags: str = ""
    part: str = ""
    says: tuple[str, ...] = ()
    own: bool = False
    exports: bool = False


def collectors(*kinds: str) -> dict[str, str]:
    """Return the variable that chooses kinds."""
    return {f"{OURS}COLLECTORS": ",".join(kinds)}


def hung_call(place: Place) -> Steps:
    """Have no call of NVML return for a while."""
    machine = place.nvml()
    yield {**machine.environment, **collectors("cpu", "memory", "network", "nvidia")}
    machine.set(EVERY_CALL, Answer(delay=FOREVER))
    yield {}
    machine.unset(EVERY_CALL)


def hung_mount(place: Place) -> Steps:
    """Have `statvfs` of one path of `disk_paths` not return for a while."""
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
    """Have every call of NVML say UNINITIALIZED for a while."""
    machine = place.nvml()
    yield {**machine.environment, **collectors("cpu", "memory", "network", "nvidia")}
    machine.set(EVERY_CALL, Answer(code=Code.UNINITIALIZED))
    yield {}
    machine.unset(EVERY_CALL)


def unloaded_driver(place: Place) -> Steps:
    """Have every call of NVML say DRIVER_NOT_LOADED for a while."""
    machine = place.nvml()
    yield {**machine.environment, **collectors("cpu", "memory", "network", "nvidia")}
    machine.set(EVERY_CALL, Answer(code=Code.DRIVER_NOT_LOADED))
    yield {}
    machine.unset(EVERY_CALL)


def lost_gpu(place: Place) -> Steps:
    """Have every call for the second GPU of two say GPU_IS_LOST (15) for a while."""
    machine = place.nvml(2)
    yield {**machine.environment, **collectors("cpu", "memory", "network", "nvidia")}
    machine.set(EVERY_CALL, Answer(code=Code.GPU_IS_LOST), 1)
    yield {}
    machine.unset(EVERY_CALL, 1)


def hung_tool(place: Place) -> Steps:
    """Have `rocm-smi` hang for a while."""
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
    """Have an OpenMetrics endpoint accept connections and not answer for a while."""
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
    """Step the wall clock forward by an hour, then back by two."""
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
    """Make short children, five at a time and without a pause, in the watched process tree."""
    yield {f"{OURS}TRACK_PROCESS_TREE": "true"}
    place.order("storm")
    yield {}
    place.recall("storm")


def used_up_descriptors(place: Place) -> Steps:
    """Have the application take every file descriptor that is left, and give them back."""
    yield collectors("cpu", "memory", "network")
    place.order("descriptors")
    yield {}
    place.recall("descriptors")


def used_up_memory(place: Place) -> Steps:
    """Have the application take all memory below a limit (RLIMIT_AS) close to what it uses, and give it back."""
    yield {}
    place.order("memory")
    yield {}
    place.recall("memory")


def refusing_backend(place: Place) -> Steps:
    """Stop the otelcol that is exported to, and start it again."""
    yield {}
    place.backend.stop()
    yield {}
    place.backend.start()


def overloaded_backend(place: Place) -> Steps:
    """Answer each export with status 503 for a while."""
    yield from behind(Front(place.backend.http_endpoint), place, "overloaded")


def silent_backend(place: Place) -> Steps:
    """Accept each export and not answer it for a while."""
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
    Fault(
        "descriptors used up",
        used_up_descriptors,
        r"(cpu|memory_|network|proc).*",
        "cpu|memory|network",
        (
            *(rf"{part}: Too many open files: .*" for part in ("cpu", "memory", "network")),
            *(rf"{part} is back" for part in ("cpu", "memory", "network")),
        ),
    ),
    Fault("memory used up", used_up_memory),
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
