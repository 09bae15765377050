"""A host as its pool keeps it: who lives there, how it is, and when it is worn; and the bounds of a pool."""

import asyncio
import os
import sys
from dataclasses import dataclass, field

from verl_agent.envs.base import Hosting
from verl_agent.envs.hosts.host import Health
from verl_agent.envs.hosts.link import HostLink

HOSTS = 8
STUCK_THREADS = 8
"""Threads that a host with one for each session may lose to calls that never return."""


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """Bounds of a pool.

    Attributes:
        count: most hosts; those that are replaced and wait for their last sessions are not counted.
        cores: hosts that can compute at once; beyond them another one is started only when the others are full.
        wait_s: seconds that `open` waits for a place.
        start_s: seconds that a host may take to start.
        ping_s: seconds between two questions for a host's health.
        frozen_s: seconds within which it has to answer one.
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
        started: gives its link once it has started.
        sessions: those for which it is responsible, closing ones included.
        opening: sessions that are about to be opened in it.
        retired: whether it only waits for its last session to end.
        health: its last answer.
    """

    started: asyncio.Task[HostLink]
    sessions: set[int] = field(default_factory=set)
    opening: int = 0
    retired: bool = False
    health: Health = field(default_factory=lambda: Health(frozenset(), 0, 0, 0, 0.0))

    @property
    def load(self) -> int:
        """Sessions that it has or gets."""
        return len(self.sessions) + self.opening


def worn_out(health: Health, hosting: Hosting) -> str:
    """Why a host should be replaced, or an empty text."""
    if health.stuck >= (STUCK_THREADS if hosting.threads is None else 1):
        return f"{health.stuck} of its threads are stuck."
    if health.episodes >= hosting.episodes:
        return f"it has begun {health.episodes} episodes."
    if health.memory_mb > hosting.memory_mb and health.episodes >= hosting.sessions:
        return (
            f"it holds {health.memory_mb:.0f} MiB, more than {hosting.memory_mb}, after {health.episodes} episodes. "
            "If that is what the environment takes, raise env.hosts.memory_mb."
        )
    return ""
