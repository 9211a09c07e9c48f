"""Inputs of bytes: messages of protobuf, frames of HTTP/2, answers of HTTP, each near to a real one."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from hypothesis import strategies as st

from tests.fuzz.edits import CHANGES, LENGTH, LOSSES, Form, several, stretched
from tests.tpu import MESSAGES, response

Served: TypeAlias = Mapping[str, bytes]
Rows: TypeAlias = Mapping[str, Mapping[int, float]]
Frame: TypeAlias = tuple[int, int, int, bytes]
"""Kind, flags, stream and payload."""

_BYTES: Final = (
    b"\0",
    b"\xff",
    b"\x80",
    b"\x80" * 11,
    b"\x7f",
    b"\x0a",
    b"\x08",
    b"\r\n",
    b"0",
    b"9" * 30,
    b"",
    b"\x1f",
)
_SHAPES: Final = ("int", "text", "listed int", "listed text")


_ANY_BYTES: Final = st.binary(max_size=60).map(lambda data: (data,))


def changed_bytes(data: bytes, changes: Sequence[tuple[int, int, int]]) -> bytes:
    """Return bytes with changes."""
    for place, what, number in changes:
        at = place % (len(data) + 1)
        if what < 5:
            data = data[:at] + _BYTES[number % len(_BYTES)] + data[at + 1 :]
        elif what < 8:
            data = data[:at] + bytes([number % 256]) + data[at + 1 :]
        elif what < 10:
            data = data[:at] + _BYTES[number % len(_BYTES)] + data[at:]
        elif what < 12:
            data = data[:at] + data[at + number % 16 :]
        elif what == 12:
            data = data[:at]
        elif what == 13:
            data += data[at:]
        else:
            data = data[:at] + data[at : at + number % 64] * 2 + data[at:]
    return data


@dataclass(frozen=True)
class Bytes(Form[bytes]):
    """Bytes of which nothing is known."""

    originals: Sequence[bytes]

    def near(self) -> st.SearchStrategy[Sequence[bytes]]:
        """Change single bytes and pieces."""
        return several(changed_bytes, st.sampled_from(self.originals), CHANGES) | _ANY_BYTES

    def lacking(self) -> st.SearchStrategy[Sequence[tuple[bytes, bytes]]]:
        """Nothing is known of values in them."""
        return st.nothing()

    def long(self) -> st.SearchStrategy[bytes]:
        """Put a run of one byte somewhere."""
        return st.builds(
            lambda data, place, byte: data[: place % len(data)] + bytes([byte]) * LENGTH + data[place % len(data) :],
            st.sampled_from(self.originals),
            st.integers(0, 2**16),
            st.sampled_from((0, 8, 10, 18, 26, 48, 128, 255)),
        )


@dataclass(frozen=True)
class Messages(Form[Served]):
    """What a TPU runtime answers for each of its metrics, as messages that protobuf itself encodes."""

    originals: Sequence[Rows]

    def near(self) -> st.SearchStrategy[Sequence[Served]]:
        """Change the bytes of one message, or hold numbers in it that cannot be."""
        number = st.integers(-(2**63), 2**63 - 1) | st.floats()
        rows = st.dictionaries(st.integers(0, 2**31) | st.integers(-(2**63), 2**63 - 1), number, max_size=4)
        odd = st.builds(
            lambda served, name, rows, shape: {
                **served,
                sorted(served)[name % len(served)]: _encoded("x", rows, shape),
            },
            self._served(),
            st.integers(0, 9),
            rows,
            st.sampled_from(_SHAPES),
        )
        return odd.map(lambda served: (served,)) | several(_changed_message, self._served() | odd, CHANGES)

    def lacking(self) -> st.SearchStrategy[Sequence[tuple[Served, Served]]]:
        """Take rows, their measures, or only the measures' numbers."""
        return several(lambda served, losses: (served, _poorer(served, losses)), self._served(), LOSSES)

    def long(self) -> st.SearchStrategy[Served]:
        """Make one message long."""
        return st.builds(
            lambda served, data: {**served, min(served): data},
            self._served(),
            Bytes([_encoded("x", rows, "listed int") for served in self.originals for rows in served.values()]).long(),
        )

    def _served(self) -> st.SearchStrategy[Served]:
        return st.builds(
            lambda served, shape: {name: _encoded(name, rows, shape) for name, rows in served.items()},
            st.sampled_from(self.originals),
            st.sampled_from(_SHAPES),
        )


def _changed_message(served: Served, changes: list[tuple[int, int, int]]) -> Served:
    name = sorted(served)[changes[0][0] % len(served)]
    return {**served, name: changed_bytes(served[name], changes)}


