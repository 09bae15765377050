"""Hosts as Ray actors: one pool for all processes of a run; a killed host ends only its own sessions.

The watch on the actors of a run is tested here too, because a start of Ray takes seconds.
"""

import asyncio
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psutil
import pytest
import ray

from tests.support.attempts import play_until_valid
from tests.support.escapes import WAYS, left
from tests.support.fakes import ScriptedPolicy, plain
from tests.support.hosted import ITEM, Obedient
from tests.support.pool_process import begun
from verl_agent.envs.base import Hosting
from verl_agent.envs.hosts.pool import HostPool
from verl_agent.envs.hosts.ray import RayPool, hosts_in_cluster, training_pool
from verl_agent.envs.session import PooledEnv
from verl_agent.envs.settings import EnvSettings, HostSettings
from verl_agent.errors import EnvError, EnvTimeoutError, HostLostError, PoolFullError, UnknownSessionError
from verl_agent.rollout.episode import EpisodeLimits
from verl_agent.training.actor_watch import find_death
from verl_agent.types import Episode, StopReason

SETTINGS = EnvSettings("obedient", timeout_s=2.0, hosts=HostSettings("ray", count=2, wait_s=1.0, resource="cpu_node"))


class Small(Obedient):
    """An environment of which two hosts hold four sessions."""

    hosting = Hosting(sessions=2, busy=1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    folder = tempfile.mkdtemp(prefix="hosts-")  # short: the names of Ray's sockets must fit 107 characters
    ray.init(
        address="local",
        num_cpus=2,
        num_gpus=0,
        resources={"cpu_node": 1},
        object_store_memory=80_000_000,
        include_dashboard=False,
        _temp_dir=folder,
    )
    yield
    ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


async def pid(pool: RayPool, session: int) -> int:
    return int((await pool.step(session, "pid")).observation)


@pytest.mark.usefixtures("cluster")
def test_the_number_of_hosts_follows_the_free_cpus():
    assert hosts_in_cluster(0.25) == 8
    assert hosts_in_cluster(4.0) == 1
    assert hosts_in_cluster(0.0) == 2


@pytest.mark.usefixtures("cluster")
def test_all_workers_share_the_hosts():
    async def play() -> None:
        training, validation = RayPool(Small(), SETTINGS), RayPool(Small(), SETTINGS)
        sessions = [(pool, await begun(pool)) for pool in (training, validation, training, validation)]
        hosts = [await pid(pool, session) for pool, session in sessions]
        assert len(set(hosts)) == 2 and os.getpid() not in hosts
        with pytest.raises(PoolFullError):
            await training.open()

        stuck = sessions[1]
        with pytest.raises(EnvTimeoutError, match="step took more than 2 s"):
            await validation.step(stuck[1], "sleep 60")
        with pytest.raises(EnvError, match="KeyError: 'observation'"):
            await training.step(sessions[0][1], "raise")
        await validation.close(stuck[1])
        again = await begun(training)

        os.kill(hosts[0], signal.SIGKILL)
        with pytest.raises((HostLostError, UnknownSessionError)):
            await training.step(sessions[0][1], "hello")
        for pool, session in [*sessions, (training, again)]:
            await pool.close(session)
        fresh = [await begun(pool) for pool in (training, validation, training, validation)]
        assert len({await pid(pool, one) for pool, one in zip((training, validation) * 2, fresh, strict=True)}) == 2
        assert training.stats()["hosts_lost"] == 1 and validation.stats()["sessions"] == 4

        left = {await pid(pool, one) for pool, one in zip((training, validation) * 2, fresh, strict=True)}
        await training.shutdown()
        for _ in range(100):
            if not any(map(psutil.pid_exists, left)):
                break
            await asyncio.sleep(0.1)
        assert not any(map(psutil.pid_exists, left))
        with pytest.raises(HostLostError):
            await validation.step(fresh[1], "hello")
        await begun(validation)  # starts the pool again
        await validation.shutdown()

    asyncio.run(play())


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("end", ["shutdown", "kill"])
def test_children_of_adapters_end_with_their_host(end):
    async def play() -> list[int]:
        pool = RayPool(Small(), SETTINGS)
        session = await begun(pool)
        ways = [way for way in WAYS if end == "shutdown" or "without environment" not in way]
        spawned = [int((await pool.step(session, f"spawn {way}")).observation) for way in ways]
        if end == "kill":
            os.kill(await pid(pool, session), signal.SIGKILL)
            assert left(spawned) == []
        await pool.shutdown()
        return spawned

    assert left(asyncio.run(play())) == []


@pytest.mark.usefixtures("cluster")
def test_a_host_killed_during_a_batch_loses_no_episode():
    """A step has eight episodes; one of the two hosts is killed, and its successor by the replay of that action."""

    async def play() -> tuple[list[list[Episode]], RayPool, set[int]]:
        pool = RayPool(Small(), replace(SETTINGS, hosts=replace(SETTINGS.hosts, wait_s=60.0)))
        scripts = iter([["hello", "die"], *[["sleep 0.5", "sleep 0.5", "end"]] * 20])

        async def one() -> list[Episode]:
            limits = EpisodeLimits(3, None, retries=2)
            return await play_until_valid(
                ITEM, lambda: PooledEnv(Small(), pool), plain, lambda: ScriptedPolicy(next(scripts)), limits
            )

        played = await asyncio.gather(*(one() for _ in range(8)))
        again = [await begun(pool) for _ in range(4)]
        hosts = {await pid(pool, session) for session in again}
        for session in again:
            await pool.close(session)
        await pool.shutdown()
        return played, pool, hosts

    played, pool, hosts = asyncio.run(play())
    assert [tries[-1].stop for tries in played] == [StopReason.TERMINATED] * 8
    assert 1 <= sum(len(tries) > 1 for tries in played) <= 2, "the host held two sessions"
    assert len(hosts) == 2 and pool.stats()["hosts_lost"] == 2


@pytest.mark.usefixtures("cluster")
def test_auto_uses_local_processes_on_one_machine():
    auto = EnvSettings("obedient", hosts=HostSettings("auto"))
    assert isinstance(training_pool(Small(), auto), HostPool)
    assert isinstance(training_pool(Small(), SETTINGS), RayPool)


def worker_class() -> Any:
    """Return an actor class with the name of verl's training workers, made inside of a function as theirs is."""

    class WorkerDict:
        def pid(self) -> int:
            return os.getpid()

        def leave(self) -> None:
            """End the process as an actor does that has nothing more to do."""
            ray.actor.exit_actor()

    return ray.remote(num_cpus=0)(WorkerDict)


@pytest.mark.usefixtures("cluster")
def test_of_the_ended_actors_only_one_that_nobody_ended_is_a_death():
    made = worker_class()
    killed, left, forgotten, crashed = (made.remote() for _ in range(4))
    pids = ray.get([actor.pid.remote() for actor in (killed, left, forgotten, crashed)])
    ray.kill(killed)
    left.leave.remote()
    del forgotten
    psutil.wait_procs([psutil.Process(pid) for pid in pids[:3]], timeout=20)
    time.sleep(0.5)  # until Ray has recorded the last one
    assert find_death() is None, "the hosts that earlier tests killed are replaced"
    os.kill(pids[3], signal.SIGKILL)
    deadline = time.monotonic() + 20
    while (death := find_death()) is None and time.monotonic() < deadline:
        time.sleep(0.1)
    assert str(death) == f"A training worker, process {pids[3]}, ended unexpectedly."
