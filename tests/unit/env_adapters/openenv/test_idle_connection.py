"""Connections of OpenEnv that are idle: they are kept while nobody calls, and a lost one is named and counted."""

import asyncio
import json
import pickle
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import cast

import aiohttp
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocketDisconnect

from env_adapters.openenv.adapter import OpenEnv
from tests.support.attempts import play_until_valid
from tests.support.fakes import ScriptedPolicy, plain
from verl_agent.envs.http.connection import Connection
from verl_agent.envs.http.run_server import bind_listener, url_of
from verl_agent.envs.http.transport import transport
from verl_agent.errors import LOST_CONNECTION, ConnectionLostError, EnvError
from verl_agent.rollout.episode import EpisodeLimits
from verl_agent.trace.episode_summary import count_lost_connections, summarize_episode
from verl_agent.trace.metrics import episode_metrics
from verl_agent.types import StopReason

PING_S = 0.1
"""Seconds after which the server pings, and then after which it ends a connection without an answer."""
SCHEMA = {"action": {"properties": {"action": {"type": "string"}}}}


class Counting:
    """Environment that answers `turn N`, and ends at `end`.

    Args:
        drops: numbers of the connections, from 1, that are closed while they are idle after their first step.
        speaks: a second answer follows each one.
    """

    def __init__(self, drops: tuple[int, ...] = (), speaks: bool = False) -> None:
        self.drops, self.speaks = drops, speaks
        self.connections = 0
        self.kinds: list[str] = []
        self.codes: list[int] = []

    async def serve(self, socket) -> None:
        await socket.accept()
        self.connections += 1
        number, turns = self.connections, 0
        try:
            while (request := json.loads(await socket.receive_text()))["type"] != "close":
                self.kinds.append(request["type"])
                if request["type"] == "state":
                    await socket.send_text(json.dumps({"type": "state", "data": {"step_count": turns}}))
                    continue
                turns = turns + 1 if request["type"] == "step" else 0
                done = request["data"].get("action") == "end"
                data = {"observation": {"text": f"turn {turns}"}, "reward": float(done), "done": done}
                for _ in range(1 + self.speaks):
                    await socket.send_text(json.dumps({"type": "observation", "data": data}))
                if turns == 1 and number in self.drops:
                    await socket.close(1012)
                    return
        except WebSocketDisconnect as ended:
            self.codes.append(ended.code)

    @contextmanager
    def running(self) -> Iterator[str]:
        """Serve with a short limit for pings, and yield the URL."""
        routes = [WebSocketRoute("/ws", self.serve), Route("/schema", lambda _: JSONResponse(SCHEMA))]
        config = uvicorn.Config(
            Starlette(routes=routes), log_level="critical", ws_ping_interval=PING_S, ws_ping_timeout=PING_S
        )
        server, listener = uvicorn.Server(config), bind_listener("127.0.0.1", 0)
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield url_of(listener)
        finally:
            server.should_exit = True
            thread.join()


async def begun(url: str) -> OpenEnv:
    env = OpenEnv(url)
    await env.reset(env.tasks("train")[0])
    return env


def test_an_idle_connection_answers_pings():
    server = Counting()

    async def play(url: str) -> str:
        env = await begun(url)
        await asyncio.sleep(10 * PING_S)  # as while a model writes, an update runs or a person pauses
        step = await env.step("on")
        await env.close()
        return step.observation

    with server.running() as url:
        assert asyncio.run(play(url)) == "turn 1"
    assert server.connections == 1


def test_a_connection_is_idle_in_a_blocked_event_loop():
    """An update blocks the loop of the episode; connections have a loop of their own."""

    async def play(url: str) -> str:
        env = await begun(url)
        threading.Event().wait(10 * PING_S)
        step = await env.step("on")
        await env.close()
        return step.observation

    with Counting().running() as url:
        assert asyncio.run(play(url)) == "turn 1"


def test_an_idle_connection_asks_for_the_state_so_that_its_session_does_not_expire():
    server, asked = Counting(), 0

    async def use(url: str) -> None:
        nonlocal asked
        connection = Connection(url, 5.0, idle_s=0.12)
        await connection.ask("reset", {})
        while (asked := server.kinds.count("state")) < 3:
            await asyncio.sleep(0.01)
        answer = await connection.ask("step", {"action": "on"})  # whether or not the state is being asked for
        assert answer["observation"] == {"text": "turn 1"}
        await connection.close()

    with server.running() as url:
        transport().submit(use(url)).result()
    assert asked >= 3


