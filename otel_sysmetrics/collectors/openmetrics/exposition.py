"""The text formats of Prometheus and OpenMetrics, line by line: a bad line costs that line.

Names are looked at before labels are: an endpoint may show 400,000 lines of which three families are wanted.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Labels = tuple[tuple[str, str], ...]
"""Labels by name, sorted; one that is empty counts as absent, as in Prometheus."""

_LONGEST_LINE: Final = 2**20
_MOST_NAMES: Final = 100_000
"""How many names are remembered; a page of more has them looked at anew, and its memory is bounded."""

_NAME: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*", re.ASCII)
_QUOTED: Final = re.compile(r'"([^"\\]*(?:\\.[^"\\]*)*)"', re.DOTALL)
_LABEL: Final = re.compile(
    r'[ \t]*(?:([a-zA-Z_][a-zA-Z0-9_]*)|"([^"\\]+(?:\\.[^"\\]*)*)")[ \t]*=[ \t]*'
    r'"([^"\\]*(?:\\.[^"\\]*)*)"[ \t]*(?:,[ \t]*|(?=\}))',
    re.DOTALL,
)
_ESCAPE: Final = re.compile(r'\\([\\"n])')
# Each digit can belong to one repetition only: else a line of digits takes time with the square of its length.
_NUMBER: Final = r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[+-]?(?i:inf(?:inity)?|nan)"
# A value, and a time stamp and an exemplar, which are not ours.
_VALUE: Final = re.compile(rf"[ \t]*({_NUMBER})(?:[ \t]+(?:{_NUMBER}))?(?:[ \t]+#.*)?[ \t]*", re.DOTALL)
_COMMENT: Final = re.compile(r'#[ \t]+(TYPE|UNIT)[ \t]+(?:"((?:[^"\\]|\\.)+)"|(\S+))[ \t]+(\S+)[ \t]*')

_GAUGES: Final = frozenset({"gauge", "unknown", "untyped"})
_LEFT_OUT: Final = frozenset({"histogram", "gaugehistogram", "summary", "info", "stateset"})
# What the samples of a family may be called, other than the family itself.
_SUFFIXES: Final[Mapping[str, frozenset[str]]] = {
    "_total": frozenset({"counter"}),
    "_bucket": frozenset({"histogram", "gaugehistogram"}),
    "_sum": frozenset({"histogram", "summary"}),
    "_count": frozenset({"histogram", "summary"}),
    "_gsum": frozenset({"gaugehistogram"}),
    "_gcount": frozenset({"gaugehistogram"}),
    "_info": frozenset({"info"}),
}
# What DCGM writes for a value that it does not have, in 32, 64 and floating-point bits.
BLANKS: Final = frozenset(map(float, (*range(2**31 - 16, 2**31 - 12), 2**63 - 16, *range(2**47, 2**47 + 4))))


_T = TypeVar("_T")

Condition: TypeAlias = "Callable[[Mapping[str, str]], bool]"
Keeps: TypeAlias = "Callable[[str], tuple[Condition, ...] | None]"


class Series(NamedTuple):
    """One series: the name of its samples, its labels, whether it counts, and its unit as the source spells it."""

    name: str
    labels: Labels
    counts: bool
    unit: str


class Wanted(NamedTuple):
    """What is known of a name that is wanted: any of the conditions on labels is enough, none is enough too."""

    counts: bool
    unit: str
    conditions: tuple[Condition, ...]


_NEW: Final = Wanted(counts=False, unit="", conditions=())


class _Bad(Exception):
    """A line that cannot be read."""


class NotMetrics(Exception):
    """What was read is something else altogether, such as a page to log in."""


class Exposition:
    """One scrape, fed in pieces of text.

    `keeps` says which names are wanted: None for one that is not, else conditions on the labels.
    `series` holds the newest value of each series, at most `limit` of them; `bad` lines were skipped, `dropped` series
    were too many.
    """

    def __init__(self, keeps: Keeps, limit: int) -> None:
        self.series: dict[Series, float] = {}
        self.bad = 0
        self.dropped = 0
        self._keeps = keeps
        self._limit = limit
        self._good = False
        self._begun = False
        self._rest: list[str] = []  # of a line whose end has not come; joined once, however small the pieces are
        self._length = 0
        self._overlong = False
        self._types: dict[str, str] = {}
        self._units: dict[str, str] = {}
        self._names: dict[str, Wanted | None] = {}

    def feed(self, text: str) -> None:
        """Take the next piece; raises NotMetrics for a page of HTML."""
        if not self._begun and (start := text.lstrip("\ufeff \t\r\n")):
            self._begun = True
            if start.startswith("<"):
                raise NotMetrics("a page of HTML")
            text = text.removeprefix("\ufeff")
        whole, found, rest = text.rpartition("\n")
        if found:
            lines = "".join([*self._rest, whole]).split("\n")
            if self._overlong:
                self._overlong = False
                del lines[0]
            self._rest, self._length = [], 0
            self._read(lines)
        self._rest.append(rest)
        self._length += len(rest)
        if self._length > _LONGEST_LINE or self._overlong:
            self.bad += not self._overlong
            self._rest, self._length, self._overlong = [], 0, True

    def end(self) -> None:
        """Take what stands after the last line feed; raises NotMetrics where no line could be read."""
        if not self._overlong:
            self._read(["".join(self._rest)])
        if self.bad and not self._good:
            raise NotMetrics("no metrics")

    def _read(self, lines: list[str]) -> None:
        known = self._names.get
        for line in lines:
            # Most lines of a big endpoint end here: their name is known, and not wanted.
            if known(line.partition("{")[0], _NEW) is not None:
                self._line(line)

    def _line(self, line: str) -> None:
        text = line.strip(" \t\r")
        if not text:
            return
        if text[0] == "#":
            self._comment(text)
            return
        try:
            self._sample(text)
        except _Bad:
            self.bad += 1

    def _comment(self, text: str) -> None:
        if match := _COMMENT.fullmatch(text):
            word, quoted, plain, what = match.groups()
            family = plain if quoted is None else _plain(quoted)
            _remember(self._types if word == "TYPE" else self._units, family, what.lower() if word == "TYPE" else what)

    def _sample(self, text: str) -> None:
        match = _NAME.match(text)
        if match is not None:
            name, position = match[0], match.end()
            while text[position : position + 1] in {" ", "\t"}:
                position += 1
            labelled = text[position : position + 1] == "{"
            if not labelled and position == match.end():
                raise _Bad
            position += labelled
        else:
            name, position = _quoted_name(text)
            labelled = True
        wanted = self._names.get(name, _NEW)
        if wanted is None:
            return
        if wanted is _NEW:
            wanted = _remember(self._names, name, self._want(name))
        labels, position = _labels(text, position) if labelled else ({}, position)
        value = _VALUE.fullmatch(text, position)
        if value is None:
            raise _Bad
        self._good = True
        if wanted is None:
            return
        if not wanted.conditions or any(condition(labels) for condition in wanted.conditions):
            self._keep(Series(name, tuple(sorted(labels.items())), wanted.counts, wanted.unit), float(value[1]))

    def _want(self, name: str) -> Wanted | None:
        family, kind = self._family(name)
        if kind in _LEFT_OUT or name.endswith("_created"):
            return None
        conditions = self._keeps(name)
        if conditions is None:
            return None
        unit = self._units.get(name) or self._units.get(family, "")
        return Wanted(kind == "counter", unit, conditions)

    def _family(self, name: str) -> tuple[str, str]:
        """Return the family of a sample's name and its type, which is unknown where nothing says it before."""
        if name in self._types:
            return name, self._types[name]
        for suffix, kinds in _SUFFIXES.items():
            family = name.removesuffix(suffix)
            if family != name and self._types.get(family) in kinds:
                return family, self._types[family]
        return name, "unknown"

    def _keep(self, series: Series, value: float) -> None:
        """Keep a value, the last one where a series comes twice; what is not known is absent."""
        if not math.isfinite(value) or (series.counts and value < 0) or is_blank(series.name, value):
            self.series.pop(series, None)
        elif series in self.series or len(self.series) < self._limit:
            self.series[series] = value
        else:
            self.dropped += 1


