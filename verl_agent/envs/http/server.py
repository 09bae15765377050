"""Serve one environment over HTTP by AgentGym's protocol, so that its clients and ours can play it.

| call | body | answer |
|---|---|---|
| `POST /create` | none | `id` of a new session |
| `POST /reset` | `id`, `data_idx` or `item` | `observation`, `messages`, ... |
| `POST /step` | `id`, `action` or `bare_action` | `observation`, `reward`, `score`, `done`, `info`, ... |
| `GET /observation?id=` | | the last observation |
| `POST /close` | `id` | `closed` |
| `GET /info`, `/tasks?split=` | | what can be played |
| `GET /health`, `/stats`, `/metrics` | | how the server is |

Every error is an HTTP error with a reason: `{"error": "..."}`.
"""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from verl_agent.envs.http import wire
from verl_agent.envs.http.auth import RequireToken
from verl_agent.envs.http.items import TaskIndex
from verl_agent.envs.http.limits import Limits
from verl_agent.envs.http.metrics import MEDIA_TYPE, Metrics
from verl_agent.envs.http.session_table import RETRY_AFTER_S, SessionTable
from verl_agent.envs.http.wire import RequestError
from verl_agent.envs.parsing import shorten
from verl_agent.envs.session import SessionPool
from verl_agent.errors import AgentError, EnvError, EnvTimeoutError, PoolFullError, UnknownSessionError

log = logging.getLogger(__name__)

STATUS: tuple[tuple[type[AgentError], int], ...] = (
    (UnknownSessionError, 404),
    (PoolFullError, 503),
    (EnvTimeoutError, 504),
    (EnvError, 502),
    (AgentError, 500),
)
"""HTTP status of each error that a pool raises, the first that fits."""
MAX_REASON = 500
"""Characters of a reason that comes from an environment."""

Call = Callable[[Request], Awaitable[Any]]


