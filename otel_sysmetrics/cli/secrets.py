"""Secrets of a configuration, left to variables of the environment that it runs in."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Final

_EMPTY: Final = "${env:OTEL_SYSMETRICS_NOTHING:-}"


class Variable(str):
    """A reference to a variable, in otelcol's words."""

    __slots__ = ()


class Variables:
    """Names a variable for each secret; `meanings` says what stands in each, never the value."""

    def __init__(self) -> None:
        self.meanings: dict[str, str] = {}
        self._values: dict[str, tuple[str, str]] = {}

    def refer(self, what: str, value: str, meaning: str) -> Variable:
        """Return the reference to the variable of a secret; two secrets never share one."""
        plain = "OPENMETRICS_" + re.sub(r"[^A-Z0-9]+", "_", what.upper()).strip("_")
        name, number = plain, 1
        while self._values.setdefault(name, (value, meaning)) != (value, meaning):
            number += 1
            name = f"{plain}_{number}"
        self.meanings[name] = meaning
        # otelcol reads a variable that stands alone as YAML: 0123 would arrive as 83.
        return Variable(f"${{env:{name}}}{_EMPTY}")


def authorization(value: str) -> tuple[str, str | tuple[str, str]] | None:
    """Divide an Authorization header into scheme and credentials, user and password for Basic; None if it has none."""
    scheme, _, credentials = value.strip().partition(" ")
    if not credentials.strip():
        return None
    if scheme.lower() != "basic":
        return scheme, credentials.strip()
    try:
        user, _, password = base64.b64decode(credentials.strip(), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return None
    return scheme, (user, password)
