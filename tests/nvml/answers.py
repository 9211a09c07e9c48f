"""What the functions of NVML may answer, in the words of the stand-in's table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias
from urllib.parse import quote

FOREVER: Final = math.inf
NOT_AVAILABLE: Final = 2**64 - 1  # NVML's word for a number that it does not know
NO_INSTANCE: Final = 2**32 - 1

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
    FUNCTION_NOT_FOUND = 13
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

# The call, then device, MIG slot and selectors.
Key: TypeAlias = "tuple[str, tuple[str, ...]]"
_COLUMNS: Final = 5

# What one device answers, by "call" or "call selector=value".
Device: TypeAlias = Mapping[str, Says]


def key_of(call: str, device: int | None, mig: int | None, selectors: Mapping[str, int]) -> Key:
    """Return the first columns of a line of the table."""
    names = SELECTORS.get(call, ())
    if unknown := selectors.keys() - set(names):
        raise TypeError(f"{call} has no selector {', '.join(sorted(unknown))}")
    columns = [device, mig, *(selectors.get(name) for name in names)]
    columns += [None] * (_COLUMNS - len(columns))
    return call, tuple("-" if column is None else str(column) for column in columns)


def text_of(call: str, says: Says) -> str:
    """Return the rest of the line."""
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
