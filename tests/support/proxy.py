"""HTTP proxy that records its requests, and answers in place of any server."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class CountingProxy(ThreadingHTTPServer):
    """Proxy on a free port of this machine.

    Attributes:
        asked: method and URL of each request; the method is CONNECT for a tunnel, which is refused.
        logins: value of `Proxy-Authorization` in each request.
        answer: JSON that all requests get.
    """

    daemon_threads = True

    def __init__(self, answer: Mapping[str, Any]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = answer
        self.asked: list[tuple[str, str]] = []
        self.logins: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: CountingProxy

    def do_GET(self) -> None:
        self.server.asked.append((self.command, self.path))
        self.server.logins.append(self.headers.get("Proxy-Authorization"))
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = json.dumps(self.server.answer).encode()
        self.send_response(200 if self.command != "CONNECT" else 502)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_POST = do_HEAD = do_CONNECT = do_GET

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def counting_proxy(answer: Mapping[str, Any]) -> Iterator[CountingProxy]:
    """Run a proxy."""
    server = CountingProxy(answer)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
