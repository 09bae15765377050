"""MCP server with state for tests: a store of notes, which it keeps in files of its working folder."""

import os
import time
from pathlib import Path

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("notes")


@server.tool()
def write(name: str, text: str) -> str:
    """Write a note."""
    Path(name).write_text(text)
    return f"wrote {len(text)} characters"


@server.tool()
def read(name: str) -> str:
    """Read a note."""
    if not Path(name).is_file():
        raise ToolError(f"there is no note {name}")
    return Path(name).read_text()


@server.tool()
def count() -> dict[str, int]:
    """Count the notes and the process."""
    return {"notes": len(os.listdir()), "process": os.getpid()}


@server.tool()
def wait(seconds: float) -> str:
    """Wait."""
    time.sleep(seconds)
    return "waited"


@server.tool()
def much(characters: int) -> str:
    """Return a long text."""
    return "a" * characters


@server.tool()
def die() -> str:
    """End the server."""
    os.write(2, b"I die now\n")
    os._exit(3)


if __name__ == "__main__":
    server.run()
