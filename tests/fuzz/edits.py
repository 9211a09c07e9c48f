"""Inputs that stand close to real ones: a capture in which something was changed, taken away or made very long.

A form knows captures of one shape. Its three strategies: `near` changes anything in any way; `lacking` gives a capture
and the same without some of its values, which are gone or said not to be available; `long` gives one that is large.
The first two give several inputs at once, since to draw one costs ten times what a parser needs for it.
"""

from __future__ import annotations

import json
import os
import re
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from hypothesis import strategies as st

from tests.fuzz.words import ENDS, NO_VALUES, NO_WORDS, RUNS, VALUES, WORDS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

T_co = TypeVar("T_co", covariant=True)
S = TypeVar("S")
R = TypeVar("R")

LENGTH: Final = 65_536
"""Of what is made long, in characters: a parser that takes a second for so many takes hours for some megabytes."""

NUMBER: Final = re.compile(r"(?<![\w.:])[-+]?[0-9]+(?:\.[0-9]+)?(?![\w:])")
"""A value in a text where nothing else looks like one."""

_TOKEN: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?|\w+|\n|[^\w\n]")

_PLACE: Final = st.integers(0, 2**20)
CHANGES: Final = st.lists(st.tuples(_PLACE, st.integers(0, 15), st.integers(0, 999)), min_size=1, max_size=5)
LOSSES: Final = st.lists(st.tuples(_PLACE, st.integers(0, len(NO_VALUES))), min_size=1, max_size=5)
STRETCHES: Final = st.tuples(_PLACE, st.sampled_from(RUNS), st.sampled_from(ENDS))


_ANY_TEXT: Final = st.text(max_size=60).map(lambda text: (text,))
TURNS: Final = int(os.environ.get("FUZZ_TURNS", "1"))
"""How many inputs are made of what is drawn once."""


def several(
    make: Callable[[S, list[Any]], R], originals: st.SearchStrategy[S], changes: st.SearchStrategy[list[Any]]
) -> st.SearchStrategy[Sequence[R]]:
    """Make of an original as many inputs as there are turns, each with other changes."""
    return st.builds(
        lambda original, drawn: tuple(make(original, _turned(drawn, turn)) for turn in range(TURNS)), originals, changes
    )


def _turned(drawn: Any, turn: int) -> Any:  # noqa: ANN401 - changes, or losses, or either by place
    if isinstance(drawn, list):
        return [_turned(each, turn) for each in drawn]
    if not isinstance(drawn, tuple):
        return drawn
    place, *rest = drawn
    if rest and (rest[0] is None or isinstance(rest[0], list)):
        return (place + turn, _turned(rest[0], turn))
    # By primes, so that every place meets every change.
    whats = len(NO_VALUES) + 1 if len(rest) == 1 else 16
    turned = ((rest[0] + turn) % whats, *(number + 7 * turn for number in rest[1:]))
    return (place + 7919 * turn, *turned)


class Form(Protocol[T_co]):
    """Captures of one shape, and what can be made of them."""

    def near(self) -> st.SearchStrategy[Sequence[T_co]]:
        """Make captures with changes."""

    def lacking(self) -> st.SearchStrategy[Sequence[tuple[T_co, T_co]]]:
        """Make captures, each with what is left of it when some values are not there."""

    def long(self) -> st.SearchStrategy[T_co]:
        """Make captures of which one piece is very long."""


@dataclass(frozen=True)
class Texts(Form[str]):
    """Texts of words and numbers; `fields` finds the values in them."""

    originals: Sequence[str]
    fields: re.Pattern[str] = NUMBER

    def near(self) -> st.SearchStrategy[Sequence[str]]:
        """Delete, repeat, change and exchange words and lines; some texts have nothing in common with a capture."""
        return several(changed_text, st.sampled_from(self.originals), CHANGES) | _ANY_TEXT

    def lacking(self) -> st.SearchStrategy[Sequence[tuple[str, str]]]:
        """Take values, or their whole lines."""
        return several(self._pair, st.sampled_from(self.originals), LOSSES)

    def long(self) -> st.SearchStrategy[str]:
        """Put a run of one character, or of a short text, in place of a word."""
        return st.builds(stretched, st.sampled_from(self.originals), STRETCHES)

    def _pair(self, text: str, losses: list[tuple[int, int]]) -> tuple[str, str]:
        return text, self.without(text, losses)

    def without(self, text: str, losses: list[tuple[int, int]]) -> str:
        """Return a text without some of its values."""
        for place, how in losses:
            found = list(self.fields.finditer(text))
            if not found:
                break
            start, end = found[place % len(found)].span()
            if how < len(NO_WORDS):
                text = text[:start] + NO_WORDS[how] + text[end:]
            else:
                text = text[: text.rfind("\n", 0, start) + 1] + text[end:].partition("\n")[2]
        return text


@dataclass(frozen=True)
class Documents(Form[str]):
    """Documents of JSON, as texts."""

    originals: Sequence[str]

    def near(self) -> st.SearchStrategy[Sequence[str]]:
        """Delete, repeat, change, rename, wrap and cut; some of them on the text, so that it is no JSON any more."""
        originals = st.sampled_from(self.originals)
        spoilt = several(
            lambda text, changes: changed_text(changed_document(text, changes), changes), originals, CHANGES
        )
        return several(changed_document, originals, CHANGES) | spoilt | _ANY_TEXT

    def lacking(self) -> st.SearchStrategy[Sequence[tuple[str, str]]]:
        """Take leaves, or say that they are not available."""
        return several(_poorer_document, st.sampled_from(self.originals), LOSSES)

    def long(self) -> st.SearchStrategy[str]:
        """Put a run in place of a word."""
        return st.builds(stretched, st.sampled_from(self.originals), STRETCHES)


