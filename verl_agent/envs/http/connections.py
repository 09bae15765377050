"""Connections of a server: a deadline for each request, and limits of their number and of their headers.

uvicorn alone waits without limit for the first request of a connection, and for the rest of a request that has begun.
"""

import asyncio
import json
from http import HTTPStatus
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from verl_agent.envs.http.settings import RETRY_AFTER_S, ServerLimits

REFUSED = 128
"""Most connections above the limit that are answered with 503; further ones are closed without an answer."""
REFUSED_S = 1.0
"""Seconds in which the request of a connection above the limit must arrive."""


class LimitedConnection(HttpToolsProtocol):
    """Connection of a server with limits; see `connection_class`.

    Headers and body of a request must arrive within `receive_s` after its first byte. The first request of a connection
    must arrive within that time after the connection is made. The time of the answer does not count, nor does a
    session that has begun.
    """

    limits: ClassVar[ServerLimits]

    def __init__(self, *arguments: Any, **named: Any) -> None:
        """Set up the connection with the arguments of uvicorn."""
        super().__init__(*arguments, **named)
        self._deadline: asyncio.TimerHandle | None = None
        self._receive_s = self.limits.receive_s
        self._header_bytes: int | None = 0
        self._refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the deadline; a connection above the limit will be refused."""
        super().connection_made(transport)
        above = len(self.connections) - self.limits.connections
        if above > REFUSED:
            transport.abort()
            return
        if above > 0:
            self._refused, self._receive_s = True, min(REFUSED_S, self._receive_s)
        self._start_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the deadline."""
        self._stop_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count the bytes of a request's head."""
        if self._header_bytes is not None:
            self._header_bytes += len(data)
        super().data_received(data)
        if self._header_bytes is not None and self._header_bytes > self.limits.header_bytes:
            self.send_400_response("")

    def on_message_begin(self) -> None:
        """Start the deadline of a request; that of the first request has started with the connection."""
        super().on_message_begin()
        if self._deadline is None:
            self._start_deadline()

    def on_headers_complete(self) -> None:
        """Refuse the request if its headers are too large, or if the connection is above the limit."""
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if self._refused or size > self.limits.header_bytes:
            raise ValueError("refused")  # the parser reads no further, and `send_400_response` answers
        self._header_bytes = None
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Stop the deadline: the whole request has arrived."""
        self._stop_deadline()
        self._header_bytes = 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer a request that is refused, or that is no HTTP."""
        if self._header_bytes is not None and self._header_bytes > self.limits.header_bytes:
            self._end(431, f"line and headers are too large. Allowed: at most {self.limits.header_bytes} bytes.")
        elif self._refused:
            self._end(503, "too many connections. Close one, or try again later.")
        else:
            self._end(400, msg)

    def _start_deadline(self) -> None:
        self._deadline = self.loop.call_later(self._receive_s, self._expire)

    def _stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _expire(self) -> None:
        """Close the connection, after an answer if none has begun."""
        if self.pipeline:  # uvicorn reads no further while the request before this one is running
            self._start_deadline()
            return
        self._deadline = None
        self._end(408, f"the request did not arrive within {self._receive_s:g} s.")

    def _end(self, status: int, reason: str) -> None:
        """Close the connection, after an answer if none has begun."""
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            body = json.dumps({"error": reason}).encode()
            lines = [
                f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
                "content-type: application/json",
                f"content-length: {len(body)}",
                "connection: close",
                *([f"retry-after: {RETRY_AFTER_S}"] if status == 503 else []),
            ]
            self.transport.write("\r\n".join([*lines, "\r\n"]).encode() + body)
        self.transport.close()


def connection_class(limits: ServerLimits) -> type[asyncio.Protocol]:
    """Return the class of a server's connections, for `uvicorn.Config(http=...)`."""
    return type("LimitedConnection", (LimitedConnection,), {"limits": limits})
