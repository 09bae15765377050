"""Environment of MCP servers for the tests of this folder."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from env_adapters.mcp.adapter import Mcp
from tests.support.mcp_servers import STORED, folders, plain


@pytest.fixture
def make(tmp_path):
    """Return a function that makes the environment; no folder of a session may be left after the test."""
    tasks, before = tmp_path / "tasks.jsonl", folders()

    def build(servers: Mapping[str, Any] | str = "good", task: Mapping[str, Any] | None = None, **options: Any) -> Mcp:
        solution = [{"name": "put", "arguments": {"text": "right"}}]
        line = {"id": "1", "prompt": "Store right.", "split": "train", "solution": solution, **(task or {})}
        tasks.write_text(json.dumps(line) + "\n")
        judged = {} if "reward" in options or "check" in line else {"check": STORED}
        known = {"one": plain(servers)} if isinstance(servers, str) else servers
        return Mcp(known, str(tasks), **{"start_s": 60.0, **judged, **options})

    yield build
    assert folders() - before == set()
