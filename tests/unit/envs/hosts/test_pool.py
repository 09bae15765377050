"""HostPool: assigning sessions to hosts, limits, idle sessions, and replacement of hosts."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.support.fakes import talk_class
from tests.support.hosted import ITEM, Obedient
from tests.support.pool_process import begun, until
from verl_agent.envs.base import Hosting
from verl_agent.envs.hosts.host import CallLimits, HostHealth
from verl_agent.envs.hosts.link import InlineLink
from verl_agent.envs.hosts.local import inline_pool, local_pool
from verl_agent.envs.hosts.loops import Call, InlineLoop
from verl_agent.envs.hosts.pool import HostPool
from verl_agent.envs.hosts.slot import PoolLimits, retirement_reason
from verl_agent.envs.session import PooledEnv
from verl_agent.envs.settings import EnvSettings, HostSettings
from verl_agent.errors import ConfigError, EnvError, EnvTimeoutError, HostLostError, PoolFullError, UnknownSessionError

SMALL = Hosting(sessions=4, busy=2)
QUICK = CallLimits(timeout_s=0.5, idle_s=60.0, grace_s=0.2)
LIMITS = PoolLimits(count=2, cores=2, wait_s=0.1, ping_s=0.05, frozen_s=0.5)


def with_pool(
    work: Callable[[HostPool], Awaitable[Any]],
    hosting: Hosting = SMALL,
    calls: CallLimits = QUICK,
    limits: PoolLimits = LIMITS,
    adapter: type = Obedient,
) -> Any:
    """Run `work` on a pool in this process."""

    async def run() -> Any:
        pool = inline_pool(adapter(), calls, limits, hosting)
        try:
            return await work(pool)
        finally:
            await pool.shutdown()

    return asyncio.run(run())


# Places


@pytest.mark.parametrize(
    ("cores", "hosts"),
    [
        (2, [1, 1, 2, 2, 2, 2, 2, 2]),  # busy=2, count=2
        (
            1,
            [1, 1, 1, 1, 2, 2, 2, 2],
        ),  # sessions=4: no host besides those of the cores starts before the others are full
    ],
)
def test_another_host_starts_when_the_others_are_busy_or_full(cores, hosts):
    async def fill(pool):
        hosts = []
        for _ in range(8):
            await pool.open()
            hosts.append(pool.stats()["hosts"])
        return hosts

    assert with_pool(fill, limits=PoolLimits(count=2, cores=cores)) == hosts


def test_a_session_opens_in_the_host_with_the_fewest_sessions():
    async def play(pool):
        first = [await pool.open() for _ in range(4)]
        for session in first[:2]:  # both on the first host
            await pool.close(session)
        second = [await pool.open() for _ in range(2)]
        return [pool.link(session) for session in first[2:] + second]

    on_second, also, third, fourth = with_pool(play)
    assert on_second is also and third is fourth and third is not on_second


def test_open_waits_in_a_full_pool_and_then_raises():
    async def overfill(pool):
        sessions = [await pool.open() for _ in range(8)]
        with pytest.raises(PoolFullError, match=r"no slot .* in 0\.1 s: 2 hosts hold 4 sessions each"):
            await pool.open()
        waiting = asyncio.create_task(pool.open())
        await asyncio.sleep(0.02)
        assert pool.stats()["waiting"] == 1
        await pool.close(sessions[0])
        assert await waiting
        return pool.stats()

    stats = with_pool(overfill)
    assert (stats["sessions"], stats["waiting"], stats["opened"], stats["closed"]) == (8, 0, 9, 1)


def test_a_cancelled_open_takes_no_slot():
    async def give_up(pool):
        sessions = [await pool.open() for _ in range(8)]
        waiting = asyncio.create_task(pool.open())
        await asyncio.sleep(0.01)
        waiting.cancel()
        await pool.close(sessions[0])
        await pool.open()

    with_pool(give_up)


def test_a_cancelled_close_still_closes_the_session():
    async def close_impatiently(pool):
        session = await begun(pool)
        task = asyncio.create_task(pool.step(session, "block 1"))
        await asyncio.sleep(0.05)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await pool.close(session)
        with pytest.raises(UnknownSessionError):
            await task
        await until(lambda: pool.stats()["closed"] == 1)

    with_pool(close_impatiently, calls=CallLimits(timeout_s=9.0, grace_s=0.5))


# Calls that fail


def test_a_hanging_call_ends_only_its_session():
    async def hang(pool):
        bad, good = await begun(pool), await begun(pool)
        with pytest.raises(EnvTimeoutError, match=r"step took more than 0\.5 s"):
            await pool.step(bad, "sleep 5")
        with pytest.raises(UnknownSessionError):
            await pool.step(bad, "hello")
        return (await pool.step(good, "hello")).observation, pool.stats()

    observation, stats = with_pool(hang)
    assert (observation, stats["sessions"], stats["env_errors"]) == ("1", 1, 1)


def test_a_timed_out_session_frees_its_slot():
    async def hang(pool):
        for _ in range(3):
            sessions = [await begun(pool) for _ in range(8)]
            await asyncio.gather(*(pool.step(session, "sleep 5") for session in sessions), return_exceptions=True)
        return pool.stats()["sessions"]

    assert with_pool(hang) == 0


def test_an_error_of_the_adapter_keeps_its_session_open():
    async def fail(pool):
        session = await begun(pool)
        with pytest.raises(EnvError, match="step failed: KeyError: 'observation'"):
            await pool.step(session, "raise")
        return pool.stats()

    stats = with_pool(fail)
    assert (stats["env_errors"], stats["sessions"]) == (1, 1)


def test_a_failure_names_the_adapters_line_and_is_logged_once(caplog):
    async def fail(pool):
        session, errors = await begun(pool), []
        for _ in range(3):
            with pytest.raises(EnvError) as error:
                await pool.step(session, "raise")
            errors.append(str(error.value))
        return errors

    assert all("tests/support/hosted.py:" in error for error in with_pool(fail))
    (record,) = [record for record in caplog.records if "KeyError" in record.getMessage()]
    assert record.exc_info is not None


class Refused(EnvError):
    """An adapter's own error class, with another constructor."""

    def __init__(self, site: str, code: int) -> None:
        super().__init__(f"{site} answered {code}")


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (Refused("shop", 503), EnvError, "shop answered 503"),
        (ConfigError("env.options.url is not set."), ConfigError, "env.options.url is not set."),
    ],
)
def test_deliberate_errors_keep_their_kind_and_can_be_pickled(error, kind, text):
    class Failing(Obedient):
        async def reset(self, item):
            raise error

    async def begin(pool):
        with pytest.raises(kind) as raised:
            await begun(pool)
        return raised.value

    raised = with_pool(begin, adapter=Failing)
    assert (type(raised), str(raised)) == (kind, text)


