"""Session on a server, as a client has it: it begins and ends with a connection to `/ws`, OpenEnv's protocol.

Facts from OpenEnv 0.10.0, `openenv/core/env_server/http_server.py`; `protocol` has the messages.

Servers ping an idle connection, and end it if no answer comes. aiohttp answers a ping only while something receives, so
a task receives for as long as the connection is open, also while the model writes, an update runs or a person pauses.
It also asks for the state from time to time, since a server may end a session without a request for too long: a server
of this package tells how long that is.
"""

import asyncio
import itertools
import json
import logging
import math
import time
from collections.abc import Mapping
from typing import Any

import aiohttp

from verl_agent.envs.http.requests import CODES, INVALID, SESSION_ENDED
from verl_agent.envs.http.transport import UnreachableError, refusal, transport
from verl_agent.envs.parsing import shorten
from verl_agent.errors import ConnectionLostError, EnvError, EnvTimeoutError, PoolFullError, UnknownSessionError

TESTED = "0.10.0"
OTHER = f"This client speaks the protocol of OpenEnv {TESTED}."
MAX_ANSWER = 100 * 2**20
"""Most bytes of an answer, as in OpenEnv's own client."""
PING_S = 20.0
"""Seconds between two pings of this side, so that a proxy in between does not end an idle connection."""
STATE_S = 60.0
"""Seconds without a request after which this side asks for the state, about."""
CLOSE_TIMEOUT_S = 10.0
"""Seconds that a server has to close a session."""
AFTER_ANSWER_S = 1.0
"""Seconds after an answer in which a server may close the connection on purpose, such as after an error."""
BY_CODE = {code: kind for kind, code in CODES.items()}
log = logging.getLogger(__name__)
_numbers = itertools.count(1)
"""Numbers of the connections that this process has lost."""


class RefusedActionError(Exception):
    """The server found that a request does not have the form of its schema."""


