"""Texts of the environment, and what a program hands over in their place, as checked values."""

from __future__ import annotations

import json
import math
import os
import re
from typing import TYPE_CHECKING, Final

from otel_sysmetrics.catalog import KINDS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_sysmetrics.reading import AttributeValue

MIN_SECONDS: Final = 0.1
MAX_SECONDS: Final = 86_400.0

# An index or an identifier (UUID, AMD unique id, PCI address); no list stands for all devices, an empty one for none.
# Short ones (a unique id without its leading zeros, an address without its domain) only in forms that no typo has.
_HEX: Final = "[0-9A-Fa-f]"
_DEVICE: Final = re.compile(
    rf"[0-9]{{1,5}}|0[xX]{_HEX}{{1,16}}|{_HEX}{{2}}:{_HEX}{{2}}\.[0-7]|(?=.{{8}})[0-9A-Za-z]+([-:.][0-9A-Za-z]+)*"
)
# A set of fnmatch ends at the first bracket that is not its first character.
_SET: Final = re.compile(r"\[!?\]?[^\]]*\]")
_MOST_DIGITS: Final = 30
_LONGEST_GLOB: Final = 1_000  # no tag is half as long
_LAST_PORT: Final = 65_535
_MOST_WATTS: Final = 100_000


class Unreadable(ValueError):
    """A value that cannot be read; the argument says what is expected."""


def flag(value: object) -> bool:
    """Read `true` or `false`, in any case."""
    if isinstance(value, bool):
        return value
    word = value.strip().lower() if isinstance(value, str) else ""
    if word not in {"true", "false"}:
        raise Unreadable("true or false")
    return word == "true"


def frequency(value: object) -> str:
    """Read `auto`, `always` or `never`, in any case."""
    word = value.strip().lower() if isinstance(value, str) else ""
    if word not in {"auto", "always", "never"}:
        raise Unreadable("auto, always or never")
    return word


def seconds(value: object) -> float:
    """Read an interval."""
    found = number(value)
    if found is None or not MIN_SECONDS <= found <= MAX_SECONDS:
        raise Unreadable(f"a number of seconds from {MIN_SECONDS} to {MAX_SECONDS:.0f}")
    return found


def number(value: object) -> float | None:
    """Read a finite number, None where it is none; Python's `1_000` is none either."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, str) and ("_" in value or len(value.strip()) > _MOST_DIGITS):
        return None
    try:
        found = float(value)
    except (OverflowError, ValueError):
        return None
    return found if math.isfinite(found) else None


def pid(value: object) -> int | None:
    """Read a process id; None is no process."""
    if value is None:
        return None
    found = number(value)
    if found is None or not found.is_integer() or not 0 < found < 2**31 or isinstance(value, float):
        raise Unreadable("a process id, a whole number above 0")
    if isinstance(value, str) and not value.strip().isdecimal():
        raise Unreadable("a process id, a whole number above 0")
    return int(found)


def texts(value: object, separators: str = ",", *, numbers: bool = False) -> tuple[str, ...]:
    """Read a list of texts, or of `numbers` too: JSON where it starts with a bracket, else divided at a separator."""
    if isinstance(value, str):
        value = _json_list(value) if value.strip().startswith("[") else _divided(value, separators)
    kinds = (str, int) if numbers else (str,)
    if not isinstance(value, list | tuple | set | frozenset) or not all(type(item) in kinds for item in value):
        raise Unreadable("a list of texts")
    return tuple(dict.fromkeys(map(str, value)))


def paths(value: object) -> tuple[str, ...]:
    """Read absolute paths, which may also be divided as those of PATH are."""
    found = texts(value, "," + os.pathsep)
    if not found or not all(os.path.isabs(path) and "\0" not in path for path in found):
        raise Unreadable("absolute paths")
    return found


def root(value: object) -> str:
    """Read the path of a file system's root."""
    if not isinstance(value, str) or not os.path.isabs(value) or "\0" in value:
        raise Unreadable("an absolute path")
    return value


def file(value: object) -> str | None:
    """Read the absolute path of a file; None is none."""
    if value is None or (isinstance(value, str) and os.path.isabs(value) and "\0" not in value):
        return value
    raise Unreadable("the absolute path of a file")


def ports(value: object) -> tuple[int, ...] | None:
    """Read ports; None is the default ones."""
    if value is None:
        return None
    found = texts(value, numbers=True)
    if not all(port.isascii() and port.isdecimal() and len(port) < _MOST_DIGITS for port in found):
        raise Unreadable("a list of ports, such as 8431,8432")
    numbers = tuple(dict.fromkeys(int(port) for port in found))
    if not all(0 < port <= _LAST_PORT for port in numbers):
        raise Unreadable(f"a list of ports from 1 to {_LAST_PORT}")
    return numbers


def watts(value: object) -> float | None:
    """Read a power; None is none."""
    if value is None:
        return None
    found = number(value)
    if found is None or not 0 < found <= _MOST_WATTS:
        raise Unreadable(f"a number of watts above 0, at most {_MOST_WATTS}")
    return found


def devices(value: object) -> tuple[str, ...] | None:
    """Read indices and identifiers of devices; None is all of them."""
    if value is None:
        return None
    ids = texts(value, numbers=True)
    if not all(_DEVICE.fullmatch(item) for item in ids):
        raise Unreadable(
            "a list of GPU indices or UUIDs, such as 0,2 or GPU-5a2c9d1e-…, "
            "or of AMD's unique ids or PCI addresses, such as 0x5a2c or c3:00.0"
        )
    return tuple(str(int(item)) if item.isdecimal() else item for item in ids)


def kinds(value: object) -> tuple[str, ...]:
    """Read names of collectors."""
    found = texts(value)
    if unknown := [kind for kind in found if kind not in KINDS]:
        raise Unreadable(f"kinds out of {', '.join(KINDS)} (unknown: {', '.join(unknown)})")
    return found


def globs(value: object) -> tuple[str, ...]:
    """Read globs; one may begin with a set (`[cg]pu.*`), which looks like JSON and is none."""
    try:
        found = texts(value)
    except Unreadable:
        if not isinstance(value, str):
            raise
        found = tuple(dict.fromkeys(_divided(value, ",")))
    for glob in found:
        if len(glob) > _LONGEST_GLOB:
            raise Unreadable(f"globs of at most {_LONGEST_GLOB} characters")
        if not glob.strip("!") or set("[]") & set(_SET.sub("", glob)):
            raise Unreadable(f"globs such as gpu.*.temp (not one: {glob!r})")
    return found


def attributes(value: object) -> Mapping[str, AttributeValue]:
    """Read a map of attributes."""
    expected = 'a map of attribute to text, number or bool, in the environment as JSON ({"team": "vision"})'
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (RecursionError, ValueError):
            raise Unreadable(expected) from None
    if not isinstance(value, dict) or not all(
        isinstance(key, str) and key and isinstance(item, str | bool | int | float) for key, item in value.items()
    ):
        raise Unreadable(expected)
    return dict(value)


def _json_list(text: str) -> object:
    try:
        return json.loads(text)
    except (RecursionError, ValueError):
        raise Unreadable("a list, divided by commas or as JSON") from None


def _divided(text: str, separators: str) -> list[str]:
    for separator in separators[1:]:
        text = text.replace(separator, separators[0])
    return [item.strip() for item in text.split(separators[0]) if item.strip()]
