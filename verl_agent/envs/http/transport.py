"""One event loop and one pool of connections a process, shared by all sessions of the HTTP environment.

Adapters run in threads with event loops of their own, and a connection belongs to the loop that opened it. So every
request runs on one loop in a thread of its own, where connections are kept alive for whichever session comes next.
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

from verl_agent.envs.http.settings import TOKEN_VARIABLE
from verl_agent.envs.parsing import shorten
from verl_agent.errors import ConfigError, EnvError, EnvTimeoutError, PoolFullError, UnknownSessionError

T = TypeVar("T")
CONNECT_TIMEOUT_S = 5.0
KEEP_ALIVE_S = 4.0
"""Seconds that an idle connection is kept: less than the 5 s after which common servers close it, so that no step
is sent into a closing connection."""
CLOSE_TIMEOUT_S = 1.0


class UnreachableError(EnvError):
    """No connection was made, so the server has not seen the request."""


class Transport:
    """Sends requests from any thread."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._connections: aiohttp.ClientSession | None = None
        threading.Thread(target=self._loop.run_forever, name="http-env", daemon=True).start()
        atexit.register(self._close)

    def submit(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        """Run `work` on the loop of all requests."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def request(self, method: str, url: str, body: Any = None, timeout_s: float = 60.0) -> Any:
        """Send one request and return the JSON of its answer. To be run on the loop of all requests.

        Raises:
            UnreachableError: no connection was made.
            EnvTimeoutError: no answer in time.
            UnknownSessionError: the server does not know the session.
            PoolFullError: the server has no room.
            EnvError: any other error, of the server or on the way.
            ConfigError: the token is missing or wrong, or the URL is none.
        """
        token = os.environ.get(TOKEN_VARIABLE)
        headers = {"Authorization": f"Bearer {token}"} if token else None
        timeout = aiohttp.ClientTimeout(timeout_s, sock_connect=CONNECT_TIMEOUT_S)
        try:
            async with self._pool().request(method, url, json=body, headers=headers, timeout=timeout) as response:
                return _read(url, response.status, await response.read())
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise UnreachableError(f"{url} cannot be reached: {error}") from error
        except TimeoutError as error:
            raise EnvTimeoutError(f"{url} did not answer within {timeout_s:g} s") from error
        except aiohttp.InvalidURL as error:
            raise ConfigError(f"env.options.urls: {url!r} is not a URL: {error}.") from error
        except aiohttp.ClientError as error:
            raise EnvError(f"{url} ended the connection: {type(error).__name__} {error}".rstrip()) from error

    def _pool(self) -> aiohttp.ClientSession:
        if self._connections is None:  # a session has one call at a time, so sessions bound the connections
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S)
            self._connections = aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())
        return self._connections

    def _close(self) -> None:
        if self._connections is not None and self._pid == os.getpid():  # a forked child has no such thread
            with suppress(TimeoutError):
                self.submit(self._connections.close()).result(CLOSE_TIMEOUT_S)


@cache
def _transport(pid: int) -> Transport:
    return Transport()


def transport() -> Transport:
    """The transport of this process; a forked one gets its own."""
    return _transport(os.getpid())


def _read(url: str, status: int, raw: bytes) -> Any:
    try:
        answer = json.loads(raw)
    except ValueError:
        answer = None
    fields = answer if isinstance(answer, Mapping) else {}
    text = raw.decode(errors="replace").strip()
    said = f"{url} answered {status}: {shorten(str(fields.get('error') or fields.get('detail') or text), 500)}"
    if status == 401:
        raise ConfigError(f"{said} Set {TOKEN_VARIABLE} to the token that the server was started with.")
    if status in ERRORS:
        raise ERRORS[status](said)
    if status >= 300 or "error" in fields:  # AgentGym's servers answer errors with status 200
        raise EnvError(said)
    if answer is None and text != "null":
        raise EnvError(f"{url} answered no JSON: {shorten(text)}")
    return answer


ERRORS: Mapping[int, type[EnvError]] = {404: UnknownSessionError, 503: PoolFullError, 504: EnvTimeoutError}
"""What a status means; every other error is an `EnvError`."""
