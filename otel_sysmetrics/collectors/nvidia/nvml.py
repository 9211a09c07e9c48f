"""The door to NVML: the only place that imports `pynvml` and calls it.

Whatever goes wrong behind it, by the library or by the binding, comes out as CallFailed.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
import warnings
from dataclasses import dataclass
from enum import Enum
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from otel_sysmetrics.importing import importing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import ModuleType

Answer = TypeVar("Answer")
Answer_co = TypeVar("Answer_co", covariant=True)

NO_PERMISSION: Final = 4
UNKNOWN: Final = 999


class Outcome(Enum):
    """What a failed call means.

    ABSENT: no value this time. UNSUPPORTED: nor in the next minutes. LOST: the device is gone for now. CLOSED: NVML
    is not open in this process (any more).
    """

    ABSENT = "absent"
    UNSUPPORTED = "unsupported"
    LOST = "lost"
    CLOSED = "closed"


# https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceEnumvs.html; any other code is ABSENT.
_OUTCOMES: Final[Mapping[int, Outcome]] = {
    1: Outcome.CLOSED,  # UNINITIALIZED: by a surplus nvmlShutdown of another library
    3: Outcome.UNSUPPORTED,  # NOT_SUPPORTED
    NO_PERMISSION: Outcome.UNSUPPORTED,
    9: Outcome.CLOSED,  # DRIVER_NOT_LOADED: it was unloaded under us
    13: Outcome.UNSUPPORTED,  # FUNCTION_NOT_FOUND: the driver is older than the binding
    15: Outcome.LOST,  # GPU_IS_LOST
    16: Outcome.LOST,  # RESET_REQUIRED
    25: Outcome.UNSUPPORTED,  # ARGUMENT_VERSION_MISMATCH: likewise older
    26: Outcome.UNSUPPORTED,  # DEPRECATED
    28: Outcome.LOST,  # GPU_NOT_FOUND
}
# Of these codes, those that say so of the function and not of the device.
_OLDER: Final = frozenset({13, 25})
# No NVMLError: what the binding lacks or knows under another signature, and a driver without the symbol that it wants.
_OLD: Final = (AttributeError, TypeError, NotImplementedError)
_field: Final = object.__getattribute__
_MISMATCH: Final = "NVMLLibraryMismatchError"


class NotOnThisDevice(Exception):
    """Raised by a reader of answers: the call went well and says that the device cannot."""


class CallFailed(Exception):
    """A call gave no answer.

    `code` is NVML's error, None where the binding itself failed. `missing` tells that the driver or the binding is
    older than the function, whatever the device.
    """

    def __init__(self, function: str, error: BaseException) -> None:
        value = _value(error)
        self.code = value if isinstance(value, int) else None
        self.outcome = _outcome(error, self.code)
        self.missing = self.code in _OLDER or (self.code is None and _is_old(error))
        self.reason = _said(error, coded=value is not None)
        super().__init__(f"{function}: {self.reason}")


@dataclass(frozen=True, eq=False)
class Call(Generic[Answer_co]):
    """One question to NVML: the binding's function, how its answer is read, and what it is asked behind the handle."""

    function: str
    read: Callable[[Any], Answer_co]
    arguments: tuple[object, ...] = ()


