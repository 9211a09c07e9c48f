"""What fails around a running application costs its own tags, while it lasts, and nothing else.

Each fault is a process or more that export to the real otelcol, several faults at a time. `make reliability` writes
what was counted into docs/reliability.md. `RELIABILITY_OUTAGE` is how many seconds the backend is down behind the
agent's persistent queue.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

from tests.faults import FAULTS
from tests.front import Front
from tests.nvml.machine import library
from tests.otelcol import free_ports, running
from tests.play import BUSY, Play, Row, check_beats, said
from tests.running import receiving, until
from tests.stage import COUNTED, INTERVAL, Backend, Place, settled, shim

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from concurrent.futures import Future

    from tests.faults import Fault
    from tests.stage import Export

pytestmark = [pytest.mark.otelcol, pytest.mark.nvml]

AT_ONCE: Final = 4
OUTAGE: Final = float(os.environ.get("RELIABILITY_OUTAGE", "20"))
AGENT: Final = str(Path(__file__).parents[1] / "collector-config" / "agent.yaml")
HOST_TAG: Final = "memory_percent"


class Stage(NamedTuple):
    """What a play is given: a folder, otelcol's path, and one that already runs."""

    folder: Path
    binary: str
    shared: Backend


def play(fault: Fault, stage: Stage) -> Row:
    """Play one row of the table; what touches the backend gets a backend of its own."""
    place = Place(stage.folder, stage.shared.otelcol, fault.name)
    backend = stage.shared
    if fault.exports:
        place.backend = place.stack.enter_context(receiving(stage.binary, str(stage.folder / "otelcol")))
        backend = Backend(place.backend)
    return Play(fault, place, backend).run()


def killed_reporter(stage: Stage) -> Row:
    """Kill (-9) the one of three processes of a job that reports the host."""
    place, backend = Place(stage.folder, stage.shared.otelcol, "reporter killed"), stage.shared
    names = ("first", "second", "third")
    with place.stack:
        programs = {name: place.start({}, owner=name) for name in names}

        def newest(name: str) -> Export | None:
            return next(reversed(backend.exports(name)), None)

        def reporters(among: Iterable[str]) -> list[str]:
            return [name for name in among if (export := newest(name)) is not None and export.has(HOST_TAG)]

        until(lambda: len(reporters(names)) == 1 and all(settled(backend.exports(name)) for name in names), 30)
        (reporter,) = reporters(names)
        others = [name for name in names if name != reporter]
        host = set(backend.exports(reporter)[-1].values)
        own = {name: set(backend.exports(name)[-1].values) for name in others}
        host -= own[others[0]]
        first = {name: len(backend.exports(name)) for name in others}

        place.order("begin")
        programs[reporter].send(signal.SIGKILL)
        until(lambda: len(reporters(others)) == 1, 2 * INTERVAL + BUSY)
        (heir,) = reporters(others)
        until(lambda: host <= backend.exports(heir)[-1].values.keys(), 2 * INTERVAL + BUSY)
        seen = {name: len(backend.exports(name)) - 1 for name in others}
        until(lambda: all(len(backend.exports(name)) >= seen[name] + COUNTED for name in others), 15)
        place.order("stop")
        assert [programs[name].finish() for name in others] == [0, 0]
        for name in others:
            check_beats(programs[name])
            assert programs[name].errors == []
    whole = {name: backend.exports(name)[first[name] :] for name in others}
    after = {name: backend.exports(name)[seen[name] :][:COUNTED] for name in others}
    return Row(
        place.name,
        said(killed_reporter),
        (sum(len(whole[name]) * len(own[name]) for name in others), 0, COUNTED * len(host)),
        (
            sum(len(own[name] & one.values.keys()) for name in others for one in whole[name]),
            0,
            sum(len(host & one.values.keys()) for name in others for one in after[name]),
        ),
    )


