"""A host application whose heart beats every 5 ms: `beating.py FOLDER [configure]`.

What happens to it is ordered by files in FOLDER: each of `ORDERS` holds as long as its file is there. It begins to
look how late a beat is when there is a file `begin`, and ends, telling the worst, when there is one `stop`.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

from opentelemetry import metrics

if TYPE_CHECKING:
    from collections.abc import Iterator

BEAT = 0.005
FOLDER = sys.argv[1]
PIECES = (2**16, 2**12, 2**9)
ROOM = 2**22

STORM = """
while [ -e "$1" ]; do
    for i in 1 2 3 4 5; do (:) & done
    wait
done
"""


@contextmanager
def limited(what: int, limit: int) -> Iterator[None]:
    """Lower a limit of this process for a while."""
    before, hard = resource.getrlimit(what)
    resource.setrlimit(what, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(what, (before, hard))


@contextmanager
def descriptors() -> Iterator[None]:
    """Take every file descriptor that is left."""
    with ExitStack() as taken:
        taken.enter_context(limited(resource.RLIMIT_NOFILE, 128))
        with suppress(OSError):
            while True:
                taken.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        yield


@contextmanager
def memory() -> Iterator[None]:
    """Take the memory that is left below a limit close to what is in use."""
    with open("/proc/self/statm", encoding="ascii") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    taken: list[bytearray] = []
    with limited(resource.RLIMIT_AS, used + ROOM):
        for size in PIECES:
            with suppress(MemoryError):
                while True:
                    taken.append(bytearray(size))
        yield
    taken.clear()


@contextmanager
def storm() -> Iterator[None]:
    """Have short children made and ended without a pause."""
    shell = subprocess.Popen(["/bin/sh", "-c", STORM, "storm", os.path.join(FOLDER, "storm")])
    yield
    shell.wait()


ORDERS = {"descriptors": descriptors, "memory": memory, "storm": storm}


def is_ordered(name: str) -> bool:
    """Tell whether there is such a file."""
    return os.path.exists(os.path.join(FOLDER, name))


def main() -> None:
    """Beat."""
    if "configure" in sys.argv[2:]:
        from otel_sysmetrics import configure

        configure()
    beats = metrics.get_meter("beating").create_counter("beats")
    under: dict[str, ExitStack] = {}
    worst = 0.0
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while not is_ordered("stop"):
        begun = time.monotonic()
        time.sleep(BEAT)
        beats.add(1)
        if is_ordered("begin"):
            worst = max(worst, time.monotonic() - begun - BEAT)
        for name, order in ORDERS.items():
            if is_ordered(name) and name not in under:
                under[name] = ExitStack()
                under[name].enter_context(order())
            elif name in under and not is_ordered(name):
                under.pop(name).close()
    sys.stdout.write(f"worst {worst * 1000:.0f}\n")


if __name__ == "__main__":
    main()
