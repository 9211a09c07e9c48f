"""Machines with NVIDIA GPUs that exist only in a table, behind the real binding and the real loader."""

from __future__ import annotations

import _ctypes
import atexit
import contextlib
import ctypes
import functools
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pynvml
import pytest

from tests.nvml.answers import Answer, Code, key_of, text_of
from tests.nvml.devices import H100, MIG_PARENT, captured, odd

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from tests.nvml.answers import Device, Key, Says
    from tests.nvml.devices import Slice

SOURCES: Final = Path(__file__).parents[1] / "stand_ins" / "nvml"
SONAME: Final = "libnvidia-ml.so.1"

# The file of calls: a number that changes with the table, then a slot per call.
_GENERATION: Final = struct.Struct("=Q")
_SLOT: Final = struct.Struct("=56sQ")
_SLOTS: Final = 256


def why_not() -> str | None:
    """Return why the stand-in cannot be built or loaded here, if so."""
    if not sys.platform.startswith("linux"):
        return "the NVML stand-in needs the loader of Linux"
    if not shutil.which("cc"):
        return "the NVML stand-in needs a C compiler (cc)"
    return None


@functools.cache
def _folder() -> str:
    folder = tempfile.mkdtemp(prefix="nvml-stand-in-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _cc(*arguments: str) -> None:
    subprocess.run(["cc", *arguments], check=True, capture_output=True, text=True)  # noqa: S607 - whichever is here


@functools.cache
def _object() -> str:
    built = os.path.join(_folder(), "nvml.o")
    flags = ("-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-pthread")
    _cc(*flags, "-r", *map(str, sorted(SOURCES.glob("*.c"))), "-o", built)
    return built


@functools.cache
def library(missing: frozenset[str] = frozenset()) -> str:
    """Build the library without some symbols, once per process, and return its path."""
    folder = tempfile.mkdtemp(dir=_folder())
    script = os.path.join(folder, "symbols")
    with open(script, "w", encoding="ascii") as file:
        file.write("{{ global: nvml*; local: {} *; }};\n".format(" ".join(f"{name};" for name in sorted(missing))))
    built = os.path.join(folder, SONAME)
    _cc("-shared", f"-Wl,-soname,{SONAME},--version-script={script}", "-pthread", _object(), "-o", built)
    return built


class NvmlMachine:
    """A machine with NVIDIA GPUs that exists only in a table, which may change while it is read.

    What a test does not name is a healthy device's; what a device does not name is not supported there. Without the
    symbols in `missing`, the library is that of an older driver; while it is not `installed`, there is none.
    """

    def __init__(
        self,
        folder: Path,
        *,
        devices: Sequence[Device] = (H100,),
        driver: str = "580.95.05",
        missing: Collection[str] = (),
        installed: bool = True,
    ) -> None:
        self._folder = folder
        self._library = library(frozenset(missing))
        self._found = folder / "lib" / SONAME
        self._table = folder / "table"
        self._calls = folder / "calls"
        self._lines: dict[Key, str] = {}
        self._partitions: Counter[int] = Counter()
        self._devices = 0
        self._changing = 0
        self._generation = 0
        with open(self._calls, "wb") as calls:
            calls.truncate(_GENERATION.size + _SLOT.size * _SLOTS)
        # Where there is none, an empty file keeps the loader from finding that of the real machine.
        self._found.parent.mkdir()
        self._found.touch()
        if installed:
            self.install()
        with self.changing():
            self.count = 0
            self.set("nvmlSystemGetDriverVersion", driver)
            self.set("nvmlSystemGetNVMLVersion", f"13.{driver}")
            self.set("nvmlSystemGetCudaDriverVersion", 13000)
            self.set("nvmlSystemGetCudaDriverVersion_v2", 13000)
            for device in devices:
                self.add(device)

    @classmethod
    def from_capture(cls, folder: Path, name: str) -> NvmlMachine:
        """Return the machine that tests/captures/nvidia/<name>.json describes."""
        capture = captured(name)
        machine = cls(folder, devices=capture.devices, driver=capture.driver)
        for index, slices in capture.slices.items():
            machine.slice(index, slices)
        return machine

    @classmethod
    def from_odd(cls, folder: Path, entry: Mapping[str, Any]) -> NvmlMachine:
        """Return the machine that an entry of odd_devices.json is about."""
        what = odd(entry)
        machine = cls(folder, devices=what.devices, driver=what.driver, installed=what.installed)
        for call, answer, index in what.faults:
            machine.set(call, answer, index)
        return machine

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which a process finds itself on this machine."""
        path = os.pathsep.join(filter(None, (str(self._found.parent), os.environ.get("LD_LIBRARY_PATH"))))
        return {
            "LD_LIBRARY_PATH": path,
            "NVML_STAND_IN_TABLE": str(self._table),
            "NVML_STAND_IN_CALLS": str(self._calls),
        }

    def install(self) -> None:
        """Install the driver's library where there was none."""
        new = self._found.with_suffix(".new")
        new.symlink_to(self._library)
        new.replace(self._found)

    @contextlib.contextmanager
    def loaded(self) -> Iterator[None]:
        """Let this process find itself on this machine: its pynvml talks to it and to nothing else."""
        # A copy, because the loader would hand out one that is loaded already, with the state of another machine.
        copy = Path(tempfile.mkdtemp(dir=self._folder)) / SONAME
        opened: list[ctypes.CDLL] = []

        def load(name: str) -> ctypes.CDLL:
            assert name == SONAME
            shutil.copyfile(self._found, copy)
            opened.append(ctypes.CDLL(str(copy)))
            return opened[-1]

        functions = dict(pynvml._nvmlGetFunctionPointer_cache)
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.environment.items():
                patch.setenv(name, value)
            patch.setattr(pynvml, "CDLL", load)
            patch.setattr(pynvml, "nvmlLib", None)
            pynvml._nvmlGetFunctionPointer_cache.clear()
            try:
                yield
            finally:
                pynvml._nvmlGetFunctionPointer_cache.clear()
                pynvml._nvmlGetFunctionPointer_cache.update(functions)
                # One that stays would be found by its name from now on, by tests that expect this very machine.
                for one in opened:
                    _ctypes.dlclose(one._handle)

    def set(
        self, call: str, answer: Says, device: int | None = None, *, mig: int | None = None, **selectors: int
    ) -> None:
        """Say what a call answers from now on.

        Without `device` this holds for all that have no answer of their own. `mig` is the slot of a MIG handle. The
        call "*" fails or delays every call of a device, or of the machine.
        """
        key = key_of(call, device, mig, selectors)
        self._lines[key] = f"{call} {' '.join(key[1])} {text_of(call, answer)}"
        self._write()

    def unset(self, call: str, device: int | None = None, *, mig: int | None = None, **selectors: int) -> None:
        """Forget what was set with the same words."""
        del self._lines[key_of(call, device, mig, selectors)]
        self._write()

    def add(self, device: Device) -> int:
        """Plug in another device and return its index."""
        index = self._devices
        with self.changing():
            self.set("nvmlDeviceGetUUID", f"GPU-{index:08x}-5a5a-4b4b-8c8c-0123456789ab", index)
            self.set("nvmlDeviceGetMinorNumber", index, index)
            domain, bus = divmod(index + 1, 256)
            name = f"{domain:08X}:{bus:02X}:00.0"
            self.set("nvmlDeviceGetPciInfo_v3", (name[4:], domain, bus, 0, 0x233010DE, 0, name), index)
            for place, answer in device.items():
                call, *selectors = place.split()
                named = {name: int(number) for name, number in (selector.split("=") for selector in selectors)}
                self.set(call, answer, index, **named)
            self.count = index + 1
        return index

    @property
    def count(self) -> int:
        """How many devices there are; set it to unplug the last ones, or to plug them in again."""
        return self._devices

    @count.setter
    def count(self, count: int) -> None:
        self._devices = count
        self.set("devices", count)

    def slice(self, device: int, slices: Mapping[int, Slice]) -> None:
        """Cut a device into MIG slices, by their slot; handles of the slices that it had before are no longer valid."""
        with self.changing():
            self._partitions[device] += 1
            self._lines = {key: line for key, line in self._lines.items() if not _is_of_slice(key, device)}
            self.set("mig-generation", self._partitions[device], device)
            for call, answer in MIG_PARENT.items():
                self.set(call, answer, device)
            for slot, part in slices.items():
                self.set("nvmlDeviceGetMigDeviceHandleByIndex", Code.SUCCESS, device, slot=slot)
                for call, answer in part.answers().items():
                    self.set(call, answer, device, mig=slot)
                for metric, value in part.gpm.items():
                    self.set("nvmlGpmMetricsGet", value, device, metric=metric, instance=part.instance)

    @contextlib.contextmanager
    def deaf(self, code: int, *devices: int) -> Iterator[None]:
        """Let every query of some devices fail, while they are counted and their handles are found.

        What is set meanwhile is forgotten afterwards.
        """
        before = dict(self._lines)
        for key in before:
            call, columns = key
            if columns[0] in map(str, devices) and call not in {"nvmlDeviceGetHandleByIndex_v2", "mig-generation"}:
                self._lines[key] = f"{call} {' '.join(columns)} {text_of(call, Answer(code=code))}"
        for device in devices:
            self.set("nvmlGpmSampleGet", Answer(code=code), device)
        try:
            yield
        finally:
            self._lines = before
            self._write()

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Let several changes take effect at once."""
        self._changing += 1
        try:
            yield
        finally:
            self._changing -= 1
        self._write()

    def calls(self) -> Counter[str]:
        """Return how often each function was called so far, by all processes."""
        with open(self._calls, "rb") as file:
            slots = file.read()[_GENERATION.size :]
        counted = {name.rstrip(b"\0").decode(): count for name, count in _SLOT.iter_unpack(slots)}
        return +Counter(counted)

    def _write(self) -> None:
        if self._changing:
            return
        with open(f"{self._table}.new", "w", encoding="ascii") as file:
            file.writelines(f"{line}\n" for _, line in sorted(self._lines.items()))
        os.replace(f"{self._table}.new", self._table)
        self._generation += 1
        with open(self._calls, "r+b", buffering=0) as calls:
            calls.write(_GENERATION.pack(self._generation))


def _is_of_slice(key: Key, device: int) -> bool:
    call, (index, mig, *selectors) = key
    if index != str(device):
        return False
    instances = call == "nvmlGpmMetricsGet" and selectors[1] != "-"
    return mig != "-" or instances or call in {"nvmlDeviceGetMigDeviceHandleByIndex", "nvmlGpmMigSampleGet"}
