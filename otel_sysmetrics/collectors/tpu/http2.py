"""Unary gRPC calls over clear-text HTTP/2, as much of both as a metric service on this host needs.

grpcio is not used, since what it leaves behind in a process does not survive forks: of children that were forked during
a call, and called in turn, some died of SIGSEGV or SIGABRT, and its fork handlers write to the application's stderr
(https://github.com/grpc/grpc/blob/master/doc/fork_support.md; seen with 1.85.3 and a channel per sample, case 145).
A socket that lives as long as a sample has neither threads nor locks, and knows of no proxy.

The headers of an answer are not decoded: a call that went well has a message, one that was refused has none
(https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md).
"""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from typing import Final, NamedTuple

from otel_sysmetrics.sources.deadline import Deadline

_HOSTS: Final = ("127.0.0.1", "::1")  # not `localhost`, which may be looked up far away
_TRIES: Final = 3
_CHUNK: Final = 65_536
_MOST_BYTES: Final = 4 * 2**20
_MOST_FRAME: Final = 16_384
_FRAME_HEADER: Final = 9
_MESSAGE_HEADER: Final = 5

_DATA: Final = 0
_HEADERS: Final = 1
_RESET: Final = 3
_SETTINGS: Final = 4
_PING: Final = 6
_GO_AWAY: Final = 7
_WINDOW_UPDATE: Final = 8

_ACK: Final = 1
_END_STREAM: Final = 1
_END_HEADERS: Final = 4
_PADDED: Final = 8


class _Frame(NamedTuple):
    """A frame of HTTP/2."""

    kind: int
    flags: int
    stream: int
    payload: bytes

    def encoded(self) -> bytes:
        """Return its bytes."""
        size = struct.pack(">I", len(self.payload))[1:]
        return size + struct.pack(">BBI", self.kind, self.flags, self.stream) + self.payload


# No pushes, and windows so large that they need no updates: ENABLE_PUSH is setting 2, INITIAL_WINDOW_SIZE 4.
_OPENING: Final = b"".join(
    (
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        _Frame(_SETTINGS, 0, 0, struct.pack(">HIHI", 2, 0, 4, _MOST_BYTES)).encoded(),
        _Frame(_WINDOW_UPDATE, 0, 0, struct.pack(">I", _MOST_BYTES)).encoded(),
    )
)


class _Unheard(ConnectionError):
    """The service is ending and did not hear the call, which may be made anew."""


def connect(port: int, seconds: float) -> socket.socket:
    """Return a connection to a port of this host, whichever IP is listened on; raises OSError."""
    deadline = Deadline(seconds)
    refusals = []
    for host in _HOSTS:
        try:
            return socket.create_connection((host, port), deadline.left())
        except OSError as error:
            refusals.append(error)
    raise refusals[0]


class Connection:
    """A connection to a port of this host, `seconds` for all of it; made anew where the service ends it in between.

    Everything but `close` raises OSError where nobody listens, answers in time or speaks gRPC.
    """

    def __init__(self, port: int, seconds: float) -> None:
        self._port = port
        self._deadline = Deadline(seconds)
        self._open()

    def call(self, path: str, message: bytes) -> bytes | None:
        """Return what a method answers, None where it refuses."""
        for _ in range(_TRIES):
            try:
                if self._is_ending:
                    self.close()
                    self._open()
                return self._call(path, message)
            except _Unheard:
                continue
        raise ConnectionError("the service is ending")

    def _open(self) -> None:
        self._received = b""
        self._stream = -1
        self._is_ending = False
        self._opening = _OPENING
        self._socket = connect(self._port, self._deadline.left())
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def _call(self, path: str, message: bytes) -> bytes | None:
        self._stream += 2
        self._send(
            _Frame(_HEADERS, _END_HEADERS, self._stream, _headers(path, f"localhost:{self._port}")),
            _Frame(_DATA, _END_STREAM, self._stream, struct.pack(">BI", 0, len(message)) + message),
        )
        answer = bytearray()
        while True:
            frame = self._next()
            if frame.stream != self._stream:
                continue
            if frame.kind == _RESET:
                return None
            if frame.kind == _DATA:
                answer += frame.payload
            if len(answer) > _MOST_BYTES or (frame.kind == _DATA and frame.flags & _PADDED):
                raise ConnectionError("an answer that is no gRPC runtime's")
            if frame.kind in {_DATA, _HEADERS} and frame.flags & _END_STREAM:
                return _message(bytes(answer))

    def _next(self) -> _Frame:
        """Return the next frame, having answered what the connection itself asks."""
        size, kind, flags, stream = struct.unpack(">IBBI", b"\0" + self._read(_FRAME_HEADER))
        if size > _MOST_FRAME:
            raise ConnectionError("no HTTP/2")
        frame = _Frame(kind, flags, stream & 0x7FFF_FFFF, self._read(size))
        if kind == _GO_AWAY:  # calls up to the one that it names are still answered
            self._is_ending = True
            if int.from_bytes(frame.payload[:4], "big") & 0x7FFF_FFFF < self._stream:
                raise _Unheard
        if kind == _SETTINGS and not flags & _ACK:
            self._send(_Frame(_SETTINGS, _ACK, 0, b""))
        if kind == _PING and not flags & _ACK:
            self._send(_Frame(_PING, _ACK, 0, frame.payload))
        return frame

    def _send(self, *frames: _Frame) -> None:
        opening, self._opening = self._opening, b""
        self._socket.settimeout(self._deadline.left())
        self._socket.sendall(opening + b"".join(frame.encoded() for frame in frames))

    def _read(self, size: int) -> bytes:
        while len(self._received) < size:
            self._socket.settimeout(self._deadline.left())
            piece = self._socket.recv(_CHUNK)
            if not piece:
                raise ConnectionError("the connection was closed")
            self._received += piece
        found, self._received = self._received[:size], self._received[size:]
        return found

    def close(self) -> None:
        """End it."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # a child that was forked meanwhile has the socket too
        self._socket.close()


def _headers(path: str, authority: str) -> bytes:
    """Return a request's headers in HPACK, by their numbers in its static table (RFC 7541, appendix A)."""
    post, http, path_name, authority_name, content_type = b"\x83", b"\x86", b"\x04", b"\x01", b"\x0f\x10"
    return b"".join(
        (
            *(post, http, path_name, _text(path), authority_name, _text(authority)),
            *(content_type, _text("application/grpc"), b"\x00", _text("te"), _text("trailers")),
        )
    )


def _text(text: str) -> bytes:
    """Return a text of HPACK; one byte holds the length of all that are sent here."""
    return bytes([len(text)]) + text.encode("ascii")


def _message(data: bytes) -> bytes | None:
    """Return the one message that an answer holds, None where it holds none."""
    if not data:
        return None
    if len(data) < _MESSAGE_HEADER or struct.unpack_from(">BI", data) != (0, len(data) - _MESSAGE_HEADER):
        raise ConnectionError("an answer that is no gRPC message")
    return data[_MESSAGE_HEADER:]
