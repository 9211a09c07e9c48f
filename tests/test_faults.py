"""What fails around a running application costs its own tags, while it lasts, and nothing else.

Each fault is one process that exports to the real otelcol, several at a time. `make reliability` writes what was
counted into docs/reliability.md.
"""

from __future__ import annotations

import os
import re
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

from tests.faults import FAULTS, INTERVAL, Fault, Place, shim
from tests.nvml.machine import library
from tests.running import receiving, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from concurrent.futures import Future

    from tests.otelcol import Otelcol, Point
    from tests.running import Running

pytestmark = [pytest.mark.otelcol, pytest.mark.nvml]

AT_ONCE: Final = 4
COUNTED: Final = 4
"""Exports that are counted while a fault lasts, and after it."""
BUSY: Final = 2.0
"""Seconds by which a busy machine may be late."""
STALE: Final = 2 * INTERVAL + 1
"""Seconds for which a snapshot is served: what fails is absent after that."""
MOST_LATE: Final = 1000
"""Milliseconds by which a busy machine may delay a heartbeat; every fault lasts longer."""
SUCCESS: Final = "sysmetrics.collector.success"

Series = tuple[str, frozenset[tuple[str, object]]]


class Export(NamedTuple):
    """One export of one process."""

    time_ns: int
    values: Mapping[Series, float]


class Backend:
    """An otelcol that several threads look at."""

    def __init__(self, otelcol: Otelcol) -> None:
        self.otelcol = otelcol
        self._lock = threading.Lock()
        self._seen = 0
        self._points: defaultdict[object, list[Point]] = defaultdict(list)

    def exports(self, service: str) -> list[Export]:
        """Return what arrived from a service, by export, in the order of arrival."""
        with self._lock:
            points = self.otelcol.points()
            for point in points[self._seen :]:
                self._points[point.resource["service.name"]].append(point)
            self._seen = len(points)
            found = list(self._points[service])
        return [Export(time, _values(points)) for time, points in groupby(found, lambda point: point.time_ns)]


def _values(points: Iterator[Point]) -> dict[Series, float]:
    found: dict[Series, float] = {}
    for point in points:
        series = (point.name, frozenset(point.attributes.items()))
        assert series not in found, series
        found[series] = point.value
    return found


class Row(NamedTuple):
    """What was expected and what arrived: points of everything else, of what fails while it does, and afterwards."""

    fault: Fault
    expected: tuple[int, int, int]
    received: tuple[int, int, int]

    def __str__(self) -> str:
        """Return the line of the table."""
        numbers = (" · ".join(map(str, found)) for found in (self.expected, self.received))
        return "| {} |".format(" | ".join((self.fault.name, self.fault.done, *numbers)))


class Play:
    """One fault that is played once."""

    def __init__(self, fault: Fault, place: Place, backend: Backend) -> None:
        self.fault = fault
        self.place = place
        self.backend = backend

    def run(self) -> Row:
        """Play it from begin to end, and check everything but the numbers."""
        steps = self.fault.steps(self.place)
        with self.place.stack:
            program = self.place.start(next(steps), own=self.fault.own)
            series, first = self._settle(program)
            touched = {one for one in series if self._is_touched(one)}
            self.place.order("begin")
            next(steps)
            during = self._lasts(program, touched)
            next(steps, None)
            after = self._is_over(program, series)
            self.place.order("stop")
            assert program.finish() == 0, program.tell()
            self._check_host(program)
        every = self._exports()[first:]
        others = series - touched
        return Row(
            self.fault,
            (0 if self.fault.exports else len(every) * len(others), 0, len(after) * len(touched)),
            (
                0 if self.fault.exports else sum(len(others & one.values.keys()) for one in every),
                sum(len(touched & one.values.keys()) for one in during),
                sum(len(touched & one.values.keys()) for one in after),
            ),
        )

    def _settle(self, program: Running) -> tuple[frozenset[Series], int]:
        """Wait until several exports in turn have the same series; return those, and how many exports came before."""
        program.wait_for_line("ready")

        def settled() -> bool:
            sets = [one.values.keys() for one in self._exports()[-COUNTED:]]
            return (
                len(sets) == COUNTED
                and all(one == sets[0] for one in sets)
                and (not self.fault.tags or any(map(self._is_touched, sets[0])))
            )

        until(settled, 30, program.tell)
        exports = self._exports()
        return frozenset(exports[-1].values), len(exports) - 1

    def _lasts(self, program: Running, touched: set[Series]) -> list[Export]:
        """Wait until what fails is absent, and return some exports since then."""
        if self.fault.exports:
            seen = self._until_silent(program)
            threading.Event().wait(COUNTED * INTERVAL)
            return self._exports()[seen:]
        if not touched:
            seen = len(self._exports())
            until(lambda: len(self._exports()) > seen + STALE / INTERVAL, STALE + BUSY, program.tell)
        until(lambda: not touched & self._exports()[-1].values.keys(), STALE + BUSY, program.tell)
        found = self._next(program)
        if self.fault.part:
            assert {self._success(one) for one in found} == {0}
        return found

    def _is_over(self, program: Running, series: frozenset[Series]) -> list[Export]:
        """Wait until everything is back, and return some exports since then."""
        seen = len(self._exports())
        until(
            lambda: len(self._exports()) > seen and series <= self._exports()[-1].values.keys(),
            2 * INTERVAL + BUSY,
            program.tell,
        )
        found = self._next(program)
        if self.fault.part:
            assert {self._success(one) for one in found} == {1}
        return found

    def _check_host(self, program: Running) -> None:
        """Nothing of the host's was delayed, and the log has one line for the change and one for the recovery."""
        assert int(program.wait_for_line("worst ").split()[1]) < MOST_LATE
        assert len(program.errors) == len(self.fault.says), program.tell()
        for line, pattern in zip(program.errors, self.fault.says, strict=True):
            assert re.fullmatch(f"otel-sysmetrics: {pattern}", line), line

    def _until_silent(self, program: Running) -> int:
        """Wait until what was on its way has arrived, and return how many exports there are."""
        exports = [-1]

        def silent() -> bool:
            exports.append(len(self._exports()))
            threading.Event().wait(INTERVAL)
            return len(self._exports()) == exports[-1]

        until(silent, 5, program.tell)
        return exports[-1]

    def _next(self, program: Running) -> list[Export]:
        """Return the next exports, with the newest one."""
        seen = len(self._exports()) - 1
        until(lambda: len(self._exports()) >= seen + COUNTED, COUNTED * INTERVAL + 10, program.tell)
        return self._exports()[seen : seen + COUNTED]

    def _exports(self) -> list[Export]:
        # The newest one may not be whole yet.
        return self.backend.exports(self.place.service)

    def _is_touched(self, series: Series) -> bool:
        return self.fault.exports or bool(re.fullmatch(self.fault.tags, series[0]))

    def _success(self, export: Export) -> float:
        (value,) = (
            value
            for (name, attributes), value in export.values.items()
            if name == SUCCESS and re.fullmatch(self.fault.part, _part(dict(attributes)))
        )
        return value


