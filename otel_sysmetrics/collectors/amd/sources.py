"""Where AMD GPUs can be read, in the order in which the sources are tried."""

from __future__ import annotations

import math
import re
import time
from typing import TYPE_CHECKING, Final, Protocol

from otel_sysmetrics.collectors.amd import amd_smi, rocm_smi
from otel_sysmetrics.collectors.amd.sysfs import Sysfs
from otel_sysmetrics.sources.tools import Tool, ToolError, find

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from otel_sysmetrics.collector import Context
    from otel_sysmetrics.collectors.amd.gpu import Gpu

# Eight MI300X take rocm-smi several seconds; this runs in a thread of its own.
LONGEST: Final = 20.0
# The first time somebody may wait for an answer (`sample`, `doctor`): what one tool may take then, and all together.
FIRST_LONGEST: Final = 5.0
FIRST_ALL: Final = 8.0
_LEAST: Final = 1.0
# A line that begins a document; `[WARNING] no {gpu}` and an empty one do not.
_HALF: Final = re.compile(r'^\s*(?:\{\s*"|\[\s*\{|[\[{]\s*$)', re.MULTILINE)
_TRIES: Final = 3
_VENDOR_FOLDER: Final = "/opt/rocm/bin"


class Source(Protocol):
    """One way to read GPUs."""

    name: str

    def read(self, seconds: float = LONGEST) -> Sequence[Gpu]:
        """Return all GPUs as they are now, none where it lists none; takes at most so long, and raises ToolError."""

    def close(self) -> None:
        """End what is running."""


class RocmSmi:
    """One run of rocm-smi per sample."""

    def __init__(self, path: str) -> None:
        self.name = path
        self._tool = Tool(path)

    def read(self, seconds: float = LONGEST) -> list[Gpu]:
        """Return what it lists; raises ToolError."""
        text = self._tool.output(rocm_smi.ARGUMENTS, seconds)
        return _document(rocm_smi.parse(text), text, self._tool, self.name)

    def close(self) -> None:
        """End it."""
        self._tool.close()


class AmdSmi:
    """One run of amd-smi per sample, and one more at first for what stays the same."""

    def __init__(self, path: str) -> None:
        self.name = path
        self._tool = Tool(path)
        self._static: Mapping[int, Gpu] | None = None
        self._tries = _TRIES

    def read(self, seconds: float = LONGEST) -> list[Gpu]:
        """Return what it lists; raises ToolError."""
        deadline = time.monotonic() + seconds
        text = self._tool.output(amd_smi.METRIC, seconds)
        found = _document(amd_smi.parse(text), text, self._tool, self.name)
        if found and self._static is None and self._tries > 0:
            self._tries -= 1
            self._static = self._what_stays(max(0.0, deadline - time.monotonic()))
        return amd_smi.join(found, self._static or {})

    def close(self) -> None:
        """End it."""
        self._tool.close()

    def _what_stays(self, seconds: float) -> Mapping[int, Gpu] | None:
        # Without it only names and caps are missing, which is no reason to lose the rest; it is asked a few times.
        try:
            return amd_smi.parse_static(self._tool.output(amd_smi.STATIC, seconds))
        except ToolError:
            return None


class Sources:
    """What GPUs can be read through, in the order in which it is tried; the first look at it is a hasty one.

    It is kept from one probe to the next: of a tool that cannot be killed no second one is ever started.
    """

    def __init__(self, context: Context, longest: float = FIRST_LONGEST, everything: float = FIRST_ALL) -> None:
        self._tools: dict[str, Source] = {}
        self._files = Sysfs(context.files)
        self._clock = context.clock
        self._first: tuple[float, float] | None = (longest, everything)

    def looks(self) -> Iterator[tuple[Source, float]]:
        """Yield each source that is here, and the seconds that it may take."""
        first, self._first = self._first, None
        longest, everything = first or (LONGEST, math.inf)
        deadline = self._clock() + everything
        for program, make in _TOOLS:
            path = find(program) or find(program, _VENDOR_FOLDER)
            if path is not None:
                source = self._tools.setdefault(path, make(path))
                yield source, max(_LEAST, min(longest, deadline - self._clock()))
        yield self._files, LONGEST


def _document(found: list[Gpu] | None, text: str, tool: Tool, name: str) -> list[Gpu]:
    # Without a driver or a GPU they write nothing, or a warning, and exit with 0 (case 62); half a document is a crash.
    if not found and tool.failure is not None:
        raise ToolError(f"{name} {tool.failure}")
    if found is None and _HALF.search(text):
        raise ToolError(f"{name} has written no whole document")
    return found or []


_TOOLS: Final[tuple[tuple[str, Callable[[str], Source]], ...]] = (
    (rocm_smi.PROGRAM, RocmSmi),
    (amd_smi.PROGRAM, AmdSmi),
)
