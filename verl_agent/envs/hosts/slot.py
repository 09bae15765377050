"""The pool's record of one host (sessions, health, retirement) and the pool's limits."""

import asyncio
import os
import sys
from dataclasses import dataclass, field

from verl_agent.envs.base import Hosting
from verl_agent.envs.hosts.host import HostHealth
from verl_agent.envs.hosts.link import HostLink

HOSTS = 8
"""Most hosts of a pool by default."""
STUCK_THREADS = 8
"""Stuck threads after which a host with a thread for each session is replaced."""


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """Limits of a pool.

    Attributes:
        count: most hosts, without those that are retired and wait for their last sessions.
        cores: number of hosts up to which a busy host is a reason to start another one; beyond it, hosts are filled
            first.
        wait_s: most seconds that `open` waits for a free slot.
        start_s: most seconds that a host may take to start.
        ping_s: seconds between two health checks of a host.
        frozen_s: seconds without an answer to a health check after which a host is killed.
    """

    count: int = HOSTS
    cores: int = field(default_factory=usable_cores)
    wait_s: float = 600.0
    start_s: float = 60.0
    ping_s: float = 5.0
    frozen_s: float = 30.0


@dataclass(slots=True, eq=False)
class HostSlot:
    """One host of a pool.

    Attributes:
        started: task that returns the link once the host has started.
        sessions: open sessions, including those that are being closed.
        retired: True if the host takes no more sessions and stops after its last one.
        health: answer to the last health check.
    """

    started: asyncio.Task[HostLink]
    sessions: set[int] = field(default_factory=set)
    opening: int = 0
    retired: bool = False
    health: HostHealth = field(default_factory=lambda: HostHealth(frozenset(), 0, 0, 0, 0.0))

    @property
    def load(self) -> int:
        """Number of sessions, open or being opened."""
        return len(self.sessions) + self.opening


def retirement_reason(health: HostHealth, hosting: Hosting) -> str:
    """Return the reason to replace a host, or "" to keep it."""
    if health.stuck >= (STUCK_THREADS if hosting.threads is None else 1):
        return f"{health.stuck} of its threads are stuck."
    if health.episodes >= hosting.episodes:
        return f"it has played {health.episodes} episodes."
    if health.memory_mb > hosting.memory_mb and health.episodes >= hosting.sessions:
        return (
            f"it holds {health.memory_mb:.0f} MiB, more than {hosting.memory_mb}, after {health.episodes} episodes. "
            "If the environment needs that much, raise env.hosts.memory_mb."
        )
    return ""
