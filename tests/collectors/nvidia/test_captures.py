"""Each capture of tests/captures/nvidia and its golden: one line per reading, `tag unit value`, sorted."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from otel_sysmetrics.catalog import CATALOG
from tests.collectors.nvidia.program import Program
from tests.nvml import CAPTURES, NvmlMachine

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("name", sorted(path.stem for path in CAPTURES.glob("*.json")))
def test_a_capture_gives_its_golden(name: str, tmp_path: Path) -> None:
    every = ["default", *sorted(spec.tag.replace("{gpu}", "*") for spec in CATALOG.values() if not spec.on)]
    with Program(NvmlMachine.from_capture(tmp_path, name), metrics_included=every).probe() as program:
        program.sample()
        points = program.sample()
    found = "".join(f"{tag} {point.unit} {point.value:.12g}\n" for tag, point in sorted(points.items()))
    golden = CAPTURES / f"{name}.golden"
    if os.environ.get("WRITE_GOLDENS") == "1":
        golden.write_text(found, encoding="utf-8")
    assert found == golden.read_text(encoding="utf-8")
