"""Imports in threads of ours, and forks that wait for their end.

A child inherits the lock of a module that another thread was importing, held for ever: it would hang at the first
import of that module, ours or the application's own.
"""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_SECONDS: Final = 1.0


class _Imports:
    """Which threads are importing."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew in a child, where none of the threads lives and the lock may be held for ever."""
        self.changed = threading.Condition()
        self.threads: list[int] = []

    def wait(self) -> None:
        """Wait for the other threads, not for long: an import may hang."""
        me = threading.get_ident()
        with self.changed:
            self.changed.wait_for(lambda: all(thread == me for thread in self.threads), MOST_SECONDS)


_imports: Final = _Imports()


@contextmanager
def importing() -> Iterator[None]:
    """Keep forks waiting while this thread imports."""
    me = threading.get_ident()
    with _imports.changed:
        _imports.threads.append(me)
    try:
        yield
    finally:
        with _imports.changed:
            if me in _imports.threads:  # not in a child that was forked by what is imported
                _imports.threads.remove(me)
            _imports.changed.notify_all()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_imports.wait, after_in_child=_imports.forget)
