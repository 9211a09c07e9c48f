"""NVIDIA GPUs that the kernel suspends while nobody uses them, as sysfs shows them without waking any."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from otel_sysmetrics.sources.remembered import Remembered

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_sysmetrics.sources.files import Files

_PCI: Final = "sys/bus/pci/devices"
_NVIDIA: Final = "0x10de"
_DISPLAY: Final = "0x03"  # the base class of display controllers, 3D controllers among them


class _Known(NamedTuple):
    """PCI addresses: of all GPUs, of those that the NVIDIA driver has, and of those among these that may sleep."""

    here: tuple[str, ...]
    driven: tuple[str, ...]
    may_sleep: tuple[str, ...]


class Sleepers:
    """Which GPUs sleep: asking NVML anything would wake them (https://github.com/Syllo/nvtop/issues/267).

    Addresses are the kernel's (`0000:01:00.0`). Without /sys nothing sleeps.
    """

    def __init__(self, files: Files, clock: Callable[[], float]) -> None:
        self._files = files
        self._known = Remembered[_Known](clock)

    def all_asleep(self) -> bool:
        """Tell whether the driver has GPUs and all of them sleep."""
        known = self._find()
        return known.driven == known.may_sleep != () and all(map(self._sleeps, known.driven))

    def all_do_sleep(self) -> bool:
        """Tell whether the driver has GPUs and all of them are suspended now and then, as a laptop's are.

        Distributions let the kernel suspend those of servers, too, which never comes to pass.
        """
        known = self._find()
        return known.driven == known.may_sleep != () and all(
            self._text(name, "power/runtime_suspended_time") not in {"", "0"} for name in known.driven
        )

    def asleep(self, address: str | None) -> bool:
        """Tell whether the GPU at a PCI address sleeps; one whose address is not known does not."""
        return address in self._find().may_sleep and address is not None and self._sleeps(address)

    def any_here(self) -> bool:
        """Tell whether the machine shows an NVIDIA GPU, whoever drives it, or the loaded driver."""
        return bool(self._find().here) or self._files.exists("proc/driver/nvidia")

    def address(self, index: int, count: int) -> str | None:
        """Return where NVML's GPU `index` of `count` is: NVML numbers them by address."""
        known = self._find()
        return known.driven[index] if len(known.driven) == count else None

    def _find(self) -> _Known:
        return self._known.get(None, self._look)

    def _look(self) -> _Known:
        here = tuple(name for name in self._files.names(_PCI) if self._is_gpu(name))
        driven = tuple(name for name in here if self._files.resolve(_PCI, name, "driver").endswith("/nvidia"))
        return _Known(here, driven, tuple(name for name in driven if self._text(name, "power/control") == "auto"))

    def _is_gpu(self, name: str) -> bool:
        return self._text(name, "vendor") == _NVIDIA and self._text(name, "class").startswith(_DISPLAY)

    def _sleeps(self, name: str) -> bool:
        return self._text(name, "power/runtime_status") == "suspended"

    def _text(self, name: str, file: str) -> str:
        return (self._files.text(_PCI, name, file) or "").strip()
