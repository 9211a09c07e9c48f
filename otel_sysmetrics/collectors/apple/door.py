"""Reads what macOS counts of its GPU and writes it as JSON lines, unjudged.

A program of its own (`python -I -S door.py SECONDS [FOLDER]`), never imported: IOReport, the SMC and the HID sensors
are private to the system, and a call that goes wrong there takes the whole process down. It ends when nobody reads it.
FOLDER is where macmon-lib is installed. A source that is not there is left out; without any the only line is an error.
"""

from __future__ import annotations

import ctypes
import json
import os
import plistlib
import select
import struct
import sys
import time
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

FIRST = 0.5  # seconds
LIBRARIES = "/System/Library/Frameworks/{0}.framework/{0}"
POINTER, TEXT, I32, I64 = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32, ctypes.c_int64
U32, U64, REAL = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_double
UTF8 = 0x08000100
Reference = int | None  # to what belongs to CoreFoundation
MOST = 65_536  # no machine has more keys, channels or states


def bound(library: ctypes.CDLL, name: str, result: object, *arguments: object) -> Callable[..., Any]:
    """Return a function of a C library with its types; raises AttributeError where the system lacks it."""
    function: Any = getattr(library, name)
    function.restype, function.argtypes = result, arguments
    typed: Callable[..., Any] = function
    return typed


class Core:
    """The few things of CoreFoundation that are needed."""

    def __init__(self) -> None:
        library = ctypes.CDLL(LIBRARIES.format("CoreFoundation"))
        self._string = bound(library, "CFStringCreateWithCString", POINTER, POINTER, TEXT, U32)
        self._characters = bound(library, "CFStringGetCString", ctypes.c_bool, POINTER, TEXT, I64, U32)
        self._data = bound(library, "CFDataCreate", POINTER, POINTER, TEXT, I64)
        self._plist = bound(library, "CFPropertyListCreateWithData", POINTER, POINTER, POINTER, U64, POINTER, POINTER)
        self._count = bound(library, "CFArrayGetCount", I64, POINTER)
        self._at = bound(library, "CFArrayGetValueAtIndex", POINTER, POINTER, I64)
        self.value = bound(library, "CFDictionaryGetValue", POINTER, POINTER, POINTER)
        self.mutable = bound(library, "CFDictionaryCreateMutableCopy", POINTER, POINTER, I64, POINTER)
        self._release = bound(library, "CFRelease", None, POINTER)

    def string(self, text: str) -> Reference:
        """Make a string, which the caller owns."""
        made: Reference = self._string(None, text.encode(), UTF8)
        return made

    def text(self, string: Reference) -> str | None:
        """Return what a string says, None where there is none."""
        room = ctypes.create_string_buffer(256)
        known = string and self._characters(string, room, len(room), UTF8)
        return room.value.decode("utf-8", "replace") if known else None

    def dictionary(self, content: dict[str, int]) -> Reference:
        """Make a dictionary, which the caller owns."""
        text = plistlib.dumps(content)
        made: Reference = self._plist(None, self._data(None, text, len(text)), 0, None, None)
        return made

    def items(self, array: Reference) -> list[Reference]:
        """Return what is in an array."""
        return [self._at(array, index) for index in range(min(self._count(array), MOST))] if array else []

    def release(self, thing: Reference) -> None:
        """Let go of what is owned, if it is there."""
        if thing:
            self._release(thing)