def _remember(known: dict[str, _T], name: str, what: _T) -> _T:
    """Note what is known of a name, and forget all others once they are too many: its samples come next."""
    if len(known) >= _MOST_NAMES and name not in known:
        known.clear()
    known[name] = what
    return what


def is_blank(name: str, value: float) -> bool:
    """Tell whether this is how DCGM says that it does not know."""
    return value in BLANKS and name[:5].upper() == "DCGM_"


def _quoted_name(text: str) -> tuple[str, int]:
    """Return a name of any characters, `{"name", label="…"}`, and where its labels begin; raises _Bad."""
    if text[:1] != "{":
        raise _Bad
    start = len(text) - len(text[1:].lstrip(" \t"))
    match = _QUOTED.match(text, start)
    if match is None or not match[1]:
        raise _Bad
    rest = text[match.end() :].lstrip(" \t")
    if rest[:1] not in {",", "}"}:
        raise _Bad
    return _plain(match[1]), len(text) - len(rest) + (rest[0] == ",")


def _labels(text: str, position: int) -> tuple[dict[str, str], int]:
    """Read labels up to their closing brace, and return where the value begins; raises _Bad."""
    labels: dict[str, str] = {}
    seen: set[str] = set()
    while match := _LABEL.match(text, position):
        plain, quoted, value = match.groups()
        name = plain if quoted is None else _plain(quoted)
        if name in seen:
            raise _Bad
        seen.add(name)
        if value:
            labels[name] = _plain(value)
        position = match.end()
    while text[position : position + 1] in {" ", "\t"}:
        position += 1
    if text[position : position + 1] != "}":
        raise _Bad
    return labels, position + 1


def _plain(text: str) -> str:
    """Undo escapes; a backslash before anything else is itself."""
    if "\\" not in text:
        return text
    return _ESCAPE.sub(lambda match: "\n" if match[1] == "n" else match[1], text)
