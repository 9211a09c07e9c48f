"""A small training job: configures, holds memory, keeps half a CPU busy, and ends in one of three ways."""

import argparse
import sys
import time

from otel_sysmetrics import configure

HELD_BYTES = 100 * 2**20


def say(line: str) -> None:
    """Say a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    """Work for a while."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--interval", type=float, default=15)
    parser.add_argument("--idle", action="store_true")
    parser.add_argument("--end", choices=["return", "exit", "raise"], default="return")
    options = parser.parse_args()

    configure(sampling_interval=options.interval)
    held = b"" if options.idle else b"\xa5" * HELD_BYTES
    say("ready")
    end = time.monotonic() + options.seconds
    while time.monotonic() < end:
        busy = time.monotonic() + (0 if options.idle else 0.02)
        while time.monotonic() < busy:
            pass
        time.sleep(0.02)
    say(f"last line, {len(held)} bytes held")
    if options.end == "exit":
        sys.exit(3)
    if options.end == "raise":
        message = "as asked for"
        raise RuntimeError(message)


if __name__ == "__main__":
    main()
