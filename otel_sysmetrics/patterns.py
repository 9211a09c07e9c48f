"""Patterns of RE2, as W&B and otelcol read them, under google-re2 or, where that is not installed, Python's `re`.

Python's `re` gives some patterns another meaning and some no end: `(a+)+$` holds the interpreter, and with it every
thread of the application, for hours (https://docs.python.org/3/library/re.html has no time limit). So here a pattern
means what it means to RE2, or is refused.
"""

from __future__ import annotations

import re
import sys
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_REMEDY: Final = "pip install otel-sysmetrics[openmetrics]"
_ONLY_RE2: Final = f"which only google-re2 reads: {_REMEDY}"
_LACKING: Final = {
    "ASSERT": "look-around",
    "ASSERT_NOT": "look-around",
    "GROUPREF": "back-references",
    "GROUPREF_EXISTS": "back-references",
    "ATOMIC_GROUP": "atomic groups",
    "POSSESSIVE_REPEAT": "possessive quantifiers",
}
_MOST_TIMES: Final = 1_000
_LONGEST: Final = 5_000
_REPEATS: Final = frozenset({"MAX_REPEAT", "MIN_REPEAT"})
# A set as a whole, an escaped character, the beginning of a group, an open count, the end of the text.
_TOKENS: Final = re.compile(r"\[\^?\]?(?:\\.|\[:|[^\]\\])*\]?|\\.|\(\?[^):=!<]*[):=!<]?|\{,|\$", re.DOTALL)
# A quotation, which may be open, a set, an escaped character, the name of a group.
_NAMED: Final = re.compile(
    r"(?P<quoted>\\Q(?:(?!\\E).)*)(?P<end>\\E)?|\[\^?\]?(?:\\.|\[:|[^\]\\])*\]?|\\.|\(\?P?<(?P<name>[^>=!]*)>",
    re.DOTALL,
)
_ALIKE: Final = frozenset("dDwWsSbBAfnrtvax")
_FLAGS: Final = re.compile(r"\(\?[ims]*(-[ims]+)?[:)]|\(\?P<|\(\?<|\(\?[=!]")


class NotAPattern(ValueError):
    """A text that is no pattern of RE2, or none that can be searched for safely here; the argument says why."""


@lru_cache(maxsize=1024)
def compiled(pattern: str) -> Callable[[str], object]:
    """Return the search for a pattern, whose answer is true where it is found; raises NotAPattern."""
    if len(pattern) > _LONGEST:
        raise NotAPattern(f"it has more than {_LONGEST} characters")
    _check_for_go(pattern)
    if find_spec("re2") is not None:
        return _by_re2(pattern)
    return _by_python(pattern)


def closed(pattern: str) -> str:
    """Return a pattern that may stand inside another: with an end where its last quotation has none."""
    return pattern + "".join(
        r"\E" for match in _NAMED.finditer(pattern) if match["quoted"] is not None and match["end"] is None
    )


def _check_for_go(pattern: str) -> None:
    """Refuse what google-re2 reads and RE2 in Go does not, in which W&B and otelcol are written."""
    parts = tuple(_NAMED.finditer(pattern))
    names = [match["name"] for match in parts if match["name"] is not None]
    if any(match[0] == r"\C" for match in parts):
        raise NotAPattern(r"\C, a byte, is not in W&B's and otelcol's RE2")
    if len(set(names)) < len(names) or not all(map(str.isascii, names)):
        raise NotAPattern("names of groups are ASCII, and each is there once")


def _by_re2(pattern: str) -> Callable[[str], object]:
    re2: Any = import_module("re2")
    options = re2.Options()
    options.log_errors = False
    try:
        search: Callable[[str], object] = re2.compile(pattern, options=options).search
    except (re2.error, UnicodeError) as error:
        raise NotAPattern(_reason(error)) from None
    return search


def _by_python(pattern: str) -> Callable[[str], object]:
    text = _translated(pattern)
    try:
        tree = import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse").parse(text, re.ASCII)
        _check(tree, repeated=False)
        return re.compile(text, re.ASCII).search
    except (re.error, FutureWarning, OverflowError, RecursionError) as error:
        raise NotAPattern(_reason(error)) from None


def _translated(pattern: str) -> str:
    """Return what means to Python what `pattern` means to RE2; raises NotAPattern where it would mean something else.

    Python's `$` also matches before a line feed at the end.
    """
    multiline = re.search(r"\(\?[is]*m", pattern) is not None
    parts = []
    end = 0
    for match in _TOKENS.finditer(pattern):
        parts.append(pattern[end : match.start()])
        parts.append(_piece(match[0], multiline=multiline))
        end = match.end()
    return "".join([*parts, pattern[end:]])


def _piece(text: str, *, multiline: bool) -> str:
    if text == "$":
        return text if multiline else r"\Z"
    if text == r"\z":
        return r"\Z"
    if text == "{,":
        return r"\{,"
    if text.startswith("["):
        if "[:" in text or r"\b" in text:
            raise NotAPattern(f"{text}, {_ONLY_RE2}")
        return text[0] + text[1:].replace("[", r"\[") if r"\[" not in text else text
    if text.startswith("\\") and text[1:].isalnum() and text[1] not in _ALIKE and not text[1].isdigit():
        raise NotAPattern(f"{text}, {_ONLY_RE2}")
    if text.startswith("(?") and not _FLAGS.match(text):
        raise NotAPattern(f"{text} is not RE2's")
    return text


def _check(tree: Iterable[Any], *, repeated: bool) -> None:
    """Refuse what RE2 lacks, and what can take for ever here: a quantifier or alternatives inside a repeated group."""
    for name, value in ((str(operator), value) for operator, value in tree):
        if name in _LACKING:
            raise NotAPattern(f"RE2 has no {_LACKING[name]}")
        if name in _REPEATS and any(str(times) != "MAXREPEAT" and times > _MOST_TIMES for times in value[:2]):
            raise NotAPattern(f"RE2 repeats at most {_MOST_TIMES} times")
        if repeated and name in (_REPEATS | {"BRANCH"}):
            raise NotAPattern(f"a quantifier or alternatives inside a quantified group, {_ONLY_RE2}")
        for inner in _inner(value):
            _check(inner, repeated=repeated or name in _REPEATS)


def _inner(value: object) -> Iterator[Iterable[Any]]:
    """Yield the patterns that stand inside an operator's value."""
    if hasattr(value, "getwidth"):
        yield value  # type: ignore[misc]
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _inner(item)


def _reason(error: Exception) -> str:
    text = error.args[0] if error.args else "cannot be read"
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)