class Connection:
    """Session on a server. All methods run in the loop of `transport()`.

    Args:
        url: base URL of the server.
        timeout_s: timeout of one request, in seconds.
        idle_s: seconds without a request after which the server closes a session.
    """

    def __init__(self, url: str, timeout_s: float, idle_s: float = math.inf) -> None:
        self._url, self._timeout_s = url, timeout_s
        self._ping_s, self._state_s = min(PING_S, idle_s / 4), min(STATE_S, idle_s / 8)
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._receiver: asyncio.Task[None] | None = None
        self._answer: asyncio.Future[str] | None = None
        self._received_at = 0.0
        self._quiet = asyncio.Event()
        """Set unless this side waits for the answer to a request for the state."""
        self._quiet.set()
        self._lost: EnvError | None = None
        """Reason for which no request can be sent any more."""

    async def ask(self, kind: str, data: Mapping[str, Any], timeout_s: float | None = None) -> Mapping[str, Any]:
        """Send one request and return the data of its answer; the first request connects.

        Raises:
            RefusedActionError: the request is not valid.
            UnreachableError: no connection was made.
            PoolFullError: the server has no session left.
            EnvTimeoutError: no answer in time.
            UnknownSessionError: the server has ended the session, for example because it was idle for too long.
            ConnectionLostError: the connection has ended, in this call or since the last one.
            EnvError: another error of the environment, or the answer is not of this protocol.
            ConfigError: the token is wrong, or the environment of the server does not keep its contract.
        """
        timeout_s = timeout_s or self._timeout_s
        request = json.dumps({"type": kind, "data": dict(data)}, ensure_ascii=False)
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self._exchange(request.encode(errors="replace").decode())  # no half characters
        except TimeoutError as error:
            await self.close(wait=False)  # the late answer must not be read as that of another request
            raise EnvTimeoutError(f"{self._url} did not answer within {timeout_s:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            await self.close(wait=False)
            reason = f"{self._url} ended the connection: {type(error).__name__} {error}".rstrip()
            raise ConnectionLostError(reason) from error
        except BaseException:
            await self.close(wait=False)
            raise
        return self._read(kind, answer)

    async def close(self, wait: bool = True) -> None:
        """Close the session and wait until the server has done so; without `wait` it does so once it is free."""
        socket, receiver = self._socket, self._receiver
        self._socket = self._receiver = None
        if socket is None or receiver is None:
            return
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                if wait and not socket.closed:
                    await socket.send_json({"type": "close"})
                    await receiver
        except (aiohttp.ClientError, OSError, TimeoutError):
            pass  # the server closes the session when the connection ends
        finally:
            receiver.cancel()
            self._lost = ConnectionLostError(f"{self._url}: the session was closed")
            await socket.close()

    async def _exchange(self, request: str) -> Any:
        if self._socket is None and self._lost is None:
            self._socket = await self._connect()
            self._receiver = asyncio.create_task(self._receive(self._socket))
        await self._quiet.wait()
        if self._lost is not None:
            raise self._lost
        assert self._socket is not None  # close sets the reason
        self._answer = asyncio.get_running_loop().create_future()
        try:
            await self._socket.send_str(request)
        except (aiohttp.ClientError, OSError):
            if not self._answer.done():  # otherwise the server has said why it closes the connection
                raise
        text = await self._answer
        try:
            return json.loads(text)
        except ValueError:
            return text

    async def _connect(self) -> aiohttp.ClientWebSocketResponse:
        address = f"{self._url}/ws"  # not ws://, which HTTP proxies do not know
        timeout = aiohttp.ClientWSTimeout(ws_close=1.0)
        try:
            return await transport().connect(address, max_msg_size=MAX_ANSWER, timeout=timeout)
        except aiohttp.WSServerHandshakeError as error:
            raise refusal(address, error.status, f"no session: {error.message}. {OTHER}") from error
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise UnreachableError(f"{address} cannot be reached: {error}") from error

    async def _receive(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        """Receive until the connection ends, then let the call that waits fail."""
        self._received_at = time.monotonic()
        try:
            reason = await self._pass_on(socket)
        except (aiohttp.ClientError, OSError) as error:  # a ping or a request for the state cannot be sent
            reason = f"the connection has ended: {type(error).__name__} {error}".rstrip()
        if self._socket is not socket:
            return  # closed by this side
        idle_s, waits = time.monotonic() - self._received_at, self._waits
        if socket.close_code == SESSION_ENDED:
            self._lost = UnknownSessionError(f"{self._url}: the session has ended: {reason}")
        else:
            self._lost = ConnectionLostError(f"{self._url}: {reason}, {idle_s:.0f} s after the last answer")
            if waits or idle_s > AFTER_ANSWER_S:
                log.warning("%s (lost connection %d of this process)", self._lost, next(_numbers))
        self._quiet.set()
        if waits and self._answer is not None:
            self._answer.set_exception(self._lost)

    @property
    def _waits(self) -> bool:
        """True while a call waits for its answer."""
        return self._answer is not None and not self._answer.done()

    async def _pass_on(self, socket: aiohttp.ClientWebSocketResponse) -> str:
        """Pass each answer to its call, answer pings in between, and return the reason for which this ends."""
        while True:
            try:
                message = await socket.receive(self._ping_s)
            except TimeoutError:
                idle = self._quiet.is_set() and not self._waits
                if idle and not socket.closed and time.monotonic() - self._received_at > self._state_s:
                    self._quiet.clear()
                    await socket.send_json({"type": "state", "data": {}})
                elif not socket.closed:
                    await socket.ping()  # an answer is not required, since a busy server may be late
                continue
            if message.type is not aiohttp.WSMsgType.TEXT:
                said = shorten(str(message.extra or "")) if message.type is aiohttp.WSMsgType.CLOSE else ""
                if said and socket.close_code == SESSION_ENDED:
                    return said
                return f"the server closed the session with code {socket.close_code} {said}".rstrip()
            self._received_at = time.monotonic()
            if not self._quiet.is_set():
                self._quiet.set()
            elif self._answer is None or self._answer.done():
                return f"the server sent {shorten(message.data)} without a request"
            else:
                self._answer.set_result(message.data)

    def _read(self, kind: str, answer: Any) -> Mapping[str, Any]:
        data = answer.get("data") if isinstance(answer, Mapping) else None
        if not isinstance(data, Mapping):
            raise EnvError(f"{self._url} answered {kind} with {shorten(str(answer))}. {OTHER}")
        if answer.get("type") == "error":
            raise self._error(kind, data)
        expected = "state" if kind == "state" else "observation"
        complete = kind == "state" or (isinstance(data.get("observation"), Mapping) and "done" in data)
        if answer.get("type") != expected or not complete:
            raise EnvError(f"{self._url} answered {kind} with {shorten(str(answer))}. {OTHER}")
        return data

    def _error(self, kind: str, data: Mapping[str, Any]) -> Exception:
        """Return the error that an answer reports."""
        code, message = str(data.get("code")), shorten(str(data.get("message")), 500)
        if code == INVALID:
            return RefusedActionError(shorten(json.dumps(data.get("errors", message), default=str), 500))
        if code == CODES[PoolFullError]:
            message += (
                ". Start the server with a larger max_concurrent_envs or --sessions, or play fewer episodes at once: "
                "env.hosts.count and env.hosts.sessions."
            )
        if code == CODES[UnknownSessionError]:
            return UnknownSessionError(f"{self._url}: the session has ended: {message}")
        if code not in BY_CODE:
            return EnvError(f"{self._url}: {kind} failed with {code}: {message}")
        return BY_CODE[code](f"{self._url}: {kind} failed: {message}")
