"""`python -m tests.soak [--cycles N] [--seed S] [--leak BYTES]` prints what is held; status 1 where it has grown.

The cycles run in a process of their own, since the loader of Linux looks for a driver's library where the environment
said when the process began.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import pickle
import random
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.fakes import REPOSITORY
from tests.nvml import H100, NvmlMachine
from tests.soak.machine import GPUS, Machine
from tests.soak.soak import Soak, quietly

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

POPLAR: Final = Path(__file__).parents[1] / "stand_ins" / "poplar" / "gcipuinfo.py"


def main() -> int:
    """Run the soak that the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak")
    parser.add_argument("--cycles", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--leak", type=int, default=0, help="bytes to leak in each cycle, to see that it is found")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.inside:
        return inside(Path(chosen.inside), chosen)
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        folder = Path(name)
        environment = prepared(folder)
        with servers(folder) as ports:
            (folder / "ports.json").write_text(json.dumps(ports))
            command = (sys.executable, "-m", "tests.soak", "--inside", name)
            words = ("--cycles", str(chosen.cycles), "--seed", str(chosen.seed), "--leak", str(chosen.leak))
            return subprocess.run((*command, *words), env=environment, cwd=REPOSITORY, check=False).returncode


def prepared(folder: Path) -> Mapping[str, str]:
    """Make what has to be there before the process begins, and return its environment."""
    for name in ("nvml", "runtime", "poplar"):
        (folder / name).mkdir(mode=0o700)
    shutil.copy(POPLAR, folder / "poplar")
    nvml = NvmlMachine(folder / "nvml", devices=(H100,) * GPUS)
    (folder / "nvml.pickle").write_bytes(pickle.dumps(nvml))
    ours = {
        "PATH": f"{folder / 'bin'}:/usr/bin:/bin",
        "PYTHONPATH": str(folder / "poplar"),
        "XDG_RUNTIME_DIR": str(folder / "runtime"),
    }
    return {**os.environ, **nvml.environment, **ours}


@contextmanager
def servers(folder: Path) -> Iterator[Mapping[str, int]]:
    """Start the servers and return their ports."""
    command = (sys.executable, "-m", "tests.soak.servers", str(folder))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPOSITORY, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())
        process.stdin.close()


def inside(folder: Path, chosen: argparse.Namespace) -> int:
    """Run the cycles."""
    say(f"seed {chosen.seed}")
    random.seed(chosen.seed)
    hoard: list[bytes] = []
    nvml = pickle.loads((folder / "nvml.pickle").read_bytes())  # noqa: S301 - our own parent's
    ports = json.loads((folder / "ports.json").read_text())
    faulthandler.enable()
    with quietly():
        leak = (lambda: hoard.append(random.randbytes(chosen.leak))) if chosen.leak else (lambda: None)
        soak = Soak(Machine(folder, nvml), ports, chosen.seed, leak)
        found = soak.run(chosen.cycles, say)
        ill = soak.recover()
        soak.close()
    say(f"{soak.cycles} cycles, {soak.faults} faults, {soak.points()} points in the last exports")
    for what in (*(f"has grown: {each}" for each in found), *(f"is not well at the end: {each}" for each in ill)):
        say(f"{what} (seed {chosen.seed})")
    return 1 if found or ill else 0


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