@pytest.mark.parametrize(("speaks", "reason"), [(False, "closed.*with code 1012"), (True, "without a request")])
def test_a_connection_lost_between_two_calls_is_named(speaks, reason):
    server = Counting(drops=() if speaks else (1,), speaks=speaks)

    async def play(url: str) -> None:
        env = await begun(url)
        if not speaks:
            await env.step("on")
        await asyncio.sleep(2 * PING_S)
        await env.step("on")

    with server.running() as url, pytest.raises(ConnectionLostError, match=f"^{LOST_CONNECTION}: {url}.*{reason}"):
        asyncio.run(play(url))


class Unsendable:
    """Socket that answers `answers` requests and then nothing, and that sends neither pings nor requests for a state.

    aiohttp raises this error once the transport closes, before `receive` returns.
    """

    closed, close_code = False, None

    def __init__(self, answers: int) -> None:
        self._answers: asyncio.Queue[str] = asyncio.Queue()
        self._left = answers

    async def receive(self, timeout: float) -> aiohttp.WSMessage:
        return aiohttp.WSMessage(aiohttp.WSMsgType.TEXT, await asyncio.wait_for(self._answers.get(), timeout), None)

    async def send_str(self, text: str) -> None:
        if self._left:
            self._left -= 1
            self._answers.put_nowait(json.dumps({"type": "state", "data": {}}))

    async def ping(self) -> None:
        raise aiohttp.ClientConnectionResetError("Cannot write to closing transport")

    async def send_json(self, data: object) -> None:
        raise ConnectionResetError("Connection lost")

    async def close(self) -> None:
        pass


class ToSocket(Connection):
    """Connection to a given socket."""

    def __init__(self, socket: Unsendable, idle_s: float) -> None:
        super().__init__("http://a.test", 60.0, idle_s)
        self._given = socket

    async def _connect(self) -> aiohttp.ClientWebSocketResponse:
        return cast(aiohttp.ClientWebSocketResponse, self._given)


def test_a_call_fails_at_once_when_no_ping_can_be_sent():
    async def use() -> None:
        connection = ToSocket(Unsendable(answers=0), idle_s=0.04)
        async with asyncio.timeout(30):  # less than the timeout of the call
            await connection.ask("step", {})

    with pytest.raises(ConnectionLostError, match="the connection has ended: ClientConnectionResetError"):
        asyncio.run(use())


def test_the_next_call_fails_at_once_when_the_state_could_not_be_asked_for():
    async def use() -> None:
        connection = ToSocket(Unsendable(answers=1), idle_s=0.04)
        await connection.ask("state", {})
        async with asyncio.timeout(30):
            await asyncio.sleep(0.1)
            await connection.ask("step", {})

    with pytest.raises(ConnectionLostError, match="the connection has ended: ConnectionResetError"):
        asyncio.run(use())


def test_a_lost_connection_that_a_replay_repairs_is_counted():
    class Slow(ScriptedPolicy):
        async def reply(self, messages):
            await asyncio.sleep(2 * PING_S)
            return await super().reply(messages)

    server = Counting()
    with server.running() as url:
        env = OpenEnv(url)
        assert env.deterministic  # asks the server, on connections of its own
        before = server.connections
        server.drops = (before + 1,)
        policy = partial(Slow, ["on", "on", "end"])
        item, limits = env.tasks("train")[0], EpisodeLimits(5, 20.0, retries=2)
        attempts = asyncio.run(play_until_valid(item, env.new_session, plain, policy, limits))
    assert (len(attempts), attempts[-1].stop, attempts[-1].reward) == (1, StopReason.TERMINATED, 1.0)
    assert [text.partition(":")[0] for text in attempts[-1].replays] == [LOST_CONNECTION]
    assert server.connections == before + 2
    summary = summarize_episode(attempts[-1], replays=1, lost_connections=count_lost_connections(attempts))
    assert episode_metrics([summary])["env/lost_connections"] == 1.0


def test_an_error_of_a_lost_connection_keeps_its_words_on_the_way_from_a_host():
    error = ConnectionLostError("http://a.test: gone")
    assert str(pickle.loads(pickle.dumps(error))) == str(error) == "lost connection: http://a.test: gone"
    assert isinstance(error, EnvError)
