"""Sessions of a server: each is one connection, or one number of a dialect that has no connections."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from verl_agent.envs.http.requests import RequestError
from verl_agent.envs.http.settings import ServerLimits
from verl_agent.envs.session import SessionPool, in_background
from verl_agent.errors import EnvTimeoutError, HostLostError, PoolFullError, UnknownSessionError
from verl_agent.returns import sum_rewards
from verl_agent.types import Action, Message, StepResult, TaskItem

ENDED = (UnknownSessionError, EnvTimeoutError, HostLostError)
"""Errors of a pool after which the session is gone."""


class Sessions:
    """Open sessions of a server. Only the server's event loop uses it, so it needs no lock.

    Attributes:
        pool: pool that runs the sessions.
        draining: True while the server stops.
    """

    def __init__(self, pool: SessionPool, limits: ServerLimits) -> None:
        self.pool, self.draining = pool, False
        self.limits, self.open_ones = limits, set[ServerSession]()
        self.closing: set[asyncio.Task[None]] = set()
        self._opening = 0

    def __len__(self) -> int:
        return len(self.open_ones)

    @property
    def running(self) -> int:
        """Number of sessions whose episode has not ended."""
        return self._opening + sum(not session.done for session in self.open_ones)

    async def open(self) -> "ServerSession":
        """Open a session.

        Raises:
            PoolFullError: the server is stopping, or has no slot for another session.
        """
        if self.draining:
            raise PoolFullError("this server is stopping. Use another one.")
        if len(self) + self._opening >= self.limits.sessions:
            raise PoolFullError(f"all {self.limits.sessions} sessions are open. Close one, or try again later.")
        self._opening += 1
        try:
            return ServerSession(self, await self.pool.open())
        finally:
            self._opening -= 1


class ServerSession:
    """Session of a server. It is closed if no call comes within the idle time.

    Attributes:
        number: random number below 2**63.
        observation: last observation; None before the first task.
        done: True if the episode has ended.
        on_end: function that is called when the session ends, for any reason; its value is not used.
    """

    def __init__(self, sessions: Sessions, number: int) -> None:
        self.number, self.observation, self.done = number, "", False
        self.on_end: Callable[[], object] = lambda: None
        self.begun = self.busy = False
        self._sessions, self._pool, self._rewards = sessions, sessions.pool, list[float]()
        sessions.open_ones.add(self)
        self._timer = self._start_timer()

    @property
    def ended(self) -> bool:
        """True if no call is possible any more."""
        return self not in self._sessions.open_ones

    async def begin(self, item: TaskItem) -> list[Message]:
        """Begin a task and return its prompt; an unfinished episode is dropped."""
        with self._calling():
            if self._sessions.draining and self.begun:
                raise PoolFullError("this server is stopping and begins no further episode. Use another one.")
            self.begun, self.done, self._rewards = False, False, []
            messages = await self._pool.reset(self.number, item)
            self.begun, self.observation = True, messages[-1]["content"]
        return messages

    async def act(self, action: Action) -> tuple[StepResult, float]:
        """Carry out one action; return the result and the sum of rewards so far."""
        with self._calling():
            self.check_begun()
            result = await self._pool.step(self.number, action)
            self.observation, self.done = result.observation, result.terminated
            self._rewards.append(result.reward)
        return result, sum_rewards(self._rewards)

    async def keep_alive(self) -> None:
        """Restart the idle time; a call that is running does so anyway."""
        if self.begun and not self.busy:
            with self._calling():
                pass

    async def close(self) -> None:
        """Close the session, even while a call is running."""
        self._end()
        await self._pool.close(self.number)

    def check_begun(self) -> None:
        """Raise RequestError before the first task."""
        if not self.begun:
            raise RequestError(409, f"session {self.number} has no task yet. Begin one with reset.")

    @contextmanager
    def _calling(self) -> Iterator[None]:
        """Let one call run at a time, and stop the idle time meanwhile."""
        if self.ended:
            raise UnknownSessionError(unknown(self.number))
        if self.busy:
            raise RequestError(
                409, f"another call of session {self.number} is still running. Calls run one after another."
            )
        self.busy = True
        self._timer.cancel()
        try:
            yield
        except ENDED:
            self._end()
            raise
        finally:
            self.busy = False
            if not self.ended:
                self._timer = self._start_timer()

    def _start_timer(self) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(self._sessions.limits.idle_s, self._expire)

    def _expire(self) -> None:
        in_background(self.close(), self._sessions.closing)

    def _end(self) -> None:
        self._timer.cancel()
        if not self.ended:
            self._sessions.open_ones.discard(self)
            self.on_end()


def unknown(number: int) -> str:
    """Return the reason for which a session cannot be called."""
    return f"there is no session {number}: it was closed, was idle too long, or never existed."