class Mute(Exception):
    """Exception whose text cannot be made."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class MuteEnvError(EnvError, Mute):
    """The same as an error that is raised on purpose."""

    __str__ = Mute.__str__


@pytest.mark.parametrize("error", [Mute(), MuteEnvError()])
def test_an_exception_whose_text_cannot_be_made_ends_its_call(error):
    class Failing(Obedient):
        async def reset(self, item):
            raise error

    with pytest.raises(EnvError, match="its text cannot be made"):
        with_pool(begun, adapter=Failing)


def test_a_call_whose_error_cannot_be_made_raises_the_reason():
    def failed(name: str, error: BaseException) -> Exception:
        raise LookupError(name)

    async def fail() -> None:
        raise KeyError

    async def call() -> None:
        one: Call[None] = Call(InlineLoop(), "step", 60.0, asyncio.Lock(), failed)
        one.start(fail)
        await asyncio.wait_for(one.answer, 30)

    with pytest.raises(LookupError, match="step"):
        asyncio.run(call())


# Sessions and hosts that are given up


def test_an_idle_session_is_closed_and_frees_its_slot():
    talk = talk_class()

    async def leave(pool):
        sessions = [await begun(pool) for _ in range(8)]
        await until(lambda: pool.stats()["reaped"] == 8)
        with pytest.raises(UnknownSessionError):
            await pool.step(sessions[0], "a")
        return pool.stats()["sessions"]

    assert with_pool(leave, calls=CallLimits(5.0, idle_s=0.2), adapter=talk) == 0
    assert [env.closed for env in talk.played()] == [1] * 8


def test_a_session_in_a_long_call_is_not_idle():
    async def work(pool):
        return (await pool.step(await begun(pool), "sleep 0.4")).observation

    assert with_pool(work, calls=CallLimits(5.0, idle_s=0.1)) == "None"


def test_a_retired_host_takes_no_sessions_and_ends_with_its_last():
    async def serve(pool):
        old = await begun(pool)
        for _ in range(3):
            await pool.reset(old, ITEM)
        await until(lambda: pool.stats()["hosts_recycled"] == 1)
        new = await begun(pool)
        assert pool.link(new) is not pool.link(old)
        assert (await pool.step(old, "hello")).observation == "1"
        assert pool.stats()["hosts"] == 2
        await pool.close(old)
        return pool.stats()

    stats = with_pool(serve, hosting=Hosting(sessions=4, busy=2, episodes=4))
    assert (stats["hosts"], stats["hosts_lost"], stats["sessions"]) == (1, 0, 1)


def test_stuck_threads_retire_a_host():
    async def block(pool):
        sessions = [await begun(pool) for _ in range(8)]
        await asyncio.gather(*(pool.step(session, "block 4") for session in sessions), return_exceptions=True)
        await until(lambda: pool.stats()["hosts_recycled"] == 1)

    with_pool(block, hosting=Hosting(sessions=100, busy=100))


def test_sessions_of_one_thread_share_it():
    async def ask(pool):
        sessions = [await begun(pool) for _ in range(4)]
        return {(await pool.step(session, "thread")).observation for session in sessions}

    assert len(with_pool(ask, hosting=Hosting(threads=1, busy=4))) == 1
    assert len(with_pool(ask, hosting=Hosting(threads=2, busy=4))) == 2
    assert len(with_pool(ask, hosting=Hosting(busy=4))) == 4
    assert "MainThread" not in with_pool(ask, hosting=Hosting(threads=0, busy=4))  # here the loop is the caller's


def test_waiting_for_a_shared_thread_is_not_a_timeout():
    async def queue(pool):
        sessions = [await begun(pool) for _ in range(4)]
        return await asyncio.gather(*(pool.step(session, "block 0.25") for session in sessions))

    assert len(with_pool(queue, hosting=Hosting(threads=1, busy=4))) == 4  # the last one waits for long


def test_a_stuck_shared_thread_ends_its_sessions_and_its_host():
    async def block(pool):
        bad, good = await begun(pool), await begun(pool)
        steps = await asyncio.gather(pool.step(bad, "block 4"), pool.step(good, "a"), return_exceptions=True)
        await until(lambda: pool.stats()["hosts_recycled"] == 1)
        await pool.step(await begun(pool), "a")
        return [type(step) for step in steps], str(steps[1])

    kinds, why = with_pool(block, hosting=Hosting(threads=1, busy=4))
    assert kinds == [EnvTimeoutError, EnvError]
    assert why == "its shared thread is stuck in a call of another session."


@pytest.mark.parametrize(
    ("health", "reason"),
    [
        (HostHealth(frozenset(), 4, 0, 0, 2048.0), ""),
        (HostHealth(frozenset(), 3, 0, 0, 4096.0), ""),  # it takes that much from the start
        (HostHealth(frozenset(), 4, 0, 0, 4096.0), "it holds 4096 MiB, more than 2048, after 4 episodes"),
        (HostHealth(frozenset(), 20_000, 0, 0, 1.0), "it has played 20000 episodes"),
        (HostHealth(frozenset(), 4, 0, 7, 1.0), ""),
        (HostHealth(frozenset(), 4, 0, 8, 1.0), "8 of its threads are stuck"),
    ],
)
def test_reasons_to_retire_a_host(health, reason):
    assert retirement_reason(health, SMALL).startswith(reason) and bool(retirement_reason(health, SMALL)) == bool(
        reason
    )


# Hosts that do not start, or die


def custom(links: list[Any]) -> HostPool:
    """Return a pool of these hosts, in order; an exception is raised by the start of a host."""
    left = iter(links)

    async def start():
        link = next(left)
        if isinstance(link, Exception):
            raise link
        return link

    return HostPool(start, SMALL, LIMITS)


def with_hosts(links: list[Any], work: Callable[[HostPool], Awaitable[Any]]) -> Any:
    """Run `work` on a pool of these hosts; return its result and the pool's figures."""

    async def run() -> Any:
        pool = custom(links)
        try:
            return await work(pool), pool.stats()
        finally:
            await pool.shutdown()

    return asyncio.run(run())


