"""OpenEnv's protocol on a server of this package: a connection to `/ws` is a session.

Facts from OpenEnv 0.10.0, `openenv/core/env_server/{http_server,types,mcp_types}.py`. A request is
`{"type": "reset" | "step" | "state" | "close" | "mcp", "data": {...}}`. An answer has the data
`{"observation", "reward", "done"}` and the type `observation`, or `{"message", "code"}` and the type `error`.

`reset` takes `task`, the id of any task, or `seed`, the number of a task modulo the tasks of the server's split. An
action has one field, `action`, with the bare action. Where actions are calls of functions, the environment is one of
MCP: a step is `{"type": "list_tools"}` or `{"type": "call_tool", "tool_name", "arguments"}`.
"""

import asyncio
import json
import logging
import random
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from starlette.websockets import WebSocket, WebSocketDisconnect

from verl_agent.envs.action_format import ActionFormat, ToolFormat
from verl_agent.envs.http.metrics import Metrics
from verl_agent.envs.http.requests import (
    INVALID,
    SESSION_ENDED,
    Body,
    RequestError,
    code_of,
    quote,
    read_action,
    read_object,
)
from verl_agent.envs.http.session import ServerSession, Sessions, unknown
from verl_agent.envs.http.settings import ServerLimits
from verl_agent.envs.http.task_index import TaskIndex
from verl_agent.envs.parsing import shorten
from verl_agent.errors import AgentError
from verl_agent.types import TaskItem

log = logging.getLogger(__name__)
TEXT = {"type": "string"}
METADATA = {"type": "object", "additionalProperties": True}
OBSERVATION = {
    "type": "object",
    "properties": {"text": TEXT, "done": {"type": "boolean"}, "reward": {"type": "number"}, "metadata": METADATA},
    "required": ["text"],
}
STATE = {"type": "object", "properties": {"episode_id": TEXT, "step_count": {"type": "integer"}}}
CALL = {"type": {"const": "call_tool", "type": "string"}, "tool_name": TEXT, "arguments": {"type": "object"}}
MAX_SEED = 2**63 - 1
NORMAL, ABNORMAL = 1000, 1006
"""Codes of WebSockets for a connection that is closed on purpose, and for one that has ended without a code."""
MAX_REASON = 500
"""Most characters of a reason that comes from an environment."""


class Served(Protocol):
    """Parts of a server that a connection uses."""

    tasks: TaskIndex
    sessions: Sessions
    limits: ServerLimits
    metrics: Metrics


def schemas(action_format: ActionFormat) -> dict[str, Any]:
    """Return the answer to `/schema`."""
    if isinstance(action_format, ToolFormat):
        properties, required = CALL, ["tool_name"]
    else:
        described = f"text that an agent writes in place of the placeholder of {action_format.template}"
        properties, required = {"action": {**TEXT, "description": described}}, ["action"]
    action = {"type": "object", "properties": {**properties, "metadata": METADATA}, "required": required}
    return {"action": action, "observation": OBSERVATION, "reset_observation": OBSERVATION, "state": STATE}


def list_tools(action_format: ActionFormat, key: str = "input_schema") -> list[dict[str, Any]]:
    """Return the tools of an environment of functions; `key` names the schema of their arguments."""
    if not isinstance(action_format, ToolFormat):
        raise RequestError(422, "this environment has no tools. An action is a text.")
    tools = action_format.tools
    return [{"name": one.name, "description": one.description, key: dict(one.parameters)} for one in tools]


def answer_mcp(request: Any, action_format: ActionFormat) -> dict[str, Any]:
    """Return the answer to a JSON-RPC request of MCP: it lists tools, which a step of a session calls."""
    valid = isinstance(request, Mapping) and request.get("jsonrpc") == "2.0"
    answer: dict[str, Any] = {"jsonrpc": "2.0", "id": request.get("id") if valid else None}
    if not valid or not isinstance(request.get("method"), str):
        return answer | {"error": {"code": -32600, "message": "invalid request: jsonrpc or method is missing."}}
    if request["method"] != "tools/list":
        reason = f"there is no method {shorten(request['method'], 60)}. Allowed: tools/list. A step calls a tool."
        return answer | {"error": {"code": -32601, "message": reason}}
    try:
        return answer | {"result": {"tools": list_tools(action_format, "inputSchema")}}
    except RequestError as error:
        return answer | {"error": {"code": -32603, "message": error.reason}}


