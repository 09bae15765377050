"""Requests that wait for an answer, and the connections that carry it: delivered, or lost on the way."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from typing_extensions import override
from uvicorn.protocols.http.h11_impl import H11Protocol

from verl_agent.envs.program.fields import Dialect
from verl_agent.envs.program.requests import Answer, Request
from verl_agent.types import Message


@dataclass(eq=False, slots=True)
class Asked:
    """Request that waits for a reply, with all its repetitions.

    Attributes:
        messages: conversation as the model reads it, with the limits on the reply.
        place: see `History`.
        refused: replies that the program could not take, each with its explanation.
        requests: times that it was asked.
        connections: connections that wait for the answer or receive it.
        deliveries: connections that got the whole answer.
        state: `new`, `queued` for the policy, or `taken` by it.
    """

    request: Request
    messages: list[Message]
    place: bytes
    answer: "asyncio.Future[Answer]"
    refused: list[Message] = field(default_factory=list)
    requests: int = 0
    connections: int = 0
    deliveries: int = 0
    state: str = "new"

    @property
    def lost(self) -> bool:
        """True if nobody waits for the answer, and nobody got it."""
        return not self.connections and not self.deliveries


async def answered(asked: Asked, request: HttpRequest) -> bool:
    """Wait for the answer; return False if the connection is lost first."""
    gone: asyncio.Future[Any] = asyncio.ensure_future(request.receive())
    waited: set[asyncio.Future[Any]] = {asked.answer, gone}
    try:
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        return asked.answer.done()
    finally:
        gone.cancel()
        with suppress(asyncio.CancelledError):
            await gone


class Delivery(Response):
    """Response with an answer, which counts as delivered unless its connection breaks."""

    def __init__(self, asked: Asked, dialect: Dialect, wanted: Request) -> None:
        self._asked, answer = asked, asked.answer.result()
        self._response: Response = JSONResponse(dialect.write(answer))
        if wanted.stream:
            events = "".join(dialect.stream(answer, wanted.stream_usage))
            self._response = Response(events, media_type="text/event-stream")

    @override
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await self._response(scope, receive, send)
            if not scope.get("lost"):
                scope["asked"] = self._asked
                self._asked.deliveries += 1
        finally:
            self._asked.connections -= 1


class Connection(H11Protocol):
    """Connection that takes an answer back as not delivered if the client left without having read it.

    The system resets such a connection, in place of an orderly end.
    """

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        scope: Any = self.scope or {}
        scope["lost"] = True
        if exc is not None and (asked := scope.pop("asked", None)) is not None:
            asked.deliveries -= 1
        super().connection_lost(exc)


class Server(uvicorn.Server):
    """Server that leaves the signals to its process."""

    @override
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
