"""What the tests say of the stand-in, said of a real GPU: `python tests/hardware/nvidia.py`.

Prints what it found and one line per check; exits with 1 where one fails, and with 0 and the reason where there is no
GPU. CUDA is used by this script only, in children of its own, through the driver's library.
"""

from __future__ import annotations

import ctypes
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import pynvml  # the oracle: asked past the collector

from otel_sysmetrics.catalog import CATALOG
from otel_sysmetrics.collector import Collector, Context, NotHere, Unavailable, parts
from otel_sysmetrics.collectors.nvidia.gpm import SPECS as GPM
from otel_sysmetrics.collectors.nvidia.processes import pids_are_the_hosts
from otel_sysmetrics.runner import said
from otel_sysmetrics.selection import Selection
from otel_sysmetrics.settings import Settings
from otel_sysmetrics.sources.files import Files
from otel_sysmetrics.sources.processes import WatchedProcess

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_sysmetrics.reading import Reading

WINDOW: Final = 1.0
HELD: Final = 256 * 2**20
PATIENCE: Final = 60.0

Points = dict[str, "Reading"]


class Skipped(Exception):
    """A check that cannot be made here; the argument says why."""


class Gpus:
    """The collector as the sampler would have it, and the tags that a first and a second sample gave."""

    def __init__(self) -> None:
        settings = Settings(metrics_included=("default", "gpu.*"))
        files = Files("/")
        watched = WatchedProcess(files, os.getpid, tree=False, clock=time.monotonic)
        wants = Selection(settings.metrics_included, settings.metrics_excluded).spec
        (part,) = parts("nvidia", Context(settings, files, watched, wants, time.monotonic))
        self.files = files
        self.collector: Collector = part.probe()
        self.first = self.sample()
        time.sleep(WINDOW)
        begun = time.perf_counter()
        self.second = self.sample()
        self.took = time.perf_counter() - begun

    def sample(self) -> Points:
        """Return one sample by tag."""
        readings = [reading for reading in self.collector.sample() if reading.value is not None]
        points = {reading.spec.fill(reading.labels): reading for reading in readings}
        assert len(points) == len(readings), "a tag came twice"
        return points

    def again(self) -> set[str]:
        """Return the tags of one more sample, those of GPM and of processes left out: they come and go."""
        return steady(self.sample())


def steady(points: Points) -> set[str]:
    """Return the tags that every sample of a GPU has."""
    gpm = {spec.tag for spec in GPM}
    return {
        tag for tag, reading in points.items() if reading.spec.tag not in gpm and not tag.startswith("gpu.process.")
    }


def handles() -> list[object]:
    """Return the handles of all GPUs that answer."""
    return [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]


def every_reading_is_one_of_the_catalogue(gpus: Gpus) -> str:
    """Check specs, attributes, and that values are finite and not negative."""
    assert gpus.second, "nothing was read"
    for tag, reading in gpus.second.items():
        assert CATALOG[reading.spec.tag] == reading.spec, tag
        assert reading.value is not None
        assert math.isfinite(reading.value), tag
        assert reading.value >= 0 or reading.spec.unit == "Cel", tag
        assert reading.attributes["hw.name"], tag
        assert str(reading.attributes["hw.id"]).startswith(("GPU-", "MIG-")), tag
        if reading.spec.unit == "%" and not tag.endswith(("fanSpeed", "powerPercent")):
            assert reading.value <= 100, f"{tag} is {reading.value}"
    return f"{len(gpus.second)} readings in {1000 * gpus.took:.1f} ms, those that block for 20 ms among them"


def indices_and_names_are_those_of_nvml(gpus: Gpus) -> str:
    """Check index, UUID and name of each GPU."""
    for index, handle in enumerate(handles()):
        of_gpu = [
            reading.attributes
            for reading in gpus.second.values()
            if reading.labels["gpu"] == index and "mig" not in reading.labels
        ]
        expected = {"hw.id": pynvml.nvmlDeviceGetUUID(handle), "hw.name": pynvml.nvmlDeviceGetName(handle)}
        assert of_gpu, f"GPU {index} says nothing"
        assert all(attributes == expected for attributes in of_gpu)
    return f"{len(handles())} GPUs"


ORACLES: Final[dict[str, tuple[float, Callable[[object], float]]]] = {
    "temp": (5, lambda handle: pynvml.nvmlDeviceGetTemperature(handle, 0)),
    "enforcedPowerLimitWatts": (0, lambda handle: pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000),
    "memoryAllocatedBytes": (
        64 * 2**20,
        lambda handle: pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2).used,
    ),
    "memoryClock": (500, lambda handle: pynvml.nvmlDeviceGetClockInfo(handle, 2)),
    "correctedMemoryErrors": (0, lambda handle: pynvml.nvmlDeviceGetMemoryErrorCounter(handle, 0, 0, 2)),
}


def values_are_those_of_nvml(gpus: Gpus) -> str:
    """Check values that hardly move against NVML, asked at once behind them, and that what it lacks is absent."""
    agreed = []
    points = gpus.sample()
    for index, handle in enumerate(handles()):
        for name, (tolerance, ask) in ORACLES.items():
            reading, truth = points.get(f"gpu.{index}.{name}"), asked(ask, handle)
            if truth is None:
                assert reading is None, f"{name} is sent, and NVML does not know it"
                continue
            assert reading is not None, f"{name} is missing, NVML says {truth}"
            assert reading.value is not None
            assert abs(reading.value - truth) <= tolerance, f"{name} is {reading.value}, NVML says {truth}"
            agreed.append(name)
    assert agreed, "nothing to compare"
    return f"{len(agreed)} values agree"