class EnvServer:
    """One environment behind HTTP.

    Args:
        tasks: what can be played.
        pool: where its sessions live; `shutdown()` is called when the app ends.
        limits: bounds of requests and sessions.
        token: what clients must send, or None.
    """

    def __init__(self, tasks: TaskIndex, pool: SessionPool, limits: Limits, token: str | None = None) -> None:
        self.tasks, self.limits = tasks, limits
        self.book = SessionTable(limits)
        self._pool = pool
        self._started = time.monotonic()
        self._metrics = Metrics(self._numbers)
        self.app = Starlette(
            routes=[
                self._route("/", self.hello),
                self._route("/create", self.create, "POST"),
                self._route("/reset", self.reset, "POST"),
                self._route("/step", self.step, "POST"),
                self._route("/close", self.close, "POST"),
                self._route("/observation", self.observation),
                self._route("/info", self.info),
                self._route("/tasks", self.list_tasks),
                self._route("/health", self.health),
                self._route("/stats", self.stats),
                self._route("/metrics", self.metrics),
            ],
            middleware=[Middleware(RequireToken, token)] if token is not None else [],
            exception_handlers={HTTPException: _not_found},
            lifespan=self._lifespan,
        )

    async def hello(self, request: Request) -> Any:
        """Say what is served, in AgentGym's words."""
        return f"This is environment {self.tasks.env}."

    async def create(self, request: Request) -> Any:
        """Open a session."""
        body = await self._body(request)
        wire.check_create(body)
        with self.book.opening():
            session = await self._pool.open()
            if await request.is_disconnected():  # it gave up while there was no room
                await self._pool.close(session)
                raise RequestError(503, "the client is gone.")
            self.book.add(session)
        return wire.created(session, body)

    async def reset(self, request: Request) -> Any:
        """Begin a task in a session, whatever was played in it before."""
        body = await self._body(request)
        number = wire.read_session(body)
        with self.book.call(number) as session:
            item = self.tasks.find(wire.read_item(body))
            if self.book.draining and session.observation is not None:
                raise RequestError(503, "this server is about to stop, no other episode begins. Ask another one.")
            session.observation, session.score, session.done = None, 0.0, False
            messages = await self._answer(number, self._pool.reset(number, item))
            session.observation = messages[-1]["content"]
        return wire.begun(number, messages)

    async def step(self, request: Request) -> Any:
        """Take one action."""
        body = await self._body(request)
        number = wire.read_session(body)
        action = wire.read_action(body, self.tasks.action_format, self.limits.action_chars)
        with self.book.call(number) as session:
            if session.observation is None:
                raise RequestError(409, f"session {number} plays no task yet. Begin one with /reset.")
            result = await self._answer(number, self._pool.step(number, action))
            session.observation, session.done = result.observation, result.terminated
            session.score += result.reward
        return wire.stepped(result, session.score)

    async def close(self, request: Request) -> Any:
        """Give a session back, even while another call of it runs."""
        number = wire.read_session(await self._body(request))
        self.book.session(number)
        self.book.drop(number)
        await self._pool.close(number)
        return {"closed": True}

    async def observation(self, request: Request) -> Any:
        """Repeat the last observation."""
        number = wire.read_query(request.query_params)
        session = self.book.session(number)
        if session.observation is None:
            raise RequestError(409, f"session {number} plays no task yet. Begin one with /reset.")
        return session.observation

    async def info(self, request: Request) -> Any:
        """Describe the environment and its splits."""
        return self.tasks.describe()

    async def list_tasks(self, request: Request) -> Any:
        """List the tasks of a split."""
        return self.tasks.listing(request.query_params.get("split", self.tasks.split))

    async def health(self, request: Request) -> Any:
        """Say whether new sessions are welcome; 503 tells load balancers that they are not."""
        if self.book.draining:
            raise RequestError(503, "this server is about to stop.")
        return {"status": "ok", "env": self.tasks.env}

    async def stats(self, request: Request) -> Any:
        """Count everything."""
        return {"env": self.tasks.env, "split": self.tasks.split, **self._numbers()}

    async def metrics(self, request: Request) -> Any:
        """Count everything, for Prometheus."""
        return Response(self._metrics.render(), media_type=MEDIA_TYPE)

    def _numbers(self) -> Mapping[str, float]:
        own = {
            "uptime_s": round(time.monotonic() - self._started, 3),
            "draining": int(self.book.draining),
            "open_sessions": len(self.book),
            "running_sessions": self.book.running,
        }
        return own | {f"pool_{name}": value for name, value in self._pool.stats().items()}

    async def _answer(self, number: int, call: Awaitable[Any]) -> Any:
        """What the pool answers; a session that it has given up is forgotten here too."""
        try:
            return await call
        except (UnknownSessionError, EnvTimeoutError):
            self.book.drop(number)
            raise

    async def _body(self, request: Request) -> wire.Body:
        """The body of a request, as long as it is not too large."""
        raw = bytearray()
        announced = request.headers.get("content-length", "")
        too_large = announced.isdigit() and int(announced[:18]) > self.limits.body_bytes
        if not too_large:
            async for chunk in request.stream():
                raw += chunk
                if too_large := len(raw) > self.limits.body_bytes:
                    break
        if too_large:
            raise RequestError(413, f"the body is larger than the {self.limits.body_bytes} bytes that are allowed.")
        return wire.read_body(bytes(raw))

    def _route(self, path: str, call: Call, method: str = "GET") -> Route:
        """Answer `call` at `path`: as JSON, timed, counted, and with a status for every error."""
        name = path.strip("/") or "hello"

        async def endpoint(request: Request) -> Response:
            started = time.perf_counter()
            try:
                answer = await call(request)
                response = answer if isinstance(answer, Response) else _json(answer)
            except RequestError as refusal:
                response = _json({"error": refusal.reason}, refusal.status, refusal.headers)
            except AgentError as error:
                response = _failure(name, error)
            except ClientDisconnect:
                response = _json({"error": "the client is gone."}, 400)
            except Exception as error:  # left to the framework it would end the connection, and with it other calls
                log.exception("/%s: a fault of the server", name)
                response = _json({"error": f"this server has a fault, see its log: {type(error).__name__}."}, 500)
            self._metrics.count(name, response.status_code, time.perf_counter() - started)
            return response

        return Route(path, endpoint, methods=[method])

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        sweeper = asyncio.create_task(self._sweep())
        try:
            yield
        finally:
            sweeper.cancel()
            with suppress(asyncio.CancelledError):
                await sweeper
            await self._pool.shutdown()

    async def _sweep(self) -> None:
        """Close sessions whose clients are gone, as often as it takes to be at most a tenth late."""
        while True:
            await asyncio.sleep(self.limits.idle_s / 10)
            expired = self.book.expired()
            for number in expired:
                self.book.drop(number)
            await asyncio.gather(*map(self._pool.close, expired), return_exceptions=True)


def _json(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(json.dumps(content), status, headers, "application/json")


def _failure(call: str, error: AgentError) -> Response:
    status = next(status for kind, status in STATUS if isinstance(error, kind))
    if status >= 500 and status != 503:
        log.warning("/%s: %s: %s", call, type(error).__name__, error)
    headers = {"Retry-After": str(RETRY_AFTER_S)} if status == 503 else None
    return _json({"error": shorten(f"{error}", MAX_REASON)}, status, headers)


async def _not_found(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    reason = {404: "there is no such call", 405: f"{request.method} does not fit this call"}
    text = reason.get(error.status_code, error.detail)
    return _json({"error": f"{text}: {shorten(request.url.path, 60)}."}, error.status_code, error.headers)
