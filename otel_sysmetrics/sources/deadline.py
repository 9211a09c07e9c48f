"""Connections of HTTP whose time is for the whole: Python's own time-out begins again with each byte that drips in."""

from __future__ import annotations

import http.client
import io
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import socket


class Deadline:
    """When a request has to be over, in `seconds` from now."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Return the seconds that are left; raises TimeoutError where there are none."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left


class Connection(http.client.HTTPConnection):
    """A plain connection that keeps to a deadline."""

    def __init__(self, *arguments: Any, deadline: Deadline, **keywords: Any) -> None:  # noqa: ANN401 - http.client's own
        super().__init__(*arguments, **keywords)
        self._deadline = deadline

    def connect(self) -> None:
        """Connect, and from then on read within the deadline only."""
        self.timeout = self._deadline.left()
        super().connect()
        self.sock.settimeout(self._deadline.left())
        self.sock = _Socket(self.sock, self._deadline)


class SecureConnection(Connection, http.client.HTTPSConnection):
    """A connection over TLS that keeps to a deadline."""


class _Socket:
    """A connected socket whose reader keeps to the deadline."""

    def __init__(self, source: socket.socket, deadline: Deadline) -> None:
        self._socket = source
        self._deadline = deadline

    def makefile(self, *_: object, **__: object) -> io.BufferedReader:
        return io.BufferedReader(_Timed(self._socket, self._deadline))

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever a socket has
        return getattr(self._socket, name)


class _Timed(io.RawIOBase):
    """A socket's bytes: each read may take what is left of the whole."""

    def __init__(self, source: socket.socket, deadline: Deadline) -> None:
        self._socket = source
        self._raw = source.makefile("rb", buffering=0)
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:  # noqa: ANN401 - any writable buffer
        self._socket.settimeout(self._deadline.left())
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()
