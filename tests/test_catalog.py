from __future__ import annotations

import re
from importlib.util import find_spec
from typing import Final

import pytest

from otel_sysmetrics.catalog import CATALOG, KINDS, health, openmetrics
from otel_sysmetrics.spec import Fold, Kind, MetricSpec, Scope

SPECS: Final = tuple(CATALOG.values())
UNIT: Final = re.compile(r"[\x00-\x7F]{0,63}")  # the SDK's rule
PROCESS: Final = re.compile(
    r"cpu|proc\.cpu\.threads|proc\.memory\.rssMB|proc\.memory\.percent|gpu\.process\..*|ipu\..*", re.DOTALL
)

# The host's rows: tag, unit, kind, on, attributes.
HOST: Final = """
cpu                         %         G on
cpu.cpu_percent             %         G on
cpu.{cpu}.cpu_percent       %         G off cpu.logical_number
cpu.avg_temp                Cel       G off
system.load1                {thread}  G off
system.load5                {thread}  G off
system.load15               {thread}  G off
proc.cpu.threads            {thread}  G on
proc.cpu.throttledPercent   %         G on
proc.memory.rssMB           MiBy      G on
proc.memory.percent         %         G on
memory_percent              %         G on
proc.memory.availableMB     MiBy      G on
proc.memory.oomKills        {kill}    C on
swap.used                   By        G off
swap.used_percent           %         G off
disk.{path}.usagePercent    %         G on disk.path,system.device,system.filesystem.mountpoint
disk.{path}.usageGB         GiBy      G on disk.path,system.device,system.filesystem.mountpoint
disk.in                     MiBy      C on
disk.out                    MiBy      C on
disk.{dev}.in               MiBy      C on system.device
disk.{dev}.out              MiBy      C on system.device
network.sent                By        C on
network.recv                By        C on
network.tcpRetransmits      {segment} C on
sysmetrics.collector.success  {success} G on collector,part
sysmetrics.collector.duration s         G on collector,part
"""


def row(spec: MetricSpec) -> str:
    attributes = ",".join(sorted({*spec.attributes, *(attribute for _, attribute in spec.labels)}))
    kind, on = "G" if spec.kind is Kind.GAUGE else "C", "on" if spec.on else "off"
    return f"{spec.tag} {spec.unit} {kind} {on} {attributes}".strip()


@pytest.mark.parametrize("line", [" ".join(line.split()) for line in HOST.strip().splitlines()])
def test_the_hosts_rows_are_as_they_were_published(line: str) -> None:
    """Dashboards rest on these names and units: changing a row breaks them."""
    assert row(CATALOG[line.split(maxsplit=1)[0]]) == line


def test_no_row_of_the_host_is_missing_above() -> None:
    namespaces = ("cpu", "system.", "proc.", "memory_percent", "swap.", "disk.", "network.", "sysmetrics.")
    rows = {line.split()[0] for line in HOST.strip().splitlines()}

    assert {tag for tag in CATALOG if tag.startswith(namespaces)} == rows


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.tag)
class TestEveryRow:
    def test_its_tag_is_a_legal_name_whatever_fills_it(self, spec: MetricSpec) -> None:
        filled = spec.fill(dict.fromkeys(spec.placeholders, "/é"))

        assert re.fullmatch(r"[A-Za-z][A-Za-z0-9_.\-/]{0,254}", filled)
        assert filled.count("_") == spec.tag.count("_") + len(spec.placeholders)

    def test_its_unit_is_one_that_the_sdk_accepts(self, spec: MetricSpec) -> None:
        assert UNIT.fullmatch(spec.unit)
        assert spec.unit not in {"MB", "GB", "°C", "C", "bytes", "count"}

    def test_its_brief_is_one_sentence(self, spec: MetricSpec) -> None:
        assert spec.brief.endswith(".")
        assert not spec.brief[0].islower()
        assert "\n" not in spec.brief

    def test_each_placeholder_has_an_attribute_that_holds_the_original(self, spec: MetricSpec) -> None:
        carried = {label for label, _ in spec.labels} | ({"metric"} if spec is openmetrics.SERIES else set())
        assert sorted(carried) == sorted(spec.placeholders)
        assert all(attribute for _, attribute in spec.labels)

    def test_it_is_read_by_kinds_that_have_a_module(self, spec: MetricSpec) -> None:
        assert all(find_spec(f"otel_sysmetrics.collectors.{kind}") for kind in spec.collectors)

    def test_it_is_process_scoped_where_the_process_is_what_it_speaks_of(self, spec: MetricSpec) -> None:
        assert (spec.scope is Scope.PROCESS) == bool(PROCESS.fullmatch(spec.tag))

    def test_a_counter_is_not_averaged(self, spec: MetricSpec) -> None:
        assert not (spec.kind is Kind.COUNTER and spec.fold is Fold.MEAN)

    def test_only_openmetrics_keeps_the_sources_own_totals(self, spec: MetricSpec) -> None:
        assert spec.from_zero or spec.collectors == ("openmetrics",)


def test_no_two_tags_differ_by_case_alone() -> None:
    """The SDK does not tell names apart by case."""
    assert len({tag.lower() for tag in CATALOG}) == len(CATALOG)


def test_the_kinds_are_those_that_the_rows_name() -> None:
    assert set(KINDS) == {kind for spec in SPECS for kind in spec.collectors}
    assert len(set(KINDS)) == len(KINDS)
    assert {"cpu", "memory", "disk", "network"} <= set(KINDS)


def test_every_row_but_our_own_health_is_read_by_a_kind() -> None:
    assert [spec for spec in SPECS if not spec.collectors] == [health.SUCCESS, health.DURATION]
