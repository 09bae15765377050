"""Connections of a server: a deadline for each request, and a limit of their number.

uvicorn alone waits without limit for the first request of a connection, and for the rest of a request that has begun.
"""

import asyncio
import json
from collections.abc import Callable
from typing import Any, ClassVar

from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from verl_agent.envs.http.session_table import RETRY_AFTER_S
from verl_agent.envs.http.settings import ServerLimits

REFUSED = 128
"""Most connections above the limit that are answered with 503; further ones are closed without an answer."""
REFUSED_S = 1.0
"""Seconds in which the request of a connection above the limit must arrive."""


class LimitedConnection(HttpToolsProtocol):
    """Connection of a server with limits; see `connection_class`.

    Headers and body of a request must arrive within `receive_s` after its first byte. The first request of a connection
    must arrive within that time after the connection is made. The time of the answer does not count.

    A request has the list `state.on_reset`. Its functions are called if the client resets the connection before its
    next request, as the system does for a process that ends without having read the answer.
    """

    limits: ClassVar[ServerLimits]

    def __init__(self, *arguments: Any, **named: Any) -> None:
        """Set up the connection with the arguments of uvicorn."""
        super().__init__(*arguments, **named)
        self._deadline: asyncio.TimerHandle | None = None
        self._receive_s = self.limits.receive_s
        self._on_reset: list[Callable[[], None]] = []

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the deadline; above the limit, answer every request with 503."""
        super().connection_made(transport)
        above = len(self.connections) - self.limits.connections
        if above > REFUSED:
            transport.abort()
            return
        if above > 0:
            self.app, self._receive_s = _refuse, min(REFUSED_S, self._receive_s)
        self._start_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the deadline; an exception means that the client reset the connection."""
        self._stop_deadline()
        super().connection_lost(exc)
        for function in self._on_reset if exc is not None else ():
            function()

    def on_message_begin(self) -> None:
        """Start the deadline of a request; that of the first request has started with the connection."""
        super().on_message_begin()
        self._on_reset = []
        self.scope["state"]["on_reset"] = self._on_reset
        if self._deadline is None:
            self._start_deadline()

    def on_message_complete(self) -> None:
        """Stop the deadline: the whole request has arrived."""
        self._stop_deadline()
        super().on_message_complete()

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
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            reason = {"error": f"the request did not arrive within {self._receive_s:g} s."}
            body = json.dumps(reason).encode()
            head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
            self.transport.write(b"HTTP/1.1 408 Request Timeout\r\n" + head.encode() + body)
        self.transport.close()


def connection_class(limits: ServerLimits) -> type[asyncio.Protocol]:
    """Return the class of a server's connections, for `uvicorn.Config(http=...)`."""
    return type("LimitedConnection", (LimitedConnection,), {"limits": limits})


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    body = json.dumps({"error": "too many connections. Close one, or try again later."}).encode()
    headers = {
        "content-type": "application/json",
        "content-length": str(len(body)),
        "connection": "close",
        "retry-after": str(RETRY_AFTER_S),
    }
    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": 503, "headers": encoded})
    await send({"type": "http.response.body", "body": body})
