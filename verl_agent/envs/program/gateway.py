"""Endpoint of one session for OpenAI's chat completions and Responses and Anthropic's messages.

It holds each request until the policy has written the reply.

A request that is repeated is one turn. A request repeats an earlier one of the same meaning if that one's connection
was lost before its answer was delivered, or if the client says that it tries again. Two equal requests whose
connections both live are two turns, since two samples may be meant.
"""

import asyncio
import hashlib
import hmac
import json
import secrets
import socket
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from verl_agent.envs.program import anthropic_messages, openai_chat, openai_responses
from verl_agent.envs.program.connections import Asked, Connection, Delivery, Server, answered
from verl_agent.envs.program.conversation import CountedReply, Counts, with_limits
from verl_agent.envs.program.fields import Dialect
from verl_agent.envs.program.history import History
from verl_agent.envs.program.inside import OTHER_PROCESS, FirstProcess
from verl_agent.envs.program.requests import Answer, Request, RequestRefused, Said, to_answer, tool_result
from verl_agent.errors import EnvError
from verl_agent.types import StepResult

MODEL = "policy"
"""Name of the only model; requests may name any other."""
MAX_BODY = 32 * 2**20
"""Most bytes of a request."""
MAX_CHARS = 900_000
"""Most characters of a conversation, below those that an observation may have."""
MAX_REFUSED = 100
"""Refused requests with the key in a row after which the program is taken to never stop."""
KEEP_ALIVE_S = 3600
"""Seconds for which an idle connection stays open; a client that reuses one must not find it closed."""
NOTICE_S = 0.02
"""Seconds in which the loss of a connection is noticed."""


DIALECTS = {
    "/v1/chat/completions": Dialect("chat completions", openai_chat.read, openai_chat.write, openai_chat.stream),
    "/v1/responses": Dialect("responses", openai_responses.read, openai_responses.write, openai_responses.stream),
    "/v1/messages": Dialect("messages", anthropic_messages.read, anthropic_messages.write, anthropic_messages.stream),
}
"""Dialects by path."""


