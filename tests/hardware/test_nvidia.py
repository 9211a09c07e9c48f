"""The script for real GPUs is itself tried, on the stand-in."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.nvml import GEFORCE, H100, Code, NvmlMachine

if TYPE_CHECKING:
    from tests.conftest import MakeMachine

SCRIPT: Final = Path(__file__).with_name("nvidia.py")


def run(host: NvmlMachine) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPT],
        env={**os.environ, **host.environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_all_checks_are_made_and_hold(machine: MakeMachine) -> None:
    done = run(machine(H100, GEFORCE))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("driver 580.95.05, CUDA 13.0; GPU 0: NVIDIA H100")
    assert done.stdout.count(": ok: ") >= 7
    assert done.stderr == ""


def test_what_is_wrong_is_found(machine: MakeMachine) -> None:
    host = machine(H100)
    host.set("nvmlDeviceGetTotalEnergyConsumption", 9_000_000, 0)
    done = run(host)
    assert done.returncode == 1
    assert "energy_rises: FAILED" in done.stdout


def test_without_a_gpu_the_reason_is_given(machine: MakeMachine) -> None:
    host = machine(H100)
    host.set("nvmlInitWithFlags", Code.DRIVER_NOT_LOADED)
    done = run(host)
    assert (done.returncode, done.stdout) == (
        0,
        "skipped: the NVIDIA driver is not loaded (load it: modprobe nvidia)\n",
    )
