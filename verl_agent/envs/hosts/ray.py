"""Pool of hosts as Ray actors on the machines of a cluster, shared by all workers of a training run.

One `PoolActor` opens and closes sessions. Resets and steps go directly from the worker to the host. The worker that
uses the pool first owns the `PoolActor`, which owns the hosts, so all of them end with the run.
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
from typing_extensions import override

from verl_agent.envs.base import EnvAdapter, Hosting
from verl_agent.envs.hosts.host import CallLimits, Host
from verl_agent.envs.hosts.link import HostLink, answer_call
from verl_agent.envs.hosts.local import local_pool
from verl_agent.envs.hosts.pool import HostPool
from verl_agent.envs.hosts.slot import PoolLimits
from verl_agent.envs.machine.memory import MemoryGauge
from verl_agent.envs.machine.processes import end_descendants, guard_this_process
from verl_agent.envs.machine.proxies import settle_proxies
from verl_agent.envs.parsing import shorten
from verl_agent.envs.session import SessionPool
from verl_agent.envs.settings import EnvSettings, HostSettings
from verl_agent.errors import AgentError, EnvError, HostLostError, UnknownSessionError
from verl_agent.types import Action, Message, StepResult, TaskItem

RESOURCE_AMOUNT = 0.001
"""Amount of `env.hosts.resource` that a host reserves; small, because the resource only marks machines."""
END_S = 10.0
"""Seconds that a host has to close its sessions before it is killed."""
START_S = 120.0
"""Most seconds for the start of an actor; the first one on a machine imports all modules."""


def training_pool(env: EnvAdapter, settings: EnvSettings) -> SessionPool:
    """Return the pool that section `env` describes, inside a training run."""
    where = settings.hosts.where
    if where == "auto":
        where = "ray" if sum(node["Alive"] for node in ray.nodes()) > 1 else "local"
    return RayPool(env, settings) if where == "ray" else local_pool(env, settings)


class RayPool(SessionPool):
    """A `SessionPool` whose hosts are Ray actors.

    Instances with the same settings in one run share one `PoolActor`; the first one that is used starts it.
    """

    def __init__(self, env: EnvAdapter, settings: EnvSettings) -> None:
        self._env, self._settings = env, settings
        self._actor: ActorHandle | None = None
        self._links: dict[int, RayLink] = {}
        self._stats: Mapping[str, float] = {}

    @override
    async def open(self) -> int:
        """If the `PoolActor` was lost, another one is started."""
        try:
            number, actor = await self._ask("open")
        except HostLostError:
            number, actor = await self._ask("open")
        self._links[number] = RayLink(actor)
        return int(number)

    @override
    async def reset(self, session: int, item: TaskItem) -> list[Message]:
        messages: list[Message] = await self._link(session).call("reset", session, item)
        return messages

    @override
    async def step(self, session: int, action: Action) -> StepResult:
        result: StepResult = await self._link(session).call("step", session, action)
        return result

    @override
    async def close(self, session: int) -> None:
        if self._links.pop(session, None) is not None:
            with suppress(HostLostError):
                await asyncio.shield(self._ask("close", session))

    @override
    def stats(self) -> Mapping[str, float]:
        """The values of the whole pool when this process last opened or closed a session."""
        return self._stats

    @override
    async def shutdown(self) -> None:
        """Stop the pool for all processes."""
        with suppress(HostLostError):
            await self._ask("shutdown")
        if self._actor is not None:
            ray.kill(self._actor)
        self._actor = None
        self._links.clear()

    def _link(self, session: int) -> "RayLink":
        if session not in self._links:
            raise UnknownSessionError(f"no session {session}: it was closed.")
        return self._links[session]

    async def _ask(self, method: str, *arguments: Any) -> Any:
        if self._actor is None:
            self._actor = start_pool_actor(self._env, self._settings)
        try:
            result, self._stats = await self._actor.ask.remote(method, *arguments)
        except RayError as error:
            self._actor = None  # the next call starts another one
            raise HostLostError(f"the pool of hosts is lost: {_last_line(error)}") from error
        if isinstance(result, AgentError):
            raise result
        return result


class PoolActor:
    """Opens sessions in hosts that it starts and monitors. Runs as an asynchronous Ray actor."""

    def __init__(self, env: EnvAdapter, settings: EnvSettings) -> None:
        hosts = settings.hosts
        holds = env.hosting.bounded(hosts.sessions, hosts.memory_mb)
        count = hosts.count or hosts_in_cluster(hosts.num_cpus)
        limits = PoolLimits(count, cores=count, wait_s=hosts.wait_s, start_s=START_S)

        async def start() -> RayLink:
            return await start_host(env, settings, holds)

        self._pool = HostPool(start, holds, limits)

    async def ask(self, method: str, *arguments: Any) -> tuple[Any, Mapping[str, float]]:
        """Call one of the methods below; return its result or error, and the statistics of the pool."""
        try:
            result = await getattr(self, f"_{method}")(*arguments)
        except AgentError as error:
            result = error
        return result, dict(self._pool.stats())

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
    """A `Host` in a Ray actor."""

    def __init__(self, env: EnvAdapter, hosting: Hosting, limits: CallLimits) -> None:
        settle_proxies()
        guard_this_process()
        self._host = Host(env, hosting, limits, MemoryGauge())

    async def answer(self, method: str, arguments: tuple[Any, ...]) -> Any:
        """Call a method of the host; after its shutdown, end what adapters have left."""
        result = await answer_call(self._host, method, arguments)
        if method == "shutdown":
            await asyncio.to_thread(end_descendants, grace_s=0.0)
        return result

    async def process(self) -> int:
        """Return the process id; the answer shows that the actor has started."""
        return os.getpid()


class RayLink(HostLink):
    """A `HostLink` to a `HostActor`."""

    def __init__(self, actor: ActorHandle) -> None:
        self.actor = actor
        self._end_reason = ""

    @override
    async def call(self, method: str, *arguments: Any) -> Any:
        try:
            result = await self.actor.answer.remote(method, arguments)
        except RayTaskError as error:
            raise EnvError(f"{method} failed in its host: {_last_line(error)}") from error
        except RayError as error:
            raise HostLostError(self._end_reason or f"the host is lost: {_last_line(error)}") from error
        if isinstance(result, AgentError):
            raise result
        return result

    @override
    async def end(self, reason: str) -> None:
        self._end_reason = reason
        with suppress(HostLostError, TimeoutError):
            async with asyncio.timeout(END_S):
                await self.call("shutdown")
        ray.kill(self.actor)


def hosts_in_cluster(num_cpus: float) -> int:
    """Return the number of hosts for which the cluster has free CPUs, at least 1; `num_cpus=0` counts as 1 each."""
    free = ray.available_resources().get("CPU", 0.0)
    return max(1, int(free / (num_cpus or 1.0)))


def start_pool_actor(env: EnvAdapter, settings: EnvSettings) -> ActorHandle:
    """Return the `PoolActor` of this run and environment; start it if it does not exist.

    Its name contains the job, so that runs do not share it, and a digest of the settings, so that the environments of
    a mixture do not.
    """
    digest = hashlib.sha256(repr((settings.name, settings.options, settings.timeout_s)).encode()).hexdigest()[:8]
    name = f"verl_agent_hosts_{ray.get_runtime_context().get_job_id()}_{digest}"
    options = {"name": name, "get_if_exists": True, "num_cpus": 0, "num_gpus": 0, "max_concurrency": 100_000}
    return ray.remote(PoolActor).options(**options).remote(env, settings)


async def start_host(env: EnvAdapter, settings: EnvSettings, hosting: Hosting) -> RayLink:
    """Start a host on a machine with free CPUs, if possible not on that of the previous host."""
    calls = CallLimits(settings.timeout_s, settings.hosts.idle_s)
    actor = ray.remote(HostActor).options(**placement(settings.hosts)).remote(env, hosting, calls)
    try:
        await actor.process.remote()
    except asyncio.CancelledError:  # no machine was free in time; the actor must not start later
        ray.kill(actor)
        raise
    except RayError as error:
        raise EnvError(f"a host did not start: {_last_line(error)}") from error
    return RayLink(actor)


def placement(hosts: HostSettings) -> dict[str, Any]:
    """Return the Ray options of one host: no GPU, a fraction of a CPU, spread over the allowed machines."""
    return {
        "num_cpus": hosts.num_cpus,
        "num_gpus": 0,
        "resources": {hosts.resource: RESOURCE_AMOUNT} if hosts.resource else None,
        "scheduling_strategy": "SPREAD",
        "max_concurrency": 100_000,
    }


def _last_line(error: RayError) -> str:
    """Return the last line of Ray's message, which has a traceback before it."""
    return shorten((str(error).strip().splitlines() or [type(error).__name__])[-1])
