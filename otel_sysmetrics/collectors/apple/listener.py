"""Listens to the door: the one program that calls private libraries, so that only it can die of them."""

from __future__ import annotations

import os
from importlib import metadata
from typing import TYPE_CHECKING, Final

from otel_sysmetrics.collectors.apple.told import Told, parse
from otel_sysmetrics.importing import importing
from otel_sysmetrics.sources.kept import interpreter
from otel_sysmetrics.sources.tools import Feed, ToolError

if TYPE_CHECKING:
    from collections.abc import Callable

_DOOR: Final = os.path.join(os.path.dirname(os.path.abspath(__file__)), "door.py")
_LEAST_PERIOD: Final = 0.5
_PERIODS_KEPT: Final = 3
_MOST_DEATHS: Final = 3
_PAUSE: Final = 60.0
_FIRST_LINE: Final = 2.0
_NOTHING: Final = Told()


class Listener:
    """What the program that `command` starts tells, one line per `period` of seconds.

    A program that says why it can tell nothing, or that has died three times without a word, is not started again:
    macOS writes a report of each crash.
    """

    def __init__(self, command: tuple[str, ...] | None, period: float, clock: Callable[[], float]) -> None:
        self._command = command
        self._period = max(period, _LEAST_PERIOD)
        self._clock = clock
        self._feed: Feed | None = None
        self._told = _NOTHING
        self._since = 0.0
        self._not_before = 0.0
        self._deaths = 0
        self._patience = 0.0
        self.trouble = None if command else "nothing reads them here"

    def newest(self) -> Told:
        """Return what it told last, nothing where that is old or nothing is told; never raises."""
        if self._command is None:
            return _NOTHING
        now = self._clock()
        try:
            lines = self._lines(now)
        except ToolError as error:
            self._died(now, str(error))
            return _NOTHING
        for line in reversed(lines):
            told = parse(line)
            if told is None:
                continue
            if told.error is not None:
                self._give_up(told.error)
                return _NOTHING
            self._told, self._since, self._deaths, self.trouble = told, now, 0, None
            break
        if now - self._since > _PERIODS_KEPT * self._period:
            self._told = _NOTHING
        return self._told

    def close(self) -> None:
        """End the program."""
        if self._feed is not None:
            self._feed.close()

    def _lines(self, now: float) -> list[str]:
        if self._feed is None:
            if now < self._not_before:
                return []
            assert self._command is not None  # noqa: S101 - looked at by the caller
            self._since, self._patience = now, _FIRST_LINE
            self._feed = Feed(self._command)
            return self._feed.lines(0.0)
        # Once: the sample after the baseline may come a little earlier than the first line.
        patience, self._patience = self._patience, 0.0
        return self._feed.lines(patience)

    def _died(self, now: float, reason: str) -> None:
        self.close()
        self._feed, self._told, self.trouble = None, _NOTHING, reason
        self._deaths += 1
        self._not_before = now + _PAUSE
        if self._deaths >= _MOST_DEATHS:
            self._give_up(reason)

    def _give_up(self, reason: str) -> None:
        self.close()
        self._feed, self._command, self._told, self.trouble = None, None, _NOTHING, reason


def door(period: float) -> tuple[str, ...] | None:
    """Return the command that starts the door, None where there is no Python to run it with (a frozen application)."""
    python = interpreter()
    if python is None or not os.path.isfile(_DOOR):
        return None
    return (python, "-I", "-S", _DOOR, f"{max(period, _LEAST_PERIOD):g}", *_macmon())


def _macmon() -> tuple[str, ...]:
    """Return the folder in which macmon-lib is installed, if it is."""
    with importing():
        try:
            return (str(metadata.distribution("macmon-lib").locate_file("")),)
        except metadata.PackageNotFoundError:
            return ()
