"""64 sessions of the terminal at once, and hosts that are killed with open sessions."""

import asyncio
import time

import psutil
import pytest

from env_adapters.terminal.adapter import Terminal
from tests.support.sandboxes import left, need
from verl_agent.envs.hosts.host import CallLimits
from verl_agent.envs.hosts.local import process_pool
from verl_agent.envs.hosts.slot import PoolLimits
from verl_agent.envs.machine.memory import MemoryGauge

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SESSIONS, ROUNDS = 64, 2


def test_many_sessions_at_once_solve_their_tasks_and_leave_nothing():
    """Every eighth session hangs, forks or fills its disk before it is closed without an end."""
    need()
    env = Terminal(limits={"command_s": 4})
    items = [*env.tasks("train"), *env.tasks("test")]
    wild = ["sleep 300 & sleep 98763", ":(){ :|:& };:", "cat /dev/zero > big; cat /dev/zero > /tmp/big"]
    durations: list[float] = []

    async def one(pool, number: int, together: asyncio.Barrier) -> float:
        item, session = items[number * 3 % len(items)], await pool.open()
        await pool.reset(session, item)
        await together.wait()
        reward = 0.0
        for action in [wild[number // 8 % 3]] if number % 8 == 0 else [one.action for one in env.demonstration(item)]:
            began = time.monotonic()
            reward = (await pool.step(session, action)).reward
            durations.append(time.monotonic() - began)
        await pool.close(session)
        return reward

    async def soak() -> tuple[list[float], float, float, int]:
        pool = process_pool(env, CallLimits(120.0), PoolLimits())
        rewards: list[float] = []
        gauge, began = MemoryGauge(every_s=0.0), time.monotonic()
        most, inside = 0.0, 0
        try:
            for turn in range(ROUNDS):
                barrier = asyncio.Barrier(SESSIONS + 1)
                plays = [asyncio.create_task(one(pool, turn * SESSIONS + n, barrier)) for n in range(SESSIONS)]
                await barrier.wait()
                most, inside = max(most, gauge()), max(inside, len(psutil.Process().children(recursive=True)))
                rewards += await asyncio.gather(*plays)
        finally:
            await pool.shutdown()
        return rewards, time.monotonic() - began, most, inside

    rewards, seconds, most, inside = asyncio.run(soak())
    assert sum(rewards) == ROUNDS * SESSIONS * 7 / 8
    assert left("98763") == [] and psutil.Process().children(recursive=True) == []
    durations.sort()
    print(  # noqa: T201 - figures for the data sheet
        f"\n{ROUNDS} times {SESSIONS} sessions at once: {seconds:.1f} s, {inside} processes, {most:.0f} MiB (RSS); "
        f"a step took {durations[len(durations) // 2]:.2f} s (median), {durations[-1]:.1f} s (longest)."
    )
