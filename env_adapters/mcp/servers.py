"""Connections to the MCP servers of one session, and calls of their tools with limits."""

import asyncio
import json
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    REQUEST_TIMEOUT,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
)
from pydantic import ValidationError

from env_adapters.mcp.messages import ENDED, NO_ANSWER, Connected, transport_of
from env_adapters.mcp.places import Place, ServerSpec
from verl_agent.envs.call_error import FAILED, CallError
from verl_agent.envs.parsing import shorten
from verl_agent.errors import ConfigError, EnvError, describe_exception
from verl_agent.types import StepResult, ToolCall

MAX_PAGES = 100
"""Most pages of a list of tools."""
PING_S = 5.0
"""Seconds in which a server must answer that it is there, after a call that took too long."""
CLOSE_S = 10.0
OF_CALLER = (INVALID_PARAMS, METHOD_NOT_FOUND)
"""Codes of JSON-RPC errors that blame the call: invalid arguments, or an unknown tool."""
OF_SERVICE: Mapping[int, tuple[str, ...]] = {
    CONNECTION_CLOSED: ("",),
    PARSE_ERROR: ("Failed to parse",),
    INTERNAL_ERROR: ("Server returned an error response",),
    METHOD_NOT_FOUND: ("Not Found",),
    INVALID_REQUEST: (
        *("Session terminated", "Unexpected content type", "Redirect to ", "server answered a request with 202"),
        *("Session not found", "Not Found: "),  # of servers in Python
    ),
    REQUEST_TIMEOUT: ("Session not found",),  # of servers in TypeScript
}
"""First words of errors by code with which a URL answers where the service or its session is lost.

Most are of the library in place of the server (mcp 2.3.0, `client/streamable_http.py`).
"""


