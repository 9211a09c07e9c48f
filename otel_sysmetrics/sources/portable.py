"""The way out where there is no Linux /proc: psutil, on the machine we run on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

    from otel_sysmetrics.sources.files import Files


def portable(files: Files) -> ModuleType | None:
    """Return psutil where it is what can be asked, else None.

    Linux reads its files itself: psutil reads them from one place for the whole process (`PROCFS_PATH`, which belongs
    to the application) and warns about the ones that a container lacks. A moved root is not psutil's machine.
    """
    if files.root != "/" or files.exists("proc/self/stat"):
        return None
    try:
        import psutil
    except ImportError:
        return None
    return psutil


def ask(psutil: ModuleType, source: object, name: str, *arguments: object, **options: object) -> Any:  # noqa: ANN401
    """Call a function of psutil, or a method of one of its objects, and return its answer, which may be None.

    None, too, where the platform, the user's rights or the moment do not allow an answer: whole functions are missing
    on some platforms (AttributeError), others exist and refuse (NotImplementedError), and what the system itself says
    comes through as OSError.
    """
    try:
        return getattr(source, name)(*arguments, **options)
    except (psutil.Error, AttributeError, OSError, RuntimeError, ValueError):
        return None
