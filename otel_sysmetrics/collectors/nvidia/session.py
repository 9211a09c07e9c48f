"""NVML, opened once per process and kept open."""

from __future__ import annotations

import os
import re
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from otel_sysmetrics.collector import NotHere, Unavailable
from otel_sysmetrics.collectors.nvidia import calls
from otel_sysmetrics.collectors.nvidia.nvml import CallFailed, library_is_here, load

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from otel_sysmetrics.collectors.nvidia.nvml import Nvml
    from otel_sysmetrics.sources.files import Files

_LIBRARY_NOT_FOUND: Final = 12
_VERSION_MISMATCH: Final = 18
_SHORTEST_PAUSE: Final = 60.0
_LONGEST_PAUSE: Final = 300.0
_MODULE_VERSION: Final = re.compile(r"(\d+\.[\d.]+)")


class Trouble(NamedTuple):
    """Why NVML cannot be opened, what a person can do, and whether it is tried again rarely."""

    reason: str
    remedy: str
    rare: bool = True


_TROUBLES: Final[Mapping[int, Trouble]] = {
    1: Trouble("NVML does not stay open", "", rare=False),
    4: Trouble(
        "no permission to use the NVIDIA driver",
        "give this user read and write access to /dev/nvidiactl and /dev/nvidia*",
    ),
    9: Trouble("the NVIDIA driver is not loaded", "load it: modprobe nvidia", rare=False),
    10: Trouble("the NVIDIA driver did not answer in time", "", rare=False),
    13: Trouble("the NVIDIA driver is too old for nvidia-ml-py", "upgrade the driver"),
    15: Trouble(
        "a GPU is lost",
        "look for Xid in the kernel's log (dmesg); reset the GPU or restart the machine",
        rare=False,
    ),
    16: Trouble(
        "a GPU requires a reset",
        "end what uses it, then: nvidia-smi --gpu-reset; or restart the machine",
        rare=False,
    ),
    17: Trouble(
        "the operating system blocks the NVIDIA driver",
        "start the container anew, with the devices /dev/nvidia*",
    ),
    _VERSION_MISMATCH: Trouble(
        "the NVIDIA library and the loaded driver are of different versions",
        "the driver was upgraded: restart the machine or load the new module",
    ),
    999: Trouble(
        "the NVIDIA driver answers with an unknown error",
        "in a container that worked before: start it anew; else look for Xid in the kernel's log",
    ),
}
_NO_BINDING: Final = "install nvidia-ml-py anew, and remove other distributions that bring a module pynvml"
_NO_LIBRARY: Final = (
    "libnvidia-ml.so.1 was not found, and an NVIDIA GPU is here: install its driver, "
    "or start the container with the NVIDIA runtime (docker run --gpus all)"
)


class Session:
    """NVML as this process holds it open.

    Opened once: each cycle of init and shutdown costs seconds on large machines and has hung drivers
    (https://github.com/NVIDIA/go-nvml/issues/152). Nothing of it crosses a fork: a child opens it anew and leaves
    alone what it inherited. `openings` counts, so that whoever holds handles knows when they are void.
    """

    def __init__(self, files: Files, clock: Callable[[], float], gpus_here: Callable[[], bool]) -> None:
        self.openings = 0
        self._files = files
        self._clock = clock
        self._gpus_here = gpus_here
        self._nvml: Nvml | None = None
        self._owner: tuple[int, int] | None = None
        self._trouble: Unavailable | None = None
        self._doubted = False
        self._reopened = False
        self._again_at: float | None = None
        self._pause = _SHORTEST_PAUSE

    @property
    def is_open(self) -> bool:
        """Whether NVML is held open by this process."""
        return self._nvml is not None and self._owner is not None and self._owner[0] == os.getpid()

    @property
    def is_ours(self) -> bool:
        """Whether this thread is the one that uses NVML: another one might wait for a call that hangs, at exit."""
        return self._owner == (os.getpid(), threading.get_ident())

    def open(self) -> Nvml:
        """Return NVML, opened; raises NotHere or Unavailable, and seldom tries again what does not pass quickly."""
        if not self.is_open:
            self._nvml = None
        self._owner = (os.getpid(), threading.get_ident())
        if self._doubted and self._may_try():
            self._doubted = False
            self.close()
            self._wait_longer()
        if self._nvml is None:
            self._nvml = self._opened()
            self._nvml.reopened = self._reopened
            self.openings += 1
        return self._nvml

    def forget(self) -> None:
        """Take NVML for closed, as a call said: somebody else did that. Where it is open all the same, shut it down."""
        nvml, self._nvml = self._nvml, None
        self._reopened = True
        if nvml is not None:
            with suppress(CallFailed):
                nvml.call(calls.COUNT)
                nvml.call(calls.SHUTDOWN)

    def doubt(self) -> None:
        """Note that nothing answers: NVML is opened anew, which a reloaded driver needs; at once, and then seldom."""
        self._doubted = True

    def trust(self) -> None:
        """Note that something answers."""
        self._doubted = False
        self._pause = _SHORTEST_PAUSE

    def close(self) -> None:
        """Shut NVML down."""
        nvml, self._nvml = self._nvml, None
        if nvml is not None and self.is_ours:
            try:
                nvml.call(calls.SHUTDOWN)
            except CallFailed:
                return

    def _may_try(self) -> bool:
        return self._again_at is None or self._clock() >= self._again_at

    def _wait_longer(self) -> None:
        self._again_at = self._clock() + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    def _opened(self) -> Nvml:
        if self._trouble is not None and not self._may_try():
            raise self._trouble.with_traceback(None)
        if not library_is_here():
            raise self._library_missing()
        try:
            nvml = load()
        except CallFailed as failure:
            raise self._troubled(_binding_trouble(failure)) from None
        try:
            nvml.call(calls.INIT)
        except CallFailed as failure:
            raise self._troubled(self._init_trouble(failure)) from None
        self._trouble = None
        return nvml

    def _troubled(self, trouble: Trouble | NotHere) -> NotHere | Unavailable:
        if isinstance(trouble, NotHere):
            return trouble
        self._trouble = Unavailable(trouble.reason, trouble.remedy)
        if trouble.rare:
            self._wait_longer()
        else:
            self._again_at = None
        return self._trouble

    def _init_trouble(self, failure: CallFailed) -> Trouble | NotHere:
        if failure.code == _LIBRARY_NOT_FOUND:
            return self._library_missing()
        if failure.code is None:
            return _binding_trouble(failure)
        trouble = _TROUBLES.get(failure.code, Trouble(f"NVML cannot be opened: {failure.reason}", ""))
        if failure.code == _VERSION_MISMATCH:
            return trouble._replace(reason=f"{trouble.reason}{self._loaded_version()}")
        return trouble

    def _library_missing(self) -> NotHere:
        return NotHere(_NO_LIBRARY if self._gpus_here() else "libnvidia-ml.so.1 was not found")

    def _loaded_version(self) -> str:
        text = self._files.text("proc/driver/nvidia/version") or ""
        version = _MODULE_VERSION.search(text)
        return f" (loaded: {version[1]})" if version else ""


def remedy(failure: CallFailed) -> str:
    """Say what a person can do about a failed call; empty where nothing is known."""
    trouble = None if failure.code is None else _TROUBLES.get(failure.code)
    return trouble.remedy if trouble else ""


def _binding_trouble(failure: CallFailed) -> Trouble:
    return Trouble(f"the Python module pynvml cannot be used: {failure.reason}", _NO_BINDING)
