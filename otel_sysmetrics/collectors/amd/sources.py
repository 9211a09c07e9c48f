"""Where AMD GPUs can be read, in the order in which the sources are tried."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Protocol

from otel_sysmetrics.collectors.amd import amd_smi, rocm_smi
from otel_sysmetrics.collectors.amd.sysfs import Sysfs
from otel_sysmetrics.sources.tools import Tool, ToolError, find

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from otel_sysmetrics.collector import Context
    from otel_sysmetrics.collectors.amd.gpu import Gpu

# Eight MI300X take rocm-smi several seconds; this runs in a thread of its own.
_LONGEST: Final = 20.0
# A line that begins a document; `[WARNING] no {gpu}` and an empty one do not.
_HALF: Final = re.compile(r'^\s*(?:\{\s*"|\[\s*\{|[\[{]\s*$)', re.MULTILINE)
_TRIES: Final = 3
_VENDOR_FOLDER: Final = "/opt/rocm/bin"


class Source(Protocol):
    """One way to read GPUs."""

    name: str

    def read(self) -> Sequence[Gpu]:
        """Return all GPUs as they are now, none where it lists none; raises ToolError."""

    def close(self) -> None:
        """End what is running."""


class RocmSmi:
    """One run of rocm-smi per sample, with `seconds` to answer."""

    def __init__(self, path: str, seconds: float = _LONGEST) -> None:
        self.name = path
        self._seconds = seconds
        self._tool = Tool(path)

    def read(self) -> list[Gpu]:
        """Return what it lists; raises ToolError."""
        text = self._tool.output(rocm_smi.ARGUMENTS, self._seconds)
        return _document(rocm_smi.parse(text), text, self._tool, self.name)

    def close(self) -> None:
        """End it."""
        self._tool.close()


class AmdSmi:
    """One run of amd-smi per sample, and one more at first for what stays the same."""

    def __init__(self, path: str, seconds: float = _LONGEST) -> None:
        self.name = path
        self._seconds = seconds
        self._tool = Tool(path)
        self._static: Mapping[int, Gpu] | None = None
        self._tries = _TRIES

    def read(self) -> list[Gpu]:
        """Return what it lists; raises ToolError."""
        text = self._tool.output(amd_smi.METRIC, self._seconds)
        found = _document(amd_smi.parse(text), text, self._tool, self.name)
        if found and self._static is None and self._tries > 0:
            self._tries -= 1
            self._static = self._what_stays()
        return amd_smi.join(found, self._static or {})

    def close(self) -> None:
        """End it."""
        self._tool.close()

    def _what_stays(self) -> Mapping[int, Gpu] | None:
        # Without it only names and caps are missing, which is no reason to lose the rest; it is asked a few times.
        try:
            return amd_smi.parse_static(self._tool.output(amd_smi.STATIC, self._seconds))
        except ToolError:
            return None


def _document(found: list[Gpu] | None, text: str, tool: Tool, name: str) -> list[Gpu]:
    # Without a driver or a GPU they write nothing, or a warning, and exit with 0 (case 62); half a document is a crash.
    if not found and tool.failure is not None:
        raise ToolError(f"{name} {tool.failure}")
    if found is None and _HALF.search(text):
        raise ToolError(f"{name} has written no whole document")
    return found or []


def _found(program: str) -> str | None:
    return find(program) or find(program, _VENDOR_FOLDER)


def _rocm_smi(_context: Context) -> Source | None:
    path = _found(rocm_smi.PROGRAM)
    return RocmSmi(path) if path else None


def _amd_smi(_context: Context) -> Source | None:
    path = _found(amd_smi.PROGRAM)
    return AmdSmi(path) if path else None


def _sysfs(context: Context) -> Source | None:
    return Sysfs(context.files)


SOURCES: Final[tuple[Callable[[Context], Source | None], ...]] = (_rocm_smi, _amd_smi, _sysfs)
