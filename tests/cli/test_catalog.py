"""`otel-sysmetrics catalog` lists every metric in three formats, one of which is our documentation."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from otel_sysmetrics.catalog import CATALOG
from otel_sysmetrics.cli import commands
from otel_sysmetrics.spec import Kind, Scope

DOCUMENTATION = Path(__file__).parents[2] / "docs" / "metrics.md"


def catalog(style: str) -> str:
    done = CliRunner().invoke(commands, ["catalog", "--format", style])
    assert done.exit_code == 0, done.output
    return done.output


def test_documentation_is_fresh() -> None:
    """docs/metrics.md is what the catalogue says now; `make docs` writes it."""
    assert DOCUMENTATION.read_text(encoding="utf-8").splitlines() == catalog("markdown").splitlines()


def test_json_is_for_programs() -> None:
    """Each spec is one object, with kind and scope in the words of the catalogue."""
    rows = {row["tag"]: row for row in json.loads(catalog("json"))}
    assert rows.keys() == CATALOG.keys()
    for tag, spec in CATALOG.items():
        row = rows[tag]
        assert row["unit"] == spec.unit
        assert Kind(row["kind"]) is spec.kind
        assert Scope(row["scope"]) is spec.scope
        assert row["on"] is spec.on
        assert set(row["attributes"]) == {*dict(spec.labels).values(), *spec.attributes, *("*" * spec.any_attributes)}
        assert len(set(row["attributes"])) == len(row["attributes"]), tag
        assert row["meaning"] == spec.brief
        assert row["collectors"] == list(spec.collectors)


def test_markdown_is_one_well_formed_table() -> None:
    """Every row has as many cells as the head, and no tag is missing."""
    lines = [line for line in catalog("markdown").splitlines() if line.startswith("|")]
    assert len({line.count(" | ") for line in lines}) == 1
    assert [line.split("`")[1] for line in lines[2:]] == list(CATALOG)


def test_no_row_of_the_documentation_names_an_attribute_twice() -> None:
    """A label may have the key of an attribute, as `{key}` of an IPU and `wandb.key`."""
    head, _, *rows = (line.split(" | ") for line in catalog("markdown").splitlines() if line.startswith("|"))
    named = [row[head.index("attributes")].split(", ") for row in rows]
    assert any(len(keys) > 1 for keys in named)
    assert [keys for keys in named if len(set(keys)) < len(keys)] == []


def test_table_is_as_wide_as_it_needs_to_be() -> None:
    """Where nobody looks at a terminal each spec is one line with its whole meaning."""
    _, _, *lines = catalog("table").splitlines()
    assert [line.split()[0] for line in lines] == list(CATALOG)
    assert all(spec.brief in line for line, spec in zip(lines, CATALOG.values(), strict=True))
