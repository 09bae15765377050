"""Sessions: one conversation with an environment, and pools that run many of them."""

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, Protocol

from verl_agent.envs.base import EnvAdapter, read_success_reward
from verl_agent.errors import EnvError
from verl_agent.types import Action, Message, StepResult, TaskItem


class Session(Protocol):
    """One conversation with an environment: an `EnvAdapter`, or a session of a pool."""

    @property
    def success_reward(self) -> float:
        """Return from which a task counts as solved."""
        ...

    @property
    def deterministic(self) -> bool:
        """True if a fresh session answers the same actions in the same way; see `EnvAdapter.deterministic`."""
        ...

    async def reset(self, item: TaskItem) -> list[Message]:
        """Begin `item`; see `EnvAdapter.reset`."""
        ...

    async def step(self, action: Any) -> StepResult:
        """Take one action; see `EnvAdapter.step`."""
        ...

    async def close(self) -> None:
        """Release the session's resources. May be called more than once."""
        ...


class SessionPool(Protocol):
    """Pool of sessions of one environment, addressed by number.

    Calls of different sessions run concurrently. Calls of one session run one after another.
    """

    async def open(self) -> int:
        """Open a session and return its number, random and below 2**63.

        Raises:
            PoolFullError: no slot became free in time.
            EnvError: no host could be started.
        """
        ...

    async def reset(self, session: int, item: TaskItem) -> list[Message]:
        """Begin `item`; see `EnvAdapter.reset`. Every reset starts a fresh instance of the adapter.

        Raises:
            UnknownSessionError: the session does not exist: it was closed, was idle for too long, or its host ended.
            EnvTimeoutError: the call exceeds the time limit; the session is closed.
            HostLostError: the session's host died or stopped answering; the session has ended.
            EnvError: the adapter raised an exception; the session remains and can be reset or closed.
            ConfigError: the adapter rejects a setting.
        """
        ...

    async def step(self, session: int, action: Action) -> StepResult:
        """Carry out one action; see `EnvAdapter.step`. Raises the errors of `reset`.

        A step before the first reset raises `EnvError`.
        """
        ...

    async def close(self, session: int) -> None:
        """Close a session; a session that does not exist is ignored."""
        ...

    def stats(self) -> Mapping[str, float]:
        """Return counts and sizes by name.

        Current: `sessions`, `waiting` (for a slot), `hosts`, `threads_stuck`, `memory_mb`. Since the start: `opened`,
        `closed`, `reaped` (closed for being idle), `env_errors`, `hosts_started`, `hosts_lost`, `hosts_recycled`.
        """
        ...

    async def shutdown(self) -> None:
        """Close all sessions and stop all hosts."""
        ...


class PooledEnv:
    """A `Session` of a pool, opened at its first reset.

    The pool limits the time of each call, so the caller needs no limit of its own. The first reset waits for a free
    slot as long as the pool allows.
    """

    def __init__(self, env: EnvAdapter, pool: SessionPool) -> None:
        self.success_reward, self.deterministic = read_success_reward(env), bool(env.deterministic)
        self._pool = pool
        self._session: int | None = None

    async def reset(self, item: TaskItem) -> list[Message]:
        """Begin an episode, and open the session at the first one."""
        if self._session is None:
            self._session = await self._pool.open()
        return await self._pool.reset(self._session, item)

    async def step(self, action: Action) -> StepResult:
        """Play an action in the pool."""
        if self._session is None:
            raise EnvError("step came before the first reset.")
        return await self._pool.step(self._session, action)

    async def close(self) -> None:
        """Close the session in the pool."""
        if self._session is not None:
            await self._pool.close(self._session)


def in_background(work: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]]) -> asyncio.Task[None]:
    """Run `work` as a task; `tasks` keeps a reference until it is done."""
    task = asyncio.create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task
