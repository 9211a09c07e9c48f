from __future__ import annotations

import ast
import os
import re
from pathlib import Path
from typing import Final

import pytest

import otel_sysmetrics
from tests.fakes import run_script

PACKAGE: Final = Path(otel_sysmetrics.__file__).parent
MODULES: Final = sorted(PACKAGE.rglob("*.py"))
MOST_LINES: Final = 300

IMPORT: Final = """
    import importlib
    import json
    import sys
    import threading

    for name in sys.argv[1:]:
        importlib.import_module(name)
    print(json.dumps([threading.active_count(), sorted({name.partition(".")[0] for name in sys.modules})]))
"""
OUTSIDE: Final = {"opentelemetry", "psutil", "pynvml", "tenacity", "click", "rich", "grpc", "google", "requests"}
COLLECTING: Final = (
    *("spec", "reading", "environment_variables", "settings", "selection", "catalog"),
    *("collectors", "sources", "sampler", "threads", "importing"),
)
TABLES: Final = [path for path in MODULES if path.parent.stem == "catalog" and path.stem != "__init__"]


def name_of(path: Path) -> str:
    """Return a module's name."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def collecting() -> list[str]:
    """Return the modules that do not know OpenTelemetry."""
    return [
        name for name in map(name_of, MODULES) if name.startswith(tuple(f"otel_sysmetrics.{x}" for x in COLLECTING))
    ]


def ids(path: Path) -> str:
    return os.path.relpath(path, PACKAGE)


def test_to_import_the_package_starts_no_thread_and_loads_no_other_package() -> None:
    threads, loaded = run_script(IMPORT, "otel_sysmetrics")

    assert threads == 1
    assert OUTSIDE.isdisjoint(loaded)


def test_collecting_does_not_know_opentelemetry_and_loads_no_vendors_library() -> None:
    names = collecting()
    assert {"otel_sysmetrics.sampler", "otel_sysmetrics.collectors.cpu", "otel_sysmetrics.sources.files"} <= set(names)
    threads, loaded = run_script(IMPORT, *names)

    assert threads == 1
    assert OUTSIDE.isdisjoint(loaded)


def test_the_instrumentor_is_loaded_without_a_thread_and_without_a_vendors_library() -> None:
    threads, loaded = run_script(IMPORT, "otel_sysmetrics.instrumentor")

    assert threads == 1
    assert {"psutil", "pynvml", "tenacity", "click", "rich", "grpc"}.isdisjoint(loaded)


def test_the_public_names_are_those_of_all_and_each_loads() -> None:
    assert otel_sysmetrics.__all__ == ["Settings", "SysMetricsInstrumentor", "__version__", "configure"]
    for name in otel_sysmetrics.__all__:
        assert getattr(otel_sysmetrics, name)
        assert name in dir(otel_sysmetrics)
    with pytest.raises(AttributeError, match=r"module 'otel_sysmetrics' has no attribute 'instrument'"):
        _ = otel_sysmetrics.instrument


def test_the_version_is_one() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+([ab.]\w+)?", otel_sysmetrics.__version__)


@pytest.mark.parametrize("path", MODULES, ids=ids)
def test_a_module_can_be_read_in_one_go(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MOST_LINES


@pytest.mark.parametrize("path", MODULES, ids=ids)
def test_a_module_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("path", TABLES, ids=ids)
def test_a_table_of_the_catalogue_holds_imports_and_assignments_and_nothing_else(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docstring, *statements = tree.body

    assert isinstance(docstring, ast.Expr)
    assert {type(node) for node in statements} <= {ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign}
    assert not any(isinstance(node, ast.Lambda) for node in ast.walk(tree))


def test_no_collector_imports_another() -> None:
    for path in (PACKAGE / "collectors").rglob("*.py"):
        kind = path.relative_to(PACKAGE / "collectors").parts[0].removesuffix(".py")
        imported = {
            node.module
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("otel_sysmetrics.collectors.")
        }
        assert {(module or "").split(".")[2] for module in imported} <= {"base", kind}, path
