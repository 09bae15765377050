"""Hosts as Ray actors over the machines of a cluster: one pool for training and validation, shared by all workers.

One actor, the desk, gives out places; every reset and step goes straight from the worker to the host. Hosts belong
to the desk and the desk to the worker that asked for it first, so all of them end with the run.
"""

import asyncio
import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayError, RayTaskError

from verl_agent.envs.base import EnvAdapter, Hosting
from verl_agent.envs.hosts.host import CallLimits, Host
from verl_agent.envs.hosts.link import answer
from verl_agent.envs.hosts.local import local_pool
from verl_agent.envs.hosts.memory import MemoryGauge
from verl_agent.envs.hosts.pool import HostPool
from verl_agent.envs.hosts.slot import PoolLimits
from verl_agent.envs.parsing import shorten
from verl_agent.envs.session import SessionPool
from verl_agent.envs.settings import EnvSettings, HostSettings
from verl_agent.errors import AgentError, EnvError, HostLostError, UnknownSessionError
from verl_agent.types import Message, StepResult, TaskItem

SHARE = 0.001
"""How much of `env.hosts.resource` a host takes: the resource marks machines, it does not count hosts."""
END_S = 10.0
"""Seconds that a host has to close its sessions before it is killed."""
START_S = 120.0
"""Seconds that an actor may take to start on a machine that has not imported anything yet."""


def training_pool(env: EnvAdapter, settings: EnvSettings) -> SessionPool:
    """The pool that the section `env` asks for, inside a training run."""
    where = settings.hosts.where
    if where == "auto":
        where = "ray" if sum(node["Alive"] for node in ray.nodes()) > 1 else "local"
    return RayPool(env, settings) if where == "ray" else local_pool(env, settings)


class RayPool:
    """A `SessionPool` whose desk and hosts are Ray actors.

    All pools of a run with the same settings are the same pool; whichever is used first starts it.

    Args:
        env: the environment.
        settings: section `env`.
    """

    def __init__(self, env: EnvAdapter, settings: EnvSettings) -> None:
        self._env, self._settings = env, settings
        self._desk: ActorHandle | None = None
        self._links: dict[int, RayLink] = {}
        self._stats: Mapping[str, float] = {}

    async def open(self) -> int:
        """See `SessionPool.open`; if the desk was lost since the last time, another one is started."""
        try:
            number, actor = await self._ask("open")
        except HostLostError:
            number, actor = await self._ask("open")
        self._links[number] = RayLink(actor)
        return int(number)

    async def reset(self, session: int, item: TaskItem) -> list[Message]:
        """See `SessionPool.reset`."""
        messages: list[Message] = await self._link(session).call("reset", session, item)
        return messages

    async def step(self, session: int, action: str) -> StepResult:
        """See `SessionPool.step`."""
        result: StepResult = await self._link(session).call("step", session, action)
        return result

    async def close(self, session: int) -> None:
        """See `SessionPool.close`."""
        if self._links.pop(session, None) is not None:
            with suppress(HostLostError):
                await asyncio.shield(self._ask("close", session))

    def stats(self) -> Mapping[str, float]:
        """See `SessionPool.stats`; of the whole pool, as of the last session that this process opened or closed."""
        return self._stats

    async def shutdown(self) -> None:
        """See `SessionPool.shutdown`; ends the pool of all processes."""
        with suppress(HostLostError):
            await self._ask("shutdown")
        if self._desk is not None:
            ray.kill(self._desk)
        self._desk = None
        self._links.clear()

    def _link(self, session: int) -> "RayLink":
        if session not in self._links:
            raise UnknownSessionError(f"no session {session}: it was closed.")
        return self._links[session]

    async def _ask(self, method: str, *arguments: Any) -> Any:
        if self._desk is None:
            self._desk = start_desk(self._env, self._settings)
        try:
            found, self._stats = await self._desk.ask.remote(method, *arguments)
        except RayError as error:
            self._desk = None  # the next one to ask starts another
            raise HostLostError(f"the pool of hosts is lost: {last_line(error)}") from error
        if isinstance(found, AgentError):
            raise found
        return found


