"""CPU time of one sample of 8, 64 and 512 NVIDIA GPUs, and the calls of NVML that it makes for each.

The GPUs are the tests' stand-in of libnvidia-ml.so.1 behind the real binding: what is measured is the collector and the
binding. A real driver adds its own time for each call, so the number of calls is the figure that carries over.
The watched process is on every GPU, so that the rows of `gpu.process.*` are among what is read.
Beside it, where it is installed: gpustat, on the small machine only, since it waits 0.1 s for each GPU. It reads fewer
things of a GPU, and looks up each process on it.
"""

from __future__ import annotations

import json
import os
import subprocess  # noqa: TID251 - NVML is one per process
import sys
import tempfile
import time
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from side_by_side import table  # noqa: E402 - the path comes first

from tests.nvml import H100, NvmlMachine, Process, why_not  # noqa: E402 - likewise

if TYPE_CHECKING:
    from collections.abc import Callable

DEVICES = (8, 64, 512)
WARM_UP = 3
SAMPLES = 10


def main() -> None:
    """Measure each machine and print the table."""
    if reason := why_not():
        print(f"skipped: {reason}")
        return
    rows = [measure("ours", count) for count in DEVICES]
    if find_spec("gpustat"):
        rows.append(measure("gpustat", DEVICES[0]))
    head = (f"means of {SAMPLES} samples", "CPU per sample", "per GPU", "NVML calls per GPU", "readings per GPU")
    table(head, rows)


def measure(side: str, count: int) -> tuple[str, ...]:
    """Measure one side on a machine with so many GPUs, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        ours = {"nvmlDeviceGetComputeRunningProcesses_v3": [Process(os.getpid(), 2**30), Process(4242, 2**30)]}
        machine = NvmlMachine(Path(folder), devices=[{**H100, **ours}] * count)
        child = subprocess.Popen(
            [sys.executable, __file__, side],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **machine.environment, "PYTHONPATH": str(ROOT)},  # noqa: TID251 - likewise
            text=True,
        )
        pipe = child.stdout
        if pipe is not None:
            pipe.readline()
        before = machine.calls()
        answer = json.loads(child.communicate("go\n")[0])
        calls = (machine.calls() - before).total() / SAMPLES / count
    seconds = answer["seconds"] / SAMPLES
    each = f"{1e6 * seconds / count:.0f} µs"
    return f"{side}, {count} GPUs", f"{1e3 * seconds:.1f} ms", each, f"{calls:.1f}", f"{answer['readings'] / count:.0f}"


def child(side: str) -> None:
    """Sample in this process, and say what it cost."""
    sample = {"ours": our_sample, "gpustat": their_sample}[side]()
    for _ in range(WARM_UP):
        sample()
    print("ready", flush=True)
    sys.stdin.readline()
    begun = time.process_time()
    for _ in range(SAMPLES):
        readings = sample()
    print(json.dumps({"seconds": time.process_time() - begun, "readings": readings}))


def our_sample() -> Callable[[], int]:
    """Return what takes a sample and counts its readings; its clock runs on by 15 s each time."""
    from otel_sysmetrics.collector import Context, parts
    from otel_sysmetrics.selection import Selection
    from otel_sysmetrics.settings import Settings
    from otel_sysmetrics.sources.files import Files
    from otel_sysmetrics.sources.processes import WatchedProcess

    settings = Settings(shared_pid_namespace=True)
    files, now = Files("/"), [0.0]
    watched = WatchedProcess(files, os.getppid, tree=False, clock=lambda: now[0])
    wants = Selection(settings.metrics_included, settings.metrics_excluded).spec
    (part,) = parts("nvidia", Context(settings, files, watched, wants, lambda: now[0]))
    collector = part.probe()

    def sample() -> int:
        now[0] += 15
        return sum(reading.value is not None for reading in collector.sample())

    return sample


def their_sample() -> Callable[[], int]:
    """Return gpustat's query of all GPUs."""
    gpustat = import_module("gpustat")

    def sample() -> int:
        gpus = gpustat.new_query()
        return sum(value is not None for gpu in gpus for value in gpu.entry.values())

    return sample


if __name__ == "__main__":
    if sys.argv[1:]:
        child(sys.argv[1])
    else:
        main()