class Gateway:
    """Endpoint on a free port of this machine. Only the holder of its token can use it.

    Requests that come at the same time are answered one after another, in the order of their arrival.

    Args:
        first: lets only the process ask that asks first; None lets all that have the token.
    """

    def __init__(self, first: FirstProcess | None = None) -> None:
        self._first = first
        self.token = secrets.token_urlsafe(24)
        self._queue: asyncio.Queue[Asked | None] = asyncio.Queue()
        self._history = History()
        self._asked: defaultdict[bytes, list[Asked]] = defaultdict(list)
        self._said: dict[str, tuple[Said, ...]] = {}
        self._items: dict[str, Any] = {}
        self._refused, self._refusal = 0, ""
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        # asyncio does so for its own sockets; without it a body waits 40 ms for the acknowledgement of its head.
        self._listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        routes = [Route(path, self._complete, methods=["POST"]) for path in DIALECTS]
        models = [Route(path, self._models, methods=["GET"]) for path in ("/v1/models", "/v1/models/{name:path}")]
        app = Starlette(routes=[*routes, *models, Route("/{path:path}", self._unknown, methods=["GET", "POST"])])
        own: Any = {"http": Connection, "ws": "none", "lifespan": "off", "log_level": "critical"}
        self._server = Server(uvicorn.Config(app, **own, timeout_graceful_shutdown=0, timeout_keep_alive=KEEP_ALIVE_S))
        self._serving: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """Port of the endpoint on this machine."""
        return int(self._listener.getsockname()[1])

    @property
    def url(self) -> str:
        """Address of the endpoint without `/v1`."""
        return f"http://127.0.0.1:{self.port}"

    def start(self, *others: socket.socket) -> None:
        """Serve in the running event loop, also on other sockets; connections wait in the kernel until then."""
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._listener, *others]))

    async def close(self) -> None:
        """Stop serving; requests without a reply get no answer."""
        for asked in self.asked:
            asked.answer.cancel()
        self._server.should_exit = self._server.force_exit = True
        if self._serving is not None:
            await self._serving  # closes the listener; within a tenth of a second

    @property
    def asked(self) -> list[Asked]:
        """All requests, with each repetition in its first one."""
        return [one for each in self._asked.values() for one in each]

    async def next_request(self) -> Asked:
        """Wait for a request whose client waits as well.

        Raises:
            EnvError: the program sends nothing but requests that are refused.
        """
        while asked := await self._queue.get():
            asked.state = "new" if asked.lost else "taken"  # a repetition of a lost one queues it again
            if asked.state == "taken":
                return asked
        raise EnvError(f"{MAX_REFUSED} requests in a row were refused. The last reason: {self._refusal}")

    def answer(self, asked: Asked, reply: str) -> None:
        """Answer a request with the text of the model, a `CountedReply` where the counts are known."""
        counts = reply.counts if isinstance(reply, CountedReply) else Counts()
        answer = to_answer(asked.request, reply, counts)
        self._history.add(asked.place, str(reply), answer, asked.refused)
        self._items |= {item["id"]: item for item in openai_responses.write(answer)["output"]}
        self._said[f"resp_{answer.id}"] = (*asked.request.said, Said("assistant", answer.text, answer.calls))
        if not asked.answer.done():
            asked.answer.set_result(answer)

    def refused(self, asked: Asked, reply: str) -> StepResult | None:
        """Return the answer to a reply that the program cannot take; None if it can."""
        error = asked.request.refused(reply)
        if error is None:
            return None
        text = tool_result(error.text)
        asked.refused += [{"role": "assistant", "content": str(reply)}, {"role": "user", "content": text}]
        return replace(error.step, observation=text)

    async def _models(self, request: HttpRequest) -> Response:
        if refusal := self._unauthorized(request):
            return refusal
        name = request.path_params.get("name")
        model = {"id": name or MODEL, "object": "model", "type": "model", "created": 0, "owned_by": "verl-agent"}
        return JSONResponse(model if name else {"object": "list", "data": [model], "has_more": False})

    async def _unknown(self, request: HttpRequest) -> Response:
        if refusal := self._unauthorized(request):
            return refusal
        return self._refuse(404, f"{request.method} {request.url.path} is not served. Served: {', '.join(DIALECTS)}.")

    async def _complete(self, request: HttpRequest) -> Response:
        """Answer a request of one dialect."""
        if refusal := self._unauthorized(request):
            return refusal
        dialect = DIALECTS[request.url.path]
        try:
            body = json.loads(await _body(request))
            if dialect.name == "responses":
                body = openai_responses.with_items(body, self._items)
            wanted = dialect.read(body)
            asked = await self._find(wanted, request.headers)
        except RequestRefused as error:
            return self._refuse(error.status, str(error), error.field)
        except ClientDisconnect:
            return Response(status_code=400)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            text = f"the request does not have the form of this API ({error!r:.300}). Correct its messages or tools."
            return self._refuse(400, text)
        self._refused = 0
        asked.requests += 1
        asked.connections += 1
        if await answered(asked, request):
            return Delivery(asked, dialect, wanted)
        asked.connections -= 1
        return Response(status_code=499)

    async def _find(self, request: Request, headers: Mapping[str, str]) -> Asked:
        """Return the earlier request that this one repeats, or a new one."""
        if request.previous:
            if request.previous not in self._said:
                raise RequestRefused(
                    f"previous_response_id={request.previous!r:.99} is no answer of this episode. Send the whole input."
                )
            request = replace(request, said=self._said[request.previous] + request.said)
        key = hashlib.sha256(repr(replace(request, stream=False, stream_usage=False)).encode()).digest()
        earlier = self._asked[key]
        if any(one.connections for one in earlier) and not any(one.lost for one in earlier):
            await asyncio.sleep(NOTICE_S)
        found = next((one for one in earlier if one.lost), None)
        if found is None and earlier and headers.get("x-stainless-retry-count", "0") != "0":
            found = next((one for one in reversed(earlier) if not one.deliveries), earlier[-1])
        if found is None:
            messages, place = self._history.read(request)
            if messages[-1]["role"] == "assistant":
                raise RequestRefused(
                    "the last message has the role 'assistant'. End with a user message: a begun reply cannot be "
                    "continued."
                )
            if (size := sum(len(message["content"]) for message in messages)) > MAX_CHARS:
                raise RequestRefused(
                    f"the messages have {size:,} characters. Allowed: at most {MAX_CHARS:,}. Shorten them."
                )
            future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
            found = Asked(request, with_limits(messages, request.limits), place, future)
            earlier.append(found)
        if found.state == "new":
            found.state = "queued"
            self._queue.put_nowait(found)
        return found

    def _unauthorized(self, request: HttpRequest) -> Response | None:
        """Return the refusal of a request without the key or of another process, which are not counted."""
        token = request.headers.get("x-api-key") or request.headers.get("authorization", "").removeprefix("Bearer ")
        if hmac.compare_digest(token.encode(), self.token.encode()):
            own = self._listener.getsockname()
            if self._first is None or (request.client and self._first.allows(request.client, own)):
                return None
            return _error(403, OTHER_PROCESS)
        return _error(
            401, "the API key is not that of this session. Use the value of OPENAI_API_KEY or ANTHROPIC_API_KEY."
        )

    def _refuse(self, status: int, reason: str, field: str = "") -> Response:
        """Refuse a request of the program; too many in a row end the episode."""
        self._refused, self._refusal = self._refused + 1, reason
        if self._refused == MAX_REFUSED:
            self._queue.put_nowait(None)
        return _error(status, reason, field)


def _error(status: int, reason: str, field: str = "") -> Response:
    kind = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large"}
    error = {"message": reason, "type": kind.get(status, "invalid_request_error"), "param": field or None, "code": None}
    # As the messages API names a field that a server lacks; Anthropic's client then sends the messages whole.
    details = {"error_code": f"{field}_unsupported_request", "unsupported": [field]} if field else None
    return JSONResponse({"type": "error", "error": {**error, "details": details}}, status)


async def _body(request: HttpRequest) -> bytes:
    """Return the body of a request.

    Raises:
        RequestRefused: it is too long, or compressed.
    """
    if (coding := request.headers.get("content-encoding", "identity")) != "identity":
        raise RequestRefused(f"the request has Content-Encoding {coding!r:.50}. Send it without compression.", 415)
    parts, size = list[bytes](), 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_BODY:
            raise RequestRefused(f"the request has more than {MAX_BODY:,} bytes. Shorten its messages.", 413)
        parts.append(part)
    return b"".join(parts)
