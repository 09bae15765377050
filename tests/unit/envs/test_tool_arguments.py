"""Calls of tools with random schemas arrive unchanged in every place, and their answers come back.

tests/long/test_tool_doors.py does the same with verifiers.
"""

import asyncio
import sys
from typing import Any

import pytest

from env_adapters.openenv.adapter import MAX_TEXT, OpenEnv
from tests.support.packages import write_metadata
from tests.support.serving import RunningEnv, pool_of, post
from tests.support.tool_envs import ITEM, Echo, echo_of, random_calls
from verl_agent.envs.hosts.host import CallLimits
from verl_agent.envs.hosts.local import process_pool
from verl_agent.envs.hosts.slot import PoolLimits
from verl_agent.envs.http.client import HttpEnv
from verl_agent.envs.http.server import EnvServer
from verl_agent.envs.http.settings import ServerLimits
from verl_agent.envs.http.task_index import TaskIndex
from verl_agent.envs.registry import ENTRY_POINT_GROUP
from verl_agent.envs.session import PooledEnv
from verl_agent.types import ToolCall

ARGUMENTS = 200
"""Random arguments of each of 50 random schemas: 10,000 in each place."""


async def echoed(session: Any, item: Any, calls: list[ToolCall], shown: int | None = None) -> None:
    """Check that each call is answered with itself, as far as the answer is shown."""
    await session.reset(item)
    for call in calls:
        result = await session.step(call)
        assert result.observation[:shown] == echo_of(call)[:shown]
    await session.close()


def test_10_000_random_arguments_arrive_unchanged_in_process():
    asyncio.run(echoed(Echo(), ITEM, random_calls(ARGUMENTS)))


def test_10_000_random_arguments_arrive_unchanged_in_a_host_process():
    async def play() -> None:
        pool = process_pool(Echo(), CallLimits(60.0), PoolLimits(count=1))
        try:
            await echoed(PooledEnv(Echo(), pool), ITEM, random_calls(ARGUMENTS))
        finally:
            await pool.shutdown()

    asyncio.run(play())


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Server of `Echo` that speaks both protocols."""
    folder = tmp_path_factory.mktemp("tool_echo")
    write_metadata(folder, "tool-echo", {ENTRY_POINT_GROUP: {"tool_echo": "tests.support.tool_envs:Echo"}})
    sys.path.insert(0, str(folder))
    pool = pool_of(Echo)
    running = RunningEnv(EnvServer(TaskIndex("tool_echo", {}, "test"), pool, ServerLimits()), pool, 0)
    yield running
    running.stop()
    sys.path.remove(str(folder))


def test_10_000_random_arguments_arrive_unchanged_over_http(served):
    env = HttpEnv("tool_echo", [served.url])
    assert env.action_format == Echo.action_format
    asyncio.run(echoed(env.new_session(), env.tasks("test")[0], random_calls(ARGUMENTS)))


def test_10_000_random_arguments_arrive_unchanged_over_openenv(served):
    env = OpenEnv(served.url, observation=["text"])
    assert [tool.name for tool in env.action_format.tools][:3] == ["any", "note", "random_0"]
    asyncio.run(echoed(env.new_session(), env.tasks("train")[0], random_calls(ARGUMENTS), MAX_TEXT - 1))


@pytest.mark.parametrize(
    ("action", "status"),
    [
        ({"name": "any", "arguments": {}}, 200),
        ('{"name": "any", "arguments": {}}', 200),
        ("any", 200),
        ({"name": "any"}, 422),
        ({"name": "any", "arguments": {}, "id": 1}, 422),
        ({"name": "any", "arguments": {"x": "y" * 2**21}}, 422),
    ],
)
def test_a_client_sends_a_call_as_an_object_or_as_text(served, action, status):
    session = post(served, "/create").json()["id"]
    post(served, "/reset", {"id": session, "item": "1"})
    answer = post(served, "/step", {"id": session, "bare_action": action})
    assert answer.status_code == status, answer.text
    if action == "any":
        assert "This is no call" in answer.json()["observation"]