def asked(ask: Callable[[object], float], handle: object) -> float | None:
    """Return what NVML says, None where it does not."""
    try:
        return ask(handle)
    except pynvml.NVMLError:
        return None


def energy_rises(gpus: Gpus) -> str:
    """Check that energy goes up by about what the power says."""
    tags = [tag for tag in gpus.first if tag.endswith("energyJoules")]
    if not tags:
        raise Skipped("no energy counter")
    used = [(gpus.second[tag].value or 0) - (gpus.first[tag].value or 0) for tag in tags]
    assert min(used) > 0, used
    return ", ".join(f"{joules:.1f} J" for joules in used) + f" in {WINDOW:g} s"


def gpm_covers_the_window(gpus: Gpus) -> str:
    """Check that GPM gives nothing at first and everything then, where it is supported."""
    tags = {spec.tag for spec in GPM if "Bytes" not in spec.tag}
    assert not {reading.spec.tag for reading in gpus.first.values()} & tags, "a first sample has no window"
    sent = [tag for tag, reading in gpus.second.items() if reading.spec.tag in tags]
    if not sent:
        raise Skipped("no GPU here has GPM")
    return ", ".join(f"{tag} {gpus.second[tag].value:.2f}" for tag in sorted(sent))


def a_shutdown_by_another_library_costs_no_sample(gpus: Gpus) -> str:
    """Check that a surplus nvmlShutdown is mended within the sample."""
    before = gpus.again()
    pynvml.nvmlShutdown()
    pynvml.nvmlShutdown()
    after = gpus.again()
    pynvml.nvmlInit()
    assert after == before, before ^ after
    return "all tags came"


def a_forked_child_samples_too(gpus: Gpus) -> str:
    """Check that a child opens NVML itself, that CUDA starts in it, and that the parent goes on."""
    before = gpus.again()
    child = os.fork()
    if child == 0:
        try:
            well = gpus.again() == before and cuda() in {0, None}
        except BaseException as error:  # noqa: BLE001 - nothing may run on in the child
            os.write(2, f"{error}\n".encode())
            well = False
        os._exit(0 if well else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, "the child failed"
    assert gpus.again() == before
    return "and CUDA starts in it" if cuda_library() else "there is no CUDA here to start in it"


def cuda_library() -> ctypes.CDLL | None:
    """Return CUDA's driver library, if there is one."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def cuda() -> int | None:
    """Start CUDA in this process and return its code, None where there is none."""
    library = cuda_library()
    return None if library is None else int(library.cuInit(0))


HOLD: Final = f"""
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
for code in (
    cuda.cuInit(0),
    cuda.cuDeviceGet(ctypes.byref(device), 0),
    cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device),
    cuda.cuCtxSetCurrent(context),
    cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t({HELD})),
):
    assert code == 0, code
print("holding", flush=True)
sys.stdin.read()
"""


def a_descendant_on_a_gpu_is_seen(gpus: Gpus) -> str:
    """Check gpu.process.* while a child holds memory, and its absence before and after."""
    if cuda_library() is None:
        raise Skipped("no libcuda.so.1")
    if not pids_are_the_hosts(gpus.files):
        assert not [tag for tag in gpus.sample() if tag.startswith("gpu.process.")]
        raise Skipped("another pid namespace: nothing is sent, as it should be")
    assert not [tag for tag in gpus.sample() if tag.startswith("gpu.process.")]
    with subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline(), "CUDA did not start"
        sent = {tag: reading.value for tag, reading in gpus.sample().items() if tag.startswith("gpu.process.")}
        child.communicate()
    held = [value for tag, value in sent.items() if tag.endswith("processMemoryBytes")]
    assert len(sent) >= len(held) + 1, sent
    assert all((value or 0) >= HELD for value in held), held
    time.sleep(WINDOW)
    assert not [tag for tag in gpus.sample() if tag.startswith("gpu.process.")], "the child is gone"
    return f"{len(sent)} tags, {[f'{(value or 0) / 2**20:.0f} MiB' for value in held]}"


CHECKS: Final = (
    every_reading_is_one_of_the_catalogue,
    indices_and_names_are_those_of_nvml,
    values_are_those_of_nvml,
    energy_rises,
    gpm_covers_the_window,
    a_descendant_on_a_gpu_is_seen,
    a_shutdown_by_another_library_costs_no_sample,
    a_forked_child_samples_too,
)


def main() -> int:
    """Make all checks and return the exit status."""
    try:
        gpus = Gpus()
    except (NotHere, Unavailable) as reason:
        print(f"skipped: {said(reason)}")  # noqa: T201 - its purpose
        return 0
    print(gpus.collector.describe())  # noqa: T201 - likewise
    pynvml.nvmlInit()
    failed = 0
    for check in CHECKS:
        try:
            result = f"ok: {check(gpus)}"
        except Skipped as reason:
            result = f"skipped: {reason}"
        except AssertionError as error:
            failed, result = failed + 1, f"FAILED: {error}"
        print(f"{check.__name__}: {result}", flush=True)  # noqa: T201 - likewise
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
