"""No text of anybody else's makes a parser fail, and nothing that is absent in it becomes a 0.

A row of tests/fuzz/table.py is a parser. `make fuzz` tries a million inputs instead of a few; what fails is kept in
.hypothesis and tried first next time. Other test modules have properties of their own for some of these parsers.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import HealthCheck, given, settings

from tests.fuzz.edits import LENGTH, TURNS
from tests.fuzz.table import PARSERS, Parser

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

INPUTS: Final = int(os.environ.get("FUZZ_INPUTS", "2400"))
"""Of all rows together, half of them for the first test and most others for the second."""
SECONDS: Final = 1.5
"""Of CPU time; a parser whose time grows with the square of its input's length takes a minute for so long a one."""

pytestmark = pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.name.replace(" ", "-"))


def tried(share: float, turns: int = TURNS) -> settings:
    """Return how many inputs of a row a test tries, so many at once."""
    return settings(
        max_examples=max(5, round(INPUTS * share / len(PARSERS) / turns)),
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )


def read(parser: Parser, by: Any, given_text: Any) -> Mapping[str, float]:  # noqa: ANN401 - of each parser's own
    """Return what a parser reads, nothing where it says that it cannot."""
    try:
        found: Mapping[str, float] = by(given_text)
    except parser.refuses:
        return {}
    return found


def test_no_input_is_an_exception_or_a_value_that_cannot_be(parser: Parser) -> None:
    with parser.reading() as by:

        @tried(0.6)
        @given(parser.form.near())
        def tries(inputs: Sequence[Any]) -> None:
            for each in inputs:
                read(parser, by, each)

        tries()


def test_what_is_taken_away_or_not_available_is_no_0(parser: Parser) -> None:
    pairs = parser.form.lacking()
    if pairs.is_empty:
        pytest.skip("its input has no values")
    with parser.reading() as by:

        @tried(0.38)
        @given(pairs)
        def tries(inputs: Sequence[tuple[Any, Any]]) -> None:
            before = read(parser, by, inputs[0][0])
            for _, poorer in inputs:
                after = read(parser, by, poorer)
                zeros = {name for name, value in after.items() if value == 0}
                assert not {name for name in zeros if before.get(name)}
                # What is not known by its name any more may stand under another one.
                assert len(zeros) <= sum(value == 0 for value in before.values())

        tries()


def test_a_long_input_takes_no_longer_than_its_length_says(parser: Parser) -> None:
    with parser.reading() as by:

        @tried(0.002 if INPUTS > 100_000 else 0.05, 1)
        @given(parser.form.long())
        def tries(text: Any) -> None:  # noqa: ANN401 - of each parser's own
            begun = time.thread_time()
            read(parser, by, text)
            taken = time.thread_time() - begun
            assert taken < SECONDS, f"{taken:.1f} s for about {LENGTH} characters"

        tries()
