"""Facts that cost many small reads and seldom change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

Fact = TypeVar("Fact")

SECONDS: Final = 30.0


class Remembered(Generic[Fact]):
    """One fact, found again when what it was found for changes, and every 30 seconds.

    `clock` counts seconds and is monotonic. Used by one thread only.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._found: tuple[Hashable, float, Fact] | None = None

    def get(self, key: Hashable, find: Callable[[], Fact]) -> Fact:
        """Return the fact for `key`, from memory where that is still good; raises what `find` raises."""
        now = self._clock()
        if self._found is not None:
            found_for, found_at, fact = self._found
            if found_for == key and now - found_at < SECONDS:
                return fact
        fact = find()
        self._found = (key, now, fact)
        return fact
