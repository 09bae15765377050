"""OpenEnv's protocol on a server of this package: its clients connect to `/ws` and read `/schema`.

Facts from OpenEnv 0.10.0, `openenv/core/env_server/{http_server,types}.py`: a connection is a session, `reset` takes a
`seed`, and answers are `{"type": "observation", "data": {"observation", "reward", "done"}}` or
`{"type": "error", "data": {"message", "code"}}`. An action has one field, `action`, with the bare action. The seed is
the number of a task, modulo the number of tasks of the server's split. `reset` also takes a `task`, the id of any task.
"""

import json
import logging
import random
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from verl_agent.envs.http import wire
from verl_agent.envs.http.wire import RequestError
from verl_agent.envs.parsing import shorten
from verl_agent.errors import AgentError
from verl_agent.types import TaskItem

if TYPE_CHECKING:
    from verl_agent.envs.http.server import EnvServer

log = logging.getLogger(__name__)
TEXT = {"type": "string"}
METADATA = {"type": "object", "additionalProperties": True}
OBSERVATION = {
    "type": "object",
    "properties": {"text": TEXT, "done": {"type": "boolean"}, "reward": {"type": "number"}, "metadata": METADATA},
    "required": ["text"],
}
STATE = {"type": "object", "properties": {"episode_id": TEXT, "step_count": {"type": "integer"}}}
MAX_SEED = 2**63 - 1
MAX_REASON = 500


def schemas(action_template: str) -> dict[str, Any]:
    """Return the answer to `/schema`.

    Args:
        action_template: example of an action, with a placeholder.
    """
    action = {**TEXT, "description": f"text that an agent writes in place of the placeholder of {action_template}"}
    properties = {"action": action, "metadata": METADATA}
    return {
        "action": {"type": "object", "properties": properties, "required": ["action"]},
        "observation": OBSERVATION,
        "reset_observation": OBSERVATION,
        "state": STATE,
    }


def openenv_routes(server: "EnvServer") -> list[BaseRoute]:
    """Return the routes of OpenEnv's protocol."""

    async def connect(socket: WebSocket) -> None:
        await OpenEnvSession(server, socket).run()

    async def schema(request: Request) -> JSONResponse:
        return JSONResponse(schemas(server.tasks.action_format.template))

    return [WebSocketRoute("/ws", connect), Route("/schema", schema)]


class OpenEnvSession:
    """Session of one connection.

    Args:
        server: server that has the tasks and the pool.
        socket: connection of the client.
    """

    def __init__(self, server: "EnvServer", socket: WebSocket) -> None:
        self._server, self._socket = server, socket
        self._task, self._steps = "", 0

    async def run(self) -> None:
        """Answer the client until it leaves, then close the session."""
        await self._socket.accept()
        try:
            with self._server.sessions.reserve_slot():
                session = await self._server.pool.open()
                self._server.sessions.add(session)
        except (RequestError, AgentError) as error:
            with suppress(WebSocketDisconnect, RuntimeError):
                await self._send("error", _failure(str(error), "CAPACITY_REACHED"))
                await self._socket.close()
            return
        try:
            with suppress(WebSocketDisconnect):
                while (answer := await self._answer(session, await self._receive())) is not None:
                    await self._send(*answer)
                    if session not in self._server.sessions:  # it was idle for too long, or a call took too long
                        break
                await self._socket.close()
        finally:
            self._server.sessions.remove(session)
            await self._server.pool.close(session)

    async def _receive(self) -> str:
        """Return the next message, empty for a binary one."""
        message = await self._socket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message["code"])
        return message.get("text") or ""

    async def _send(self, kind: str, data: Mapping[str, Any]) -> None:
        await self._socket.send_text(json.dumps({"type": kind, "data": data}))

    async def _answer(self, session: int, raw: str) -> tuple[str, Mapping[str, Any]] | None:
        """Return type and data of the answer to a message, or None if the client ends the session."""
        try:
            message = json.loads(raw)
        except (ValueError, RecursionError) as error:
            return "error", _failure(str(error), "INVALID_JSON")
        kind = message.get("type") if isinstance(message, dict) else None
        data = message.get("data", {}) if isinstance(message, dict) else {}
        if kind == "close":
            return None
        if kind == "state":
            return "state", {"episode_id": self._task or None, "step_count": self._steps}
        if kind not in ("reset", "step"):
            return "error", _failure(f"unknown message type: {shorten(str(kind))}", "UNKNOWN_TYPE")
        try:
            if not isinstance(data, dict):
                raise RequestError(422, "data must be an object.")
            return "observation", await (self._reset if kind == "reset" else self._step)(session, data)
        except RequestError as error:
            failure = _failure(error.reason, self._code(session, "VALIDATION_ERROR"))
            return "error", failure | {"errors": [{"msg": failure["message"]}]}
        except AgentError as error:
            return "error", _failure(str(error), self._code(session, "EXECUTION_ERROR"))
        except Exception as error:  # boundary of the process: a raised error would close the connection
            log.exception("/ws: bug in the server")
            return "error", _failure(f"internal error: {type(error).__name__}", "EXECUTION_ERROR")

    def _code(self, session: int, code: str) -> str:
        """Return the code of an error; that of a session which has ended says so."""
        return code if session in self._server.sessions else "SESSION_ERROR"

    async def _reset(self, session: int, data: Mapping[str, Any]) -> dict[str, Any]:
        item = self._item(data)
        messages = await self._server.begin(session, lambda: item)
        self._task, self._steps = item.id, 0
        text = "\n\n".join(message["content"] for message in messages)
        return _observation(text, None, False, {"task": item.id, "messages": messages})

    def _item(self, data: Mapping[str, Any]) -> TaskItem:
        seed, task, tasks = data.get("seed"), data.get("task"), self._server.tasks
        if isinstance(task, str):
            return tasks.find(task)
        if seed is None:
            return random.choice(tasks.numbered)
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= MAX_SEED:
            raise RequestError(422, f"seed must be a whole number from 0 to {MAX_SEED}, got {shorten(repr(seed), 60)}.")
        return tasks.numbered[seed % len(tasks.numbered)]

    async def _step(self, session: int, data: Mapping[str, Any]) -> dict[str, Any]:
        text = data.get("action")
        if not isinstance(text, str):
            raise RequestError(422, f"action must be a text, got {shorten(repr(text), 60)}.")
        limits, tasks = self._server.limits, self._server.tasks
        action = wire.read_action({"bare_action": text}, tasks.action_format, limits.action_chars)
        result, _ = await self._server.act(session, action)
        self._steps += 1
        return _observation(result.observation, result.reward, result.terminated, dict(result.info))


def _observation(text: str, reward: float | None, done: bool, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data of an observation; OpenEnv's server repeats the metadata."""
    return {"observation": {"text": text, "metadata": metadata}, "reward": reward, "done": done, "metadata": metadata}


def _failure(message: str, code: str) -> dict[str, Any]:
    return {"message": shorten(message, MAX_REASON), "code": code}