class PoolActor:
    """Gives out places in hosts that it starts and watches. Runs as an actor, in an event loop.

    Args:
        env: the environment.
        settings: section `env`.
    """

    def __init__(self, env: EnvAdapter, settings: EnvSettings) -> None:
        hosts = settings.hosts
        holds = env.hosting.bounded(hosts.sessions, hosts.memory_mb)
        count = hosts.count or hosts_in_cluster(hosts.num_cpus)
        limits = PoolLimits(count, cores=count, wait_s=hosts.wait_s, start_s=START_S)

        async def start() -> RayLink:
            return await start_host(env, settings, holds)

        self._pool = HostPool(start, holds, limits)

    async def ask(self, method: str, *arguments: Any) -> tuple[Any, Mapping[str, float]]:
        """Call one of the methods below; returns its answer or error, and the state of the pool."""
        try:
            found = await getattr(self, f"_{method}")(*arguments)
        except AgentError as error:
            found = error
        return found, dict(self._pool.stats())

    async def _open(self) -> tuple[int, ActorHandle]:
        number = await self._pool.open()
        link = self._pool.link(number)
        assert isinstance(link, RayLink)
        return number, link.actor

    async def _close(self, session: int) -> None:
        await self._pool.close(session)

    async def _shutdown(self) -> None:
        await self._pool.shutdown()


class HostActor:
    """A `Host` in a process of Ray's.

    Args:
        env: the environment.
        hosting: what it may hold.
        limits: of calls.
    """

    def __init__(self, env: EnvAdapter, hosting: Hosting, limits: CallLimits) -> None:
        self._host = Host(env, hosting, limits, MemoryGauge())

    async def answer(self, method: str, arguments: tuple[Any, ...]) -> Any:
        """See `answer`."""
        return await answer(self._host, method, arguments)

    async def process(self) -> int:
        """Its process number; that it answers says that it has started."""
        return os.getpid()


class RayLink:
    """A `HostLink` to an actor."""

    def __init__(self, actor: ActorHandle) -> None:
        self.actor = actor
        self._why = ""

    async def call(self, method: str, *arguments: Any) -> Any:
        """See `HostLink.call`."""
        try:
            found = await self.actor.answer.remote(method, arguments)
        except RayTaskError as error:
            raise EnvError(f"{method} failed in its host: {last_line(error)}") from error
        except RayError as error:
            raise HostLostError(self._why or f"the host is lost: {last_line(error)}") from error
        if isinstance(found, AgentError):
            raise found
        return found

    async def end(self, why: str) -> None:
        """See `HostLink.end`."""
        self._why = why
        with suppress(HostLostError, TimeoutError):
            async with asyncio.timeout(END_S):
                await self.call("shutdown")
        ray.kill(self.actor)


def hosts_in_cluster(num_cpus: float) -> int:
    """How many hosts find a CPU now, at least one; without a share of a CPU the machines' cores are counted."""
    free = ray.available_resources().get("CPU", 0.0)
    return max(1, int(free / (num_cpus or 1.0)))


def start_desk(env: EnvAdapter, settings: EnvSettings) -> ActorHandle:
    """The desk of this run and environment, started if it is not there yet.

    Its name has that of the job, so runs do not meet, and stands for the settings, so the parts of a mixture do not.
    """
    digest = hashlib.sha256(repr((settings.name, settings.options, settings.timeout_s)).encode()).hexdigest()[:8]
    name = f"verl_agent_hosts_{ray.get_runtime_context().get_job_id()}_{digest}"
    options = {"name": name, "get_if_exists": True, "num_cpus": 0, "num_gpus": 0, "max_concurrency": 100_000}
    return ray.remote(PoolActor).options(**options).remote(env, settings)


async def start_host(env: EnvAdapter, settings: EnvSettings, hosting: Hosting) -> RayLink:
    """Start a host where Ray finds the CPUs for it, on another machine than the last one if it can.

    Raises:
        EnvError: it ended at once.
    """
    calls = CallLimits(settings.timeout_s, settings.hosts.idle_s)
    actor = ray.remote(HostActor).options(**placement(settings.hosts)).remote(env, hosting, calls)
    try:
        await actor.process.remote()
    except asyncio.CancelledError:  # it found no place in time; else it would take one later
        ray.kill(actor)
        raise
    except RayError as error:
        raise EnvError(f"a host did not start: {last_line(error)}") from error
    return RayLink(actor)


def placement(hosts: HostSettings) -> dict[str, Any]:
    """Options of Ray for one host: no GPU, a share of a CPU, spread over the machines that may have hosts."""
    return {
        "num_cpus": hosts.num_cpus,
        "num_gpus": 0,
        "resources": {hosts.resource: SHARE} if hosts.resource else None,
        "scheduling_strategy": "SPREAD",
        "max_concurrency": 100_000,
    }


def last_line(error: RayError) -> str:
    """What Ray says, without the traceback before it and the advice behind it."""
    return shorten((str(error).strip().splitlines() or [type(error).__name__])[-1])
