"""The settings of OpenMetrics endpoints as checked values: where they are, what is sent to them, what is kept.

Addresses, headers and tokens are secret: an error names their key and never shows their value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

from otel_sysmetrics import patterns, values
from otel_sysmetrics.values import Unreadable

DCGM_PART: Final = "dcgm_exporter"
"""The part that reads `dcgm_exporter`, hence no name of an endpoint."""

_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE: Final = re.compile(r"[\t\x20-\x7e\xa0-\xff]*")
_URL: Final = re.compile(r"[\x21-\x7e]+")
_MOST: Final = 2**40

Filters: TypeAlias = "tuple[tuple[str, tuple[tuple[str, str], ...]], ...]"
"""Entries of a pattern and of patterns by label; one entry that matches is enough, and no entry keeps everything."""


class PartlyUnreadable(Unreadable):
    """A map of which some entries cannot be read; `readable` holds the others."""

    def __init__(self, expected: str, readable: object) -> None:
        super().__init__(expected)
        self.readable = readable


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One endpoint: its address, what is sent to it, and what it may cost.

    `timeout` is for a whole request, in seconds; `body_limit` is in bytes, also of what compressed bytes unpack to;
    `series_limit` is how many series of one scrape are kept.
    """

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    bearer_token_file: str | None = None
    ca_file: str | None = None
    timeout: float = 5.0
    series_limit: int = 10_000
    body_limit: int = 64 * 2**20


def _count(value: object) -> int:
    found = values.number(value)
    if found is None or not found.is_integer() or not 0 < found <= _MOST:
        raise Unreadable("a whole number above 0")
    return int(found)


def url(value: object) -> str | None:
    """Read an address of HTTP; None is none."""
    if value is None:
        return None
    expected = "a URL such as http://localhost:9400/metrics"
    if not isinstance(value, str) or not _URL.fullmatch(value.strip()):
        raise Unreadable(expected)
    try:
        parsed = urlsplit(value.strip())
        port = parsed.port
        host = (parsed.hostname or "").encode("idna")  # raises for labels that are empty or too long
    except ValueError:
        raise Unreadable(expected) from None
    if parsed.scheme not in {"http", "https"} or not host or port == 0:
        raise Unreadable(expected)
    return value.strip()


def headers(value: object) -> Mapping[str, str]:
    """Read a map of header to text, in the environment as JSON."""
    found = _map(value, 'a map of header to text, in the environment as JSON ({"X-Scope-OrgID": "ml"})')
    for number, (name, text) in enumerate(found.items(), 1):
        if not _HEADER_NAME.fullmatch(name):  # a whole header may stand there
            raise Unreadable(f"headers with legal names (that of header {number} is none)")
        if not isinstance(text, str) or not _HEADER_VALUE.fullmatch(text):
            raise Unreadable(f"a text of one line for the header {name}")
    return found


_READERS: Final = {
    "url": url,
    "headers": headers,
    "bearer_token_file": values.file,
    "ca_file": values.file,
    "timeout": values.seconds,
    "series_limit": _count,
    "body_limit": _count,
}


def endpoints(value: object) -> Mapping[str, Endpoint]:
    """Read a map of name to URL or to the fields of an Endpoint, in the environment as JSON.

    Raises PartlyUnreadable with the endpoints that can be read.
    """
    given = _map(value, 'a map of name to URL, in the environment as JSON ({"node1": "http://node1:9100/metrics"})')
    found: dict[str, Endpoint] = {}
    wrong: list[str] = []
    for number, (name, entry) in enumerate(given.items(), 1):
        try:
            found[name] = _endpoint(name, entry)
        except Unreadable as error:
            is_url = "://" in name or "@" in name  # in the wrong place
            wrong.append(f"for {f'entry {number}' if is_url else repr(name)} {error}")
    if wrong:
        raise PartlyUnreadable(", ".join(wrong), found)
    return found


def _endpoint(name: str, entry: object) -> Endpoint:
    if not name.strip() or name == DCGM_PART:
        raise Unreadable(f"a name, other than {DCGM_PART}")
    if isinstance(entry, Endpoint):
        entry = {each.name: getattr(entry, each.name) for each in fields(Endpoint)}
    if not isinstance(entry, Mapping):
        entry = {"url": entry}
    if unknown := [str(key) for key in entry if key not in _READERS]:
        raise Unreadable(f"keys out of {', '.join(_READERS)} (unknown: {', '.join(unknown)})")
    chosen: dict[str, Any] = {}
    for key, item in entry.items():
        try:
            chosen[key] = _READERS[key](item)
        except Unreadable as error:
            raise Unreadable(f"as {key} {error}" if key != "url" else str(error)) from None
    if chosen.get("url") is None:
        raise Unreadable("a URL such as http://localhost:9400/metrics")
    return Endpoint(**chosen)


_FILTERS: Final = "a list of patterns, or a map of pattern to a map of label to pattern, as JSON"


def filters(value: object) -> Filters:
    """Read W&B's filters: a list of patterns, or a map of pattern to {label: pattern}."""
    if isinstance(value, str):
        value = _filters_of_text(value)
    if isinstance(value, Mapping):
        value = list(value.items())
    if not isinstance(value, list | tuple | set | frozenset):
        raise Unreadable(_FILTERS)
    return tuple(dict.fromkeys(_filter(entry) for entry in value))


def _filters_of_text(text: str) -> object:
    if text.strip()[:1] == "{":
        return _json(text, _FILTERS)
    try:
        return values.texts(text)
    except Unreadable:  # a pattern may begin with a set, which looks like JSON and is none
        if text.strip()[:2] in {"[", "['", '["'}:
            raise
        return tuple(part.strip() for part in text.split(",") if part.strip())


def _filter(entry: object) -> tuple[str, tuple[tuple[str, str], ...]]:
    pattern, labels = (entry, ()) if isinstance(entry, str) else _pair(entry)
    found = tuple(labels.items()) if isinstance(labels, Mapping) else labels
    if not isinstance(found, tuple) or not all(
        isinstance(pair, tuple) and [type(item) for item in pair] == [str, str] for pair in found
    ):
        raise Unreadable(_FILTERS)
    if any(not label for label, _ in found):
        raise Unreadable(f"labels that have a name (not so for {pattern!r})")
    for text in (pattern, *(wanted for _, wanted in found)):
        try:
            patterns.compiled(text)
        except patterns.NotAPattern as error:
            raise Unreadable(f"patterns of RE2 (not one: {text!r}: {error})") from None
    return pattern, found


def _pair(entry: object) -> tuple[str, object]:
    if isinstance(entry, tuple) and len(entry) == 2 and isinstance(entry[0], str):  # noqa: PLR2004 - a pair
        return entry[0], entry[1] if entry[1] is not None else ()
    raise Unreadable(_FILTERS)


def _map(value: object, expected: str) -> dict[str, Any]:
    if isinstance(value, str):
        value = _json(value, expected)
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise Unreadable(expected)
    return dict(value)


def _json(text: str, expected: str) -> object:
    try:
        return json.loads(text, object_pairs_hook=_once_each)
    except Unreadable:
        raise
    except (RecursionError, ValueError):
        raise Unreadable(expected) from None


def _once_each(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in found if keys.count(key) > 1)
        raise Unreadable(f"each key once (not so for {twice!r})")
    return found
