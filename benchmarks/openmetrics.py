"""Reading a big OpenMetrics endpoint of which three families are wanted, beside prometheus_client's parser.

Both read the same 400,000 lines in this process, one after the other, in turns; the fastest of the rounds counts.
`memory` is the most that was allocated while reading, traced by tracemalloc in a run of its own.
`other threads waited` is the longest time in which another thread, which wants to run every millisecond, could not.
"""

from __future__ import annotations

import sys
import threading
import time
import tracemalloc
from typing import TYPE_CHECKING, Any

from prometheus_client.parser import text_string_to_metric_families

from otel_sysmetrics.collectors.openmetrics.filters import Kept
from otel_sysmetrics.collectors.openmetrics.scrape import read_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LINES = 400_000
FAMILIES = 200
WANTED = ("family_7", "family_70", "family_177")
CHUNK = 65_536
ROUNDS = 3
LEAST = 10.0


def main() -> int:
    """Print the table; returns 1 where ours is not ten times as fast."""
    body = page()
    filters = ((rf"\.({'|'.join(WANTED)})$", ()),)

    def ours() -> int:
        return len(read_text(Kept("big", filters), LINES, pieces(body)).series)

    def theirs() -> int:
        families = text_string_to_metric_families(body.decode())
        return sum(len(family.samples) for family in families if family.name in WANTED)

    if ours() != theirs():
        print("the two do not read the same")
        return 1
    rounds = [(seconds(ours), seconds(theirs)) for _ in range(ROUNDS)]
    mine, others = (min(times) for times in zip(*rounds, strict=True))
    print(f"{LINES:,} lines, {len(body) / 2**20:.0f} MiB, {len(WANTED)} of {FAMILIES} families wanted")
    for name, read, best in (("otel_sysmetrics", ours, mine), ("prometheus_client", theirs, others)):
        print(
            f"{name:18} {best:6.2f} s   memory {memory(read) / 2**20:6.1f} MiB   "
            f"other threads waited at most {waited(read) * 1000:.0f} ms"
        )
    ratio = others / mine
    print(f"{ratio:.1f} times as fast")
    return int(ratio < LEAST)


def page() -> bytes:
    """Return what an exporter on a big host shows."""
    lines = []
    for family in range(FAMILIES):
        lines += [f"# HELP family_{family} What it is.", f"# TYPE family_{family} gauge"]
        lines += [
            f'family_{family}{{cluster="c1",namespace="team-{item % 7}",pod="job-{item}",gpu="{item % 8}"}} {item}.5'
            for item in range(LINES // FAMILIES)
        ]
    return "\n".join([*lines, ""]).encode()


def pieces(body: bytes) -> Iterator[bytes]:
    """Yield a body as it comes from a socket."""
    return (body[start : start + CHUNK] for start in range(0, len(body), CHUNK))


def seconds(read: Callable[[], Any]) -> float:
    """Return how long it takes."""
    begun = time.perf_counter()
    read()
    return time.perf_counter() - begun


def memory(read: Callable[[], Any]) -> int:
    """Return the most bytes that it has allocated at once."""
    tracemalloc.start()
    read()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


def waited(read: Callable[[], Any]) -> float:
    """Return the longest time in which another thread could not run."""
    longest = 0.0
    done = threading.Event()

    def look() -> None:
        nonlocal longest
        last = time.perf_counter()
        while not done.is_set():
            time.sleep(0.001)
            now = time.perf_counter()
            longest, last = max(longest, now - last), now

    other = threading.Thread(target=look)
    other.start()
    read()
    done.set()
    other.join()
    return longest


if __name__ == "__main__":
    sys.exit(main())
