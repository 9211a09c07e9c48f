"""Whatever a binding answers or raises, it becomes a value that can be, or no value."""

from __future__ import annotations

import math
from contextlib import suppress
from ctypes import ArgumentError
from types import ModuleType, SimpleNamespace
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_sysmetrics.collectors.nvidia import calls
from otel_sysmetrics.collectors.nvidia.nvml import Call, CallFailed, Nvml, Outcome
from otel_sysmetrics.collectors.nvidia.queries import BLOCKING, QUERIES, answers, sane
from otel_sysmetrics.collectors.nvidia.target import Target

QUESTIONS: Final = [
    call
    for value in vars(calls).values()
    for call in (value if isinstance(value, tuple) else (value,))
    if isinstance(call, Call)
]

SCALARS: Final = (
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5) | st.binary(max_size=5)
)
FIELDS: Final = ("gpu", "memory", "used", "total", "domain", "bus", "device", "isSupportedDevice", "pid")
STRUCTS: Final = st.fixed_dictionaries({}, optional=dict.fromkeys(FIELDS, SCALARS)).map(
    lambda fields: SimpleNamespace(**fields)
)
ANSWERS: Final = SCALARS | STRUCTS | st.lists(SCALARS | STRUCTS, max_size=3)


class Binding(ModuleType):
    """A binding that answers the same to every question, or raises it."""

    def __init__(self, answer: object) -> None:
        super().__init__("pynvml")
        self._answer = answer

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - as many kinds as there are answers
        return self._say

    def _say(self, *_: object) -> object:
        if isinstance(self._answer, BaseException):
            raise self._answer
        return self._answer


class NVMLLibraryMismatchError(Exception):
    """Named as the binding's, which is no NVMLError."""


class Coded(Exception):
    """An error with NVML's code."""

    def __init__(self, value: object) -> None:
        super().__init__("text")
        self.value = value

    def __str__(self) -> str:
        """Ask the library, which is closed."""
        raise OSError


@given(ANSWERS, st.sampled_from(QUESTIONS))
def test_an_answer_is_read_or_the_call_has_failed(answer: object, call: Call[object]) -> None:
    with suppress(CallFailed):
        Nvml(Binding(answer)).call(call)


@given(ANSWERS)
def test_no_answer_becomes_a_value_that_cannot_be(answer: object) -> None:
    target = Target(Nvml(Binding(answer)), lambda: None, lambda: 0.0)
    try:
        found = list(answers(target, (*QUERIES, *BLOCKING)))
    except CallFailed:
        return
    for spec, value in found:
        assert math.isfinite(value)
        assert sane(spec, value) == value
        assert value >= 0 or spec.unit == "Cel"


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (Coded(3), Outcome.UNSUPPORTED),
        (Coded(15), Outcome.LOST),
        (Coded(1), Outcome.CLOSED),
        (Coded(4711), Outcome.ABSENT),
        (Coded("3"), Outcome.ABSENT),
        (NVMLLibraryMismatchError("use a versioned function"), Outcome.UNSUPPORTED),
        (AttributeError("module 'pynvml' has no attribute"), Outcome.UNSUPPORTED),
        (TypeError("takes 1 positional argument"), Outcome.UNSUPPORTED),
        (ArgumentError("argument 1"), Outcome.ABSENT),
        (OSError("exception: access violation reading 0x0"), Outcome.ABSENT),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"), Outcome.ABSENT),
        (MemoryError(), Outcome.ABSENT),
        (SystemExit(1), Outcome.ABSENT),
    ],
    ids=repr,
)
def test_everything_that_a_binding_raises_is_a_failed_call(error: BaseException, outcome: Outcome) -> None:
    with pytest.raises(CallFailed) as caught:
        Nvml(Binding(error)).call(calls.POWER)
    assert caught.value.outcome is outcome
    assert "\n" not in caught.value.reason
