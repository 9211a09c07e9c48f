"""Drives the collector in a process that finds itself on a machine with NVIDIA GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from typing_extensions import Self

    from tests.nvml import NvmlMachine

ROOT: Final = Path(__file__).parents[3]
PROGRAM: Final = ROOT / "tests" / "programs" / "nvidia_collector.py"


@dataclass(frozen=True)
class Point:
    """One reading as it would be sent."""

    unit: str
    value: float
    attributes: Mapping[str, Any]


class Failed(Exception):
    """What the collector raised: `kind` is NotHere or Unavailable."""

    def __init__(self, kind: str, reason: str, remedy: str) -> None:
        super().__init__(f"{kind}: {reason} ({remedy})")
        self.kind, self.reason, self.remedy = kind, reason, remedy


class Program:
    """The collector in its process. `now` is its clock, in seconds; what it logged is in `log`."""

    def __init__(self, machine: NvmlMachine | None, *arguments: str, path: str = "", **settings: object) -> None:
        self.now = 0.0
        self.log: list[str] = []
        environment = {**os.environ, **(machine.environment if machine else {})}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (path, str(ROOT))))
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", *arguments, PROGRAM, json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: object, __: TracebackType | None) -> None:
        stderr = self.end()
        if kind is None:
            assert stderr == "", stderr

    def end(self) -> str:
        """End the process and return what it wrote to stderr."""
        try:
            _, stderr = self._process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise
        return stderr

    def do(self, what: str, *, after: float = 0) -> Any:  # noqa: ANN401 - as many kinds as there are orders
        """Let time pass, do something, and return what came of it; raises Failed."""
        self.now += after
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": what, "at": self.now}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise AssertionError(self._process.communicate()[1])
        answer = json.loads(line)
        self.log += answer.get("log", [])
        return given(answer)

    def probe(self) -> Program:
        """Probe and return this."""
        self.do("probe")
        return self

    def sample(self, *, after: float = 15) -> dict[str, Point]:
        """Return one sample by tag, taken so many seconds later."""
        return points(self.do("sample", after=after))

    def values(self, *, after: float = 15) -> dict[str, float]:
        """Return the same, values only."""
        return {tag: point.value for tag, point in self.sample(after=after).items()}


def given(answer: Mapping[str, Any]) -> Any:  # noqa: ANN401 - likewise
    """Return what an answer gives, or raise what it says was raised."""
    if "raises" in answer:
        raise Failed(answer["raises"], answer["reason"], answer["remedy"])
    return answer["gives"]


def points(rows: list[list[Any]]) -> dict[str, Point]:
    """Return rows by their tag; none comes twice, and none without a value."""
    sent = {tag: Point(unit, value, attributes) for tag, unit, value, attributes in rows if value is not None}
    assert len(sent) == sum(row[2] is not None for row in rows)
    return sent