class Report:
    """IOReport: how long the GPU was in each state, and what it used."""

    GROUPS = (("GPU Stats", "GPU Performance States"), ("Energy Model", None))

    def __init__(self, core: Core) -> None:
        self._core = core
        library = ctypes.CDLL("/usr/lib/libIOReport.dylib")  # in the system's cache, though no such file is there
        group = bound(library, "IOReportCopyChannelsInGroup", POINTER, POINTER, POINTER, U64, U64, U64)
        merge = bound(library, "IOReportMergeChannels", None, POINTER, POINTER, POINTER)
        subscribe = bound(
            library, "IOReportCreateSubscription", POINTER, POINTER, POINTER, ctypes.POINTER(POINTER), U64, POINTER
        )
        self._samples = bound(library, "IOReportCreateSamples", POINTER, POINTER, POINTER, POINTER)
        self._delta = bound(library, "IOReportCreateSamplesDelta", POINTER, POINTER, POINTER, POINTER)
        self._names = {
            key: bound(library, f"IOReportChannelGet{key}", POINTER, POINTER)
            for key in ("Group", "ChannelName", "UnitLabel")
        }
        self._number = bound(library, "IOReportSimpleGetIntegerValue", I64, POINTER, POINTER)
        self._states = bound(library, "IOReportStateGetCount", I32, POINTER)
        self._state = bound(library, "IOReportStateGetNameForIndex", POINTER, POINTER, I32)
        self._residency = bound(library, "IOReportStateGetResidency", I64, POINTER, I32)
        self._key = core.string("IOReportChannels")
        found = [group(core.string(name), below and core.string(below), 0, 0, 0) for name, below in self.GROUPS]
        known = [each for each in found if each]
        if not known:
            raise OSError("no such channels")
        for other in known[1:]:
            merge(known[0], other, None)
        self._channels = core.mutable(None, 0, known[0])
        self._subscription = subscribe(None, self._channels, ctypes.byref(POINTER()), 0, None)
        if not self._subscription:
            raise OSError("no subscription")
        self._before, self._when = self._samples(self._subscription, self._channels, None), time.monotonic()

    def read(self) -> dict[str, Any]:
        """Return what happened since the last time."""
        now, when = self._samples(self._subscription, self._channels, None), time.monotonic()
        if not now:
            return {}
        before, self._before = self._before, now
        elapsed, self._when = when - self._when, when
        delta = before and self._delta(before, now, None)
        found = self._channels_of(delta) if delta else {}
        self._core.release(before)
        self._core.release(delta)
        return {"seconds": elapsed, **found}

    def _channels_of(self, delta: Reference) -> dict[str, Any]:
        states: list[Any] = []
        energies: list[Any] = []
        for channel in self._core.items(self._core.value(delta, self._key)):
            group, name, unit = (self._core.text(self._names[key](channel)) for key in self._names)
            if name is None or "GPU" not in name:
                continue
            if group == "Energy Model":
                energies.append([name, unit, self._number(channel, None)])
            else:
                count = range(min(self._states(channel), MOST))
                of = [[self._core.text(self._state(channel, i)), self._residency(channel, i)] for i in count]
                states.append([name, of])
        return {"states": states, "energies": energies}


class Controller:
    """The SMC: its keys of four letters that begin with Tg are the GPU's temperatures."""

    SIZE = 80
    READ, KEY_OF_INDEX, ABOUT = 5, 8, 9
    KEY, LENGTH, KIND, RESULT, COMMAND, INDEX, BYTES = 0, 28, 32, 40, 42, 44, 48

    def __init__(self, iokit: ctypes.CDLL) -> None:
        matching = bound(iokit, "IOServiceMatching", POINTER, TEXT)
        first = bound(iokit, "IOServiceGetMatchingService", U32, U32, POINTER)
        service = first(0, matching(b"AppleSMCKeysEndpoint")) or first(0, matching(b"AppleSMC"))
        task = U32.in_dll(ctypes.CDLL(None), "mach_task_self_")
        connection = U32()
        opened = bound(iokit, "IOServiceOpen", I32, U32, U32, U32, ctypes.POINTER(U32))
        if not service or opened(service, task, 0, ctypes.byref(connection)):
            raise OSError("no SMC")
        self._connection = connection
        self._call = bound(
            iokit, "IOConnectCallStructMethod", I32, U32, U32, POINTER, U64, POINTER, ctypes.POINTER(U64)
        )
        count = int.from_bytes(self._bytes(b"#KEY", 4), "big")
        named = (self._ask(self.KEY_OF_INDEX, index=index) for index in range(min(count, MOST)))
        keys = (answer[self.KEY : self.KEY + 4][::-1] for answer in named if answer)
        self._keys = [key for key in keys if key.startswith(b"Tg") and self._is_float(key)]

    def read(self) -> dict[str, Any]:
        """Return the temperatures by key."""
        found = [(key.decode("latin-1"), self._bytes(key, 4)) for key in self._keys]
        return {"smc": [[key, struct.unpack("<f", value)[0]] for key, value in found if value]}

    def _is_float(self, key: bytes) -> bool:
        about = self._ask(self.ABOUT, key)
        return about is not None and about[self.KIND : self.KIND + 4] == b" tlf"

    def _bytes(self, key: bytes, length: int) -> bytes:
        answer = self._ask(self.READ, key, length=length)
        return answer[self.BYTES : self.BYTES + length] if answer else b""

    def _ask(self, command: int, key: bytes = b"\0\0\0\0", *, index: int = 0, length: int = 0) -> bytes | None:
        question, answer, size = bytearray(self.SIZE), ctypes.create_string_buffer(self.SIZE), U64(self.SIZE)
        question[self.KEY : self.KEY + 4] = key[::-1]
        question[self.LENGTH : self.LENGTH + 4] = struct.pack("<I", length)
        question[self.COMMAND] = command
        question[self.INDEX : self.INDEX + 4] = struct.pack("<I", index)
        failed = self._call(self._connection, 2, bytes(question), self.SIZE, answer, ctypes.byref(size))
        return None if failed or answer.raw[self.RESULT] else answer.raw


