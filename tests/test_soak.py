"""A short soak; `make soak` runs a long one, and tests/soak/soak.py says what it does."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.fakes import REPOSITORY
from tests.soak.growth import LOOKS, NOISE, Held, grown

CYCLES = 2_000
PATIENCE = 300.0
"""Of a machine that does other things meanwhile; by itself it takes a tenth of that."""


@pytest.mark.nvml
@pytest.mark.usefixtures("nvml_builds")
def test_nothing_grows_while_things_go_wrong_and_everything_comes_back() -> None:
    """Memory, descriptors, threads, child processes."""
    command = (sys.executable, "-m", "tests.soak", "--cycles", str(CYCLES))
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=PATIENCE, check=False)

    assert done.returncode == 0, "\n".join([*done.stdout.splitlines()[-8:], done.stderr[-4000:]])


def looks(**growth: int) -> list[Held]:
    """Return looks of a process of which something grows by so much in each cycle."""
    cycles = range(0, 100_000, 100_000 // LOOKS)
    start = Held(0, 100 * 2**20, 20, 20, 1)
    held = start._asdict()
    return [
        start._replace(cycles=at, **{name: int(held[name] + by * at) for name, by in growth.items()}) for at in cycles
    ]


@pytest.mark.parametrize(("what", "by"), [("memory", 1024), ("descriptors", 1), ("threads", 1), ("children", 1)])
def test_what_grows_with_the_cycles_is_found(what: str, by: int) -> None:
    assert [found.split()[0] for found in grown(looks(**{what: by}))] == [what]


def test_what_grows_in_the_warm_up_or_goes_up_and_down_is_not() -> None:
    still = looks()
    warm = [look._replace(memory=look.memory - 50 * 2**20) for look in still[: LOOKS // 10]]
    wild = [
        look._replace(memory=look.memory + index % 2 * NOISE, threads=20 + index % 3)
        for index, look in enumerate(still)
    ]

    assert grown([*warm, *still[len(warm) :]]) == grown(wild) == []