def inline() -> InlineLink:
    return InlineLink(Obedient(), SMALL, QUICK)


class Dead(InlineLink):
    """A host that has died without being detected."""

    def __init__(self) -> None:
        super().__init__(Obedient(), SMALL, QUICK)

    async def call(self, method: str, *arguments: Any) -> Any:
        raise HostLostError("it is dead.")


class Frozen(Dead):
    """A host that never answers a health check."""

    async def call(self, method: str, *arguments: Any) -> Any:
        if method == "health":
            await asyncio.sleep(60)
        return None


def test_a_dead_host_is_replaced_while_a_session_opens():
    async def play(pool):
        await pool.step(await begun(pool), "a")

    _, stats = with_hosts([Dead(), inline()], play)
    assert (stats["hosts"], stats["hosts_lost"], stats["sessions"]) == (1, 1, 1)


def test_a_host_without_an_answer_is_stopped_with_its_sessions():
    async def play(pool):
        session = await pool.open()
        await until(lambda: pool.stats()["hosts_lost"] == 1)
        with pytest.raises(UnknownSessionError):
            await pool.step(session, "a")
        await pool.step(await begun(pool), "a")

    with_hosts([Frozen(), inline()], play)


@pytest.mark.parametrize("error", [EnvError("no display"), ConfigError("env.options.url is not set.")])
def test_open_raises_the_reason_if_no_host_starts(error):
    async def play(pool):
        with pytest.raises((EnvError, ConfigError)) as raised:
            await pool.open()
        return raised.value

    raised, stats = with_hosts([error], play)
    assert raised is error
    assert (stats["sessions"], stats["hosts"], stats["opened"]) == (0, 0, 0)


