"""OpenEnv's WebSocket protocol, as its server 0.10.0 speaks it (`openenv/core/env_server/http_server.py`, `/ws`).

A connection is a session. A request is `{"type": "reset" | "step" | "close", "data": {...}}`. An answer is
`{"type": "observation", "data": {"observation": {...}, "reward": ..., "done": ...}}` or
`{"type": "error", "data": {"message": ..., "code": ...}}`.
"""

import asyncio
import json
from collections.abc import Mapping
from functools import cache
from math import isfinite
from typing import Any

import aiohttp

from verl_agent.envs.http.transport import transport
from verl_agent.envs.parsing import shorten
from verl_agent.errors import ConfigError, EnvCrashError, EnvError, EnvTimeoutError, PoolFullError, UnknownSessionError

TESTED = "0.10.0"
OTHER = f"This adapter speaks the protocol of OpenEnv {TESTED}."
MAX_ANSWER = 100 * 2**20
"""Most bytes of an answer, as in OpenEnv's own client."""
INFO_TIMEOUT_S = 30.0


class RefusedActionError(Exception):
    """The server found that an action does not have the form of its schema."""


class RemoteSession:
    """Session on a server. All methods run in the loop of `transport()`."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self._url, self._timeout_s = url, timeout_s
        self._client: aiohttp.ClientSession | None = None
        self._socket: aiohttp.ClientWebSocketResponse | None = None

    async def ask(self, kind: str, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send one request and return the data of its observation; the first request connects.

        Raises:
            RefusedActionError: the action is not valid.
            EnvCrashError: the environment of the server raised an exception.
            PoolFullError: the server has no session left.
            EnvTimeoutError: no answer in time.
            UnknownSessionError: the server has ended the session, for example because it was idle for too long.
            EnvError: the connection failed, or the answer is not of this protocol.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await self._exchange({"type": kind, "data": dict(data)})
        except TimeoutError as error:
            await self.close()  # the late answer must not be read as that of another request
            raise EnvTimeoutError(f"{self._url} did not answer within {self._timeout_s:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            await self.close()
            raise EnvError(f"{self._url} ended the connection: {type(error).__name__} {error}".rstrip()) from error
        return self._read(kind, answer)

    async def _exchange(self, request: Mapping[str, Any]) -> Any:
        if self._socket is None:
            self._client = aiohttp.ClientSession()
            address = f"{self._url.replace('http', 'ws', 1)}/ws"
            self._socket = await self._client.ws_connect(address, max_msg_size=MAX_ANSWER)
        await self._socket.send_json(request)
        message = await self._socket.receive()
        if message.type is not aiohttp.WSMsgType.TEXT:
            raise EnvError(f"{self._url} closed the session.")
        try:
            return json.loads(message.data)
        except ValueError:
            return message.data

    def _read(self, kind: str, answer: Any) -> Mapping[str, Any]:
        data = answer.get("data") if isinstance(answer, Mapping) else None
        if isinstance(data, Mapping) and answer.get("type") == "observation":
            reward = data.get("reward") or 0.0
            valid = isinstance(reward, int | float) and isfinite(reward)
            if valid and isinstance(data.get("observation"), Mapping) and "done" in data:
                return data
        elif isinstance(data, Mapping) and answer.get("type") == "error":
            code, message = data.get("code"), shorten(str(data.get("message")), 500)
            if code == "CAPACITY_REACHED":
                raise PoolFullError(
                    f"{self._url}: {message}. Start the server with a larger max_concurrent_envs, or play fewer "
                    "episodes at once: env.hosts.count and env.hosts.sessions."
                )
            if code == "VALIDATION_ERROR" and kind == "step":
                raise RefusedActionError(shorten(json.dumps(data.get("errors", message), default=str), 500))
            if code == "SESSION_ERROR":
                raise UnknownSessionError(f"{self._url}: the session has ended: {message}")
            if code == "EXECUTION_ERROR":
                raise EnvCrashError(f"{self._url}: {kind} failed: {message}")
            raise EnvError(f"{self._url}: {kind} failed with {code}: {message}")
        raise EnvError(f"{self._url} answered {kind} with {shorten(str(answer))}. {OTHER}")

    async def close(self) -> None:
        client, socket = self._client, self._socket
        self._client = self._socket = None
        if socket is not None and not socket.closed:
            try:
                async with asyncio.timeout(INFO_TIMEOUT_S):
                    await socket.send_json({"type": "close"})
                    await socket.close()
            except (aiohttp.ClientError, OSError, TimeoutError):
                pass  # the server closes the session when the connection ends
        if client is not None:
            await client.close()


@cache
def action_schema(url: str) -> Mapping[str, Any]:
    """Return the JSON schema of the server's actions.

    Raises:
        ConfigError: no server answers, or it speaks another protocol.
    """
    try:
        answer = transport().submit(transport().request("GET", f"{url}/schema", timeout_s=INFO_TIMEOUT_S)).result()
    except EnvError as error:
        raise ConfigError(
            f"env.options.url={url!r} is not a server of OpenEnv: {error}. {OTHER} Start the server, "
            "or correct the URL."
        ) from error
    schema = answer.get("action") if isinstance(answer, Mapping) else None
    if not isinstance(schema, Mapping) or not isinstance(schema.get("properties"), Mapping):
        raise ConfigError(
            f"env.options.url={url!r}: /schema describes no action ({shorten(str(answer))}). {OTHER} Serve with it."
        )
    return schema
