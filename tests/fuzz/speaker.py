"""A server that says whatever bytes it is given."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def speaking() -> Iterator[Callable[[bytes], int]]:
    """Serve bytes as they are: each connection hears what was given last, and then its end. Gives the port."""
    said = [b""]

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection, suppress(OSError):
                connection.settimeout(10)
                connection.sendall(said[0])
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65_536):
                    pass

    def say(data: bytes) -> int:
        said[0] = data
        port: int = server.getsockname()[1]
        return port

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield say
        server.shutdown(socket.SHUT_RDWR)
        thread.join(10)
