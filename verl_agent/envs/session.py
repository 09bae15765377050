"""Sessions: one conversation with an environment, and pools that run many of them."""

from collections.abc import Mapping
from typing import Protocol

from verl_agent.envs.base import EnvAdapter
from verl_agent.errors import EnvError
from verl_agent.types import Message, StepResult, TaskItem


class Session(Protocol):
    """One conversation with an environment: an `EnvAdapter`, or a session of a pool."""

    @property
    def success_reward(self) -> float:
        """Return from which a task counts as solved."""
        ...

    async def reset(self, item: TaskItem) -> list[Message]:
        """Begin `item`; see `EnvAdapter.reset`."""
        ...

    async def step(self, action: str) -> StepResult:
        """Take one action; see `EnvAdapter.step`."""
        ...

    async def close(self) -> None:
        """Release the session's resources. May be called more than once."""
        ...


class SessionPool(Protocol):
    """Sessions of one environment with one set of options, created, called and closed by number.

    Calls of different sessions run side by side; those of one session run one after another.
    """

    async def open(self) -> int:
        """A new session; returns its number, random and below 2**63.

        Raises:
            PoolFullError: no place became free in time.
            EnvError: no host could be started.
        """
        ...

    async def reset(self, session: int, item: TaskItem) -> list[Message]:
        """See `EnvAdapter.reset`; a session that is reset again plays with a fresh adapter.

        Raises:
            UnknownSessionError: no such session; it was closed, reaped, or its host ended.
            EnvTimeoutError: the call took too long; the session is closed.
            HostLostError: the session's host died, or answers no more; the session is over.
            EnvError: the adapter raised; the session is still there, to be reset or closed.
            ConfigError: the adapter says that a setting is wrong.
        """
        ...

    async def step(self, session: int, action: str) -> StepResult:
        """See `EnvAdapter.step` and `reset`; a step before the first reset raises `EnvError`."""
        ...

    async def close(self, session: int) -> None:
        """Give a session back; one that is closed or unknown is no error."""
        ...

    def stats(self) -> Mapping[str, float]:
        """Counts and sizes by name.

        Now: `sessions`, `waiting` (for a place), `hosts`, `threads_stuck`, `memory_mb`. Since the start: `opened`,
        `closed`, `reaped` (for being idle), `faults`, `hosts_started`, `hosts_lost`, `hosts_recycled`.
        """
        ...

    async def shutdown(self) -> None:
        """Close all sessions and end all hosts."""
        ...


class PooledEnv:
    """A `Session` of a pool, opened at its first reset.

    The pool limits the time of each call, so the caller needs no limit of its own. The first reset waits for a free
    slot as long as the pool allows.

    Args:
        env: the environment with its options.
        pool: pool that runs the session.
    """

    def __init__(self, env: EnvAdapter, pool: SessionPool) -> None:
        self.success_reward = env.success_reward
        self._pool = pool
        self._session: int | None = None

    async def reset(self, item: TaskItem) -> list[Message]:
        """See `Session.reset`."""
        if self._session is None:
            self._session = await self._pool.open()
        return await self._pool.reset(self._session, item)

    async def step(self, action: str) -> StepResult:
        """See `Session.step`."""
        if self._session is None:
            raise EnvError("step came before the first reset.")
        return await self._pool.step(self._session, action)

    async def close(self) -> None:
        """Close the session in the pool."""
        if self._session is not None:
            await self._pool.close(self._session)
