"""What one part gave in its newest samples: a row per sample, a column per series.

There are hundreds of series and one sample of them all at a time, so the samples are kept by part and not by series:
to take one costs a list, whatever the number of instruments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from otel_sysmetrics.reading import AttributeValue, Reading
    from otel_sysmetrics.trampoline import Trampoline

UNSENT: Final = -1
"""The column of a series that is not sent."""

_MOST_GONE: Final = 1_000


class Row(NamedTuple):
    """One sample: the number of its update, until when it may be served, and the value of each column.

    A row is as long as there were columns at its time; what was not read is None.
    """

    update: int
    until: float
    values: list[float | None]

    def value(self, column: int) -> float | None:
        """Return what a series was, None where it was not read."""
        return self.values[column] if column < len(self.values) else None


class Counting(NamedTuple):
    """A column that counts, and who adds it up, under which key."""

    column: int
    trampoline: Trampoline
    key: Hashable


class History:
    """The newest rows of one part, and which series stands in which column.

    Written by the part's thread. `rows` is replaced whole, the newest last, so that a callback needs no lock.
    """

    def __init__(self) -> None:
        self.rows: tuple[Row, ...] = ()
        self.counting: list[Counting] = []
        self._width = 0
        self._known = 0
        self._columns: dict[Hashable, dict[str, int]] = {}

    @property
    def width(self) -> int:
        """The number of columns."""
        return self._width

    def columns(self, reading: Reading) -> dict[str, int]:
        """Return by tag the columns of the series that have a reading's labels and attributes."""
        return self._columns.setdefault(where(reading.labels, reading.attributes), {})

    def add(self, columns: dict[str, int], tag: str, *, sent: bool) -> int:
        """Give a new series its column, or note that it is not sent."""
        self._known += 1
        column = columns[tag] = self._width if sent else UNSENT
        self._width += sent
        return column

    def crowded(self, living: int) -> bool:
        """Tell whether most of the series that are remembered are gone: labels that churn must not cost memory."""
        return self._known > 2 * living + _MOST_GONE

    def keep(self, row: Row, most: int) -> None:
        """Take the newest row and keep so many."""
        self.rows = (*self.rows[1 - most :], row)


def where(labels: Mapping[str, str | int], attributes: Mapping[str, AttributeValue | None]) -> Hashable:
    """Return what tells a device's series from another's."""
    return (tuple(labels.items()), tuple(attributes.items()))
