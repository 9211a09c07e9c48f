"""Runs one program, and ends it with all that it started once nobody wants it any more.

A program of its own (`python -I -S keeper.py PARENT SIZE PROGRAM ARGUMENT…`), never imported: when the application is
killed no handler of its runs, and a worker that it forked may hold the pipes that would have told the program so.
SIZE bytes of standard input are what the program is given to read; anything after them, or their end, is the order to
end. The last words on standard error are what became of the program. The status is always 0: gunicorn's master, which
collects every child that its process has, takes a 3 for a worker that cannot start.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from contextlib import suppress

GRACE = 0.3  # seconds between asking and killing
TURN = 1.0  # seconds between two looks at whether the parent is there


def read_exactly(size: int) -> bytes:
    """Return so many bytes of standard input, fewer when it ends."""
    found = b""
    while len(found) < size and (more := os.read(0, size - len(found))):
        found += more
    return found


def start(program: list[str], text: bytes) -> int:
    """Start the program in a process group of its own and return its pid."""
    nothing = os.open(os.devnull, os.O_RDWR)
    source, sink = os.pipe() if text else (nothing, -1)
    actions = [(os.POSIX_SPAWN_DUP2, source, 0), (os.POSIX_SPAWN_DUP2, nothing, 2)]
    usual = [signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE]
    pid = os.posix_spawn(
        program[0], program, dict(os.environ), file_actions=actions, setpgroup=0, setsigmask=[], setsigdef=usual
    )
    os.close(1)  # so that the output ends when the program does
    if text:
        os.close(source)
        with suppress(OSError):  # it ended without having read
            os.write(sink, text)
        os.close(sink)
    return pid


def status(pid: int) -> int | None:
    """Return the wait status of the program, None while it runs."""
    try:
        found, code = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return 0
    return code if found else None


def kill(group: int, number: int) -> None:
    """Send a signal to the program and what it started."""
    with suppress(OSError):  # nobody is left, or only zombies
        os.killpg(group, number)


def watch(pid: int, parent: int, bell: int, orders: list[int]) -> int:
    """Wait for the end of the program, bring it about when it is not wanted any more, and return its wait status.

    One that cannot be killed (it hangs in a driver) is waited for: while this runs, no second one is started.
    """
    asked = None
    turn = TURN
    sources = [0, bell]
    while (code := status(pid)) is None:
        ready = select.select(sources, [], [], turn)[0]
        if bell in ready:
            os.read(bell, 4096)
        now = time.monotonic()
        if asked is None and (0 in ready or orders or os.getppid() != parent):
            kill(pid, signal.SIGTERM)
            asked, turn, sources = now, 0.02, [bell]
        elif asked is not None and now - asked > GRACE:
            kill(pid, signal.SIGKILL)
            turn = TURN
    return code


def main() -> None:
    """Run the program that the command line names."""
    parent, size, program = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    os.chdir("/")  # so that no mount of the application's is kept busy
    with suppress(OSError):
        os.setsid()
    for name in os.listdir("/dev/fd"):  # what a C library left to be inherited
        with suppress(OSError):
            if (descriptor := int(name)) > 2:  # noqa: PLR2004 - the standard three
                os.close(descriptor)
    orders: list[int] = []
    bell, ring = os.pipe()
    os.set_blocking(ring, False)
    signal.set_wakeup_fd(ring, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda number, _frame: orders.append(number))
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)  # which the application may have ignored
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    text = read_exactly(size)
    try:
        pid = start(program, text)
    except OSError as error:
        os.write(2, f"cannot be started: {error.strerror}".encode())
        return
    code = os.waitstatus_to_exitcode(watch(pid, parent, bell, orders))
    kill(pid, signal.SIGKILL)
    os.write(2, f"died of signal {-code}".encode() if code < 0 else f"ended with status {code}".encode())


if __name__ == "__main__":
    with suppress(BrokenPipeError):  # the parent is gone and hears no last words
        main()
