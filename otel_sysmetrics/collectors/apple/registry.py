"""Asks ioreg, which every Mac has, for the GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_sysmetrics.collectors.apple.accelerator import of_plist, of_text
from otel_sysmetrics.sources.files import fields, whole
from otel_sysmetrics.sources.tools import Tool, ToolError, ToolFailed, find

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_sysmetrics.collectors.apple.accelerator import Accelerator
    from otel_sysmetrics.sources.files import Files

_SECONDS: Final = 5.0
# Text is cut at 80 columns without -w 0; property lists do not mind it.
_ARGUMENTS: Final = ("-r", "-d", "1", "-w", "0", "-c", "IOAccelerator")
_FORMS: Final[tuple[tuple[tuple[str, ...], Callable[[str], list[Accelerator] | None]], ...]] = (
    ((*_ARGUMENTS, "-a"), of_plist),
    (_ARGUMENTS, of_text),
)
_FOLDER: Final = "usr/sbin"  # where both programs lie, which the PATH of a service may lack
_LONGEST_PAUSE: Final = 300.0


class Registry:
    """The GPU as ioreg shows it; a tool that keeps failing is asked ever more rarely (case 76)."""

    def __init__(self, path: str, clock: Callable[[], float]) -> None:
        self.path = path
        self._tool = Tool(path)
        self._clock = clock
        self._forms = _FORMS
        self._seen = False
        self._failures = 0
        self._not_before = 0.0

    def read(self) -> Accelerator | None:
        """Return the GPU, None where there is none of Apple's; raises ToolError."""
        now = self._clock()
        if now < self._not_before:
            raise ToolError(f"{self.path} keeps failing and is asked again in {self._not_before - now:.0f} s")
        try:
            found = self._listed()
        except ToolError:
            self._failures += 1
            self._not_before = now + min(_LONGEST_PAUSE, 2.0 ** min(self._failures, 16))
            raise
        self._failures = 0
        self._seen = bool(found)
        return found[0] if found else None

    def close(self) -> None:
        """End the tool where it runs."""
        self._tool.close()

    def _listed(self) -> list[Accelerator]:
        """Return Apple's accelerators, in the first form that can be read, which is kept."""
        failed = None
        for form in self._forms:
            arguments, parse = form
            try:
                found = parse(self._tool.output(arguments, _SECONDS))
            except ToolFailed as error:  # it may not know this form
                failed = failed or error
                continue
            if found is None:
                continue
            if found:
                self._forms = (form,)
            elif failed:
                break
            elif self._seen:  # it has crashed, and said nothing
                raise ToolError(f"{self.path} shows no GPU any more")
            return found
        raise failed or ToolError(f"{self.path} shows nothing that can be read")


def locate(name: str, files: Files) -> str | None:
    """Return the path of a program of the system."""
    return find(name) or find(name, files.path(_FOLDER))


def machine(path: str | None) -> tuple[int | None, str | None]:
    """Ask sysctl for the bytes of memory, which the GPU shares, and the name of the chip; None for what it hides."""
    if path is None:
        return None, None
    tool = Tool(path)
    try:
        text = tool.output(("hw.memsize", "machdep.cpu.brand_string"), _SECONDS)
    except ToolError:
        return None, None
    finally:
        tool.close()
    return of_sysctl(text)


def of_sysctl(text: str) -> tuple[int | None, str | None]:
    """Read sysctl's lines: the bytes of memory and the name of the chip."""
    found = fields(text.splitlines(), ":")
    size = whole(found.get("hw.memsize"))
    return (
        size if size is not None and 0 < size < 1 << 53 else None,
        found.get("machdep.cpu.brand_string") or None,
    )
