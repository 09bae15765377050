"""Connections to the MCP servers of one session, and calls of their tools with limits."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import anyio
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT, jsonrpc_message_adapter

from env_adapters.mcp.places import Place, ServerSpec, Streams
from verl_agent.envs.call_error import FAILED, CallError
from verl_agent.errors import EnvError, describe_exception
from verl_agent.types import StepResult, ToolCall

MAX_PAGES = 100
"""Most pages of a list of tools."""
PING_S = 5.0
"""Seconds in which a server must answer that it is there, after a call that took too long."""
CLOSE_S = 10.0


@dataclass(slots=True)
class Connected:
    """A server and its connection.

    Attributes:
        client: None before the handshake.
        over: True if the server has closed its output, or has sent a message that is too long.
        stray: number of lines of its output that are no messages, such as logs.
    """

    name: str
    spec: ServerSpec
    client: Client | None = None
    over: bool = False
    stray: int = 0


class Servers:
    """Servers of one session.

    Args:
        call_s: seconds of one call, > 0.
        output_chars: characters of a result that the model reads.
    """

    def __init__(self, specs: Mapping[str, ServerSpec], place: Place, call_s: float, output_chars: int) -> None:
        self._servers, self._place = [Connected(name, spec) for name, spec in specs.items()], place
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
            problem = await self._problem(late, reason or ("" if late.over else describe_exception(error)))
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
                        transport = _transport(server, streams)
                    server.client = await stack.enter_async_context(Client(transport))
                ready.set_result(None)
                await self._ending.wait()
        except Exception as error:  # boundary: the server is a program of others
            if not ready.done():
                ready.set_exception(error)

    async def tools(self) -> list[tuple[int, dict[str, Any]]]:
        """Return the descriptions of all tools, each with the index of its server."""
        found = []
        for number, server in enumerate(self._servers):
            assert server.client is not None  # start connected it
            cursor = None
            for _ in range(MAX_PAGES):
                page = await server.client.list_tools(cursor=cursor)
                found += [(number, one.model_dump(by_alias=True, exclude_none=True)) for one in page.tools]
                if not (cursor := page.next_cursor):
                    break
        return found

    async def call(self, number: int, call: ToolCall) -> StepResult:
        """Carry out a call. An error of the tool is an answer, which counts as `call_error_function_failed`.

        Args:
            number: index of the server.
            call: call with the name that the server knows.

        Raises:
            EnvError: the server has ended, or does not answer any more.
        """
        server = self._servers[number]
        client, stray = server.client, server.stray
        assert client is not None  # start connected it
        try:
            result = await client.call_tool(call.name, dict(call.arguments), read_timeout_seconds=self._call_s)
            parts = [_text(one) for one in result.content]
            if not parts and result.structured_content is not None:
                parts = [json.dumps(result.structured_content, ensure_ascii=False)]
            text, failed = "\n".join(parts) or "(no result)", result.is_error
        except (MCPError, RuntimeError, ValueError) as error:  # the server's, or the result is not as declared
            code = error.code if isinstance(error, MCPError) else 0
            if server.over or (server.spec.url and code == CONNECTION_CLOSED):
                raise await self._problem(server) from error
            text, failed = error.message if isinstance(error, MCPError) else str(error), True
            if code == REQUEST_TIMEOUT:
                await self._check_alive(server)
                text = f"no answer within {self._call_s:g} seconds"
        text = self._cut(text)
        step = CallError((FAILED,), f"{call.name} failed: {text}", call.name).step if failed else StepResult(text)
        lines = float(server.stray - stray)
        return StepResult(step.observation, info={**step.info, "stray_output": lines}) if lines else step

    async def _check_alive(self, server: Connected) -> None:
        assert server.client is not None  # start connected it
        with suppress(MCPError):  # it answers that it has no ping
            try:
                await asyncio.wait_for(server.client.session.send_ping(), PING_S)
            except TimeoutError as error:
                raise await self._problem(server, "does not answer any more") from error
        if server.over:
            raise await self._problem(server)

    async def _problem(self, server: Connected, reason: str = "") -> EnvError:
        """End all servers, and return the error for one of them."""
        await self.end()
        said = self._place.errors()
        text = f"the MCP server {server.name!r}: {reason or 'it has ended'}."
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


@asynccontextmanager
async def _transport(server: Connected, streams: Streams) -> AsyncIterator[Any]:
    """Yield the streams of a server's messages, one JSON a line, for the client; other lines are counted."""
    reader, writer = streams
    told, heard = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    said, asked = anyio.create_memory_object_stream[SessionMessage](0)

    async def listen() -> None:
        async with told:
            with suppress(ValueError, OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
                while line := await reader.readline():  # ValueError: it is longer than MAX_LINE
                    try:
                        message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                    except ValueError:
                        server.stray += bool(line.strip())
                        continue
                    await told.send(SessionMessage(message))
            server.over = True

    async def speak() -> None:
        with suppress(OSError, anyio.ClosedResourceError):
            async for one in asked:
                writer.write(one.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
                await writer.drain()

    async with told, heard, said, asked, anyio.create_task_group() as tasks:
        tasks.start_soon(listen)
        tasks.start_soon(speak)
        yield heard, said
        tasks.cancel_scope.cancel()


def _text(content: Any) -> str:
    """Return a part of a result as text; an image or a sound is named."""
    resource = getattr(content, "resource", None)
    found = getattr(content, "text", None) or getattr(resource, "text", None) or getattr(content, "uri", None)
    return str(found) if found is not None else f"({content.type} left out)"
