"""The look for hardware that is not here costs the machine nothing that anybody would notice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from tests.fakes import run_script
from tests.parts import program

if TYPE_CHECKING:
    from pathlib import Path

VENDORS: Final = ("amd", "apple", "ipu", "tpu", "trainium")

LOOK: Final = """
    import json
    import os
    import sys

    import otel_sysmetrics
    from otel_sysmetrics.collector import NotHere
    from tests.collectors.test_contract import context, parts

    root, kinds = sys.argv[1], sys.argv[2:]
    os.environ["PATH"] = root
    done = set()
    STARTS = ("subprocess.", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.system", "pty.")
    DOORS = ("ctypes.dlopen", "socket.connect", "_thread.start_new_thread")
    KNOWN = {*sys.stdlib_module_names, "otel_sysmetrics"}
    OURS, STANDARD = (os.path.dirname(module.__file__) for module in (otel_sysmetrics, os))

    def is_foreign(file):
        ours = file.startswith(("<", OURS))
        return not ours and ("-packages" in file or not file.startswith(STANDARD))

    def look(event, arguments):
        if event.startswith((*STARTS, *DOORS)):
            done.add(event)
        elif event == "import" and arguments[0].partition(".")[0] not in KNOWN:
            done.add(f"import {arguments[0]}")  # by a statement, or of an extension
        elif event == "exec" and is_foreign(arguments[0].co_filename):
            done.add(f"run {os.path.basename(arguments[0].co_filename)}")

    sys.addaudithook(look)
    left = []
    for kind in kinds:
        for part in parts(kind, context(root)):
            try:
                part.probe()
            except NotHere:
                continue
            left.append(kind)
    print(json.dumps([sorted(done), left]))
"""


def test_where_none_of_it_is_here_no_program_is_started_and_no_vendors_module_imported(tmp_path: Path) -> None:
    """No library loaded, nobody connected to, no thread started either; an import counts also where it fails."""
    assert run_script(LOOK, str(tmp_path), *VENDORS) == [[], []]


@pytest.mark.parametrize("tool", ["ioreg", "rocm-smi", "amd-smi"])
def test_a_tool_on_path_is_what_makes_it_start_one(tool: str, tmp_path: Path) -> None:
    """And the test above would see it."""
    program(tmp_path, tool, "exit 0")
    script = LOOK.replace("except NotHere", "except Exception")

    assert run_script(script, str(tmp_path), *VENDORS)[0]


def test_a_module_on_the_path_is_what_makes_it_import_one(tmp_path: Path) -> None:
    """Likewise."""
    (tmp_path / "gcipuinfo.py").write_text("raise ImportError\n")
    script = LOOK.replace("except NotHere", "except Exception").replace(
        "done = set()", "done = set(); sys.path.append(root)"
    )

    assert run_script(script, str(tmp_path), *VENDORS) == [["run gcipuinfo.py"], []]
