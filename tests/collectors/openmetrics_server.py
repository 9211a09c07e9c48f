"""A real server of HTTP on loopback that answers as a test says."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator

    Answer = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    """One request; the server's `answer` does the rest."""

    server: Any

    def do_GET(self) -> None:
        self.server.seen.append((self.path, dict(self.headers.items())))
        try:
            self.server.answer(self)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def say(self, body: bytes | str, status: int = 200, **headers: str) -> None:
        """Answer with a body, its length, and these headers."""
        content = body.encode() if isinstance(body, str) else body
        self.send_response(status)
        headers = {"Content_Type": "text/plain; version=0.0.4", "Content_Length": str(len(content)), **headers}
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class Server(ThreadingHTTPServer):
    """What it answers may be changed at any time; `seen` holds the requests: path and headers."""

    daemon_threads = True
    answer: Answer
    seen: list[tuple[str, dict[str, str]]]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@contextmanager
def serving(answer: bytes | str | Answer, tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    """Serve a body, or whatever a function answers, until the end of the block; over TLS where that is given."""
    with Server(("127.0.0.1", 0), Handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        server.answer = answer if callable(answer) else lambda request: request.say(answer)
        server.seen = []
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(10)