class Sensors:
    """The HID sensors, which is where an M1 has its temperatures."""

    TEMPERATURE = 15

    def __init__(self, core: Core, iokit: ctypes.CDLL) -> None:
        self._core = core
        system = bound(iokit, "IOHIDEventSystemClientCreate", POINTER, POINTER)(None)
        match = bound(iokit, "IOHIDEventSystemClientSetMatching", I32, POINTER, POINTER)
        services = bound(iokit, "IOHIDEventSystemClientCopyServices", POINTER, POINTER)
        about = bound(iokit, "IOHIDServiceClientCopyProperty", POINTER, POINTER, POINTER)
        self._event = bound(iokit, "IOHIDServiceClientCopyEvent", POINTER, POINTER, I64, I32, I64)
        self._value = bound(iokit, "IOHIDEventGetFloatValue", REAL, POINTER, I32)
        if not system:
            raise OSError("no HID system")
        match(system, core.dictionary({"PrimaryUsagePage": 0xFF00, "PrimaryUsage": 5}))
        product = core.string("Product")
        found = [(core.text(about(service, product)) or "", service) for service in core.items(services(system))]
        self._services = [(name, service) for name, service in found if name.startswith("GPU MTR Temp Sensor")]

    def read(self) -> dict[str, Any]:
        """Return the temperatures by name."""
        found = []
        for name, service in self._services:
            event = self._event(service, self.TEMPERATURE, 0, 0)
            if event:
                found.append([name, self._value(event, self.TEMPERATURE << 16)])
                self._core.release(event)
        return {"hid": found}


class Macmon:
    """macmon-lib, which says 0 for what it does not know."""

    def __init__(self, folder: str) -> None:
        sys.path.append(folder)
        self._sampler = import_module("macmon").Sampler()
        self._sampler.metrics()  # the window begins here

    def read(self) -> dict[str, Any]:
        """Return the power since the last time, and the temperature."""
        found = self._sampler.metrics()
        return {"macmon": {"watts": found.power.gpu, "celsius": found.temperature.gpu_average}}


Source = Report | Controller | Sensors | Macmon


def sources(folder: str) -> tuple[list[Source], list[str]]:
    """Return the sources that are here, and why the others are not."""
    found: list[Source] = []
    reasons: list[str] = []

    def add(make: Callable[[], Source]) -> None:
        try:
            found.append(make())
        except BaseException as error:  # noqa: BLE001 - a library may raise anything, and costs only itself
            reasons.append(" ".join(f"{type(error).__name__}: {error}".split())[:200])

    if folder:
        add(lambda: Macmon(folder))
    with suppress(OSError, AttributeError):
        core = Core()
        add(lambda: Report(core))
        iokit = ctypes.CDLL(LIBRARIES.format("IOKit"))
        add(lambda: Controller(iokit))
        add(lambda: Sensors(core, iokit))
        return found, reasons
    return found, [*reasons, "no CoreFoundation or no IOKit"]


def read(source: Source) -> dict[str, Any]:
    """Return what a source says, nothing where it fails."""
    try:
        said = source.read()
    except Exception:  # noqa: BLE001 - another source may still answer
        return {}
    return said


def main() -> None:
    """Write a line per period."""
    output = os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 1)  # what a library prints is no line of ours
    found, reasons = sources("".join(sys.argv[2:]))
    if not found:
        os.write(output, json.dumps({"error": "; ".join(reasons)}).encode() + b"\n")
        return
    ear = select.poll()
    ear.register(output, 0)
    pause = FIRST
    while not ear.poll(pause * 1000):  # which tells when the other end is closed
        line = {key: value for source in found for key, value in read(source).items()}
        os.write(output, json.dumps(line).encode() + b"\n")
        pause = float(sys.argv[1])


if __name__ == "__main__":
    with suppress(BrokenPipeError, KeyboardInterrupt):
        main()
