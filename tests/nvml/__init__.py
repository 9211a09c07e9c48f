"""Machines with NVIDIA GPUs that exist only in a table, behind the real binding and the real loader."""

from tests.nvml.answers import (
    EVERY_CALL,
    FOREVER,
    NO_INSTANCE,
    NOT_AVAILABLE,
    Answer,
    Code,
    Device,
    Moving,
    Process,
    Says,
)
from tests.nvml.devices import CAPTURES, GEFORCE, H100, Slice
from tests.nvml.machine import NvmlMachine, why_not

__all__ = [
    "CAPTURES",
    "EVERY_CALL",
    "FOREVER",
    "GEFORCE",
    "H100",
    "NOT_AVAILABLE",
    "NO_INSTANCE",
    "Answer",
    "Code",
    "Device",
    "Moving",
    "NvmlMachine",
    "Process",
    "Says",
    "Slice",
    "why_not",
]