class SocketSession:
    """Session of one connection: it begins and ends with it.

    Args:
        server: server that has the tasks and the sessions.
        socket: connection of the client.
    """

    def __init__(self, server: Served, socket: WebSocket) -> None:
        self._server, self._socket = server, socket
        self._task, self._steps = "", 0

    async def run(self) -> None:
        """Answer the client until it leaves or the session ends, then close both."""
        await self._socket.accept()
        with suppress(WebSocketDisconnect):
            try:
                session = await self._server.sessions.open()
            except AgentError as error:
                await self._send("error", _failure(str(error), code_of(error)))
                await self._close(NORMAL)
                return
            try:
                code = await self._serve(session)
            finally:
                await session.close()
            await self._close(code, unknown(session.number) if code == SESSION_ENDED else "")

    async def _serve(self, session: ServerSession) -> int:
        """Answer the client until it or the session ends; return the code with which the connection is closed."""
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        session.on_end = lambda: over.set_result(None)
        while (raw := await self._receive(over)) is not None:
            if (answer := await self._answer(session, raw)) is None:
                return NORMAL
            await self._send(*answer)
            if session.ended:  # the answer has said so
                return NORMAL
        return SESSION_ENDED

    async def _receive(self, over: "asyncio.Future[None]") -> str | None:
        """Return the next message, empty for a binary one, or None if the session ends before."""
        receiving = asyncio.ensure_future(self._socket.receive())
        try:
            await asyncio.wait((receiving, over), return_when=asyncio.FIRST_COMPLETED)
            if not receiving.done():
                return None
            with _leaving():
                message = receiving.result()
        finally:
            receiving.cancel()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message["code"])
        return message.get("text") or ""

    async def _send(self, kind: str, data: Mapping[str, Any]) -> None:
        with _leaving():
            await self._socket.send_text(json.dumps({"type": kind, "data": data}))

    async def _close(self, code: int, reason: str = "") -> None:
        with _leaving():
            await self._socket.close(code, reason)

    async def _answer(self, session: ServerSession, raw: str) -> tuple[str, Mapping[str, Any]] | None:
        """Return type and data of the answer to a message, or None if the client ends the session."""
        try:
            message = read_object(raw)
        except RequestError as error:
            return "error", _failure(error.reason, "INVALID_JSON" if error.status == 400 else "UNKNOWN_TYPE")
        kind, data = message.get("type"), message.get("data", {})
        if kind == "close":
            return None
        if kind == "mcp":
            return "mcp", answer_mcp(data, self._server.tasks.action_format)
        calls = {"reset": self._reset, "step": self._step, "state": self._state}
        if not isinstance(kind, str) or kind not in calls:
            return "error", _failure(f"unknown message type: {shorten(str(kind))}", "UNKNOWN_TYPE")
        started, code = time.perf_counter(), "OK"
        try:
            if not isinstance(data, dict):
                raise RequestError(422, f"data must be an object, got {quote(data)}.")
            return "state" if kind == "state" else "observation", await calls[kind](session, data)
        except RequestError as error:
            code = INVALID
            return "error", _failure(error.reason, code) | {"errors": [{"msg": error.reason}]}
        except AgentError as error:
            code = code_of(error)
            return "error", _failure(str(error), code)
        except Exception as error:  # boundary of the process: a raised error would close the connection
            log.exception("/ws: bug in the server")
            code = "EXECUTION_ERROR"
            return "error", _failure(f"internal error, see the log of the server: {type(error).__name__}", code)
        finally:
            self._server.metrics.count(kind, code, time.perf_counter() - started)

    async def _reset(self, session: ServerSession, data: Body) -> dict[str, Any]:
        item = self._item(data)
        messages = await session.begin(item)
        self._task, self._steps = item.id, 0
        text = "\n\n".join(message["content"] for message in messages)
        metadata = {"task": item.id, "messages": messages, "digest": self._server.tasks.digest}
        return _observation({"text": text, "metadata": metadata}, None, False)

    def _item(self, data: Body) -> TaskItem:
        seed, task, tasks = data.get("seed"), data.get("task"), self._server.tasks
        found = None if task is None else tasks.find(task)
        if seed is None:
            return found or random.choice(tasks.numbered)
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= MAX_SEED:
            raise RequestError(422, f"seed must be a whole number from 0 to {MAX_SEED}, got {quote(seed)}.")
        numbered = tasks.numbered[seed % len(tasks.numbered)]
        if found not in (None, numbered):
            raise RequestError(422, f"seed and task contradict each other: {numbered.id!r}, {quote(task)}.")
        return numbered

    async def _step(self, session: ServerSession, data: Body) -> dict[str, Any]:
        limits, action_format, called = self._server.limits, self._server.tasks.action_format, {}
        kind = data.get("type")
        if kind == "list_tools":
            return _observation({"tools": list_tools(action_format), "text": "", "metadata": {}}, None, False)
        given = data.get("action")
        if kind == "call_tool":
            if given is not None:
                raise RequestError(422, "tool_name and action contradict each other. Send one of them.")
            list_tools(action_format)  # refuses environments without tools
            given = {"name": data.get("tool_name"), "arguments": data.get("arguments", {})}
        action = read_action(given, "action", action_format, limits.action_chars)
        result, _ = await session.act(action)
        self._steps += 1
        if kind == "call_tool":
            called = {"tool_name": data["tool_name"], "result": result.observation}
        fields = {"text": result.observation, **called, "metadata": dict(result.info)}
        return _observation(fields, result.reward, result.terminated)

    async def _state(self, session: ServerSession, data: Body) -> dict[str, Any]:
        await session.keep_alive()
        return {"episode_id": self._task or None, "step_count": self._steps}


@contextmanager
def _leaving() -> Iterator[None]:
    """Raise WebSocketDisconnect for the RuntimeError of a connection that the client has left."""
    try:
        yield
    except RuntimeError as error:
        raise WebSocketDisconnect(ABNORMAL) from error


def _observation(fields: Mapping[str, Any], reward: float | None, done: bool) -> dict[str, Any]:
    return {"observation": fields, "reward": reward, "done": done}


def _failure(message: str, code: str) -> dict[str, Any]:
    return {"message": shorten(message, MAX_REASON), "code": code}
