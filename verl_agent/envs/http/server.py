"""HTTP server of one environment. It implements AgentGym's protocol, so AgentGym's clients can use it too.

| call | body | answer |
|---|---|---|
| `POST /create` | none | `id` of a new session |
| `POST /reset` | `id`, `data_idx` or `item` | `observation`, `messages`, ... |
| `POST /step` | `id`, `action` or `bare_action` | `observation`, `reward`, `score`, `done`, `info`, ... |
| `GET /observation?id=` | | the last observation |
| `POST /close` | `id` | `closed` |
| `GET /info`, `/tasks?split=` | | the environment and its tasks |
| `GET /health`, `/stats`, `/metrics` | | state and counters of the server |
| `/ws`, `GET /schema` | | OpenEnv's protocol, if the server speaks it |

Every error has an HTTP error status and a reason: `{"error": "..."}`.
"""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from verl_agent.envs.http import wire
from verl_agent.envs.http.auth import RefuseWebPages, RequireToken
from verl_agent.envs.http.metrics import MEDIA_TYPE, Metrics
from verl_agent.envs.http.openenv import openenv_routes
from verl_agent.envs.http.session_table import RETRY_AFTER_S, SessionTable
from verl_agent.envs.http.settings import ServerLimits
from verl_agent.envs.http.task_index import TaskIndex
from verl_agent.envs.http.wire import RequestError
from verl_agent.envs.parsing import shorten
from verl_agent.envs.session import SessionPool, in_background
from verl_agent.errors import AgentError, EnvCrashError, EnvError, EnvTimeoutError, PoolFullError, UnknownSessionError
from verl_agent.types import Message, StepResult, TaskItem

log = logging.getLogger(__name__)

STATUS: tuple[tuple[type[AgentError], int], ...] = (
    (UnknownSessionError, 404),
    (PoolFullError, 503),
    (EnvTimeoutError, 504),
    (EnvCrashError, 500),
    (EnvError, 502),
    (AgentError, 500),
)
"""HTTP status of each error class of a pool; the first matching row applies."""
MAX_REASON = 500
"""Most characters of a reason that comes from an environment."""

T = TypeVar("T")
Call = Callable[[Request], Awaitable[Any]]