class Nvml:
    """NVML as the binding shows it.

    `reopened` tells that it was opened anew once already because a call said that it is not open.
    """

    def __init__(self, binding: ModuleType) -> None:
        self.reopened = False
        self._binding = binding
        self._question: Any = None
        self._asked: Sequence[int] = ()

    def call(self, call: Call[Answer], *subject: object) -> Answer:
        """Ask and read the answer; raises CallFailed and nothing else."""
        try:
            return call.read(getattr(self._binding, call.function)(*subject, *call.arguments))
        except BaseException as error:  # noqa: BLE001 - bindings raise ctypes' errors, OSError, SystemExit and more
            raise CallFailed(call.function, error) from None

    def gpm(self, before: object, after: object, metrics: Sequence[int]) -> list[float | None]:
        """Return what GPM metrics were between two samples, None for each that failed; raises CallFailed."""
        try:
            return self._gpm(before, after, metrics)
        except BaseException as error:  # noqa: BLE001 - likewise
            raise CallFailed("nvmlGpmMetricsGet", error) from None

    def _gpm(self, before: object, after: object, metrics: Sequence[int]) -> list[float | None]:
        question = self._gpm_question(metrics)
        question.sample1, question.sample2 = before, after
        self._binding.nvmlGpmMetricsGet(question)
        # A value beside an error code is garbage. The binding's own way to a field looks whether it is text, in Python.
        return [
            None if _field(answer, "nvmlReturn") else float(_field(answer, "value"))
            for answer in question.metrics[: len(metrics)]
        ]

    def _gpm_question(self, metrics: Sequence[int]) -> Any:  # noqa: ANN401 - a structure of the binding
        """Return the question for some metrics, made once: it has room for hundreds, and each field takes its time."""
        if self._question is None or self._asked != metrics:
            question = self._binding.c_nvmlGpmMetricsGet_t()
            question.version = self._binding.NVML_GPM_METRICS_GET_VERSION
            question.numMetrics = len(metrics)
            for place, metric in enumerate(metrics):
                question.metrics[place].metricId = metric
            self._question, self._asked = question, metrics
        return self._question


def library_is_here() -> bool:
    """Tell whether the loader finds NVML: the binding takes 3 MiB of memory, which a machine without a GPU can keep."""
    if os.name != "posix":
        return True  # the binding knows more places there
    with importing():
        import ctypes

    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


def load() -> Nvml:
    """Import the binding and return NVML, not opened yet; raises CallFailed."""
    try:
        with importing():
            return Nvml(_binding())
    except BaseException as error:  # noqa: BLE001 - other packages bring modules of this name and fail in their own ways
        raise CallFailed("import pynvml", error) from None


@cache
def _binding() -> ModuleType:
    _hush_redirector()
    try:
        binding = importlib.import_module("pynvml")
    except (Warning, SyntaxError):
        # Under `python -W error` a mere warning stops the import. The filters are the whole process's: they are
        # touched here only, where there would be no GPU metrics otherwise.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            binding = importlib.import_module("pynvml")
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=partial(_free_lock, binding))
    return binding


def _hush_redirector() -> None:
    """Keep the distribution `pynvml` 13 from warning about itself, without touching the process's warning filters.

    It puts a finder before all others that warns once (https://pypi.org/project/pynvml/).
    """
    for finder in sys.meta_path:
        if type(finder).__module__ == "_pynvml_redirector":
            finder.has_warned_pynvml = True  # type: ignore[attr-defined] # of a class that is not ours


def _free_lock(binding: Any) -> None:  # noqa: ANN401 - a module's attributes
    """Replace the binding's lock in a forked child: a thread of the parent that held it never releases it there."""
    lock = getattr(binding, "libLoadLock", None)
    if lock is not None and lock.locked():
        binding.libLoadLock = threading.Lock()


def _outcome(error: BaseException, code: int | None) -> Outcome:
    if code is not None:
        return _OUTCOMES.get(code, Outcome.ABSENT)
    return Outcome.UNSUPPORTED if _is_old(error) or isinstance(error, NotOnThisDevice) else Outcome.ABSENT


def _is_old(error: BaseException) -> bool:
    return isinstance(error, _OLD) or type(error).__name__ == _MISMATCH


def _value(error: BaseException) -> object:
    try:
        return getattr(error, "value", None)
    except BaseException:  # noqa: BLE001 - an error of another package may compute it
        return None


def _said(error: BaseException, *, coded: bool) -> str:
    try:
        text = " ".join(str(error).split())
    except BaseException:  # noqa: BLE001 - NVMLError asks the library for its text
        text = ""
    named = text or "no text"
    return named if coded else f"{type(error).__name__}: {named}"
