"""The one JSON document in what a tool writes, whatever stands before and after it."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_BEGIN: Final = re.compile(r"[{\[]")
_DECODER: Final = json.JSONDecoder()
_MOST_TRIES: Final = 200


def find_document(text: str, fits: Callable[[Any], bool]) -> Any:  # noqa: ANN401 - whatever JSON has there
    """Return the first object or array of the right shape, or None.

    Tools write warnings to standard output in front of it (case 63), and some write it twice (case 64).
    """
    start = 0
    for _ in range(_MOST_TRIES):
        match = _BEGIN.search(text, start)
        if match is None:
            return None
        start = match.start() + 1
        try:
            found, _end = _DECODER.raw_decode(text, match.start())
        except (RecursionError, ValueError):
            continue
        if fits(found):
            return found
    return None
