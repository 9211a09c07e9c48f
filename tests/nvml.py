"""Machines with NVIDIA GPUs that exist only in a table, behind the real binding and the real loader."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import math
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias
from urllib.parse import quote

import pynvml
import pytest

SOURCES: Final = Path(__file__).parent / "stand_ins" / "nvml"
CAPTURES: Final = Path(__file__).parent / "captures" / "nvidia"
SONAME: Final = "libnvidia-ml.so.1"
FOREVER: Final = math.inf
NOT_AVAILABLE: Final = 2**64 - 1  # NVML's word for a number that it does not know
NO_INSTANCE: Final = 2**32 - 1

# The file of calls: a number that changes with the table, then a slot per call.
_GENERATION: Final = struct.Struct("=Q")
_SLOT: Final = struct.Struct("=56sQ")
_SLOTS: Final = 256

EVERY_CALL: Final = "*"

SELECTORS: Final[Mapping[str, tuple[str, ...]]] = {
    "nvmlDeviceGetClockInfo": ("clock",),
    "nvmlDeviceGetFanSpeed_v2": ("fan",),
    "nvmlDeviceGetFieldValues": ("field", "scope"),
    "nvmlDeviceGetMemoryErrorCounter": ("error", "counter", "location"),
    "nvmlDeviceGetMigDeviceHandleByIndex": ("slot",),
    "nvmlDeviceGetPcieThroughput": ("counter",),
    "nvmlDeviceGetTemperature": ("sensor",),
    "nvmlDeviceGetTemperatureV": ("sensor",),
    "nvmlDeviceGetTotalEccErrors": ("error", "counter"),
    "nvmlGpmMetricsGet": ("metric", "instance"),
    "nvmlGpmMigSampleGet": ("instance",),
}

FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "nvmlDeviceGetAttributes_v2": (
        "multiprocessorCount",
        "sharedCopyEngineCount",
        "sharedDecoderCount",
        "sharedEncoderCount",
        "sharedJpegCount",
        "sharedOfaCount",
        "gpuInstanceSliceCount",
        "computeInstanceSliceCount",
        "memorySizeMB",
    ),
    "nvmlDeviceGetBAR1MemoryInfo": ("bar1Total", "bar1Free", "bar1Used"),
    "nvmlDeviceGetMemoryInfo": ("total", "free", "used"),
    "nvmlDeviceGetMemoryInfo_v2": ("total", "reserved", "free", "used"),
    "nvmlDeviceGetMigMode": ("current", "pending"),
    "nvmlDeviceGetPciInfo_v3": ("busIdLegacy", "domain", "bus", "device", "pciDeviceId", "pciSubSystemId", "busId"),
    "nvmlDeviceGetUtilizationRates": ("gpu", "memory"),
}


class Code(IntEnum):
    """An nvmlReturn_t; as an answer, the failure of the call."""

    SUCCESS = 0
    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    NOT_FOUND = 6
    INSUFFICIENT_SIZE = 7
    DRIVER_NOT_LOADED = 9
    TIMEOUT = 10
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    OPERATING_SYSTEM = 17
    LIB_RM_VERSION_MISMATCH = 18
    NO_DATA = 21
    ARGUMENT_VERSION_MISMATCH = 25
    DEPRECATED = 26
    NOT_READY = 27
    GPU_NOT_FOUND = 28
    INVALID_STATE = 29
    UNKNOWN = 999


class Moving(NamedTuple):
    """A number that goes on by `step` with each call of a process."""

    start: float
    step: float


class Process(NamedTuple):
    """A process on a GPU, as the lists of processes have it."""

    pid: int
    memory: int = NOT_AVAILABLE
    gpu_instance: int = NO_INSTANCE
    compute_instance: int = NO_INSTANCE


Value: TypeAlias = "int | float | str | Moving"


@dataclass(frozen=True)
class Answer:
    """What a call answers; values beside an error are written all the same, as the real library may do.

    `delay` is in milliseconds; FOREVER lasts until the table changes. `signal` kills the process in the call.
    """

    values: Sequence[Value] = ()
    code: int = Code.SUCCESS
    delay: float = 0
    signal: int = 0


# A number or text, numbers in the order of the struct or by their field, processes, or the code of a failure.
Says: TypeAlias = "Answer | Code | Value | Mapping[str, Value] | Sequence[Value] | Sequence[Process]"

# What one device answers, by "call" or "call selector=value".
Device: TypeAlias = Mapping[str, Says]


def _gpm(**metrics: float) -> dict[str, Says]:
    return {f"nvmlGpmMetricsGet metric={name[1:]}": value for name, value in metrics.items()}


H100: Final[Device] = {
    "nvmlDeviceGetName": "NVIDIA H100 80GB HBM3",
    "nvmlDeviceGetBrand": 14,
    "nvmlDeviceGetArchitecture": 9,
    "nvmlDeviceGetNumGpuCores": 16896,
    "nvmlDeviceGetVirtualizationMode": 0,
    "nvmlDeviceGetUtilizationRates": {"gpu": 97, "memory": 41},
    "nvmlDeviceGetEncoderUtilization": (0, 167000),
    "nvmlDeviceGetDecoderUtilization": (0, 167000),
    "nvmlDeviceGetMemoryInfo": {"total": 80 * 2**30, "free": 20 * 2**30, "used": 60 * 2**30},
    "nvmlDeviceGetMemoryInfo_v2": {
        "total": 80 * 2**30,
        "reserved": 512 * 2**20,
        "free": 20 * 2**30,
        "used": 60 * 2**30 - 512 * 2**20,
    },
    "nvmlDeviceGetBAR1MemoryInfo": {"bar1Total": 128 * 2**30, "bar1Free": 127 * 2**30, "bar1Used": 2**30},
    "nvmlDeviceGetTemperature sensor=0": 57,
    "nvmlDeviceGetTemperatureV sensor=0": 57,
    "nvmlDeviceGetPowerUsage": 612345,
    "nvmlDeviceGetEnforcedPowerLimit": 700000,
    "nvmlDeviceGetPowerManagementLimit": 700000,
    "nvmlDeviceGetTotalEnergyConsumption": Moving(9_000_000_000, 600_000),
    "nvmlDeviceGetClockInfo clock=0": 1980,
    "nvmlDeviceGetClockInfo clock=1": 1965,
    "nvmlDeviceGetClockInfo clock=2": 2619,
    "nvmlDeviceGetClockInfo clock=3": 1545,
    "nvmlDeviceGetMemoryErrorCounter": 0,
    "nvmlDeviceGetTotalEccErrors": 0,
    "nvmlDeviceGetEccMode": (1, 1),
    "nvmlDeviceGetFanSpeed": Code.NOT_SUPPORTED,
    "nvmlDeviceGetFanSpeed_v2": Code.NOT_SUPPORTED,
    "nvmlDeviceGetNumFans": 0,
    "nvmlDeviceGetComputeRunningProcesses_v3": (),
    "nvmlDeviceGetGraphicsRunningProcesses_v3": (),
    "nvmlDeviceGetMPSComputeRunningProcesses_v3": (),
    "nvmlDeviceGetPcieThroughput": Answer((120_000,), delay=20),
    "nvmlDeviceGetPcieSpeed": 32000,
    "nvmlDeviceGetCurrPcieLinkGeneration": 5,
    "nvmlDeviceGetCurrPcieLinkWidth": 16,
    "nvmlDeviceGetMaxPcieLinkGeneration": 5,
    "nvmlDeviceGetMaxPcieLinkWidth": 16,
    "nvmlDeviceGetMigMode": {"current": 0, "pending": 0},
    "nvmlDeviceGetMaxMigDeviceCount": 0,
    "nvmlDeviceGetFieldValues field=185": 612345,
    "nvmlDeviceGetFieldValues field=186": 640001,
    "nvmlGpmQueryDeviceSupport": 1,
    "nvmlGpmQueryIfStreamingEnabled": 0,
    **_gpm(_2=91.5, _3=44.25, _5=62.0, _7=60.5, _10=38.75, _11=0.0, _12=7.5, _13=1.25),
    **_gpm(_20=1500.0, _21=900.0, _60=21000.0, _61=20500.0),
}

GEFORCE: Final[Device] = {
    "nvmlDeviceGetName": "NVIDIA GeForce RTX 4080 SUPER",
    "nvmlDeviceGetBrand": 5,
    "nvmlDeviceGetArchitecture": 8,
    "nvmlDeviceGetNumGpuCores": 10240,
    "nvmlDeviceGetVirtualizationMode": 0,
    "nvmlDeviceGetUtilizationRates": {"gpu": 73, "memory": 22},
    "nvmlDeviceGetEncoderUtilization": (12, 167000),
    "nvmlDeviceGetDecoderUtilization": (0, 167000),
    "nvmlDeviceGetMemoryInfo": {"total": 16 * 2**30, "free": 10 * 2**30, "used": 6 * 2**30},
    "nvmlDeviceGetMemoryInfo_v2": {
        "total": 16 * 2**30,
        "reserved": 448 * 2**20,
        "free": 10 * 2**30,
        "used": 6 * 2**30 - 448 * 2**20,
    },
    "nvmlDeviceGetBAR1MemoryInfo": {"bar1Total": 16 * 2**30, "bar1Free": 15 * 2**30, "bar1Used": 2**30},
    "nvmlDeviceGetTemperature sensor=0": 63,
    "nvmlDeviceGetTemperatureV sensor=0": 63,
    "nvmlDeviceGetPowerUsage": 241_500,
    "nvmlDeviceGetEnforcedPowerLimit": 320_000,
    "nvmlDeviceGetPowerManagementLimit": 320_000,
    "nvmlDeviceGetTotalEnergyConsumption": Moving(70_000_000, 240_000),
    "nvmlDeviceGetClockInfo clock=0": 2610,
    "nvmlDeviceGetClockInfo clock=1": 2610,
    "nvmlDeviceGetClockInfo clock=2": 11251,
    "nvmlDeviceGetClockInfo clock=3": 1950,
    "nvmlDeviceGetFanSpeed": 41,
    "nvmlDeviceGetFanSpeed_v2 fan=0": 41,
    "nvmlDeviceGetFanSpeed_v2 fan=1": 44,
    "nvmlDeviceGetNumFans": 2,
    "nvmlDeviceGetComputeRunningProcesses_v3": (),
    "nvmlDeviceGetGraphicsRunningProcesses_v3": (),
    "nvmlDeviceGetMPSComputeRunningProcesses_v3": (),
    "nvmlDeviceGetPcieThroughput": Answer((20_000,), delay=20),
    "nvmlDeviceGetPcieSpeed": 16000,
    "nvmlDeviceGetCurrPcieLinkGeneration": 4,
    "nvmlDeviceGetCurrPcieLinkWidth": 16,
    "nvmlDeviceGetMaxPcieLinkGeneration": 4,
    "nvmlDeviceGetMaxPcieLinkWidth": 16,
    "nvmlDeviceGetFieldValues field=185": 241_500,
    "nvmlDeviceGetFieldValues field=186": 250_001,
    "nvmlGpmQueryDeviceSupport": 0,
}


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

    What a test does not name is a healthy device's; what a device does not name is not supported there.
    """

    def __init__(
        self,
        folder: Path,
        *,
        devices: Sequence[Device] = (H100,),
        driver: str = "580.95.05",
        missing: Collection[str] = (),
    ) -> None:
        self.library = library(frozenset(missing))
        self._folder = folder
        self._table = os.path.join(folder, "nvml-table")
        self._calls = os.path.join(folder, "nvml-calls")
        self._lines: dict[tuple[str, str], str] = {}
        self._devices = 0
        self._changing = 0
        self._generation = 0
        with open(self._calls, "wb") as calls:
            calls.truncate(_GENERATION.size + _SLOT.size * _SLOTS)
        with self.changing():
            self.set("devices", 0)
            self.set("nvmlSystemGetDriverVersion", driver)
            self.set("nvmlSystemGetNVMLVersion", f"13.{driver}")
            self.set("nvmlSystemGetCudaDriverVersion", 13000)
            self.set("nvmlSystemGetCudaDriverVersion_v2", 13000)
            for device in devices:
                self.add(device)

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which a process finds itself on this machine."""
        path = os.pathsep.join(filter(None, (os.path.dirname(self.library), os.environ.get("LD_LIBRARY_PATH"))))
        return {"LD_LIBRARY_PATH": path, "NVML_STAND_IN_TABLE": self._table, "NVML_STAND_IN_CALLS": self._calls}

    @contextlib.contextmanager
    def loaded(self) -> Iterator[None]:
        """Let this process find itself on this machine: its pynvml talks to it and to nothing else."""
        functions = dict(pynvml._nvmlGetFunctionPointer_cache)
        # A copy, because the loader would hand out one that is loaded already, with the state of another machine.
        own = shutil.copyfile(self.library, os.path.join(tempfile.mkdtemp(dir=self._folder), SONAME))
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.environment.items():
                patch.setenv(name, value)
            patch.setattr(pynvml, "nvmlLib", ctypes.CDLL(own))
            pynvml._nvmlGetFunctionPointer_cache.clear()
            try:
                yield
            finally:
                pynvml._nvmlGetFunctionPointer_cache.clear()
                pynvml._nvmlGetFunctionPointer_cache.update(functions)

    def set(
        self, call: str, answer: Says, device: int | None = None, *, mig: int | None = None, **selectors: int
    ) -> None:
        """Say what a call answers from now on.

        Without `device` this holds for all that have no answer of their own. `mig` is the slot of a MIG handle. The
        call "*" fails or delays every call of a device, or of the machine.
        """
        key = _key(call, device, mig, selectors)
        self._lines[key] = " ".join((*key, _text(call, answer)))
        self._write()

    def unset(self, call: str, device: int | None = None, *, mig: int | None = None, **selectors: int) -> None:
        """Forget what was set with the same words."""
        del self._lines[_key(call, device, mig, selectors)]
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


def _key(call: str, device: int | None, mig: int | None, selectors: Mapping[str, int]) -> tuple[str, str]:
    names = SELECTORS.get(call, ())
    if unknown := selectors.keys() - set(names):
        raise TypeError(f"{call} has no selector {', '.join(sorted(unknown))}")
    columns = [device, mig, *(selectors.get(name) for name in names)]
    columns += [None] * (5 - len(columns))
    return call, " ".join("-" if column is None else str(column) for column in columns)


def _text(call: str, says: Says) -> str:
    answer = says if isinstance(says, Answer) else _answer(call, says)
    delay = "-" if answer.delay == FOREVER else str(round(answer.delay))
    return " ".join((f"{int(answer.code)} {delay} {answer.signal}", *map(_value, answer.values)))


def _answer(call: str, says: Code | Value | Mapping[str, Value] | Sequence[Value] | Sequence[Process]) -> Answer:
    if isinstance(says, Code):
        return Answer(code=says)
    if isinstance(says, (int, float, str, Moving)):
        return Answer((says,))
    if isinstance(says, Mapping):
        if set(says) != set(FIELDS[call]):
            raise TypeError(f"the fields of {call} are {', '.join(FIELDS[call])}")
        return Answer([says[field] for field in FIELDS[call]])
    flat: list[Value] = []
    for item in says:
        flat += item if isinstance(item, Process) else [item]
    return Answer(flat)


def _value(value: Value) -> str:
    if isinstance(value, Moving):
        start, step = _value(value.start), value.step if isinstance(value.start, float) else int(value.step)
        return f"{start}{step:+}"
    if isinstance(value, str):
        return f"'{quote(value, safe='')}"
    return f"d{value!r}" if isinstance(value, float) else str(int(value))
