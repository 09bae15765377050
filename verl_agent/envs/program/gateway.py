"""Endpoint of one session for OpenAI's chat completions and Anthropic's messages.

It holds each request until the policy has written the reply.
"""

import asyncio
import hmac
import json
import secrets
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from verl_agent.envs.program import anthropic_messages
from verl_agent.envs.program.openai_chat import (
    RequestRefused,
    answer_message,
    chunks,
    completion,
    read_request,
    reply_key,
)
from verl_agent.types import Message

MODEL = "policy"
"""Name of the only model."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Request that waits for a reply.

    Attributes:
        answer: receives the message of the answer.
    """

    messages: list[Message]
    has_tools: bool
    answer: "asyncio.Future[dict[str, Any]]"


class Gateway:
    """Endpoint on a free port of this machine. Only the holder of its token can use it.

    Requests that come at the same time are answered one after another, in the order of their arrival.
    """

    def __init__(self) -> None:
        self.token = secrets.token_urlsafe(24)
        self.requests: asyncio.Queue[Asked] = asyncio.Queue()
        self._written: dict[str, str] = {}
        self._answers: list[asyncio.Future[dict[str, Any]]] = []
        self._last: tuple[Any, asyncio.Future[dict[str, Any]]] | None = None
        self._listener = socket.create_server(("127.0.0.1", 0))
        app = Starlette(
            routes=[
                Route("/v1/models", self._models, methods=["GET"]),
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
                Route("/v1/messages", self._messages, methods=["POST"]),
            ]
        )
        config = uvicorn.Config(app, log_level="critical", lifespan="off", timeout_graceful_shutdown=0)
        self._server = _Server(config)
        self._serving: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Address of the endpoint without `/v1`."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def start(self) -> None:
        """Serve in the running event loop; connections wait in the kernel until then."""
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._listener]))

    async def close(self) -> None:
        """Stop serving; requests without a reply get no answer."""
        for answer in self._answers:
            answer.cancel()
        self._server.should_exit = self._server.force_exit = True
        if self._serving is not None:
            await self._serving  # closes the listener; within a tenth of a second

    def answer(self, asked: Asked, reply: str) -> None:
        """Answer a request with the text of the model."""
        message = answer_message(reply, asked.has_tools)
        self._written[reply_key(message["content"], message.get("tool_calls", []))] = reply
        if not asked.answer.done():
            asked.answer.set_result(message)

    async def _models(self, request: Request) -> Response:
        if refusal := self._refuse(request):
            return refusal
        return JSONResponse({"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "verl-agent"}]})

    async def _chat(self, request: Request) -> Response:
        return await self._complete(request, dict, completion, chunks)

    async def _messages(self, request: Request) -> Response:
        return await self._complete(
            request, anthropic_messages.to_chat, anthropic_messages.to_anthropic, anthropic_messages.events
        )

    async def _complete(
        self,
        request: Request,
        read: Callable[[Any], dict[str, Any]],
        write: Callable[[Mapping[str, Any], str], dict[str, Any]],
        stream: Callable[[Mapping[str, Any], str], Iterable[str]],
    ) -> Response:
        """Answer a request of one dialect.

        Args:
            read: makes a chat completion's body of the request's.
            write: makes the answer of a message.
            stream: makes the events of a message.
        """
        if refusal := self._refuse(request):
            return refusal
        try:
            body = read(json.loads(await request.body()))
            answer = self._answer_to(body, retried=request.headers.get("x-stainless-retry-count", "0") != "0")
        except RequestRefused as error:
            return _error(400, str(error))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            return _error(
                400, f"the request does not have the form of this API ({error!r}). Correct its messages or tools."
            )
        message = await asyncio.shield(answer)  # the client may give up and ask again
        if body.get("stream"):
            return StreamingResponse(iter(list(stream(message, MODEL))), media_type="text/event-stream")
        return JSONResponse(write(message, MODEL))

    def _answer_to(self, body: Any, retried: bool) -> "asyncio.Future[dict[str, Any]]":
        """Return the answer to a request; one that a client repeats after a lost connection gets the same."""
        if retried and self._last is not None and self._last[0] == body:
            return self._last[1]
        messages = read_request(body, self._written)
        has_tools = bool(body.get("tools")) and body.get("tool_choice") != "none"
        asked = Asked(messages, has_tools, asyncio.get_running_loop().create_future())
        self._answers.append(asked.answer)
        self._last = (body, asked.answer)
        self.requests.put_nowait(asked)
        return asked.answer

    def _refuse(self, request: Request) -> Response | None:
        token = request.headers.get("x-api-key") or request.headers.get("authorization", "").removeprefix("Bearer ")
        if hmac.compare_digest(token.encode(), self.token.encode()):
            return None
        return _error(
            401, "the API key is not that of this session. Use the value of OPENAI_API_KEY or ANTHROPIC_API_KEY."
        )


class _Server(uvicorn.Server):
    """Server that leaves the signals to its process."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _error(status: int, reason: str) -> JSONResponse:
    body: Mapping[str, Any] = {"error": {"message": reason, "type": "invalid_request_error"}}
    return JSONResponse(body, status)
