"""YAML as configurations of otelcol need it: maps, lists and plain values."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

Node: TypeAlias = Mapping[str, "Node"] | Sequence["Node"] | str | int | bool

_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*|[0-9]+m?s")
# What YAML 1.1 or 1.2 reads as something other than text.
_WORDS: Final = frozenset({"true", "false", "yes", "no", "on", "off", "y", "n", "null"})
_SINGLE: Final = re.compile(r"[\x20-\x7e\xa0-\ud7ff\ue000-\ufefe\uff00-\ufffd]*")
# JSON leaves these as they are, and YAML calls them not printable.
_UNPRINTABLE: Final = re.compile(r"[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")


def yaml(node: Mapping[str, Node]) -> str:
    """Return a map as YAML in block style."""
    return "".join(f"{line}\n" for line in _lines(node))


def _lines(node: Node) -> Iterator[str]:
    if not isinstance(node, str | int) and not node:
        yield "{}" if isinstance(node, Mapping) else "[]"
    elif isinstance(node, Mapping):
        for key, value in node.items():
            yield from _entry(f"{_text(key)}:", value, "  ")
    elif isinstance(node, Sequence) and not isinstance(node, str):
        for value in node:
            first, *rest = _lines(value)
            yield f"- {first}"
            yield from (f"  {line}" for line in rest)
    else:
        yield _scalar(node)


def _entry(key: str, value: Node, indent: str) -> Iterator[str]:
    if isinstance(value, str | int) or not value:
        yield f"{key} {next(_lines(value))}"
    elif isinstance(value, Sequence) and all(isinstance(item, str) and _PLAIN.fullmatch(item) for item in value):
        yield f"{key} [{', '.join(map(_scalar, value))}]"  # type: ignore[arg-type]
    else:
        yield key
        yield from (f"{indent}{line}" for line in _lines(value))


def _scalar(value: str | int) -> str:
    return _text(value) if isinstance(value, str) else json.dumps(value)


def _text(text: str) -> str:
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return text
    if _SINGLE.fullmatch(text):
        return "'" + text.replace("'", "''") + "'"
    return _UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(text, ensure_ascii=False))
