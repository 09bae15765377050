"""Tests of the environment `http` with several servers, full servers and failing servers."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import ExitStack

import httpx
import pytest

from env_adapters.guess_number.adapter import GuessNumber
from tests.support.http_episodes import options, solve, unused_url
from tests.support.serving import pool_of, serving
from tests.support.waiting import wait_until
from verl_agent.envs.http.client import HttpEnv
from verl_agent.envs.http.run_server import bind_listener, url_of
from verl_agent.envs.http.server_pool import ServerPool
from verl_agent.envs.http.settings import ServerLimits
from verl_agent.envs.http.transport import transport
from verl_agent.envs.registry import make_env
from verl_agent.envs.tasks import select_tasks
from verl_agent.errors import (
    LOST_CONNECTION,
    EnvCrashError,
    EnvError,
    EnvTimeoutError,
    PoolFullError,
    UnknownSessionError,
)
from verl_agent.types import StepResult, StopReason, TaskItem


def test_a_dead_server_gets_no_sessions():
    with serving("guess_number", pool_of(GuessNumber)) as running:
        chosen = options("guess_number", unused_url(), running.url, unused_url())
        items = select_tasks(make_env("http", chosen), "test")
        episodes = [asyncio.run(solve(item, chosen, [f"Action: {item.id.split(':')[1]}"])) for item in items[:4]]
        assert [episode.reward for episode in episodes] == [1.0] * 4
        assert running.pool.stats()["opened"] == 4


def test_a_reset_that_fails_leaves_no_session_on_the_server():
    with serving("guess_number", pool_of(GuessNumber)) as running:
        session = HttpEnv(**options("guess_number", running.url))
        with pytest.raises(EnvError, match="there is no item 'no-such-task'"):
            asyncio.run(session.reset(TaskItem("guess_number", "no-such-task")))
        assert running.pool.stats()["opened"] == 1
        wait_until(lambda: len(running.server.sessions) == 0)


def test_a_session_opens_on_the_server_with_the_fewest_sessions():
    with ExitStack() as stack:
        servers = [stack.enter_context(serving("guess_number", pool_of(GuessNumber))) for _ in range(3)]
        chosen = options("guess_number", *[server.url for server in servers])
        item = TaskItem("guess_number", "100:7")

        async def open_nine() -> list[HttpEnv]:
            envs = [HttpEnv(**chosen) for _ in range(9)]
            await asyncio.gather(*[env.reset(item) for env in envs])
            return envs

        envs = asyncio.run(open_nine())
        assert [len(server.server.sessions) for server in servers] == [3, 3, 3]

        async def close_all() -> None:
            await asyncio.gather(*[env.close() for env in envs])

        asyncio.run(close_all())
        assert [len(server.server.sessions) for server in servers] == [0, 0, 0]


def test_a_full_server_is_skipped():
    with ExitStack() as stack:
        servers = [stack.enter_context(serving("guess_number", pool_of(GuessNumber, slots=n))) for n in (1, 3)]
        chosen = options("guess_number", *[server.url for server in servers])

        async def open_four() -> None:
            envs = [HttpEnv(**chosen) for _ in range(4)]
            await asyncio.gather(*[env.reset(TaskItem("guess_number", "100:7")) for env in envs])
            for env in envs:
                await env.close()

        asyncio.run(open_four())
        assert [server.pool.stats()["opened"] for server in servers] == [1, 3]


def test_a_session_waits_for_a_free_slot():
    with serving("guess_number", pool_of(GuessNumber, slots=1)) as running:
        chosen, item = options("guess_number", running.url), TaskItem("guess_number", "100:7")

        async def one_after_the_other() -> None:
            first, second = HttpEnv(**chosen), HttpEnv(**chosen)
            await first.reset(item)
            waiting = asyncio.create_task(second.reset(item))
            await asyncio.sleep(0.1)
            await first.close()
            await waiting
            await second.close()

        asyncio.run(one_after_the_other())
        assert running.pool.stats()["opened"] == 2


def test_waiting_too_long_for_a_slot_ends_the_episode_with_an_error():
    with serving("guess_number", pool_of(GuessNumber), limits=ServerLimits(sessions=1)) as running:
        httpx.post(running.url + "/create")
        env = HttpEnv(**options("guess_number", running.url) | {"timeout_s": 0.2})
        with pytest.raises(PoolFullError, match="all 1 sessions are open"):
            asyncio.run(env.reset(TaskItem("guess_number", "100:7")))
        asyncio.run(env.close())


def test_a_server_that_dies_ends_the_episode_but_not_the_run():
    class Dying(GuessNumber):
        die: Callable[[], None]

        async def step(self, action: str) -> StepResult:
            threading.Thread(target=type(self).die).start()
            await asyncio.sleep(0.5)
            return await super().step(action)

    with serving("guess_number", pool_of(Dying)) as running:
        Dying.die = running.die
        chosen = options("guess_number", running.url)
        episode = asyncio.run(solve(TaskItem("guess_number", "100:7"), chosen, ["Action: 7"]))
        assert episode.stop is StopReason.ENV_ERROR
        assert episode.error.startswith(f"{LOST_CONNECTION}: {running.url}: the server closed the session")
        assert running.pool.stats()["opened"] == 1  # the step was not sent again


def test_a_server_that_stops_between_two_steps_raises_env_error():
    with serving("guess_number", pool_of(GuessNumber)) as running:
        env = HttpEnv(**options("guess_number", running.url))
        asyncio.run(env.reset(TaskItem("guess_number", "100:7")))
    with pytest.raises(EnvError, match=f"^{LOST_CONNECTION}: "):
        asyncio.run(env.step("Action: 7"))
    asyncio.run(env.close())


def test_a_session_that_was_idle_for_too_long_is_unknown():
    with serving("guess_number", pool_of(GuessNumber)) as running:
        env = HttpEnv(**options("guess_number", running.url))
        asyncio.run(env.reset(TaskItem("guess_number", "100:7")))
        running.drop_sessions()
        with pytest.raises(UnknownSessionError, match="the session has ended: there is no session"):
            asyncio.run(env.step("Action: 7"))
        asyncio.run(env.close())


def test_errors_of_the_environment_keep_their_kind():
    class Slow(GuessNumber):
        async def step(self, action: str) -> StepResult:
            await asyncio.sleep(1.0)
            raise KeyError("observation")

    for timeout_s, kind in ((0.3, EnvTimeoutError), (30, EnvCrashError)):
        with serving("guess_number", pool_of(Slow, timeout_s=timeout_s)) as running:
            env = HttpEnv(**options("guess_number", running.url))
            try:
                asyncio.run(env.reset(TaskItem("guess_number", "100:7")))
            except EnvTimeoutError:
                continue  # a busy machine
            with pytest.raises(EnvError) as error:
                asyncio.run(env.step("Action: 7"))
            assert type(error.value) is kind
            asyncio.run(env.close())


def test_a_cancelled_call_frees_its_slot():
    """An episode that is cancelled while it waits must not count as a session of that server."""

    async def give_up(url: str) -> dict[str, int]:
        server_pool = ServerPool([url])
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await server_pool.place(lambda url, timeout_s: transport().request("GET", url, None, timeout_s), 10)
        return server_pool.load

    with bind_listener("127.0.0.1", 0) as hanging:  # takes connections and never answers
        url = url_of(hanging)
        assert transport().submit(give_up(url)).result() == {url: 0}


def test_a_step_before_the_first_reset_raises_env_error():
    with pytest.raises(EnvError, match="before the first reset"):
        asyncio.run(HttpEnv("textcraft", "http://127.0.0.1:1").step("x"))
