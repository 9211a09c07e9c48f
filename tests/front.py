"""A server of HTTP that stands between an exporter and its backend, and behaves as a test says."""

from __future__ import annotations

import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self


class _Handler(BaseHTTPRequestHandler):
    server: Any
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.server.mode == "silent":
            while self.server.mode == "silent":
                time.sleep(0.02)
            self.close_connection = True
        elif self.server.mode == "overloaded":
            self._say(503, b"")
        else:
            headers = {name: self.headers[name] for name in ("Content-Type", "Content-Encoding") if self.headers[name]}
            request = urllib.request.Request(self.server.backend + self.path, body, headers)
            with urllib.request.urlopen(request, timeout=10) as response:
                status, answer = response.status, response.read()
            self.server.passed += 1
            self._say(status, answer)

    def _say(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class Front(ThreadingHTTPServer):
    """Passes what is posted on to `backend`; while its mode is `overloaded` it answers 503, while `silent` nothing.

    `passed` counts what the backend took.
    """

    daemon_threads = True

    def __init__(self, backend: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.backend = backend
        self.mode = "passing"
        self.passed = 0
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self._thread = threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> Self:
        """Serve."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End."""
        self.mode = "passing"
        self.shutdown()
        self._thread.join(10)
        self.server_close()
