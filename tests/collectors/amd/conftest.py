"""The machine that the tests of AMD's collector fit out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.collectors.amd.machine import Machine

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """Return a machine without any of it."""
    machine = Machine(tmp_path, monkeypatch)
    yield machine
    for bench in machine.benches:
        bench.close()
