"""Test servers of OpenEnv of several kinds: functions of MCP, nested actions, rewards at reset, and missing rewards."""

import asyncio
import json
from contextlib import contextmanager

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route, WebSocketRoute

from env_adapters.openenv.adapter import OpenEnv
from env_adapters.openenv.schema import ActionForm
from tests.support.serving import serving_app
from verl_agent.errors import ConfigError, EnvError
from verl_agent.types import ToolCall

NUMBER = {"properties": {"number": {"type": "integer"}}, "required": ["number"]}
MCP = {"properties": {"tool_name": {"type": "string"}, "arguments": {"type": "object"}, "metadata": {}}}
BARE = {"properties": {"metadata": {"type": "object"}}}
"""Schema of OpenEnv's base class, which environments of MCP show."""
ADD = {
    "name": "add",
    "description": "Add two numbers.",
    "input_schema": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    },
}
NESTED = {
    "properties": {
        "move": {"$ref": "#/$defs/Move"},
        "path": {"type": "array", "items": {"$ref": "#/$defs/Place"}},
    },
    "required": ["move"],
    "$defs": {
        "Move": {
            "type": "object",
            "properties": {"to": {"$ref": "#/$defs/Place"}, "how": {"enum": ["walk", "run"], "type": "string"}},
            "required": ["to"],
        },
        "Place": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]},
    },
}


@contextmanager
def server(schema, answer):
    """Run a server whose sessions answer with what `answer(kind, data)` returns: observation, reward and end."""

    async def talk(socket):
        await socket.accept()
        async for text in socket.iter_text():
            message = json.loads(text)
            if message["type"] == "close":
                break
            observation, reward, done = answer(message["type"], message.get("data", {}))
            data = {"observation": observation, "reward": reward, "done": done}
            await socket.send_text(json.dumps({"type": "observation", "data": data}))

    routes = [
        Route("/schema", lambda request: JSONResponse({"action": schema})),
        Route("/metadata", lambda request: JSONResponse({"description": "Work with numbers."})),
        WebSocketRoute("/ws", talk),
    ]
    with serving_app(Starlette(routes=routes)) as running:
        yield running.url


def play(env, *actions):
    async def episode():
        try:
            messages = await env.reset(env.tasks("train")[0])
            return [message["content"] for message in messages], [await env.step(action) for action in actions]
        finally:
            await env.close()

    return asyncio.run(episode())


def calculator(kind, data):
    """Answer of an environment of MCP, as OpenEnv's own classes give it."""
    if kind == "reset":
        return {"metadata": {"task": "What is 2 + 3?"}}, None, False
    if data["type"] == "list_tools":
        return {"tools": [ADD]}, None, False
    assert (data["type"], data["tool_name"]) == ("call_tool", "add")
    if data["arguments"] == {"a": 1, "b": 1}:
        return {"tool_name": "add", "result": None, "error": {"message": "too easy"}}, None, False
    total = data["arguments"]["a"] + data["arguments"]["b"]
    content = {"content": [{"type": "text", "text": str(total)}], "data": None}
    return {"tool_name": "add", "result": content, "error": None}, float(total == 5), total == 5


@pytest.mark.parametrize("schema", [MCP, BARE], ids=["call", "base class"])
def test_an_environment_of_mcp_shows_its_task_and_calls_its_tools(schema):
    with server(schema, calculator) as url:
        env = OpenEnv(url)
        assert [tool.name for tool in env.action_format.tools] == ["add"]
        texts, steps = play(
            env,
            "5",
            ToolCall("add", {"a": 1, "b": 1}),
            ToolCall("add", {"a": 1, "b": 2}),
            ToolCall("add", {"a": 2, "b": 3}),
        )
    assert texts == ["Work with numbers.", "What is 2 + 3?"]
    assert [dict(step.info) for step in steps] == [{"invalid_action": 1.0}] * 2 + [{}, {}]
    assert [step.observation for step in steps[1:]] == ["The call failed: too easy", "3", "5"]
    assert [(step.reward, step.terminated) for step in steps] == [(0.0, False)] * 3 + [(1.0, True)]


def test_a_server_whose_actions_have_no_fields_and_that_lists_no_tools_is_refused():
    with (
        server(BARE, lambda kind, data: ({"text": "?"}, None, False)) as url,
        pytest.raises(ConfigError, match=r"no fields, and it lists no tools.*cannot be played"),
    ):
        play(OpenEnv(url))


def test_nested_fields_and_references_are_explained_and_read():
    form = ActionForm.of(NESTED, None)
    said = form.described()
    for part in ("move: object", "to: object", "x: integer", "one of walk, run", "path (optional): list of object"):
        assert part in said
    action = {"move": {"to": {"x": 3}, "how": "run"}, "path": [{"x": 1}]}
    assert form.read(json.dumps(action)) == action


def test_the_reward_of_a_reset_is_paid_with_the_first_action():
    with server(NUMBER, lambda kind, data: ({"text": kind}, 0.25, False)) as url:
        _, steps = play(OpenEnv(url), "1", "2", "3")
    assert [step.reward for step in steps] == [0.5, 0.25, 0.25]


@pytest.mark.parametrize(("rewards", "named"), [([None, None], True), ([0.5, None], True), ([None, 1.0], False)])
def test_a_missing_reward_is_no_zero_where_it_may_be_nan(rewards, named):
    """OpenEnv's servers send null for NaN, at the end of an episode as for a step without a reward."""
    left = iter([None, *rewards, *[None, *rewards] * 9])

    def answer(kind, data):
        return {"text": kind}, (None if kind == "reset" else next(left)), kind == "step" and data["number"] == 2

    next(left)
    with server(NUMBER, answer) as url:
        if named:
            with pytest.raises(EnvError, match=r"null.*NaN.*env\.options\.null_reward=0"):
                play(OpenEnv(url), "1", "2")
            left = iter([None, None])
            assert [step.reward for step in play(OpenEnv(url, null_reward=0), "1", "2")[1]] == [0, 0]
        else:
            assert [step.reward for step in play(OpenEnv(url), "1", "2")[1]] == [0.0, 1.0]
