"""Server of one environment. Its protocol is OpenEnv's: a connection to `/ws` is a session.

| call | answer |
|---|---|
| `/ws` | a session; see `protocol` |
| `GET /schema`, `/metadata`, `/openapi.json`, `POST /mcp` | descriptions for OpenEnv's clients and `openenv validate` |
| `GET /info`, `/tasks?split=` | the environment and its tasks |
| `GET /health`, `/stats`, `/metrics` | state and counters of the server |

Other dialects add calls of their own, by entry points of the group `verl_agent.dialects`. Every error has an HTTP error
status and a reason: `{"error": "..."}`.
"""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

from verl_agent import registry
from verl_agent.envs.http.auth import RefuseWebPages, RequireToken
from verl_agent.envs.http.metrics import MEDIA_TYPE, Metrics
from verl_agent.envs.http.protocol import MAX_REASON, SocketSession, answer_mcp, schemas
from verl_agent.envs.http.requests import STATUS, Body, RequestError, quote, read_object
from verl_agent.envs.http.session import Sessions
from verl_agent.envs.http.settings import RETRY_AFTER_S, ServerLimits
from verl_agent.envs.http.task_index import TaskIndex
from verl_agent.envs.parsing import shorten
from verl_agent.envs.session import SessionPool
from verl_agent.errors import AgentError, PoolFullError

log = logging.getLogger(__name__)
DIALECTS = "verl_agent.dialects"
"""Group of entry points: functions that take the server and return routes, which sessions of this server answer."""
Call = Callable[[Request], Awaitable[Any]]


