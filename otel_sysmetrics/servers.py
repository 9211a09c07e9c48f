"""gunicorn's master, which serves nothing itself: it is instrumented as its workers are, and is none of them."""

from __future__ import annotations

import os
import sys
from typing import Final

BORN: Final = os.getpid()
"""The process that imported this: in a forked child another one."""
_SERVER: Final = "gunicorn"


def is_master() -> bool | None:
    """Tell whether this process is gunicorn's master, None while that cannot be known yet.

    A worker that loads the application itself knows nothing of its fork: it has its siblings, or the words of its
    parent. Until the master has forked its first worker nothing tells it from that.
    """
    if not any(os.path.basename(argument) == _SERVER for argument in getattr(sys, "orig_argv", ())[1:3]):
        return False
    if os.getpid() != BORN:
        return False
    arbiter = getattr(sys.modules.get(f"{_SERVER}.arbiter"), "Arbiter", None)
    workers = tuple(getattr(arbiter, "WORKERS", {}).values())
    if workers:
        return any(getattr(worker, "ppid", None) == os.getpid() for worker in workers)
    return False if _parent_is_alike() else None


def _parent_is_alike() -> bool:
    """Tell whether the parent runs the same program, or where that is unknown, that it may."""
    try:
        words = [_words("self"), _words(str(os.getppid()))]
    except OSError:
        return True
    if words[0].startswith(b"gunicorn: "):  # as setproctitle has it
        return words[0].startswith(b"gunicorn: worker")
    return words[0] == words[1]


def _words(process: str) -> bytes:
    with open(f"/proc/{process}/cmdline", "rb") as file:
        return file.read()
