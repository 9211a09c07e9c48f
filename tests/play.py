"""How a fault is played: what arrives is counted before it, while it lasts, and afterwards."""

from __future__ import annotations

import re
import threading
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.running import until
from tests.stage import COUNTED, INTERVAL, settled

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.faults import Fault
    from tests.running import Running
    from tests.stage import Backend, Export, Place, Series

BUSY: Final = 2.0
"""Seconds by which a busy machine may be late."""
STALE: Final = 2 * INTERVAL + 1
"""Seconds for which a snapshot is served: what fails is absent after that."""
MOST_LATE: Final = 1000
"""Milliseconds by which a busy machine may delay a heartbeat; every fault lasts longer."""
LEAST_EXPORTS: Final = 0.7
"""Share of the intervals in which even a busy machine exports: each takes as long as it lasts and the export."""
SUCCESS: Final = "sysmetrics.collector.success"


def said(function: object) -> str:
    """Return what a function does, in its own words."""
    return " ".join((function.__doc__ or "").split()).rstrip(".")


def check_beats(program: Running) -> None:
    """Nothing of the application was delayed by what lasts for seconds."""
    assert int(program.wait_for_line("worst ").split()[1]) < MOST_LATE


class Row(NamedTuple):
    """What was expected and what arrived: points of everything else, of what fails while it does, and afterwards."""

    name: str
    done: str
    expected: tuple[int, int, int]
    received: tuple[int, int, int]

    def __str__(self) -> str:
        """Return the line of the table."""
        numbers = (" · ".join(map(str, found)) for found in (self.expected, self.received))
        return "| {} |".format(" | ".join((self.name, self.done, *numbers)))


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
            begun = time.monotonic()
            touched = {one for one in series if self._is_touched(one)}
            self.place.order("begin")
            next(steps)
            during = self._lasts(program, touched)
            next(steps, None)
            after = self._is_over(program, series)
            seconds = time.monotonic() - begun
            self.place.order("stop")
            assert program.finish() == 0, program.tell()
            self._check_host(program)
        every = self._exports()[first:]
        assert self.fault.exports or len(every) > LEAST_EXPORTS * seconds / INTERVAL
        others = series - touched
        return Row(
            self.fault.name,
            said(self.fault.steps),
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

        def is_settled() -> bool:
            exports = self._exports()
            return settled(exports) and (not self.fault.tags or any(map(self._is_touched, exports[-1].values)))

        until(is_settled, 30, program.tell)
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
            assert self._successes(found) == {0}
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
            assert self._successes(found) == {1}
        return found

    def _check_host(self, program: Running) -> None:
        """Nothing of the host's was delayed, and the log has one line for the change and one for the recovery."""
        check_beats(program)
        assert len(program.errors) == len(self.fault.says), program.tell()
        # Several parts may be ill at a time, and in any order.
        half = len(self.fault.says) // 2
        lines = [*sorted(program.errors[:half]), *sorted(program.errors[half:])]
        for line, pattern in zip(lines, self.fault.says, strict=True):
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
        return self.backend.exports(self.place.name)

    def _is_touched(self, series: Series) -> bool:
        return self.fault.exports or bool(re.fullmatch(self.fault.tags, series[0]))

    def _successes(self, exports: list[Export]) -> set[float]:
        """Return what the ill parts' health was."""
        return {
            value
            for export in exports
            for (name, attributes), value in export.values.items()
            if name == SUCCESS and re.fullmatch(self.fault.part, _part(dict(attributes)))
        }


def _part(attributes: Mapping[str, object]) -> str:
    return " ".join(str(attributes[key]) for key in ("collector", "part") if key in attributes)