class EnvServer:
    """Server of one environment.

    Args:
        pool: pool that runs the sessions; the server shuts it down when the app ends.
        token: token that clients must send, or None.
        dialects: names of the dialects that it speaks besides its protocol; None for all that are installed.
    """

    def __init__(
        self,
        tasks: TaskIndex,
        pool: SessionPool,
        limits: ServerLimits,
        token: str | None = None,
        dialects: Sequence[str] | None = None,
    ) -> None:
        self.tasks, self.limits, self.pool = tasks, limits, pool
        self.sessions = Sessions(pool, limits)
        self._started = time.monotonic()
        self.metrics = Metrics(self._numbers)
        own: list[BaseRoute] = [
            WebSocketRoute("/ws", self._connect),
            self.route("/schema", self._schema),
            self.route("/metadata", self._metadata),
            self.route("/mcp", self._mcp, "POST"),
            self.route("/openapi.json", self._openapi),
            self.route("/info", self._info),
            self.route("/tasks", self._tasks),
            self.route("/health", self._health),
            self.route("/stats", self._stats),
            self.route("/metrics", self._metrics),
        ]
        self._paths = {one.path: one.methods or () for one in own if isinstance(one, Route)}
        for name in known_dialects() if dialects is None else dialects:
            add = registry.load_registered(DIALECTS, name, "--protocol", callable, "a function that returns routes")
            own += add(self)
        self.app = Starlette(
            routes=own,
            middleware=[Middleware(RefuseWebPages), *([Middleware(RequireToken, token)] if token is not None else [])],
            exception_handlers={HTTPException: _not_found},
            lifespan=self._lifespan,
        )
        self.app.router.redirect_slashes = False  # a redirect would go to the host that the client names

    def route(self, path: str, call: Call, method: str = "GET") -> Route:
        """Return the route of a call: it answers JSON, measures the time and maps errors to statuses."""
        name = path.strip("/") or "hello"

        async def endpoint(request: Request) -> Response:
            started = time.perf_counter()
            try:
                answer = await call(request)
                response = answer if isinstance(answer, Response) else _json(answer)
            except RequestError as error:
                response = _json({"error": error.reason}, error.status)
            except AgentError as error:
                response = _failure(name, error)
            except ClientDisconnect:
                response = _json({"error": "the client disconnected."}, 400)
            except Exception as error:  # boundary of the process: a raised error would close the connection
                log.exception("/%s: bug in the server", name)
                response = _json({"error": f"internal error, see the log of the server: {type(error).__name__}."}, 500)
            self.metrics.count(name, str(response.status_code), time.perf_counter() - started)
            return response

        return Route(path, endpoint, methods=[method])

    async def read_body(self, request: Request) -> Body:
        """Return the JSON object in a request's body, empty without one; reading stops once it is too large."""
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
        kind = request.headers.get("content-type", "")
        if raw and kind.partition(";")[0].strip().lower() != "application/json":
            raise RequestError(415, f"Content-Type must be application/json, got {quote(kind)}.")
        return read_object(bytes(raw)) if raw else {}

    async def _connect(self, socket: WebSocket) -> None:
        await SocketSession(self, socket).run()

    async def _schema(self, request: Request) -> Any:
        return schemas(self.tasks.action_format)

    async def _metadata(self, request: Request) -> Any:
        described = f"{self.tasks.env} of verl-agent: {len(self.tasks)} tasks. reset takes task or seed."
        return {"name": self.tasks.env, "description": described, "version": version("verl-agent")}

    async def _mcp(self, request: Request) -> Any:
        return answer_mcp(await self.read_body(request), self.tasks.action_format)

    async def _openapi(self, request: Request) -> Any:
        """Describe the calls besides `/ws`: sessions have no others, which OpenEnv names production mode."""
        answers = {"responses": {"200": {"description": "JSON"}}}
        paths = {path: {method.lower(): answers for method in methods} for path, methods in self._paths.items()}
        info = {"title": f"{self.tasks.env} of verl-agent", "version": "1.0.0"}
        return {"openapi": "3.1.0", "info": info, "paths": paths}

    async def _info(self, request: Request) -> Any:
        return {**self.tasks.describe(), "idle_s": self.sessions.limits.idle_s}

    async def _tasks(self, request: Request) -> Any:
        return self.tasks.list_split(request.query_params.get("split", self.tasks.split))

    async def _health(self, request: Request) -> Any:
        """Answer 200, or 503 while the server stops, so that load balancers send no new sessions."""
        if self.sessions.draining:
            raise PoolFullError("this server is stopping.")
        return {"status": "healthy", "env": self.tasks.env}

    async def _stats(self, request: Request) -> Any:
        return {"env": self.tasks.env, "split": self.tasks.split, **self._numbers()}

    async def _metrics(self, request: Request) -> Any:
        return Response(self.metrics.render(), media_type=MEDIA_TYPE)

    def _numbers(self) -> Mapping[str, float]:
        own = {
            "uptime_s": round(time.monotonic() - self._started, 3),
            "draining": int(self.sessions.draining),
            "open_sessions": len(self.sessions),
            "running_sessions": self.sessions.running,
        }
        return own | {f"pool_{name}": value for name, value in self.pool.stats().items()}

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await asyncio.gather(*self.sessions.closing, return_exceptions=True)
            await self.pool.shutdown()


def known_dialects() -> Sequence[str]:
    """Return the names of the dialects that are installed."""
    return list(registry.registered_packages(DIALECTS))


def _json(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(json.dumps(content), status, headers, "application/json")


def _failure(call: str, error: AgentError) -> Response:
    status = next((status for kind, status in STATUS.items() if isinstance(error, kind)), 500)
    if status >= 500 and status != 503:
        log.warning("/%s: %s: %s", call, type(error).__name__, error)
    headers = {"Retry-After": str(RETRY_AFTER_S)} if status == 503 else None
    return _json({"error": shorten(f"{error}", MAX_REASON)}, status, headers)


async def _not_found(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    reason = {404: "there is no such call", 405: f"{request.method} is not allowed for this call"}
    text = reason.get(error.status_code, error.detail)
    return _json({"error": f"{text}: {shorten(request.url.path, 60)}."}, error.status_code, error.headers)
