"""MCP servers for tests, and sessions of the environment with them."""

import asyncio
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil

from env_adapters.mcp.adapter import Mcp
from tests import ROOT
from verl_agent.types import StepResult, ToolCall

SERVERS = ROOT / "tests/support/mcp_servers"
STORED = 'test "$(cat stored)" = right'
PUT = ToolCall("put", {"text": "right"})
FINISH = ToolCall("finish", {})


def plain(variant: str = "good", **more: Any) -> dict[str, Any]:
    return {"command": [sys.executable, "-S", str(SERVERS / "plain.py"), variant], **more}


def folders() -> set[Path]:
    return set(Path(tempfile.gettempdir()).glob("mcp-*"))


def play(env: Mcp, *calls: ToolCall) -> list[StepResult]:
    """Play calls in one session and return the answers."""

    async def session() -> list[StepResult]:
        one = env.new_session()
        try:
            await one.reset(env.tasks("train")[0])
            return [await one.step(call) for call in calls]
        finally:
            await one.close()

    return asyncio.run(session())


def servers_left() -> list[str]:
    """Return the command lines of servers of this test that still run."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or [])
        if str(SERVERS) in line and process.pid != os.getpid():
            found.append(line)
    return found
