"""Where AMD GPUs can be read, in the order in which the sources are tried."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from otel_sysmetrics.collectors.amd import rocm_smi
from otel_sysmetrics.sources.tools import Tool, ToolError, find

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_sysmetrics.collector import Context
    from otel_sysmetrics.collectors.amd.gpu import Gpu

# Eight MI300X take rocm-smi several seconds; this runs in a thread of its own.
_LONGEST: Final = 20.0
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
        return _document(rocm_smi.parse(text), text, self.name)

    def close(self) -> None:
        """End it."""
        self._tool.close()


def _document(found: list[Gpu] | None, text: str, name: str) -> list[Gpu]:
    # Without a driver or a GPU they write nothing, or a warning, and exit with 0 (case 62); half a document is a crash.
    if found is None and ("{" in text or "[" in text):
        raise ToolError(f"{name} has written no whole document")
    return found or []


def _rocm_smi(_context: Context) -> Source | None:
    path = find(rocm_smi.PROGRAM) or find(rocm_smi.PROGRAM, _VENDOR_FOLDER)
    return RocmSmi(path) if path else None


SOURCES: Final[tuple[Callable[[Context], Source | None], ...]] = (_rocm_smi,)
