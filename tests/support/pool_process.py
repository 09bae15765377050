"""Process that owns a pool of hosts, for tests that kill it: `python -m tests.support.pool_process ACTION`.

It prints the process ids of its hosts and of child processes of each, started in all ways. Then it takes ACTION in one
session.
"""

import asyncio
import json
import sys
from collections.abc import Callable
from dataclasses import replace

import psutil

from tests.support.escapes import WAYS
from tests.support.hosted import ITEM, Obedient
from verl_agent.envs.base import Hosting
from verl_agent.envs.hosts.host import CallLimits
from verl_agent.envs.hosts.local import process_pool
from verl_agent.envs.hosts.pool import HostPool
from verl_agent.envs.hosts.process import ProcessLink
from verl_agent.envs.hosts.slot import PoolLimits
from verl_agent.envs.session import SessionPool

SMALL = Hosting(sessions=8, busy=2)
CALLS = CallLimits(timeout_s=20.0, idle_s=60.0, grace_s=1.0)
LIMITS = PoolLimits(count=2, cores=2, wait_s=20.0, ping_s=0.1, frozen_s=20.0)


async def until(condition: Callable[[], bool], seconds: float = 15.0) -> None:
    """Wait for a condition; raise TimeoutError if it does not come true."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


async def begun(pool: SessionPool) -> int:
    """Open a session and begin an episode in it."""
    session = await pool.open()
    await pool.reset(session, ITEM)
    return session


def host_of(pool: HostPool, session: int) -> psutil.Process:
    """Return the host process of a session."""
    link = pool.link(session)
    assert isinstance(link, ProcessLink)
    return psutil.Process(link.pid)


async def main(action: str) -> None:
    """Start hosts and child processes, print their ids, and take the action."""
    pool = process_pool(Obedient(), CALLS, replace(LIMITS, frozen_s=3.0), SMALL)
    sessions = [await begun(pool) for _ in range(3)]
    hosts = {host_of(pool, session).pid for session in sessions}
    spawned = [int((await pool.step(sessions[0], f"spawn {way}")).observation) for way in WAYS]
    spawned += [int((await pool.step(sessions[2], f"spawn {way}")).observation) for way in WAYS]
    sys.stdout.write(json.dumps([*hosts, *spawned]) + "\n")
    sys.stdout.flush()
    await pool.step(sessions[0], action)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
