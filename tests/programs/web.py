"""A small web application with a metric of its own; it answers with the names of its threads, until /quit."""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry import metrics

REQUESTS = metrics.get_meter("web").create_counter("web.requests", unit="{request}")


class Handler(BaseHTTPRequestHandler):
    """Counts what it answers."""

    def do_GET(self) -> None:
        """Answer."""
        REQUESTS.add(1)
        body = json.dumps([thread.name for thread in threading.enumerate()]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        if self.path == "/quit":
            threading.Thread(target=self.server.shutdown).start()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
    sys.stdout.write(f"port {server.server_address[1]}\n")
    sys.stdout.flush()
    server.serve_forever(poll_interval=0.05)
sys.stdout.write("served\n")
