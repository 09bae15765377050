"""Test the adapter of OpenEnv against a server of OpenEnv's package, and its messages against other servers."""

import asyncio
import json
import subprocess
import sys
from contextlib import contextmanager
from importlib.util import find_spec

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route, WebSocketRoute

from env_adapters.openenv.adapter import OpenEnv
from env_adapters.openenv.schema import ActionForm
from tests import ROOT
from tests.support.serving import serving_app
from verl_agent.envs.answers import CheckedSession
from verl_agent.envs.testing.check import check_adapter
from verl_agent.errors import ConfigError, EnvCrashError, EnvError, PoolFullError

SERVER = ROOT / "tests/support/openenv_server.py"
needs_server = pytest.mark.skipif(find_spec("openenv") is None, reason="openenv is not installed: pip install openenv")


@contextmanager
def server(kind, sessions=2):
    """Yield the URL of a server in a process of its own."""
    command = [sys.executable, str(SERVER), kind, str(sessions)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


@pytest.fixture(scope="module")
def numbers():
    with server("numbers") as url:
        yield url


def solve(env, item):
    """Return the actions that find the number of `item`."""

    async def search():
        session = env.new_session()
        await session.reset(item)
        try:
            for number in range(10):
                step = await session.step(str(number))
                if step.terminated:
                    return number, step
        finally:
            await session.close()

    return asyncio.run(search())


@needs_server
def test_the_schema_describes_the_action_and_the_server_rewards_it(numbers):
    env = OpenEnv(numbers, rules="Find it.", train=2)

    async def begin():
        messages = await env.reset(env.tasks("train")[0])
        bad = await env.step("seven")
        await env.close()
        return messages, bad

    messages, bad = asyncio.run(begin())
    assert [message["content"] for message in messages] == [
        "Find it.\nAn action is the number: integer.",
        "Guess a number from 0 to 9.",
    ]
    assert bad.info == {"invalid_action": 1.0}
    found, step = solve(env, env.tasks("train")[0])
    assert (step.reward, step.observation) == (1.0, "Right.")
    assert solve(env, env.tasks("train")[0])[0] == found


@needs_server
def test_two_sessions_at_once_keep_their_own_numbers(numbers):
    env = OpenEnv(numbers, train=20)
    first, second = env.tasks("train")[:2]
    targets = [solve(env, first)[0], solve(env, second)[0]]

    async def together():
        sessions = [env.new_session(), env.new_session()]
        await asyncio.gather(sessions[0].reset(first), sessions[1].reset(second))
        results = [
            await asyncio.gather(*(one.step(str(number)) for one, number in zip(sessions, pair, strict=True)))
            for pair in ((targets[0] + 1, targets[1] + 1), targets)
        ]
        await asyncio.gather(*(session.close() for session in sessions))
        return [[step.reward for step in pair] for pair in results]

    assert asyncio.run(together()) == [[0.0, 0.0], [1.0, 1.0]]


@needs_server
def test_a_third_session_exceeds_the_servers_limit_and_the_message_names_the_remedy(numbers):
    env = OpenEnv(numbers)
    item = env.tasks("train")[0]

    async def crowd():
        sessions = [env.new_session() for _ in range(3)]
        try:
            for session in sessions:
                await session.reset(item)
        finally:
            for session in sessions:
                await session.close()

    with pytest.raises(PoolFullError, match=r"max_concurrent_envs.*env\.hosts\.sessions"):
        asyncio.run(crowd())


@needs_server
def test_an_exception_of_the_environment_is_its_crash(numbers):
    env = OpenEnv(numbers)

    async def broken():
        await env.reset(env.tasks("train")[0])
        try:
            await env.step("99")
        finally:
            await env.close()

    with pytest.raises(EnvCrashError, match="the simulator broke"):
        asyncio.run(broken())


@needs_server
def test_a_server_that_ignores_seeds_is_found(numbers):
    assert OpenEnv(numbers).seeded
    with server("unseeded") as url:
        assert not OpenEnv(url).seeded
        assert OpenEnv(url, allow_unseeded=True).seeded


@needs_server
def test_the_adapter_keeps_the_contract():
    """It opens twelve sessions at once."""
    with server("numbers", sessions=64) as url:
        report = check_adapter(OpenEnv, {"url": url, "train": 1, "test": 1}, 1, name="openenv", budget_s=2)
    assert not report.violations, str(report)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        ({"properties": {"number": {"type": "integer"}}}, "answered 403: no session.*OpenEnv 0"),
        ({"no": "schema"}, r"/schema describes no action.*OpenEnv 0\.10\.0"),
    ],
)
def test_a_server_that_speaks_another_version_is_named(action, message):
    app = Starlette(routes=[Route("/schema", lambda request: JSONResponse({"action": action}))])
    with serving_app(app) as running:
        env = OpenEnv(running.url)
        with pytest.raises((ConfigError, EnvError), match=message):
            asyncio.run(env.reset(env.tasks("train")[0]))
        asyncio.run(env.close())


@pytest.mark.parametrize("reward", ["1.0", [1.0, 2.0], float("nan")])
def test_a_reward_that_is_no_number_stops_the_run(reward):
    async def answer(socket):
        await socket.accept()
        for value in (None, reward):
            await socket.receive_text()
            data = {"observation": {"text": "Begin."}, "reward": value, "done": False}
            await socket.send_text(json.dumps({"type": "observation", "data": data}))
        await socket.receive_text()

    async def play(env):
        session = CheckedSession(env)
        await session.reset(env.tasks("train")[0])
        with pytest.raises(ConfigError, match="reward"):
            await session.step("1")
        await env.close()

    schema = {"action": {"properties": {"number": {"type": "integer"}}}}
    routes = [Route("/schema", lambda request: JSONResponse(schema)), WebSocketRoute("/ws", answer)]
    with serving_app(Starlette(routes=routes)) as running:
        asyncio.run(play(OpenEnv(running.url)))


def test_fields_of_several_values_keep_the_characters_of_other_languages():
    async def answer(socket):
        await socket.accept()
        await socket.receive_text()
        data = {"observation": {"cities": ["北京", "Köln"], "turn": 1}, "reward": None, "done": False}
        await socket.send_text(json.dumps({"type": "observation", "data": data}))
        await socket.receive_text()

    async def begin(env):
        messages = await env.reset(env.tasks("train")[0])
        await env.close()
        return messages[-1]["content"]

    schema = {"action": {"properties": {"number": {"type": "integer"}}}}
    routes = [Route("/schema", lambda request: JSONResponse(schema)), WebSocketRoute("/ws", answer)]
    with serving_app(Starlette(routes=routes)) as running:
        assert 'cities: ["北京", "Köln"]\nturn: 1' in asyncio.run(begin(OpenEnv(running.url)))


def test_a_url_without_a_server_raises_config_error():
    env = OpenEnv("http://127.0.0.1:9")
    with pytest.raises(ConfigError, match=r"env\.options\.url='http://127\.0\.0\.1:9' is not a server of OpenEnv"):
        asyncio.run(env.reset(env.tasks("train")[0]))


@pytest.mark.parametrize("kind", [{"anyOf": [{"type": "string"}, {"type": "null"}]}, {"$ref": "#/$defs/Move"}])
def test_a_text_is_the_value_of_a_field_that_is_optional_or_an_enumeration(kind):
    assert ActionForm.of({"properties": {"move": kind}}, None).read("left") == {"move": "left"}