class EnvServer:
    """HTTP server of one environment.

    Args:
        pool: pool that runs the sessions; the server shuts it down when the app ends.
        openenv: speak OpenEnv's protocol too.
    """

    def __init__(
        self, tasks: TaskIndex, pool: SessionPool, limits: ServerLimits, token: str | None = None, openenv: bool = False
    ) -> None:
        self.tasks, self.limits, self.openenv = tasks, limits, openenv
        self.sessions = SessionTable(limits)
        self.pool = pool
        self._closing: set[asyncio.Task[None]] = set()
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
                *(openenv_routes(self) if openenv else []),
            ],
            middleware=[Middleware(RefuseWebPages), *([Middleware(RequireToken, token)] if token is not None else [])],
            exception_handlers={HTTPException: _not_found},
            lifespan=self._lifespan,
        )
        self.app.router.redirect_slashes = False  # a redirect would go to the host that the client names

    async def hello(self, request: Request) -> Any:
        """Return AgentGym's greeting with the name of the environment."""
        return f"This is environment {self.tasks.env}."

    async def create(self, request: Request) -> Any:
        """Open a session."""
        body = await self._body(request)
        wire.check_create(body)
        with self.sessions.reserve_slot():
            session = await self.pool.open()
            if await request.is_disconnected():  # the client gave up while it waited for a slot
                await self.pool.close(session)
                raise RequestError(503, "the client disconnected.")
            self.sessions.add(session)
        # the client may also leave without having read the answer
        getattr(request.state, "on_reset", []).append(partial(self._abandon, session))
        return wire.create_answer(session, body)

    def _abandon(self, session: int) -> None:
        """Close a session that no call has used since it was opened."""
        if self.sessions.unused(session):
            self.sessions.remove(session)
            in_background(self.pool.close(session), self._closing)

    async def reset(self, request: Request) -> Any:
        """Begin a task in a session; an unfinished episode of the session is dropped."""
        body = await self._body(request)
        session = wire.read_session(body)
        messages = await self.begin(session, lambda: self.tasks.find(wire.read_item(body)))
        return wire.reset_answer(session, messages)

    async def begin(self, session: int, find_item: Callable[[], TaskItem]) -> list[Message]:
        """Begin a task in a session and return its prompt."""
        with self.sessions.call(session) as state:
            item = find_item()
            if self.sessions.draining and state.observation is not None:
                raise RequestError(503, "this server is stopping and begins no further episode. Use another one.")
            state.observation, state.score, state.done = None, 0.0, False
            messages = await self._call_pool(session, self.pool.reset(session, item))
            state.observation = messages[-1]["content"]
        return messages

    async def step(self, request: Request) -> Any:
        """Carry out one action."""
        body = await self._body(request)
        session = wire.read_session(body)
        action = wire.read_action(body, self.tasks.action_format, self.limits.action_chars)
        return wire.step_answer(*await self.act(session, action))

    async def act(self, session: int, action: str) -> tuple[StepResult, float]:
        """Carry out one action of a session; return the result and the sum of rewards so far."""
        with self.sessions.call(session) as state:
            if state.observation is None:
                raise _no_task(session)
            result = await self._call_pool(session, self.pool.step(session, action))
            state.observation, state.done = result.observation, result.terminated
            state.score += result.reward
        return result, state.score

    async def close(self, request: Request) -> Any:
        """Close a session, even while another call of it is running."""
        session = wire.read_session(await self._body(request))
        self.sessions.get(session)
        self.sessions.remove(session)
        await self.pool.close(session)
        return {"closed": True}

    async def observation(self, request: Request) -> Any:
        """Return the last observation again; the session counts as used."""
        session = wire.read_query_session(request.query_params)
        state = self.sessions.get(session)
        if state.observation is None:
            raise _no_task(session)
        if not state.busy:
            with self.sessions.call(session):
                await self._call_pool(session, self.pool.keep_alive(session))
        return state.observation

    async def info(self, request: Request) -> Any:
        """Return a description of the environment and its splits."""
        return self.tasks.describe()

    async def list_tasks(self, request: Request) -> Any:
        """Return names and categories of the tasks of a split."""
        return self.tasks.list_split(request.query_params.get("split", self.tasks.split))

    async def health(self, request: Request) -> Any:
        """Answer 200, or 503 while the server stops, so that load balancers send no new sessions."""
        if self.sessions.draining:
            raise RequestError(503, "this server is stopping.")
        return {"status": "ok", "env": self.tasks.env}

    async def stats(self, request: Request) -> Any:
        """Return counts and sizes as JSON."""
        return {"env": self.tasks.env, "split": self.tasks.split, **self._numbers()}

    async def metrics(self, request: Request) -> Any:
        """Return the metrics in the text format of Prometheus."""
        return Response(self._metrics.render(), media_type=MEDIA_TYPE)

    def _numbers(self) -> Mapping[str, float]:
        own = {
            "uptime_s": round(time.monotonic() - self._started, 3),
            "draining": int(self.sessions.draining),
            "open_sessions": len(self.sessions),
            "running_sessions": self.sessions.running,
        }
        return own | {f"pool_{name}": value for name, value in self.pool.stats().items()}

    async def _call_pool(self, session: int, call: Awaitable[T]) -> T:
        """Await a call of the pool, and remove the session from the table if the pool has closed it."""
        try:
            return await call
        except (UnknownSessionError, EnvTimeoutError):
            self.sessions.remove(session)
            raise

    async def _body(self, request: Request) -> wire.Body:
        """Return the body of a request; reading stops as soon as it is too large."""
        raw = bytearray()
        declared = request.headers.get("content-length", "")
        too_large = declared.isdigit() and int(declared[:18]) > self.limits.body_bytes
        if not too_large:
            async for chunk in request.stream():
                raw += chunk
                if too_large := len(raw) > self.limits.body_bytes:
                    break
        if too_large:
            raise RequestError(413, f"the body is too large. Allowed: at most {self.limits.body_bytes} bytes.")
        return wire.read_body(bytes(raw), request.headers.get("content-type", ""))

    def _route(self, path: str, call: Call, method: str = "GET") -> Route:
        """Return the route of a call: it answers JSON, measures the time and maps errors to statuses."""
        name = path.strip("/") or "hello"

        async def endpoint(request: Request) -> Response:
            started = time.perf_counter()
            try:
                answer = await call(request)
                response = answer if isinstance(answer, Response) else _json(answer)
            except RequestError as error:
                response = _json({"error": error.reason}, error.status, error.headers)
            except AgentError as error:
                response = _failure(name, error)
            except ClientDisconnect:
                response = _json({"error": "the client disconnected."}, 400)
            except Exception as error:  # boundary of the process: a raised error would close the connection
                log.exception("/%s: bug in the server", name)
                response = _json({"error": f"internal error, see the log of the server: {type(error).__name__}."}, 500)
            self._metrics.count(name, response.status_code, time.perf_counter() - started)
            return response

        return Route(path, endpoint, methods=[method])

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        cleaner = asyncio.create_task(self._close_idle_sessions())
        try:
            yield
        finally:
            cleaner.cancel()
            with suppress(asyncio.CancelledError):
                await cleaner
            await self.pool.shutdown()

    async def _close_idle_sessions(self) -> None:
        """Close idle sessions; the period is a tenth of the idle time."""
        while True:
            await asyncio.sleep(self.limits.idle_s / 10)
            expired = self.sessions.expired()
            for session in expired:
                self.sessions.remove(session)
            await asyncio.gather(*map(self.pool.close, expired), return_exceptions=True)


def _json(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(json.dumps(content), status, headers, "application/json")


def _no_task(session: int) -> RequestError:
    return RequestError(409, f"session {session} has no task yet. Begin one with reset.")


def _failure(call: str, error: AgentError) -> Response:
    status = next(status for kind, status in STATUS if isinstance(error, kind))
    if status >= 500 and status != 503:
        log.warning("/%s: %s: %s", call, type(error).__name__, error)
    headers = {"Retry-After": str(RETRY_AFTER_S)} if status == 503 else None
    return _json({"error": shorten(f"{error}", MAX_REASON)}, status, headers)


async def _not_found(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    reason = {404: "there is no such call", 405: f"{request.method} is not allowed for this call"}
    text = reason.get(error.status_code, error.detail)
    return _json({"error": f"{text}: {shorten(request.url.path, 60)}."}, error.status_code, error.headers)
