"""Whatever an adapter does in its thread, the event loop goes on and the thread ends."""

import asyncio
import threading
import time

import pytest

from tests.fakes import ITEM, ScriptedPolicy, Talk, talk_class
from verl_agent.envs.session import ThreadedEnv
from verl_agent.rollout.episode import EpisodeLimits, play
from verl_agent.types import Episode, StopReason


def session_threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("env-")}


def gone(before: set[str], within_s: float = 5.0) -> bool:
    """Whether all session threads that are not in `before` end in time."""
    end = time.monotonic() + within_s
    while session_threads() - before and time.monotonic() < end:
        time.sleep(0.01)
    return not session_threads() - before


async def one(talk: type[Talk], timeout_s: float = 5.0, **options) -> Episode:
    return await play(ITEM, ThreadedEnv(talk, options), ScriptedPolicy(["a", "b"]), EpisodeLimits(2, timeout_s))


def test_a_session_plays_like_its_adapter():
    episode = asyncio.run(one(talk_class(), turns=2))
    assert (episode.stop, episode.reward, len(episode.turns)) == (StopReason.TERMINATED, 1.0, 2)


def test_the_adapter_lives_in_one_thread_of_its_own():
    talk = talk_class()
    asyncio.run(one(talk))
    (env,) = talk.made
    (thread,) = env.threads  # made, reset, stepped and closed there
    assert thread.startswith("env-")
    assert env.closed == 1


def test_the_thread_ends_with_the_episode():
    before = session_threads()
    asyncio.run(one(talk_class()))
    assert gone(before)


def test_a_blocking_adapter_does_not_stop_the_event_loop():
    async def tick_meanwhile() -> int:
        ticks = 0
        episode = asyncio.create_task(one(talk_class(), turns=1, fault="block", seconds=0.5))
        while not episode.done():
            await asyncio.sleep(0.01)
            ticks += 1
        assert (await episode).stop is StopReason.TERMINATED
        return ticks

    assert asyncio.run(tick_meanwhile()) >= 5  # a stopped loop ticks once


def test_blocking_sessions_wait_side_by_side():
    async def twenty() -> list[Episode]:
        return await asyncio.gather(*(one(talk_class(), turns=1, fault="block", seconds=0.3) for _ in range(20)))

    started = time.monotonic()
    assert all(episode.sound for episode in asyncio.run(twenty()))
    assert time.monotonic() - started < 3.0  # one after another they take 6 s


@pytest.mark.parametrize("where", ["init", "reset", "step"])
def test_a_blocked_thread_is_timed_out_and_ends_when_its_call_returns(where):
    before = session_threads()
    episode = asyncio.run(one(talk_class(), timeout_s=0.05, fault="block", where=where, seconds=0.3))
    call = "reset" if where == "init" else where
    assert (episode.stop, episode.error) == (StopReason.ENV_ERROR, f"{call} took more than 0.05 s")
    assert session_threads() - before  # it cannot be ended from outside
    assert gone(before)


def test_a_hang_is_timed_out_and_its_adapter_is_closed():
    before, talk = session_threads(), talk_class()
    episode = asyncio.run(one(talk, timeout_s=0.2, fault="hang"))
    assert (episode.stop, episode.error) == (StopReason.ENV_ERROR, "step took more than 0.2 s")
    assert talk.made[0].closed == 1
    assert gone(before)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"fault": "raise", "where": "init"}, "reset failed: ValueError: no display"),
        ({"where": "reset", "fault": "raise"}, "reset failed: KeyError: 'observation'"),
        ({"colour": "red"}, "reset failed: TypeError: Talk.__init__() got an unexpected keyword argument 'colour'"),
    ],
)
def test_an_adapter_that_does_not_start_is_an_error_of_the_episode(options, error):
    before = session_threads()
    episode = asyncio.run(one(talk_class(), **options))
    assert (episode.stop, episode.error) == (StopReason.ENV_ERROR, error)
    assert gone(before)


def test_the_adapter_decides_what_success_is():
    talk = type("Talk", (Talk,), {"made": [], "success_reward": 0.5})
    assert asyncio.run(one(talk)).success_reward == 0.5


def test_a_session_that_was_never_used_closes():
    before, talk = session_threads(), talk_class()
    asyncio.run(ThreadedEnv(talk, {}).close())
    assert gone(before)
    assert talk.made == []


def test_a_session_lists_no_tasks():
    with pytest.raises(TypeError, match="ask the adapter's class"):
        ThreadedEnv.tasks("train")


@pytest.mark.parametrize("where", ["init", "reset", "step"])
def test_a_blocked_adapter_is_closed_when_its_call_returns(where):
    """Else a browser or a server's session stays open for ever (fault 7)."""
    before, talk = session_threads(), talk_class()
    asyncio.run(one(talk, timeout_s=0.05, fault="block", where=where, seconds=0.2))
    assert gone(before)
    assert [env.closed for env in talk.made] == [1]


def test_a_session_may_be_closed_twice():
    async def close_twice() -> None:
        session = ThreadedEnv(talk_class(), {})
        await session.reset(ITEM)
        await session.close()
        async with asyncio.timeout(1.0):
            await session.close()

    asyncio.run(close_twice())
