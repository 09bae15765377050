"""Client of AgentGym's protocol with little overhead, so that measurements show the cost of the server.

It does not import `verl_agent`. Each session has one connection that is kept alive, and requests are written as bytes.
"""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Script:
    """Actions of one episode.

    Attributes:
        item: number of the task in the server's split.
        actions: actions in order.
    """

    item: int
    actions: Sequence[str]


class RequestFailedError(Exception):
    """The server answered with another status than 200, or the connection was lost.

    Attributes:
        status: HTTP status; 0 for a lost connection.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"{status}: {reason}")
        self.status = status


class Connection(asyncio.Protocol):
    """Connection that is kept alive, for one request at a time."""

    def __init__(self) -> None:
        self._read = b""
        self._answer: asyncio.Future[bytes] | None = None

    @classmethod
    async def to(cls, url: str) -> "Connection":
        """Connect to `http://host:port`."""
        host, _, port = url.removeprefix("http://").rpartition(":")
        _, connection = await asyncio.get_running_loop().create_connection(cls, host, int(port))
        return connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport  # the transport of uvloop is not an asyncio.Transport

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(RequestFailedError(0, f"the connection was lost: {error}"))

    def data_received(self, data: bytes) -> None:
        self._read += data
        head, separator, body = self._read.partition(b"\r\n\r\n")
        if not separator:
            return
        start = head.lower().index(b"content-length:") + len(b"content-length:")
        length = int(head[start:].split(b"\r\n", 1)[0])
        if len(body) < length or self._answer is None or self._answer.done():
            return
        self._read = b""
        status = int(head[9:12])
        if status == 200:
            self._answer.set_result(body)
        else:
            self._answer.set_exception(RequestFailedError(status, body.decode(errors="replace")))

    def send(self, path: str, body: dict[str, Any]) -> None:
        """Send a request without waiting for its answer."""
        content = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(content)}"
        self._transport.write(head.encode() + b"\r\n\r\n" + content)

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        """Send a request and return the JSON of its answer."""
        self._answer = asyncio.get_running_loop().create_future()
        self.send(path, body)
        return json.loads(await self._answer)

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()


class Session:
    """Session on a server."""

    def __init__(self, connection: Connection, number: int = -1) -> None:
        self.connection, self.number = connection, number

    async def create(self) -> None:
        """Open the session."""
        self.number = (await self.connection.post("/create", {}))["id"]

    async def reset(self, item: int) -> Any:
        """Begin a task."""
        return await self.connection.post("/reset", {"id": self.number, "data_idx": item})

    async def step(self, action: str) -> Any:
        """Carry out an action."""
        return await self.connection.post("/step", self.step_body(action))

    def step_body(self, action: str) -> dict[str, Any]:
        """Return the body of `/step`."""
        return {"id": self.number, "action": action}

    async def close(self) -> None:
        """Close the session."""
        await self.connection.post("/close", {"id": self.number})
