"""Types of the command line's options."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import click

from otel_sysmetrics.values import MAX_SECONDS

if TYPE_CHECKING:
    from typing import Any


class Seconds(click.FloatRange):
    """A number of seconds that can be waited for: no NaN, nothing infinite."""

    def __init__(self, least: float) -> None:
        super().__init__(min=least, max=MAX_SECONDS)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:  # noqa: ANN401 - click's signature
        """Read the number, or fail as click does."""
        seconds = float(super().convert(value, param, ctx))
        if math.isnan(seconds):  # which no range refuses
            self.fail(f"{value!r} is not a number of seconds.", param, ctx)
        return seconds