def restarted_backend(stage: Stage) -> Row:
    """Stop otelcol for 20 s and start it again, behind an agent with collector-config/agent.yaml and its queue."""
    place = Place(stage.folder, stage.shared.otelcol, "backend restarted")
    with place.stack:
        place.backend = place.stack.enter_context(receiving(stage.binary, str(stage.folder / "otelcol")))
        backend = Backend(place.backend)
        front = place.stack.enter_context(Front(agent(place, stage.binary)))
        program = place.start({"OTEL_EXPORTER_OTLP_ENDPOINT": front.url})
        until(lambda: settled(backend.exports(place.name)), 30, program.tell)
        first = len(backend.exports(place.name))
        series = backend.exports(place.name)[-1].values.keys()

        place.order("begin")
        place.backend.stop()
        before = len(backend.exports(place.name))
        threading.Event().wait(OUTAGE)
        during = len(backend.exports(place.name)) - before
        place.backend.start()
        place.order("stop")
        assert program.finish() == 0, program.tell()
        check_beats(program)
        assert program.errors == []
        until(lambda: len(backend.exports(place.name)) >= front.passed, 60, program.tell)
        exports = backend.exports(place.name)
    assert front.passed > OUTAGE / INTERVAL / 2
    return Row(
        place.name,
        said(restarted_backend).replace("20 s", f"{OUTAGE:g} s"),
        (0, 0, (front.passed - first) * len(series)),
        (0, during, sum(len(series & one.values.keys()) for one in exports[first:])),
    )


def agent(place: Place, binary: str) -> str:
    """Run the agent as it stands, but that it tries again after a second and not half a minute; return its address."""
    retry = {"exporters": {"otlp_http": {"retry_on_failure": {"initial_interval": "1s", "max_interval": "1s"}}}}
    soon = place.folder / "soon.yaml"
    soon.write_text(json.dumps(retry))
    (port,) = free_ports(1)
    variables = {
        "AGENT_LISTEN": f"127.0.0.1:{port}",
        "AGENT_EXPORT_ENDPOINT": place.backend.http_endpoint,
        "OTELCOL_STORAGE": str(place.folder / "queue"),
    }
    place.stack.enter_context(running((binary, "--config", AGENT, "--config", str(soon)), [port], variables))
    return f"http://127.0.0.1:{port}"


PLAYS: Final[Mapping[str, Callable[[Stage], Row]]] = {
    "backend restarted": restarted_backend,  # the longest one first
    **{fault.name: partial(play, fault) for fault in FAULTS},
    "reporter killed": killed_reporter,
}


@pytest.fixture(scope="module")
def rows() -> Iterator[dict[str, Row]]:
    """Collect the rows of the table, and write it where `make reliability` wants it."""
    found: dict[str, Row] = {}
    yield found
    path = os.environ.get("RELIABILITY_TABLE")
    if path and found.keys() == PLAYS.keys():
        document = Path(path)
        head, line, _ = document.read_text(encoding="utf-8").partition("| --- | --- | --- | --- |\n")
        table = "".join(f"{found[name]}\n" for name in PLAYS)
        document.write_text(f"{head}{line}{table}", encoding="utf-8")


@pytest.fixture(scope="module")
def played(
    otelcol_binary: str,
    nvml_builds: None,  # noqa: ARG001 - it may skip
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[Callable[[str], Row]]:
    """Play what was chosen, some at a time, and return a function that gives what came of one."""
    chosen = {getattr(getattr(item, "callspec", None), "params", {}).get("name") for item in request.session.items}
    library()  # built once, before several threads want it
    shim()
    with (
        receiving(otelcol_binary, str(tmp_path_factory.mktemp("otelcol"))) as otelcol,
        ThreadPoolExecutor(AT_ONCE) as pool,
    ):
        shared = Backend(otelcol)
        futures: dict[str, Future[Row]] = {
            name: pool.submit(act, Stage(tmp_path_factory.mktemp("fault"), otelcol_binary, shared))
            for name, act in PLAYS.items()
            if name in chosen
        }
        yield lambda name: futures[name].result()


@pytest.mark.parametrize("name", PLAYS)
def test_a_fault_costs_its_own_tags_while_it_lasts(
    name: str, played: Callable[[str], Row], rows: dict[str, Row]
) -> None:
    """Everything else has every point, what fails has none while it does and every one again afterwards."""
    row = rows[name] = played(name)
    print(row)  # noqa: T201 - pytest keeps it
    assert row.received == row.expected
