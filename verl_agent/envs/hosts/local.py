"""Pools on this machine: hosts as plain child processes, or one in this process."""

from verl_agent.envs.base import EnvAdapter, Hosting
from verl_agent.envs.hosts.host import CallLimits
from verl_agent.envs.hosts.link import InlineLink
from verl_agent.envs.hosts.pool import HostPool
from verl_agent.envs.hosts.process import ProcessLink, start_process
from verl_agent.envs.hosts.slot import HOSTS, PoolLimits
from verl_agent.envs.settings import EnvSettings


def process_pool(env: EnvAdapter, calls: CallLimits, limits: PoolLimits, hosting: Hosting | None = None) -> HostPool:
    """A pool of host processes, which end with it or with this process.

    Args:
        env: the environment; its class must be importable by name.
        calls: limits of calls and sessions.
        limits: of the pool.
        hosting: what a host may hold; None for what the adapter says.
    """
    holds = hosting or env.hosting

    async def start() -> ProcessLink:
        return await start_process(env, holds, calls, limits.frozen_s)

    return HostPool(start, holds, limits)


def inline_pool(env: EnvAdapter, calls: CallLimits, limits: PoolLimits, hosting: Hosting | None = None) -> HostPool:
    """The same without any process: for tests, and for an adapter that cannot be sent to one."""
    holds = hosting or env.hosting

    async def start() -> InlineLink:
        return InlineLink(env, holds, calls)

    return HostPool(start, holds, limits)


def local_pool(env: EnvAdapter, settings: EnvSettings, count: int | None = None) -> HostPool:
    """The pool that the section `env` asks for, on this machine.

    Args:
        env: the environment.
        settings: section `env`.
        count: most hosts; None for `env.hosts.count`.
    """
    hosts = settings.hosts
    kind = inline_pool if hosts.where == "inline" else process_pool
    limits = PoolLimits(count=count or hosts.count or HOSTS, wait_s=hosts.wait_s)
    holds = env.hosting.bounded(hosts.sessions, hosts.memory_mb)
    return kind(env, CallLimits(settings.timeout_s, hosts.idle_s), limits, holds)
