"""Runs a command in a terminal of its own with an empty stdin, and types Ctrl-C once it says that it is ready."""

import os
import pty
import sys

CTRL_C = b"\x03"

child, terminal = pty.fork()
if child == 0:
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606 - the test's own command

typed = False
while True:
    try:
        said = os.read(terminal, 4096)
    except OSError:  # the command has left its terminal
        break
    if not said:
        break
    os.write(1, said.replace(b"\r", b""))
    if b"ready" in said and not typed:
        typed = True
        os.write(terminal, CTRL_C)
_, status = os.waitpid(child, 0)
sys.exit(os.waitstatus_to_exitcode(status))