def _encoded(name: str, rows: Mapping[int, float], shape: str) -> bytes:
    return response(name, rows, shape=shape)


def _poorer(served: Served, losses: list[tuple[int, int]]) -> Served:
    decoded: dict[str, Any] = {name: MESSAGES["MetricResponse"].FromString(data) for name, data in served.items()}
    for place, how in losses:
        name = sorted(decoded)[place % len(decoded)]
        rows = decoded[name].metric.metrics
        if not rows:
            continue
        row = rows[place // len(decoded) % len(rows)]
        if how < 2:
            rows.remove(row)
        elif how < 4:
            row.ClearField("gauge")
        elif how < 6:
            row.gauge.Clear()
            row.gauge.SetInParent()
        else:
            row.gauge.as_string = "N/A"
    return {name: bytes(message.SerializeToString()) for name, message in decoded.items()}


@dataclass(frozen=True)
class Frames(Form[bytes]):
    """Answers of an HTTP/2 server, as their frames."""

    originals: Sequence[Sequence[Frame]]

    def near(self) -> st.SearchStrategy[Sequence[bytes]]:
        """Change, repeat, delete and exchange frames; and bytes, which spoils the lengths."""
        originals = st.sampled_from(self.originals)
        return (
            several(lambda frames, changes: joined(_changed_frames(frames, changes)), originals, CHANGES)
            | several(lambda frames, changes: changed_bytes(joined(frames), changes), originals, CHANGES)
            | _ANY_BYTES
        )

    def lacking(self) -> st.SearchStrategy[Sequence[tuple[bytes, bytes]]]:
        """Nothing: a frame holds no values."""
        return st.nothing()

    def long(self) -> st.SearchStrategy[bytes]:
        """Repeat a frame, which may be empty, until there are many bytes."""
        return st.builds(
            lambda frames, frame: joined([*frames[:2], *[frame] * (LENGTH // (9 + len(frame[3]))), *frames[2:]]),
            st.sampled_from(self.originals),
            st.sampled_from([frame for frames in self.originals for frame in frames]) | st.just((0, 0, 9, b"")),
        )


def joined(frames: Sequence[Frame]) -> bytes:
    """Return frames as their bytes."""
    return b"".join(
        struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload
        for kind, flags, stream, payload in frames
    )


def _changed_frames(frames: Sequence[Frame], changes: Sequence[tuple[int, int, int]]) -> list[Frame]:
    made = list(frames)
    for place, what, number in changes:
        if not made:
            break
        at = place % len(made)
        kind, flags, stream, payload = made[at]
        if what < 2:
            made[at] = (number % 12, flags, stream, payload)
        elif what < 4:
            made[at] = (kind, number % 256, stream, payload)
        elif what < 6:
            made[at] = (kind, flags, number % 12, payload)
        elif what < 10:
            made[at] = (kind, flags, stream, changed_bytes(payload, [(place, number % 16, number)]))
        elif what < 12:
            del made[at]
        elif what < 14:
            made.insert(at, made[at])
        else:
            made[at], made[-at - 1] = made[-at - 1], made[at]
    return made


def answers_of_http(bodies: Sequence[str]) -> list[bytes]:
    """Return whole answers of an HTTP server with these bodies: with their length, in chunks, until the end."""
    found = []
    for body in bodies:
        data = body.encode()
        chunks = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (data[:50], data[50:]) if piece)
        kind = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
        found += [
            kind + b"Content-Length: %d\r\n\r\n" % len(data) + data,
            kind + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n",
            kind + b"Connection: close\r\n\r\n" + data,
        ]
    return found


@dataclass(frozen=True)
class Answers(Form[bytes]):
    """Answers of HTTP."""

    originals: Sequence[bytes]

    def near(self) -> st.SearchStrategy[Sequence[bytes]]:
        """Change single bytes and pieces."""
        return Bytes(self.originals).near()

    def lacking(self) -> st.SearchStrategy[Sequence[tuple[bytes, bytes]]]:
        """Nothing: what a body says is another parser's."""
        return st.nothing()

    def long(self) -> st.SearchStrategy[bytes]:
        """Put a run in place of a word, in headers too."""
        texts = st.sampled_from(self.originals).map(lambda data: data.decode("latin-1"))
        stretch = st.tuples(st.integers(0, 2**16), st.sampled_from("1aX \r;=,\n"), st.sampled_from(("", "\n")))
        return st.builds(stretched, texts, stretch).map(lambda text: text.encode("latin-1"))
