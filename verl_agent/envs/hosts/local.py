"""Pools of host processes on this machine, or of one host in this process."""

from verl_agent.envs.base import EnvAdapter, Hosting
from verl_agent.envs.hosts.host import CallLimits
from verl_agent.envs.hosts.link import InlineLink
from verl_agent.envs.hosts.pool import HostPool
from verl_agent.envs.hosts.process import ProcessLink, start_process
from verl_agent.envs.hosts.slot import HOSTS, PoolLimits
from verl_agent.envs.settings import EnvSettings


def process_pool(env: EnvAdapter, calls: CallLimits, limits: PoolLimits, hosting: Hosting | None = None) -> HostPool:
    """Return a pool of host processes. They end with the pool or with this process."""
    hosting = hosting or env.hosting

    async def start() -> ProcessLink:
        return await start_process(env, hosting, calls, limits.frozen_s)

    return HostPool(start, hosting, limits)


def inline_pool(env: EnvAdapter, calls: CallLimits, limits: PoolLimits, hosting: Hosting | None = None) -> HostPool:
    """Return a pool without processes, for tests and for adapters that cannot be pickled."""
    hosting = hosting or env.hosting

    async def start() -> InlineLink:
        return InlineLink(env, hosting, calls)

    return HostPool(start, hosting, limits)


def local_pool(env: EnvAdapter, settings: EnvSettings, count: int | None = None) -> HostPool:
    """Return the pool that section `env` describes, on this machine. A session ends with its episode or its host."""
    hosts = settings.hosts
    new_pool = inline_pool if hosts.where == "inline" else process_pool
    limits = PoolLimits(count=count or hosts.count or HOSTS, wait_s=hosts.wait_s)
    hosting = env.hosting.bounded(hosts.sessions, hosts.memory_mb)
    return new_pool(env, CallLimits(settings.timeout_s), limits, hosting)
