"""A small real workload to watch: it holds 300 MiB and keeps one CPU busy."""

import argparse
import hashlib
import time

HELD_BYTES = 300 * 2**20


def main() -> None:
    """Hash the held memory over and over until the time is up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10, help="how long to work (default: %(default)s)")
    seconds = parser.parse_args().seconds

    end = time.monotonic() + seconds
    held = memoryview(b"\xa5" * HELD_BYTES)  # bytes other than zero: the kernel hands out zeros without holding memory
    chunk = 2**20  # about a millisecond of work, so that the end is kept
    while True:
        for start in range(0, HELD_BYTES, chunk):
            if time.monotonic() >= end:
                return
            hashlib.sha256(held[start : start + chunk]).digest()


if __name__ == "__main__":
    main()
