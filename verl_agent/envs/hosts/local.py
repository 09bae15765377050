"""Pools on this machine: hosts as plain child processes, or one in this process."""

from collections.abc import Mapping
from typing import Any

from verl_agent.envs.base import EnvAdapter, Hosting
from verl_agent.envs.hosts.host import CallLimits
from verl_agent.envs.hosts.link import InlineLink
from verl_agent.envs.hosts.pool import HostPool
from verl_agent.envs.hosts.process import ProcessLink, start_process
from verl_agent.envs.hosts.slot import HOSTS, PoolLimits
from verl_agent.envs.settings import EnvSettings


def process_pool(
    adapter: type[EnvAdapter],
    options: Mapping[str, Any],
    calls: CallLimits,
    limits: PoolLimits,
    hosting: Hosting | None = None,
) -> HostPool:
    """A pool of host processes, which end with it or with this process.

    Args:
        adapter: class of the environment, importable by its name.
        options: its keyword arguments.
        calls: limits of calls and sessions.
        limits: of the pool.
        hosting: what a host may hold; None for what the adapter says.
    """
    holds = hosting or adapter.hosting

    async def start() -> ProcessLink:
        return await start_process(adapter, options, holds, calls, limits.frozen_s)

    return HostPool(start, holds, limits)


def inline_pool(
    adapter: type[EnvAdapter],
    options: Mapping[str, Any],
    calls: CallLimits,
    limits: PoolLimits,
    hosting: Hosting | None = None,
) -> HostPool:
    """The same without any process: for tests, and for an adapter that cannot be sent to one."""
    holds = hosting or adapter.hosting

    async def start() -> InlineLink:
        return InlineLink(adapter, options, holds, calls)

    return HostPool(start, holds, limits)


def local_pool(adapter: type[EnvAdapter], env: EnvSettings, count: int | None = None) -> HostPool:
    """The pool that the section `env` asks for, on this machine.

    Args:
        adapter: class of the environment.
        env: the section.
        count: most hosts; None for what the section says.
    """
    hosts = env.hosts
    kind = inline_pool if hosts.where == "inline" else process_pool
    limits = PoolLimits(count=count or hosts.count or HOSTS, wait_s=hosts.wait_s)
    holds = adapter.hosting.bounded(hosts.sessions, hosts.memory_mb)
    return kind(adapter, env.options, CallLimits(env.timeout_s, hosts.idle_s), limits, holds)
