"""The JSON documents in what a tool writes, whatever stands before, between and after them."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ANYWHERE: Final = re.compile(r"[{\[]")
AT_A_LINES_BEGIN: Final = re.compile(r"^[{\[]", re.MULTILINE)
_DECODER: Final = json.JSONDecoder()
_MOST_TRIES: Final = 200


def find_documents(text: str, fits: Callable[[Any], bool], begin: re.Pattern[str] = ANYWHERE) -> Iterator[Any]:
    """Yield the objects and arrays of the right shape that lie in no other such one.

    Tools write warnings to standard output in front of them (case 63), and some write each device in a document of its
    own, and then all of them once more (case 64).
    """
    start = tries = 0
    while tries < _MOST_TRIES and (match := begin.search(text, start)) is not None:
        start = match.start() + 1
        try:
            found, end = _DECODER.raw_decode(text, match.start())
        except (RecursionError, ValueError):
            found = None
        if found is not None and fits(found):
            start = end
            yield found
        else:
            tries += 1
