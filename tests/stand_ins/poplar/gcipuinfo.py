"""Stands in for the Poplar SDK's gcipuinfo; `gcipuinfo.json` beside it says what it does, and is read at every call.

`devices` are the IPUs. `import`, `gcipuinfo`, `setUpdateMode` and `getDevices` can each be given a fault:
`{"raise": "RuntimeError", "text": "..."}` with a built-in exception or `Mute`, `{"return": ...}`, or `{"hang": true}`
until the file says otherwise.
"""

import builtins
import json
import time
from pathlib import Path
from typing import Any, Final

TABLE: Final = Path(__file__).with_suffix(".json")


class Mute(BaseException):
    """An error that cannot say what it is."""

    def __str__(self) -> str:
        """Fail."""
        raise ValueError


class Silent:
    """A device whose map cannot be read."""

    def items(self) -> None:
        """Fail."""
        raise Mute


def table() -> dict[str, Any]:
    """Return what the file says now."""
    found: dict[str, Any] = json.loads(TABLE.read_text())
    return found


def called(name: str, answer: object = None) -> Any:  # noqa: ANN401 - whatever is to be returned
    """Do what the file says of a call."""
    while (fault := table().get(name, {})).get("hang"):
        time.sleep(0.01)
    if "raise" in fault:
        raise Mute if fault["raise"] == "Mute" else getattr(builtins, fault["raise"])(fault.get("text", ""))
    return fault.get("return", answer)


class gcipuinfo:  # noqa: N801 - the SDK's name
    """What the SDK has under this name: a snapshot, which only a call or the update mode renews."""

    def __init__(self) -> None:
        called("gcipuinfo")
        self._updates = False
        self._devices = table()["devices"]

    def setUpdateMode(self, updates: bool) -> None:  # noqa: FBT001, N802 - the SDK's
        """Have each question look anew."""
        called("setUpdateMode")
        self._updates = updates

    def getDevices(self) -> Any:  # noqa: ANN401, N802 - the SDK's
        """Return each device's attributes."""
        if self._updates:
            self._devices = table()["devices"]
        return called("getDevices", [Silent() if device == "silent" else device for device in self._devices])


called("import")
