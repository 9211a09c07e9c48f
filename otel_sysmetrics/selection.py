"""Which tags are sent: globs over filled tags."""

from __future__ import annotations

import re
from fnmatch import translate
from functools import lru_cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_sysmetrics.spec import MetricSpec

DEFAULT: Final = "default"

_TOKENS: Final = re.compile(r"\{\w+\}|\[!?\]?[^\]]*\]|.", re.DOTALL)


class Selection:
    """The settings `metrics_included` and `metrics_excluded`.

    The word `default` stands for the rows that are on by default; what is excluded wins.
    """

    def __init__(self, included: Sequence[str], excluded: Sequence[str]) -> None:
        self._default = DEFAULT in included
        self._globs = tuple(glob for glob in included if glob != DEFAULT)
        self._included = _matcher(self._globs)
        self._excluded = _matcher(excluded)

    def tag(self, spec: MetricSpec, tag: str) -> bool:
        """Tell whether a filled tag is sent."""
        return ((self._default and spec.on) or self._included(tag)) and not self._excluded(tag)

    def spec(self, spec: MetricSpec) -> bool:
        """Tell whether any tag of a spec can be sent; a spec without placeholders has one tag only."""
        if not spec.placeholders:
            return self.tag(spec, spec.tag)
        return (self._default and spec.on) or any(_meet(glob, spec.tag) for glob in self._globs)


def _matcher(globs: Sequence[str]) -> Callable[[str], bool]:
    if not globs:
        return lambda _tag: False
    pattern = re.compile("|".join(map(translate, globs)))
    return lru_cache(maxsize=4096)(lambda tag: pattern.match(tag) is not None)


def _meet(glob: str, template: str) -> bool:
    """Tell whether a glob can match any text that a template can be filled to.

    Both are read as wildcard patterns, a set of characters as any character: it errs towards yes.
    """

    def tokens(text: str, *, filled: bool) -> list[str]:
        found = _TOKENS.findall(text)
        if filled:
            return ["*" if token.startswith("{") and len(token) > 1 else token for token in found]
        return ["?" if token.startswith("[") and len(token) > 1 else token for token in found]

    return _wildcards_meet(tokens(glob, filled=False), tokens(template, filled=True))


def _wildcards_meet(left: list[str], right: list[str]) -> bool:
    reached = {(0, 0)}
    seen: set[tuple[int, int]] = set()
    while reached:
        i, j = reached.pop()
        if (i, j) == (len(left), len(right)):
            return True
        seen.add((i, j))
        a = left[i] if i < len(left) else ""
        b = right[j] if j < len(right) else ""
        steps = set()
        if a == "*":
            steps |= {(i + 1, j), (i, j + 1)} if b else {(i + 1, j)}
        if b == "*":
            steps |= {(i, j + 1), (i + 1, j)} if a else {(i, j + 1)}
        if a and b and (a == b or "?" in (a, b)):
            steps.add((i + 1, j + 1))
        reached |= steps - seen
    return False
