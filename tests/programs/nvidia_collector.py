"""The collector `nvidia` in a process of its own, told line by line what to do, at a time that is told with it.

NVML is one per process, so each machine needs a fresh one. Each line of input is `{"do": ..., "at": seconds}`; each
line of output says what came of it, with what was logged meanwhile.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import sys
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from otel_sysmetrics.collector import Context, NotHere, Unavailable, parts
from otel_sysmetrics.selection import Selection
from otel_sysmetrics.settings import Settings
from otel_sysmetrics.sources.files import Files
from otel_sysmetrics.sources.processes import WatchedProcess

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_sysmetrics.collector import Collector

PATIENCE = 60.0
"""Seconds that one order may take."""


class Log(logging.Handler):
    """What was logged since it was last asked."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        self.lines.append(f"{record.levelname} {record.getMessage()}")


class Program:
    """The collector, and a clock that stands still between two lines."""

    def __init__(self, settings: Settings) -> None:
        self.now = 0.0
        selection = Selection(settings.metrics_included, settings.metrics_excluded)
        files = Files(settings.root_path)
        watched = WatchedProcess(files, lambda: settings.pid, tree=False, clock=lambda: self.now)
        (self.part,) = parts("nvidia", Context(settings, files, watched, selection.spec, lambda: self.now))
        self.collector: Collector | None = None

    def run(self, do: str) -> object:
        """Do what a line says."""
        actions: dict[str, Callable[[], object]] = {
            "probe": self.probe,
            "sample": self.sample,
            "fork": self.fork,
            "describe": lambda: self.here().describe(),
            "close": lambda: self.here().close(),
            "close elsewhere": self.close_elsewhere,
            "shutdown": shutdown,
            "modules": lambda: sorted(sys.modules),
            "usage": lambda: [time.process_time(), threading.active_count(), len(os.listdir("/proc/self/fd"))],
        }
        return actions[do]()

    def here(self) -> Collector:
        """Return the collector that was probed."""
        assert self.collector is not None
        return self.collector

    def probe(self) -> None:
        """Look for the hardware."""
        self.collector = None
        self.collector = self.part.probe()

    def sample(self) -> list[list[object]]:
        """Sample, as rows of tag, unit, value and attributes."""
        rows: list[list[object]] = []
        for reading in self.here().sample():
            labels = {key: reading.labels[label] for label, key in reading.spec.labels}
            attributes = {**labels, **reading.attributes}
            rows.append([reading.spec.fill(reading.labels), reading.spec.unit, reading.value, attributes])
        return rows

    def fork(self) -> object:
        """Sample in a forked child."""
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            with os.fdopen(writer, "w") as file:
                json.dump(attempt(self.sample), file)
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as file:
            answer = json.load(file)
        os.waitpid(child, 0)
        return answer

    def close_elsewhere(self) -> None:
        """Close from another thread, as the interpreter's exit does."""
        thread = threading.Thread(target=self.here().close)
        thread.start()
        thread.join()


def shutdown() -> None:
    """Shut NVML down once too often, as another library may."""
    import pynvml

    pynvml.nvmlShutdown()


def attempt(action: Callable[[], object]) -> dict[str, Any]:
    """Return what an action gives, or how it failed."""
    try:
        return {"gives": action()}
    except (NotHere, Unavailable) as error:
        return {"raises": type(error).__name__, "reason": str(error), "remedy": getattr(error, "remedy", "")}


def main() -> None:
    """Read lines until there are no more."""
    log = Log()
    logger = logging.getLogger("otel_sysmetrics")
    logger.addHandler(log)
    logger.propagate = False
    program = Program(Settings(**json.loads(sys.argv[1])))
    for line in sys.stdin:
        order = json.loads(line)
        faulthandler.dump_traceback_later(PATIENCE, exit=True)
        program.now = order["at"]
        answer = attempt(partial(program.run, order["do"]))
        print(json.dumps({**answer, "log": log.lines}), flush=True)  # noqa: T201 - this is how it answers
        faulthandler.cancel_dump_traceback_later()
        log.lines = []


if __name__ == "__main__":
    main()
