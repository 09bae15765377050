"""Messages of a server, one JSON a line, over the streams of its process."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import anyio
from mcp import Client
from mcp.shared.message import SessionMessage
from mcp_types import INVALID_REQUEST, ErrorData, JSONRPCError, jsonrpc_message_adapter
from pydantic_core import from_json

from env_adapters.mcp.places import MAX_LINE, ServerSpec, Streams
from verl_agent.envs.parsing import shorten

ENDED = "it has ended"
NO_ANSWER = object()
"""Data of the error that stands for an answer that is not valid."""


@dataclass(slots=True)
class Connected:
    """A server and its connection.

    Attributes:
        client: None before the handshake.
        over: reason why nothing more can be read; "" while it can.
        stray: number of lines of its output that are no messages, such as logs, since they were last counted.
    """

    name: str
    spec: ServerSpec
    client: Client | None = None
    over: str = ""
    stray: int = 0


@asynccontextmanager
async def transport_of(server: Connected, streams: Streams) -> AsyncIterator[Any]:
    """Yield the streams of a server's messages, one JSON a line, for the client; other lines are counted."""
    reader, writer = streams
    told, heard = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    said, asked = anyio.create_memory_object_stream[SessionMessage](0)

    async def listen() -> None:
        async with told:
            over = ENDED
            with suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
                while True:
                    try:
                        line = await reader.readline()
                    except ValueError:
                        over = f"it sent a message of more than {MAX_LINE >> 20} MiB"
                        break
                    if not line:
                        break
                    try:
                        message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                    except ValueError:
                        if (error := _no_answer(line)) is None:
                            server.stray += bool(line.strip())
                            continue
                        message = error
                    await told.send(SessionMessage(message))
            server.over = over

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


def _no_answer(line: bytes) -> JSONRPCError | None:
    """Return an error in place of an answer to a request that is not valid; None for a line that is no answer."""
    try:
        value = from_json(line)
    except ValueError:
        return None
    if not isinstance(value, dict) or "jsonrpc" not in value or "method" in value:
        return None
    if type(value.get("id")) not in (int, str):
        return None
    shown = shorten(line.decode("utf-8", "replace").strip(), 200)
    problem = ErrorData(code=INVALID_REQUEST, message=f"no result of MCP: {shown}", data=NO_ANSWER)
    return JSONRPCError(jsonrpc="2.0", id=value["id"], error=problem)