def test_the_first_host_takes_all_sessions_if_no_other_starts():
    async def play(pool):
        return [await begun(pool) for _ in range(4)]

    sessions, stats = with_hosts([inline(), EnvError("no memory")], play)
    assert (len(set(sessions)), stats["hosts"], stats["hosts_started"]) == (4, 1, 1)


def test_shutdown_ends_waiting_opens_and_refuses_new_ones():
    async def play():
        pool = inline_pool(Obedient(), QUICK, PoolLimits(count=1, wait_s=60), SMALL)
        for _ in range(4):
            await pool.open()
        waiting = asyncio.create_task(pool.open())
        await asyncio.sleep(0.01)
        await pool.shutdown()
        with pytest.raises(EnvError, match="shut down"):
            await waiting
        with pytest.raises(EnvError, match="shut down"):
            await pool.open()

    asyncio.run(play())


def test_a_step_before_the_first_reset_raises_env_error():
    async def step(pool):
        with pytest.raises(EnvError, match="before the first reset"):
            await PooledEnv(talk_class()(), pool).step("a")

    with_pool(step)


def test_section_env_determines_the_pool_and_its_limits():
    hosts = HostSettings("inline", count=1, sessions=2, wait_s=0.05)

    async def fill() -> None:
        pool = local_pool(Obedient(), EnvSettings("obedient", timeout_s=0.1, hosts=hosts))
        sessions = [await begun(pool), await begun(pool)]
        with pytest.raises(PoolFullError, match=r"1 hosts hold 2 sessions each"):
            await pool.open()
        assert isinstance(pool.link(sessions[0]), InlineLink)
        with pytest.raises(EnvTimeoutError):
            await pool.step(sessions[0], "sleep 1")
        assert (await pool.step(sessions[1], "hello")).observation
        await pool.shutdown()

    asyncio.run(fill())


@pytest.mark.parametrize(
    ("name", "least"), [("threads", 0), ("sessions", 1), ("busy", 1), ("episodes", 1), ("memory_mb", 64)]
)
def test_hosting_rejects_values_below_their_minimum(name, least):
    with pytest.raises(ConfigError, match=rf"Hosting\.{name} must be >= {least}, got {least - 1}"):
        Hosting(**{name: least - 1})


def test_settings_override_the_hosting_of_the_adapter():
    assert Hosting(sessions=64).bounded(sessions=2) == Hosting(sessions=2)
    assert Hosting(memory_mb=64).bounded(memory_mb=None) == Hosting(memory_mb=64)
