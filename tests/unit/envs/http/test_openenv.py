"""Test OpenEnv's protocol on our server, with our adapter and with OpenEnv's own client as peers."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import aiohttp
import pytest
from starlette.websockets import WebSocket

from env_adapters.openenv.adapter import OpenEnv
from tests.support.serving import RunningEnv, pool_of
from tests.support.waiting import wait_until
from verl_agent.commands.serve import ServeSettings
from verl_agent.envs.http.client import HttpEnv
from verl_agent.envs.http.protocol import SocketSession
from verl_agent.envs.http.requests import SESSION_ENDED
from verl_agent.envs.http.server import EnvServer
from verl_agent.envs.http.settings import ServerLimits
from verl_agent.envs.http.task_index import TaskIndex
from verl_agent.envs.registry import load_adapter, make_env
from verl_agent.envs.session import SessionPool
from verl_agent.errors import ConfigError, PoolFullError, UnknownSessionError

SPLIT = "small_train"


@contextmanager
def serving(limits: ServerLimits | None = None, token: str | None = None) -> Iterator[RunningEnv]:
    """Run a server of GuessNumber that speaks OpenEnv's protocol."""
    pool = pool_of(load_adapter("guess_number"))
    server = EnvServer(TaskIndex("guess_number", {}, SPLIT), pool, limits or ServerLimits(), token)
    running = RunningEnv(server, pool, 0)
    try:
        yield running
    finally:
        running.stop()


def own_tasks():
    return make_env("guess_number").tasks(SPLIT)


def test_an_episode_through_openenv_is_the_episode_of_the_environment():
    """A seed is the number of a task."""
    env, item = make_env("guess_number"), own_tasks()[7]

    async def native():
        messages = await env.reset(item)
        steps = [await env.step(demo.action) for demo in [*env.demonstration(item)]]
        return messages, [(s.observation, s.reward, s.terminated) for s in steps]

    async def remote(url):
        session = OpenEnv(url, observation=["text"])
        messages = await session.reset(session.tasks("train")[7])
        steps = [await session.step(demo.action) for demo in env.demonstration(item)]
        await session.close()
        return messages, [(s.observation, s.reward, s.terminated) for s in steps]

    with serving() as running:
        assert asyncio.run(remote(running.url)) == asyncio.run(native())
        assert OpenEnv(running.url).seeded


def test_openenvs_own_client_plays_a_task_by_its_id():
    client = pytest.importorskip("openenv.core.generic_client", reason="openenv is not installed: pip install openenv")
    item = own_tasks()[3]

    async def play(url):
        async with client.GenericEnvClient(base_url=url) as env:
            first = await env.reset(task=item.id)
            await env.step({"action": "nonsense"})
            state = await env.state()
            last = await env.step({"action": str(item.data["target"])})
        return first, state, last

    with serving() as running:
        first, state, last = asyncio.run(play(running.url))
        assert first.observation["metadata"]["task"] == item.id
        assert (last.observation["text"], last.reward, last.done) == ("Right.", 1.0, True)
        assert (state["episode_id"], state["step_count"]) == (item.id, 1)


async def exchange(url: str, *messages: str | bytes, **connection) -> list[dict]:
    """Send messages and return the answers."""
    async with (
        aiohttp.ClientSession() as client,
        client.ws_connect(f"{url.replace('http', 'ws')}/ws", **connection) as socket,
    ):
        answers = []
        for message in messages:
            await (socket.send_bytes if isinstance(message, bytes) else socket.send_str)(message)
            answers.append(await socket.receive_json())
        return answers


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("{", "INVALID_JSON"),
        (b"\0", "INVALID_JSON"),
        ("[]", "UNKNOWN_TYPE"),
        ('{"type": "fly"}', "UNKNOWN_TYPE"),
        ('{"type": "step", "data": {"action": 3}}', "VALIDATION_ERROR"),
        ('{"type": "step", "data": {"action": "5"}}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"seed": -1}}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"task": "no such task"}}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"seed": 1, "task": "5:1"}}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"task": "5:1", "task": "5:2"}}', "INVALID_JSON"),
        ('{"type": "reset", "data": 3}', "VALIDATION_ERROR"),
    ],
)
def test_bad_messages_are_answered_and_the_session_goes_on(message, code):
    with serving() as running:
        bad, good = asyncio.run(exchange(running.url, message, '{"type": "reset", "data": {"seed": 1}}'))
    assert (bad["type"], bad["data"]["code"], good["type"]) == ("error", code, "observation")


