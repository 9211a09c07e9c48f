"""What every kind of hardware keeps to, whatever it is."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final

import pytest

from otel_sysmetrics.catalog import CATALOG, KINDS, host
from otel_sysmetrics.collector import Context, NotHere, Unavailable, parts
from otel_sysmetrics.endpoints import Endpoint
from otel_sysmetrics.runner import Runner
from otel_sysmetrics.settings import Settings
from otel_sysmetrics.sources.files import Files
from otel_sysmetrics.sources.processes import WatchedProcess
from tests.fakes import ScriptedClock, run_script

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from otel_sysmetrics.collector import Collector, Part
    from otel_sysmetrics.reading import Reading

DIFFERENCES: Final = {spec.tag for spec in (host.CPU, host.CPU_PERCENT, host.CPU_CORE_PERCENT, host.PROCESS_THROTTLED)}
"""Gauges that need two looks."""

NOBODY: Final = "http://127.0.0.1:1/metrics"
"""Where nobody listens."""
NAMED: Final = {"/absent", "absent", "dcgm_exporter"}
"""Parts that are there because the user named them."""

pytestmark = pytest.mark.parametrize("kind", KINDS)


class Untouchable(Files):
    """Files that nobody may ask for anything."""

    def path(self, *parts: str) -> str:
        """Fail: whoever asks needs the path."""
        raise AssertionError(parts)


def context(
    root: str = "/", *, pid: int | None = None, clock: ScriptedClock | None = None, files: Files | None = None
) -> Context:
    """Return what a collector is given on this machine, or on one that lies elsewhere; everything is wanted."""
    clock = clock or ScriptedClock()
    files = files or Files(root)
    watched = WatchedProcess(files, lambda: pid, tree=True, clock=clock.now)
    settings = Settings(
        root_path=root,
        disk_paths=("/", "/absent"),
        openmetrics_endpoints={"absent": Endpoint(NOBODY)},
        dcgm_exporter=NOBODY,
    )
    return Context(settings=settings, files=files, watched=watched, wants=lambda _: True, clock=clock.now)


def found(part: Part) -> Collector | None:
    try:
        return part.probe()
    except (NotHere, Unavailable):
        return None


def samples(part: Part, clock: ScriptedClock) -> Iterator[tuple[Reading, ...]]:
    """Take three samples of a part, none where its hardware is not here; a sample may fail in any way."""
    collector = found(part)
    for _ in range(3 if collector else 0):
        assert collector is not None
        try:
            yield tuple(collector.sample())
        except Exception:  # noqa: BLE001 - which costs that pass
            yield ()
        clock.spend(1)


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the root of a machine that shows nothing, and hide the tools of this one."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return str(tmp_path)


def test_its_parts_are_told_apart_and_each_gives_tags_of_the_kind(kind: str) -> None:
    found_parts = tuple(parts(kind, context()))

    assert found_parts
    assert len({part.name for part in found_parts}) == len(found_parts)
    assert len(found_parts) == 1 or None not in {part.name for part in found_parts}
    for part in found_parts:
        assert part.kind == kind
        assert part.specs
        assert all(CATALOG[spec.tag] is spec and kind in spec.collectors for spec in part.specs)


def test_every_row_that_names_it_is_given_by_one_of_its_parts(kind: str) -> None:
    given = {spec.tag for part in parts(kind, context()) for spec in part.specs}

    assert given == {spec.tag for spec in CATALOG.values() if kind in spec.collectors}


def test_to_list_its_parts_looks_at_nothing(kind: str) -> None:
    """No file, no library, no program, no socket, no thread: it happens while the application starts."""
    assert run_script(
        """
        import json
        import sys
        import threading

        from tests.collectors.test_contract import Untouchable, context, parts

        given = context(files=Untouchable())
        tuple(parts(sys.argv[1], given))
        looked, armed = [], True
        LOOKS = ("open", "os.", "ctypes.", "subprocess.", "socket.", "import", "glob.", "shutil.", "_thread.")

        def look(event, arguments):
            if armed and event.startswith(LOOKS):
                looked.append([event, repr(arguments)])

        sys.addaudithook(look)
        tuple(parts(sys.argv[1], given))
        armed = False
        print(json.dumps([looked, threading.active_count()]))
        """,
        kind,
    ) == [[], 1]


def test_what_it_reads_on_this_machine_keeps_to_the_catalogue(kind: str) -> None:
    clock = ScriptedClock()
    for part in parts(kind, context(pid=1, clock=clock)):
        for readings in samples(part, clock):
            for reading in readings:
                spec = reading.spec
                assert kind in CATALOG[spec.tag].collectors
                assert spec.tag in {known.tag for known in part.specs}
                assert set(reading.labels) == set(spec.placeholders)
                assert spec.any_attributes or set(reading.attributes) <= set(spec.attributes)


def test_its_first_sample_is_the_baseline_of_what_needs_two(kind: str) -> None:
    clock = ScriptedClock()
    for part in parts(kind, context(pid=1, clock=clock)):
        first = next(samples(part, clock), ())
        assert [reading for reading in first if reading.spec.tag in DIFFERENCES and reading.value is not None] == []


def test_no_series_comes_twice_in_one_sample(kind: str) -> None:
    clock = ScriptedClock()
    for part in parts(kind, context(pid=1, clock=clock)):
        for readings in samples(part, clock):
            series = [(reading.spec.tag, *sorted(map(str, reading.labels.items()))) for reading in readings]
            assert len(set(series)) == len(series)


def test_to_close_it_twice_is_harmless_also_before_the_first_sample(kind: str) -> None:
    for part in parts(kind, context(pid=1)):
        collector = found(part)
        if collector is not None:
            assert "\n" not in collector.describe()
            collector.close()
            collector.close()


def test_on_a_machine_that_shows_nothing_it_is_not_here_or_knows_no_value(kind: str, empty: str) -> None:
    """Never 0; the root itself is there, so the path `/` has its space."""
    clock = ScriptedClock()
    for part in parts(kind, context(empty, pid=1, clock=clock)):
        for readings in samples(part, clock):
            known = [reading for reading in readings if reading.value is not None]
            assert [reading for reading in known if reading.labels.get("path") != "/"] == []


def test_case_133_hardware_that_is_absent_is_no_line_in_the_log(
    kind: str, empty: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ScriptedClock(1000)
    given = context(empty, clock=clock)
    for part in parts(kind, given):
        if part.name in NAMED:
            continue  # which the user named
        clock.time = 0.0
        Runner(part, 15, threading.Event(), lambda health, snapshot: None, clock, bool).run()  # noqa: ARG005

    assert [record.getMessage() for record in caplog.records if record.levelno > logging.DEBUG] == []
