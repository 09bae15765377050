"""HTTP transport of a process: one event loop and one connection pool for all sessions of the HTTP environment.

Adapters run in threads, each with its own event loop, and a connection belongs to the loop that opened it. Therefore
all requests run on one loop in a separate thread, and any session can reuse an open connection.
"""

import asyncio
import atexit
import json
import os
import threading
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import cache
from typing import Any, TypeVar

import aiohttp

from verl_agent.envs.http.requests import STATUS
from verl_agent.envs.http.settings import TOKEN_VARIABLE
from verl_agent.envs.machine.proxies import proxy_of
from verl_agent.envs.parsing import shorten
from verl_agent.errors import AgentError, ConfigError, EnvError, EnvTimeoutError

T = TypeVar("T")
CONNECT_TIMEOUT_S = 5.0
KEEP_ALIVE_S = 4.0
"""Seconds that an idle connection is kept. Common servers close theirs after 5 s, and a step must not be sent into a
closing connection."""
CLOSE_TIMEOUT_S = 1.0
BY_STATUS = {status: kind for kind, status in STATUS.items()}


class UnreachableError(EnvError):
    """No connection was made, so the server did not receive the request."""


class Transport:
    """Sends requests from any thread."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._connections: aiohttp.ClientSession | None = None
        threading.Thread(target=self._loop.run_forever, name="http-env", daemon=True).start()
        atexit.register(self._close)

    def submit(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        """Run a coroutine in the loop of all requests."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def request(self, method: str, url: str, body: Any = None, timeout_s: float = 60.0) -> Any:
        """Send one request and return the JSON of its answer. Runs in the loop of all requests.

        Raises:
            UnreachableError: no connection was made.
            EnvTimeoutError: the server did not answer in time.
            EnvCrashError: the environment of the server raised an exception.
            UnknownSessionError: the server does not know the session.
            PoolFullError: the server has no free slot.
            EnvError: any other error of the server or of the connection.
            ConfigError: the token is missing or wrong, the URL is invalid, or the environment of the server does not
                keep its contract.
        """
        timeout = aiohttp.ClientTimeout(timeout_s, sock_connect=CONNECT_TIMEOUT_S)
        try:
            async with self._connection_pool().request(
                method, url, json=body, headers=_headers(), timeout=timeout, proxy=proxy_of(url)
            ) as response:
                return read_answer(url, response.status, await response.read())
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise UnreachableError(f"{url} cannot be reached: {error}") from error
        except TimeoutError as error:
            raise EnvTimeoutError(f"{url} did not answer within {timeout_s:g} s") from error
        except aiohttp.InvalidURL as error:
            raise ConfigError(f"env.options.urls: {url!r} is not a URL: {error}.") from error
        except aiohttp.ClientError as error:
            raise EnvError(f"{url} ended the connection: {type(error).__name__} {error}".rstrip()) from error

    async def connect(self, url: str, **options: Any) -> aiohttp.ClientWebSocketResponse:
        """Open a WebSocket at `url`; `options` are those of aiohttp. Runs in the loop of all requests."""
        pool = self._connection_pool()
        opened: aiohttp.ClientWebSocketResponse = await pool.ws_connect(
            url, headers=_headers(), proxy=proxy_of(url), **options
        )
        return opened

    def _connection_pool(self) -> aiohttp.ClientSession:
        # A session has one call at a time, so the number of sessions limits the connections.
        if self._connections is None:
            self._connections = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(None, sock_connect=CONNECT_TIMEOUT_S),
            )
        return self._connections

    def _close(self) -> None:
        if self._connections is not None and self._pid == os.getpid():  # the thread does not exist in a forked child
            with suppress(TimeoutError):
                self.submit(self._connections.close()).result(CLOSE_TIMEOUT_S)


@cache
def _transport(pid: int) -> Transport:
    return Transport()


def transport() -> Transport:
    """Return the transport of this process; a forked process gets its own."""
    return _transport(os.getpid())


def _headers() -> dict[str, str]:
    token = os.environ.get(TOKEN_VARIABLE)
    return {"Authorization": f"Bearer {token}"} if token else {}


def read_answer(url: str, status: int, raw: bytes) -> Any:
    """Return the JSON of an answer, or raise the error that it reports; see `Transport.request`."""
    try:
        answer = json.loads(raw)
    except ValueError:
        answer = None
    fields = answer if isinstance(answer, Mapping) else {}
    text = raw.decode(errors="replace").strip()
    if status >= 300 or "error" in fields:  # AgentGym's servers answer errors with status 200
        raise refusal(url, status, shorten(str(fields.get("error") or fields.get("detail") or text), 500))
    if answer is None and text != "null":
        raise EnvError(f"{url} did not answer JSON: {shorten(text)}")
    return answer


def refusal(url: str, status: int, reason: str) -> AgentError:
    """Return the error that an HTTP status stands for."""
    message = f"{url} answered {status}: {reason}"
    if status == 401:
        return ConfigError(f"{message} Set {TOKEN_VARIABLE} to the token that the server was started with.")
    return BY_STATUS.get(status, EnvError)(message)
