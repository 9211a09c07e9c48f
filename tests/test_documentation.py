"""What the documents show works as it stands there."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import fields
from pathlib import Path
from typing import Final

import pytest

import otel_sysmetrics
from otel_sysmetrics.settings import Settings
from tests.running import clean_environment, command

PACKAGE: Final = Path(otel_sysmetrics.__file__).parent
ROOT: Final = Path(__file__).parents[1]


def blocks(document: str, language: str) -> list[str]:
    """Return the blocks of code in a document."""
    text = (ROOT / document).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


@pytest.mark.skipif(not Path("/proc/sys/fs/file-nr").exists(), reason="the example reads /proc/sys/fs/file-nr")
def test_the_example_of_a_collector_works_as_soon_as_it_is_pasted(tmp_path: Path) -> None:
    """Each block goes into the file that its first line names, and `sample` prints its tag."""
    shutil.copytree(PACKAGE, tmp_path / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
    for block in blocks("CONTRIBUTING.md", "python"):
        (tmp_path / block.splitlines()[0].removeprefix("# ")).write_text(block, encoding="utf-8")

    environment = clean_environment(OTEL_PYTHON_SYSMETRICS_METRICS_INCLUDED="files.*")
    words = ("sample", "--window", "0.1", "--format", "json")
    with command(*words, environment=environment, cwd=str(tmp_path)) as program:
        assert program.finish() == 0, program.tell()
    (point,) = json.loads("\n".join(program.lines))
    assert (point["name"], point["unit"]) == ("files.open", "{file}")
    assert point["value"] > 0


@pytest.mark.otelcol
def test_the_configuration_of_otelcol_is_one_that_it_accepts(otelcol_binary: str, tmp_path: Path) -> None:
    """As it stands in the README."""
    (config,) = [block for block in blocks("README.md", "yaml") if block.startswith("receivers:")]
    file = tmp_path / "otelcol.yaml"
    file.write_text(config, encoding="utf-8")
    done = subprocess.run([otelcol_binary, "validate", "--config", str(file)], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_setting_has_its_row() -> None:
    """The table is written by hand."""
    rows = re.findall(r"^\| `(\w+)` \|", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert [field.name for field in fields(Settings) if rows.count(field.name) != 1] == []