@dataclass(frozen=True)
class Trees(Form["Mapping[str, str]"]):
    """Several texts by name, such as the files of a machine or the variables of an environment.

    Those whose name begins with `facts` hold no values.
    """

    originals: Sequence[Mapping[str, str]]
    fields: re.Pattern[str] = NUMBER
    facts: str = "-"

    def near(self) -> st.SearchStrategy[Sequence[Mapping[str, str]]]:
        """Change some of the texts, or take them away."""
        edits = st.lists(st.tuples(_PLACE, CHANGES), min_size=1, max_size=3)
        return several(self._changed, st.sampled_from(self.originals), edits)

    def lacking(self) -> st.SearchStrategy[Sequence[tuple[Mapping[str, str], Mapping[str, str]]]]:
        """Take values, lines, or whole texts."""
        losses = st.lists(st.tuples(_PLACE, LOSSES | st.none()), min_size=1, max_size=3)
        return several(self._poorer, st.sampled_from(self.originals), losses)

    def long(self) -> st.SearchStrategy[Mapping[str, str]]:
        """Make one text long."""
        return st.builds(self._longer, st.sampled_from(self.originals), _PLACE, STRETCHES)

    @staticmethod
    def _changed(tree: Mapping[str, str], edits: list[tuple[int, list[tuple[int, int, int]]]]) -> Mapping[str, str]:
        made = dict(tree)
        for place, changes in edits:
            name = sorted(tree)[place % len(tree)]
            if changes[0][1]:
                made[name] = changed_text(tree[name], changes)
            else:
                made.pop(name, None)
        return made

    def _poorer(
        self, tree: Mapping[str, str], losses: list[tuple[int, list[tuple[int, int]] | None]]
    ) -> tuple[Mapping[str, str], Mapping[str, str]]:
        made = dict(tree)
        for place, lost in losses:
            names = [name for name in sorted(tree) if not name.startswith(self.facts)]
            name = names[place % len(names)]
            if lost is None:
                made.pop(name, None)
            elif name in made:
                made[name] = Texts((), self.fields).without(made[name], lost)
        return tree, made

    @staticmethod
    def _longer(tree: Mapping[str, str], place: int, stretch: tuple[int, str, str]) -> Mapping[str, str]:
        name = sorted(tree)[place % len(tree)]
        return {**tree, name: stretched(tree[name], stretch)}


def changed_text(text: str, changes: Sequence[tuple[int, int, int]]) -> str:
    """Return a text with changes: words most of the time, now and then lines or all of it."""
    tokens = _TOKEN.findall(text) or [""]
    for place, what, number in changes:
        at, word = place % len(tokens), WORDS[number % len(WORDS)]
        if what < 7:
            tokens[at] = word
        elif what == 7:
            tokens.insert(at, word)
        elif what == 8:
            tokens.insert(at, tokens[at])
        elif what == 9:
            tokens[at], tokens[-at - 1] = tokens[-at - 1], tokens[at]
        elif what < 12:
            tokens[at] = ""
        elif what == 12:
            del tokens[at + 1 :]
        elif what == 13:
            tokens = [*tokens[at:], "\n", *tokens[:at]]
        else:
            lines = "".join(tokens).split("\n")
            one = place % len(lines)
            lines[one : one + 1] = [lines[one]] * (2 if what == 14 else 0)
            tokens = _TOKEN.findall("\n".join(lines)) or [""]
    return "".join(tokens)


def stretched(text: str, stretch: tuple[int, str, str]) -> str:
    """Return a text of which one word is a very long run."""
    place, run, end = stretch
    tokens = _TOKEN.findall(text) or [""]
    tokens[place % len(tokens)] = run * (LENGTH // len(run)) + end
    return "".join(tokens)


def changed_document(text: str, changes: Sequence[tuple[int, int, int]]) -> str:
    """Return a document with changes."""
    document = json.loads(text)
    for place, what, number in changes:
        holder, key = _walk(document, place, leaves=False)
        if holder is None:
            continue
        _change(holder, key, what, number)
    return json.dumps(document)


def _change(holder: Any, key: Any, what: int, number: int) -> None:  # noqa: ANN401 - of any shape
    value = deepcopy(VALUES[number % len(VALUES)])
    if what < 8:
        holder[key] = value
    elif what < 10:
        del holder[key]
    elif what == 10:
        holder[key] = [holder[key]]
    elif what == 11:
        holder[key] = {"value": holder[key], "unit": value}
    elif isinstance(holder, list):
        holder.insert(key, holder[key] if what < 14 else value)
    else:
        holder[WORDS[number % len(WORDS)] if what < 14 else f"{key}{number % 3}"] = holder.pop(key)


def _poorer_document(text: str, losses: list[tuple[int, int]]) -> tuple[str, str]:
    document = json.loads(text)
    for place, how in losses:
        holder, key = _walk(document, place, leaves=True)
        if holder is None:
            continue
        if how < len(NO_VALUES):
            holder[key] = deepcopy(NO_VALUES[how])
        elif isinstance(holder, dict):
            del holder[key]
    return text, json.dumps(document)


def _walk(document: Any, place: int, *, leaves: bool) -> tuple[Any, Any]:  # noqa: ANN401 - of any shape
    """Go down from the top, `place` says which way and how far; return a container and a key in it."""
    holder, key, below = None, None, document
    while isinstance(below, list | dict) and below:
        keys = range(len(below)) if isinstance(below, list) else list(below)
        holder, key = below, keys[place % len(keys)]
        place //= len(keys)
        below = holder[key]
        if not leaves and place % 5 == 0 and place:
            break
        place = place * 7 + 3
    return holder, key
