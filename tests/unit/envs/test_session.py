"""Sessions in threads: a blocking or failing adapter does not stop the event loop, and its thread ends."""

import asyncio
import threading
import time

import pytest

from tests.support.fakes import ITEM, ScriptedPolicy, Talk, plain, talk_class
from tests.support.hosted import Obedient
from verl_agent.envs.hosts.host import CallLimits
from verl_agent.envs.hosts.local import inline_pool
from verl_agent.envs.hosts.slot import PoolLimits
from verl_agent.envs.session import PooledEnv
from verl_agent.errors import EnvError, UnknownSessionError
from verl_agent.rollout.episode import EpisodeLimits, play_episode
from verl_agent.types import Episode, StopReason


def session_threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("env-")}


def gone(before: set[str], within_s: float = 5.0) -> bool:
    """Return True if all session threads that are not in `before` end in time."""
    end = time.monotonic() + within_s
    while session_threads() - before and time.monotonic() < end:
        time.sleep(0.01)
    return not session_threads() - before


async def one(talk: type[Talk], timeout_s: float = 5.0, **options) -> Episode:
    pool = inline_pool(talk(**options), CallLimits(timeout_s, grace_s=0.1), PoolLimits())
    try:
        return await play_episode(
            ITEM, PooledEnv(talk(), pool), plain(), ScriptedPolicy(["a", "b"]), EpisodeLimits(2, None)
        )
    finally:
        await pool.shutdown()


def test_a_pooled_session_plays_like_its_adapter():
    episode = asyncio.run(one(talk_class(), turns=2))
    assert (episode.stop, episode.reward, len(episode.turns)) == (StopReason.TERMINATED, 1.0, 2)


def test_all_calls_of_a_session_run_in_its_own_thread():
    talk = talk_class()
    asyncio.run(one(talk))
    (env,) = talk.played()
    (thread,) = env.threads  # made, reset, stepped and closed there
    assert thread.startswith("env-")
    assert env.closed == 1


def test_the_thread_ends_with_the_episode():
    before = session_threads()
    asyncio.run(one(talk_class()))
    assert gone(before)


def test_blocking_sessions_run_concurrently():
    async def twenty() -> list[Episode]:
        return await asyncio.gather(*(one(talk_class(), turns=1, fault="block", seconds=0.3) for _ in range(20)))

    started = time.monotonic()
    assert all(episode.valid for episode in asyncio.run(twenty()))
    assert time.monotonic() - started < 3.0  # one after another they take 6 s


@pytest.mark.parametrize("where", ["new_session", "reset", "step"])
def test_a_blocked_call_times_out_and_its_adapter_is_closed_when_it_returns(where):
    """Otherwise a browser or a server's session would stay open forever."""
    before, talk = session_threads(), talk_class()
    episode = asyncio.run(one(talk, timeout_s=0.2, fault="block", where=where, seconds=1.0))
    call = "reset" if where == "new_session" else where
    assert (episode.stop, episode.error) == (StopReason.ENV_ERROR, f"{call} took more than 0.2 s")
    assert session_threads() - before  # it cannot be ended from outside
    assert gone(before)
    assert [env.closed for env in talk.played()] == [1]


def test_a_hanging_call_times_out_and_its_adapter_is_closed():
    before, talk = session_threads(), talk_class()
    episode = asyncio.run(one(talk, timeout_s=0.2, fault="hang"))
    assert (episode.stop, episode.error) == (StopReason.ENV_ERROR, "step took more than 0.2 s")
    assert talk.played()[0].closed == 1
    assert gone(before)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"fault": "raise", "where": "new_session"}, "reset failed: ValueError: no display"),
        ({"where": "reset", "fault": "raise"}, "reset failed: KeyError: 'observation'"),
    ],
)
def test_a_failing_constructor_or_reset_ends_the_episode_with_an_error(options, error):
    before = session_threads()
    episode = asyncio.run(one(talk_class(), **options))
    cause, _, line = episode.error.partition(" (")
    assert (episode.stop, cause) == (StopReason.ENV_ERROR, error)
    assert "fakes.py:" in line
    assert gone(before)


def test_the_success_reward_is_that_of_the_adapter():
    talk = type("Talk", (Talk,), {"made": [], "success_reward": 0.5})
    assert asyncio.run(one(talk)).success_reward == 0.5


# Sessions of a pool, called by number


def converse(talk: type[Talk], work, **options):
    """Run `work(pool)` on a pool in this process."""

    async def run():
        pool = inline_pool(talk(**options), CallLimits(1.0, grace_s=0.1), PoolLimits())
        try:
            return await work(pool)
        finally:
            await pool.shutdown()

    return asyncio.run(run())


def test_a_session_that_was_never_used_closes():
    before, talk = session_threads(), talk_class()

    async def open_and_close(pool):
        await pool.close(await pool.open())
        await PooledEnv(talk(), pool).close()

    converse(talk, open_and_close)
    assert gone(before)
    assert talk.played() == []


def test_a_closed_or_unopened_session_is_unknown():
    async def close_twice(pool):
        session = await pool.open()
        await pool.close(session)
        await pool.close(session)
        for unknown in (session, 1):
            with pytest.raises(UnknownSessionError, match=f"no session {unknown}"):
                await pool.step(unknown, "a")

    converse(talk_class(), close_twice)


def test_a_step_before_the_first_reset_raises_and_keeps_the_session():
    async def step_first(pool):
        session = await pool.open()
        with pytest.raises(EnvError, match="before the first reset"):
            await pool.step(session, "a")
        await pool.reset(session, ITEM)
        return await pool.step(session, "a")

    assert converse(talk_class(), step_first).observation == "heard 1"


def test_a_second_reset_uses_a_fresh_instance():
    """An instance plays one episode; AgentGym's clients play many in one session."""
    talk = talk_class()

    async def twice(pool):
        session = await pool.open()
        for _ in range(2):
            await pool.reset(session, ITEM)
            assert (await pool.step(session, "a")).observation == "heard 1"

    converse(talk, twice)
    assert [(env.resets, env.closed) for env in talk.played()] == [(1, 1), (1, 1)]


def test_calls_of_one_session_run_one_after_another():
    async def together(pool):
        session = await pool.open()
        await pool.reset(session, ITEM)
        started = time.monotonic()
        await asyncio.gather(*(pool.step(session, "sleep 0.1") for _ in range(3)))
        return time.monotonic() - started

    assert converse(Obedient, together) >= 0.3


def test_closing_a_session_ends_its_running_call():
    talk = talk_class()

    async def close_in_the_middle(pool):
        session = await pool.open()
        await pool.reset(session, ITEM)
        step = asyncio.create_task(pool.step(session, "a"))
        await asyncio.sleep(0.05)
        await pool.close(session)
        with pytest.raises(UnknownSessionError, match="closed during the call"):
            await step

    converse(talk, close_in_the_middle, fault="hang")
    assert talk.played()[0].closed == 1


def test_sys_exit_in_an_adapter_ends_neither_its_thread_nor_the_process():
    async def leave(pool):
        session = await pool.open()
        await pool.reset(session, ITEM)
        with pytest.raises(EnvError, match="step failed: SystemExit: 3"):
            await pool.step(session, "exit")
        return await pool.step(session, "hello")

    assert converse(Obedient, leave).observation == "2"
