"""Host processes: a killed or frozen host ends only its own sessions, and no process outlives the pool."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import psutil
import pytest

from tests import ROOT
from tests.support.attempts import play_until_valid
from tests.support.escapes import WAYS, left
from tests.support.fakes import ScriptedPolicy, plain
from tests.support.hosted import ITEM, Obedient, Patient
from tests.support.pool_process import CALLS, LIMITS, SMALL, begun, host_of, until
from verl_agent.envs.base import EnvAdapter, Hosting
from verl_agent.envs.hosts.host import CallLimits
from verl_agent.envs.hosts.link import MAX_BYTES
from verl_agent.envs.hosts.local import process_pool
from verl_agent.envs.hosts.pool import HostPool
from verl_agent.envs.hosts.slot import PoolLimits
from verl_agent.envs.machine.memory import MemoryGauge
from verl_agent.envs.registry import make_env
from verl_agent.envs.session import PooledEnv
from verl_agent.errors import ConfigError, EnvError, HostLostError, UnknownSessionError
from verl_agent.rollout.episode import EpisodeLimits
from verl_agent.types import Episode, StopReason


def with_pool(
    work: Callable[[HostPool], Awaitable[Any]],
    adapter: type[EnvAdapter] = Obedient,
    options: dict[str, Any] | None = None,
    calls: CallLimits = CALLS,
    hosting: Hosting = SMALL,
    limits: PoolLimits = LIMITS,
) -> Any:
    """Run `work` on a pool of processes and check that none of its processes remains."""

    async def run() -> Any:
        pool = process_pool(adapter(**options or {}), calls, limits, hosting)
        try:
            return await work(pool)
        finally:
            await pool.shutdown()

    before = psutil.Process().children()  # such as the browser driver of an earlier test
    found = asyncio.run(run())
    assert [child for child in psutil.Process().children() if child not in before] == []
    return found


async def four(pool: HostPool) -> list[int]:
    """Open two sessions on each of two hosts."""
    sessions = [await begun(pool) for _ in range(4)]
    assert host_of(pool, sessions[0]) == host_of(pool, sessions[1]) != host_of(pool, sessions[2])
    return sessions


def test_sessions_run_in_host_processes():
    async def ask(pool):
        session = await begun(pool)
        return int((await pool.step(session, "pid")).observation), host_of(pool, session).pid

    told, known = with_pool(ask)
    assert told == known != os.getpid()


@pytest.mark.parametrize("verb", ["die", "freeze"])
def test_a_dead_host_ends_only_its_own_sessions_and_is_replaced(verb):
    async def lose(pool):
        bad, mate, other, another = await four(pool)
        slow = asyncio.create_task(pool.step(mate, "sleep 19"))
        survivor = asyncio.create_task(pool.step(other, "sleep 1"))
        await asyncio.sleep(0.1)
        with pytest.raises(HostLostError):
            await pool.step(bad, verb)
        with pytest.raises(HostLostError):
            await slow
        with pytest.raises(UnknownSessionError):
            await pool.step(mate, "hello")
        assert (await survivor).observation == "None"
        assert (await pool.step(another, "hello")).observation == "1"
        fresh = [await begun(pool) for _ in range(4)]
        assert len({host_of(pool, session).pid for session in [*fresh, other]}) == 2
        return pool.stats()

    stats = with_pool(lose, limits=replace(LIMITS, frozen_s=4.0) if verb == "freeze" else LIMITS)
    assert (stats["hosts"], stats["hosts_lost"], stats["sessions"]) == (2, 1, 6)


def test_a_host_killed_while_idle_is_detected():
    async def kill(pool):
        session = await begun(pool)
        host_of(pool, session).kill()
        await until(lambda: pool.stats()["hosts_lost"] == 1)
        with pytest.raises(UnknownSessionError):
            await pool.step(session, "hello")

    with_pool(kill)


def test_episodes_of_a_killed_host_are_retried():
    scripts = iter([["hello", "die"], *[["sleep 0.3", "sleep 0.3", "end"]] * 20])  # the first try of the first kills

    async def play(pool):
        async def one() -> list[Episode]:
            limits = EpisodeLimits(3, None, retries=4)
            return await play_until_valid(
                ITEM, lambda: PooledEnv(Obedient(), pool), plain, lambda: ScriptedPolicy(next(scripts)), limits
            )

        return await asyncio.gather(*(one() for _ in range(8)))

    played = with_pool(play)
    assert all(tries[-1].stop is StopReason.TERMINATED for tries in played)
    # The first try of another session has no turn if the culprit killed its second host too before it had played one.
    (culprit,) = (tries for tries in played if [turn.action for turn in tries[0].turns[:1]] == ["hello"])
    assert len(culprit) == 2 and len(culprit[0].replays) == 1, "its action kills the host again in the replay"
    lost = [tries for tries in played if tries[0].replays]
    assert len(lost) > 1
    assert all("died" in error for tries in lost for error in tries[0].replays)


def test_a_hanging_call_ends_only_its_session():
    async def hang(pool):
        bad, good = await begun(pool), await begun(pool)
        steps = await asyncio.gather(pool.step(bad, "block 60"), pool.step(good, "sleep 0.5"), return_exceptions=True)
        await until(lambda: pool.stats()["threads_stuck"] == 1)
        return [str(step) for step in steps[:1]], (await pool.step(good, "hello")).observation

    error, observation = with_pool(hang, calls=CallLimits(1.0, 60.0, grace_s=0.2))
    assert (error, observation) == (["step took more than 1 s"], "2")


def test_with_zero_threads_sessions_run_in_the_hosts_loop():
    async def ask(pool):
        sessions = [await begun(pool) for _ in range(2)]
        threads = {(await pool.step(session, "thread")).observation for session in sessions}
        hang, answer, fault = await asyncio.gather(
            pool.step(sessions[0], "sleep 60"),
            pool.step(sessions[1], "sleep 0.2"),
            pool.step(await begun(pool), "exit"),
            return_exceptions=True,
        )
        with pytest.raises(UnknownSessionError):
            await pool.step(sessions[0], "hello")
        return threads, str(hang), answer.observation, str(fault).partition(" (")[0], pool.stats()["hosts_lost"]

    found = with_pool(ask, calls=CallLimits(1.0, 60.0, grace_s=0.2), hosting=Hosting(threads=0, busy=8))
    assert found == ({"MainThread"}, "step took more than 1 s", "None", "step failed: SystemExit: 3", 0)


def test_with_zero_threads_a_call_that_never_returns_kills_the_host():
    async def block(pool):
        bad, other = await begun(pool), await begun(pool)
        with pytest.raises(HostLostError):
            await pool.step(bad, "block 60")
        with pytest.raises(UnknownSessionError):
            await pool.step(other, "hello")
        return (await pool.step(await begun(pool), "hello")).observation

    limits = replace(LIMITS, frozen_s=2.0)
    assert with_pool(block, hosting=Hosting(threads=0, busy=8), limits=limits) == "1"


def test_idle_sessions_are_closed_in_their_host(tmp_path):
    async def leave(pool):
        await begun(pool)
        await until(lambda: pool.stats()["reaped"] == 1)
        return pool.stats()["sessions"]

    note = tmp_path / "note"
    assert with_pool(leave, options={"note": str(note)}, calls=CallLimits(5.0, idle_s=0.3)) == 0
    assert note.read_text() == "closed\n"


def test_memory_includes_the_child_processes_of_the_host():
    gauge = MemoryGauge(every_s=0.0)
    alone = gauge()
    script = "import time; held = b'x' * 100 * 2**20; print(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        together = gauge()
        child.kill()
    assert 100 < together - alone < 150


@pytest.mark.parametrize("blocks", [False, True])
def test_sessions_that_wait_run_concurrently(blocks):
    sessions, seconds, steps = 256, 0.2, 3

    async def play(pool):
        async def one() -> list[Episode]:
            limits = EpisodeLimits(steps, None)
            return await play_until_valid(
                ITEM, lambda: PooledEnv(Patient(), pool), plain, lambda: ScriptedPolicy(["wait"] * steps), limits
            )

        played = await asyncio.gather(*(one() for _ in range(sessions)))
        return [tries[-1] for tries in played]

    started = time.monotonic()
    hosting = Hosting(sessions=sessions // 2, busy=1)
    episodes = with_pool(play, Patient, {"seconds": seconds, "blocks": blocks}, hosting=hosting)
    assert sum(episode.valid for episode in episodes) >= 0.95 * sessions
    assert time.monotonic() - started < sessions * steps * seconds / 3  # one after another they take 154 s


# What travels


@pytest.mark.parametrize(
    ("adapter", "action", "error"),
    [
        (Obedient, "x" * (MAX_BYTES + 1), "at most 16,777,216 are sent"),
        (Obedient, "raise", "step failed: KeyError: 'observation'"),
        (Obedient, "exit", "step failed: SystemExit: 3"),
    ],
)
def test_an_error_reaches_the_caller_and_the_host_continues(adapter, action, error):
    async def fail(pool):
        session = await begun(pool)
        with pytest.raises(EnvError, match=error):
            await pool.step(session, action)
        await pool.reset(session, ITEM)
        return pool.stats()["hosts_lost"]

    assert with_pool(fail, adapter) == 0


def test_large_observations_reach_the_caller():
    async def write(pool):
        return len((await pool.step(await begun(pool), "write 900000")).observation)

    assert with_pool(write) == 900_000


def test_a_class_that_a_host_cannot_import_raises_config_error():
    class Local(Obedient):
        """A class that no other process can import."""

    async def begin(pool):
        with pytest.raises(ConfigError, match="top level of a module"):
            await begun(pool)

    with_pool(begin, Local)


def test_an_environment_that_fails_without_a_text_when_it_is_sent_raises_config_error():
    class Stuck(Obedient):
        def __reduce__(self) -> tuple[Any, ...]:
            raise ValueError

    async def begin(pool):
        with pytest.raises(ConfigError, match="cannot be sent to a host process: ValueError"):
            await begun(pool)

    with_pool(begin, Stuck)


# The end


def test_shutdown_closes_sessions_and_ends_their_child_processes(tmp_path):
    note = tmp_path / "note"

    async def leave_open(pool):
        sessions = await four(pool)
        return [int((await pool.step(session, f"spawn {way}")).observation) for session in sessions for way in WAYS]

    started = with_pool(leave_open, options={"note": str(note)})
    assert note.read_text() == "closed\n" * 4
    assert left(started) == []


def test_children_end_with_a_host_that_is_killed():
    async def kill(pool):
        session = await begun(pool)
        spawned = [int((await pool.step(session, f"spawn {way}")).observation) for way in WAYS]
        host_of(pool, session).kill()
        await until(lambda: pool.stats()["hosts_lost"] == 1)
        return spawned

    assert left(with_pool(kill)) == []


@pytest.mark.parametrize("verb", ["sleep 60", "freeze"])
def test_hosts_and_their_children_end_with_a_killed_pool(verb):
    command = [sys.executable, "-m", "tests.support.pool_process", verb]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT)
    assert parent.stdout is not None
    pids = json.loads(parent.stdout.readline())
    time.sleep(0.3)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert len(pids) == 2 + 2 * len(WAYS) and left(pids) == []


def test_thousands_of_episodes_leak_no_memory_files_or_threads():
    env = make_env("guess_number")
    item = env.tasks("test")[0]
    episodes, at_once = 2000, 50
    others = psutil.Process().children()  # such as the browser driver of an earlier test

    def own() -> list[psutil.Process]:
        return [psutil.Process(), *(child for child in psutil.Process().children() if child not in others)]

    def used(processes: list[psutil.Process]) -> list[tuple[int, int]]:
        return [(process.num_fds(), process.num_threads()) for process in processes]

    async def play(pool):
        async def one(number: int) -> None:
            session = await pool.open()
            await pool.reset(session, item)
            await pool.step(session, "Action: 1")
            if number % 10:
                await pool.close(session)

        async def some(count: int) -> None:
            for first in range(0, count, at_once):
                await asyncio.gather(*(one(number) for number in range(first, first + at_once)))
            await until(lambda: pool.stats()["sessions"] == 0)

        await some(200)
        processes = own()
        await until(lambda: used(processes)[1][1] < 6)
        before, memory = used(processes), processes[1].memory_info().rss
        await some(episodes)
        await until(lambda: used(processes) == before)
        assert own() == processes
        return processes[1].memory_info().rss - memory, pool.stats()

    calls, limits = CallLimits(20.0, idle_s=2.0), replace(LIMITS, count=1)
    grown, stats = with_pool(play, type(env), calls=calls, hosting=Hosting(sessions=200), limits=limits)
    assert (stats["opened"], stats["closed"], stats["reaped"]) == (2200, 1980, 220)
    assert grown < 8 * 2**20