class Servers:
    """Servers of one session.

    Args:
        call_s: seconds of one call, > 0.
        output_chars: characters of a result that the model reads.
        remedy: sentence of each error of a server.
    """

    def __init__(
        self, specs: Mapping[str, ServerSpec], place: Place, call_s: float, output_chars: int, remedy: str
    ) -> None:
        self._servers, self._place = [Connected(name, spec) for name, spec in specs.items()], place
        self._remedy = f" {remedy}" if remedy else ""
        self._call_s, self._chars, self._ending = call_s, output_chars, asyncio.Event()
        self._holder: asyncio.Task[None] | None = None

    async def start(self, seconds: float) -> None:
        """Start and connect all servers.

        Raises:
            EnvError: one does not start, or does not answer in time.
        """
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._holder = asyncio.create_task(self._hold(ready))
        try:
            await asyncio.wait_for(ready, seconds)
        except BaseException as error:
            late = next((one for one in self._servers if one.client is None), self._servers[-1])
            reason = f"does not answer within {seconds:g} seconds" if isinstance(error, TimeoutError) else ""
            cause: BaseException = error
            while isinstance(cause, BaseExceptionGroup):  # of the task groups of the library
                cause = cause.exceptions[0]
            problem = await self._problem(
                late, reason or ("" if late.over else " ".join(describe_exception(cause).split()))
            )
            if isinstance(error, Exception):
                raise problem from error
            raise

    async def _hold(self, ready: "asyncio.Future[None]") -> None:
        """Open the connections, and close them in the same task, which the library requires."""
        try:
            async with AsyncExitStack() as stack:
                for server in self._servers:
                    transport: Any = server.spec.url
                    if server.spec.command:
                        streams = await stack.enter_async_context(self._place.open(server.spec.command))
                        transport = transport_of(server, streams)
                    server.client = await stack.enter_async_context(Client(transport))
                ready.set_result(None)
                await self._ending.wait()
        except Exception as error:  # boundary: the server is a program of others
            if not ready.done():
                ready.set_exception(error)

    async def tools(self, seconds: float) -> list[tuple[int, dict[str, Any]]]:
        """Return the descriptions of all tools, each with the index of its server.

        Raises:
            EnvError: a server does not list them within some seconds, or not on `MAX_PAGES` pages.
            ConfigError: a description is not valid in MCP.
        """
        found = []
        for number, server in enumerate(self._servers):
            try:
                async with asyncio.timeout(seconds):
                    found += [(number, tool) for tool in await self._listed(server)]
            except TimeoutError as error:
                raise await self._problem(server, f"does not list its tools within {seconds:g} seconds") from error
            except MCPError as error:
                problem = _no_result(server, error)
                reason = f"its answer is {problem}" if problem else f"{error.message} ({error.code})"
                raise await self._problem(server, f"cannot list its tools: {reason}") from error
            except ValidationError as error:
                await self.end()
                given = error.errors(include_url=False)[0]["input"]
                name = given.get("name") if isinstance(given, Mapping) else None
                tool = f"the description of its tool {name!r}" if name else "a description of its tools"
                raise ConfigError(
                    f"env.options.servers.{server.name}: {tool} is not valid: {_first(error)}. Correct the server."
                ) from error
        return found

    async def _listed(self, server: Connected) -> list[dict[str, Any]]:
        assert server.client is not None  # start connected it
        found, cursor = list[dict[str, Any]](), None
        for _ in range(MAX_PAGES):
            page = await server.client.list_tools(cursor=cursor)
            found += [one.model_dump(by_alias=True, exclude_none=True) for one in page.tools]
            if not (cursor := page.next_cursor):
                return found
        raise await self._problem(server, f"lists its tools on more than {MAX_PAGES} pages")

    async def call(self, number: int, call: ToolCall) -> StepResult:
        """Carry out a call.

        An error of the tool, or one that blames the call, is an answer that counts as `call_error_function_failed`.
        Another error of JSON-RPC, and no answer in time, is an answer that counts as `server_error`.

        Args:
            number: index of the server.
            call: call with the name that the server knows.

        Raises:
            EnvError: the server or its session has ended, it does not answer, or its answer is no result of MCP.
        """
        server, started = self._servers[number], time.monotonic()
        assert server.client is not None  # start connected it
        params = CallToolRequestParams(name=call.name, arguments=dict(call.arguments))
        ours = True
        try:  # the method of the client checks the schema of the result with patterns without a time limit
            result = await server.client.session.send_request(
                CallToolRequest(params=params), CallToolResult, request_read_timeout_seconds=self._call_s
            )
            parts = [_text(one) for one in result.content]
            if not parts and result.structured_content is not None:
                parts = [json.dumps(result.structured_content, ensure_ascii=False)]
            text, failed = "\n".join(parts) or "(no result)", result.is_error
        except MCPError as error:
            if server.over:
                raise await self._problem(server) from error
            if problem := _no_result(server, error):
                raise await self._problem(server, f"its answer to {call.name!r} is {problem}") from error
            text, failed, ours = error.message, True, error.code in OF_CALLER
            if error.code == REQUEST_TIMEOUT and time.monotonic() - started >= self._call_s:
                await self._check_alive(server)
                text = f"no answer within {self._call_s:g} seconds"
        except (RuntimeError, ValueError) as error:
            reason = _first(error) if isinstance(error, ValidationError) else str(error)
            problem = "" if server.over else f"its answer to {call.name!r} is no result of MCP: {reason}"
            raise await self._problem(server, problem) from error
        if not failed:
            return StepResult(self._cut(text))
        step = CallError((FAILED,), f"{call.name} failed: {self._cut(text)}", call.name).step
        return step if ours else StepResult(step.observation, info={"server_error": 1.0})

    def stray_output(self) -> dict[str, float]:
        """Return the measurement of the lines that are no messages, since the last call of this method."""
        count = sum(one.stray for one in self._servers)
        for one in self._servers:
            one.stray = 0
        return {"stray_output": float(count)} if count else {}

    async def _check_alive(self, server: Connected) -> None:
        assert server.client is not None  # start connected it
        try:
            await asyncio.wait_for(server.client.session.send_ping(), PING_S)
        except TimeoutError as error:
            raise await self._problem(server, "does not answer any more") from error
        except MCPError as error:  # most say that the server has no ping
            if problem := _no_result(server, error):
                raise await self._problem(server, f"its answer to a ping is {problem}") from error
        if server.over:
            raise await self._problem(server)

    async def _problem(self, server: Connected, reason: str = "") -> EnvError:
        """End all servers, and return the error for one of them."""
        await self.end()
        said = self._place.errors()
        text = f"the MCP server {server.name!r}: {reason or server.over or ENDED}.{self._remedy}"
        return EnvError(text + (f" The servers wrote: {said}" if said else ""))

    def _cut(self, text: str) -> str:
        left, half = len(text) - self._chars, self._chars // 2
        return text if left <= 0 else f"{text[:half]}\n[{left} characters left out]\n{text[-half:]}"

    async def end(self) -> None:
        """Close the connections and end the servers. May be called more than once."""
        self._ending.set()
        holder, self._holder = self._holder, None
        if holder is not None:
            connected = all(one.client is not None for one in self._servers)
            await asyncio.wait({holder}, timeout=CLOSE_S if connected else 0)
            holder.cancel()
            await asyncio.wait({holder}, timeout=CLOSE_S)


def _no_result(server: Connected, error: MCPError) -> str:
    """Return the description of an answer that no tool has given; "" for an error of a tool."""
    if error.data is NO_ANSWER:
        return error.message
    lost = server.spec.url and error.message.startswith(OF_SERVICE.get(error.code, ()))
    return f"no result of MCP: {shorten(' '.join(error.message.split()), 200)}" if lost else ""


def _text(content: Any) -> str:
    """Return a part of a result as text; an image or a sound is named."""
    resource = getattr(content, "resource", None)
    found = (getattr(content, "text", None), getattr(resource, "text", None), getattr(content, "uri", None))
    return next((str(one) for one in found if one is not None), f"({content.type} left out)")


def _first(error: ValidationError) -> str:
    """Return the place and the text of the first error."""
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