def _part(attributes: Mapping[str, object]) -> str:
    return " ".join(str(attributes[key]) for key in ("collector", "part") if key in attributes)


def play(fault: Fault, folder: Path, binary: str, shared: Backend) -> Row:
    """Play one fault; one that touches the backend gets a backend of its own."""
    place = Place(folder, shared.otelcol, fault.name.replace(" ", "-"))
    backend = shared
    if fault.exports:
        place.backend = place.stack.enter_context(receiving(binary, str(folder / "otelcol")))
        backend = Backend(place.backend)
    return Play(fault, place, backend).run()


@pytest.fixture(scope="module")
def rows() -> Iterator[list[Row]]:
    """Collect the table's rows; written where `make reliability` wants them."""
    found: list[Row] = []
    yield found
    document = os.environ.get("RELIABILITY_TABLE")
    order = {fault.name: number for number, fault in enumerate(FAULTS)}
    lines = [str(row) for row in sorted(found, key=lambda row: order[row.fault.name])]
    if document:
        text = Path(document).read_text(encoding="utf-8")
        head, _, _ = re.split(r"(?<=\| --- \| --- \| --- \| --- \|\n)()", text, maxsplit=1)
        Path(document).write_text(head + "".join(f"{line}\n" for line in lines), encoding="utf-8")


@pytest.fixture(scope="module")
def played(
    otelcol_binary: str,
    nvml_builds: None,  # noqa: ARG001 - it may skip
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[Callable[[Fault], Row]]:
    """Play the chosen faults, some at a time, and return a function that gives what came of one."""
    chosen = [fault for item in request.session.items if isinstance(fault := _params(item).get("fault"), Fault)]
    library()  # built once, before several threads want it
    shim()
    with (
        receiving(otelcol_binary, str(tmp_path_factory.mktemp("otelcol"))) as otelcol,
        ThreadPoolExecutor(AT_ONCE) as pool,
    ):
        shared = Backend(otelcol)
        futures: dict[str, Future[Row]] = {
            fault.name: pool.submit(play, fault, tmp_path_factory.mktemp("fault"), otelcol_binary, shared)
            for fault in chosen
        }
        yield lambda fault: futures[fault.name].result()


def _params(item: pytest.Item) -> Mapping[str, object]:
    found: Mapping[str, object] = getattr(getattr(item, "callspec", None), "params", {})
    return found


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_costs_its_own_tags_while_it_lasts(
    fault: Fault, played: Callable[[Fault], Row], rows: list[Row]
) -> None:
    """Everything else has every point, what fails has none while it does and every one again afterwards."""
    row = played(fault)
    rows.append(row)
    print(row)  # noqa: T201 - pytest keeps it
    assert row.received == row.expected
