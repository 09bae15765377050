"""Test that verifiers passes calls of tools on as they are, in both directions. Needs `make setup-verifiers`.

tests/unit/envs/test_tool_arguments.py does the same in process, in a host process, over HTTP and over OpenEnv.
"""

import os
import shlex
import subprocess
from collections.abc import Sequence
from typing import Any

import pytest

from tests import ROOT
from tests.support.model_server import KEY, ModelServer, Said
from tests.support.packages import write_metadata
from tests.support.tool_envs import echo_of, random_calls
from verl_agent.envs.registry import ENTRY_POINT_GROUP

PYTHON = ROOT / ".venv-verifiers/bin/python"
ARGUMENTS = 200
"""Random arguments of each of 50 random schemas: 10,000."""
pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.exists(), reason="verifiers is not installed: make setup-verifiers"),
]


def test_10_000_random_arguments_arrive_unchanged_through_verifiers(tmp_path):
    """The printed command plays the exported environment against a server that calls, and reads each answer."""
    calls = random_calls(ARGUMENTS)
    heard: list[str] = []

    def model(messages: Sequence[Said]) -> Any:
        heard.extend(one.text for one in messages[-1:] if one.role == "tool")
        return calls[len(heard)].to_json()

    write_metadata(tmp_path, "tool-echo", {ENTRY_POINT_GROUP: {"tool_echo": "tests.support.tool_envs:Echo"}})
    path = f"{tmp_path}:{ROOT}"
    options = [
        "--as",
        "verifiers",
        "--agent",
        "tools",
        "--turns",
        str(len(calls)),
        "--out",
        str(tmp_path / "echo_v.py"),
    ]
    export = [PYTHON, "-c", "from verl_agent.commands.cli import app; app()", "export-env", "tool_echo", *options]
    printed = subprocess.run(export, env={**os.environ, "PYTHONPATH": path}, check=True, capture_output=True, text=True)
    command = printed.stdout.splitlines()[-1]
    with ModelServer(model).running() as server:
        names = {"MODEL": "fake", "OPENAI_BASE_URL": f"{server.url}/v1", "OPENAI_API_KEY": KEY}
        variables = {**os.environ, **names, "PATH": f"{PYTHON.parent}:{os.environ['PATH']}"}
        shell = command.replace(f"PYTHONPATH={shlex.quote(str(tmp_path))}", f"PYTHONPATH={shlex.quote(path)}")
        assert shell != command, command
        done = subprocess.run(
            ["bash", "-c", f"{shell} -n 1"], env=variables, cwd=tmp_path, capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert [tool["function"]["name"] for tool in server.bodies[0]["tools"]][:3] == ["any", "note", "random_0"]
    assert len(server.bodies) == len(calls) and heard == [echo_of(call) for call in calls[: len(heard)]]
    assert len(heard) == len(calls) - 1, "the answer to the last call ends the episode at its limit"