def test_a_step_in_a_session_that_was_idle_for_too_long_is_an_error_of_the_environment():
    """The model must not read that its action is not valid. The next episode of the client has a new session."""
    with serving(ServerLimits(idle_s=0.5)) as running:

        async def pause():
            session = OpenEnv(running.url)
            item = session.tasks("train")[0]
            await session.reset(item)
            while running.server.sessions.running:
                await asyncio.sleep(0.05)
            with pytest.raises(UnknownSessionError, match=r"the session has ended: .*was idle too long"):
                await session.step("1")
            await session.close()
            messages = await session.reset(item)
            await session.close()
            return messages

        assert asyncio.run(pause())[-1]["role"] == "user"


def test_a_session_whose_episode_waits_is_not_idle():
    """The server tells how long it waits, and the client asks for the state before, as while a group plays on."""
    with serving(ServerLimits(idle_s=0.5)) as running:

        async def wait_and_step():
            env = HttpEnv("guess_number", running.url)
            await env.reset(env.tasks(SPLIT)[0])
            await asyncio.sleep(1.5)
            result = await env.step("1")
            await env.close()
            return result

        assert asyncio.run(wait_and_step()).observation


def test_a_session_that_ends_between_two_requests_ends_its_connection():
    """A connection that stays open would hold one of the server's connections for ever."""

    async def listen(url: str) -> aiohttp.WSMessage:
        async with aiohttp.ClientSession() as client, client.ws_connect(f"{url}/ws") as socket:
            await socket.send_json({"type": "reset", "data": {"seed": 1}})
            await socket.receive_json()
            return await socket.receive(60)  # sends nothing more

    with serving(ServerLimits(idle_s=0.2)) as running:
        ended = asyncio.run(listen(running.url))
        wait_until(lambda: not running.uvicorn.server_state.connections)
    assert (ended.type, ended.data) == (aiohttp.WSMsgType.CLOSE, SESSION_ENDED)
    assert "idle too long" in ended.extra


class FailingPool:
    """Pool whose call of a name raises RuntimeError."""

    def __init__(self, fails: str) -> None:
        self._fails = fails

    async def open(self) -> int:
        return self._answer("open")

    async def close(self, session: int) -> None:
        self._answer("close")

    def _answer(self, name: str) -> int:
        if name == self._fails:
            raise RuntimeError(f"the pool cannot {name}")
        return 1


def socket_session(pool: FailingPool, send: Callable[[Any], Awaitable[None]]) -> SocketSession:
    """Return a session of a client that sends `close`."""
    requests = iter([{"type": "websocket.connect"}, {"type": "websocket.receive", "text": '{"type": "close"}'}])

    async def receive() -> Any:
        return next(requests)

    server = EnvServer(TaskIndex("guess_number", {}, SPLIT), cast(SessionPool, pool), ServerLimits())
    return SocketSession(server, WebSocket({"type": "websocket"}, receive, send))


@pytest.mark.parametrize("fails", ["open", "close"])
def test_a_runtime_error_of_the_pool_is_raised(fails):
    async def send(message: Any) -> None:
        pass

    with pytest.raises(RuntimeError, match=f"the pool cannot {fails}"):
        asyncio.run(socket_session(FailingPool(fails), send).run())


def test_a_client_that_has_left_is_no_error_of_the_server():
    async def send(message: Any) -> None:
        sent.append(message["type"])
        if len(sent) > 1:
            raise RuntimeError("the connection is closed")  # as uvicorn does

    sent: list[str] = []
    asyncio.run(socket_session(FailingPool(""), send).run())
    assert sent == ["websocket.accept", "websocket.close"]


def test_a_session_more_than_the_server_allows_is_refused():
    with serving(ServerLimits(sessions=1)) as running:
        first, second = OpenEnv(running.url), OpenEnv(running.url)

        async def crowd():
            await first.reset(first.tasks("train")[0])
            try:
                await second.reset(second.tasks("train")[0])
            finally:
                await first.close()
                await second.close()

        with pytest.raises(PoolFullError, match="all 1 sessions are open"):
            asyncio.run(crowd())


@pytest.mark.parametrize(
    ("headers", "token"), [({"Origin": "http://page"}, None), ({}, "secret"), ({"Authorization": "Bearer x"}, "secret")]
)
def test_web_pages_and_clients_without_the_token_cannot_connect(headers, token):
    with serving(token=token) as running, pytest.raises(aiohttp.WSServerHandshakeError):
        asyncio.run(exchange(running.url, "{}", headers=headers))


def test_an_unknown_protocol_raises_config_error():
    with pytest.raises(ConfigError, match=r"--protocol openevn is unknown\. Did you mean 'openenv'\?"):
        ServeSettings("guess_number", protocol="openevn")
