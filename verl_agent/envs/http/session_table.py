"""What a server remembers of each session, and which calls it may make now. Knows no HTTP but the refusals."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from verl_agent.envs.http.limits import Limits
from verl_agent.envs.http.wire import RequestError

RETRY_AFTER_S = 1
"""Seconds after which a client that was refused for want of room may ask again."""


@dataclass(slots=True)
class Session:
    """One session as its clients see it.

    Attributes:
        touched: when it was last called, in seconds of the book's clock.
        observation: the last one; None before the first task begins.
        score: sum of the rewards of this episode.
        done: whether the episode has ended.
        busy: whether a call is running.
    """

    touched: float
    observation: str | None = None
    score: float = 0.0
    done: bool = False
    busy: bool = False


class SessionTable:
    """All open sessions of a server. Only its event loop calls this, so nothing is locked.

    Args:
        limits: how many sessions, and how long they may idle.
        clock: seconds that only grow.
    """

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self.draining = False
        self._limits, self._clock = limits, clock
        self._sessions: dict[int, Session] = {}
        self._opening = 0

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def running(self) -> int:
        """Sessions whose episode has not ended."""
        return self._opening + sum(not session.done for session in self._sessions.values())

    @contextmanager
    def opening(self) -> Iterator[None]:
        """Keep a place while a session is opened, or refuse."""
        if self.draining:
            raise _no_room("this server is about to stop. Ask another one")
        if len(self._sessions) + self._opening >= self._limits.sessions:
            raise _no_room(f"all {self._limits.sessions} sessions are open. Close one, or try again later")
        self._opening += 1
        try:
            yield
        finally:
            self._opening -= 1

    def add(self, number: int) -> None:
        """Remember a session that was opened."""
        self._sessions[number] = Session(self._clock())

    def session(self, number: int) -> Session:
        """An open session."""
        if number not in self._sessions:
            raise RequestError(404, f"there is no session {number}: it was closed, idled too long, or never was.")
        return self._sessions[number]

    @contextmanager
    def call(self, number: int) -> Iterator[Session]:
        """Mark a session as busy while one call runs; a second call at the same time is refused."""
        session = self.session(number)
        if session.busy:
            raise RequestError(
                409, f"another call of session {number} is still running. A session plays one at a time."
            )
        session.busy, session.touched = True, self._clock()
        try:
            yield session
        finally:
            session.busy, session.touched = False, self._clock()

    def drop(self, number: int) -> None:
        """Forget a session; one that is unknown is no error."""
        self._sessions.pop(number, None)

    def expired(self) -> list[int]:
        """Sessions that nobody has called for too long."""
        latest = self._clock() - self._limits.idle_s
        return [number for number, one in self._sessions.items() if one.touched < latest and not one.busy]


def _no_room(reason: str) -> RequestError:
    return RequestError(503, f"{reason}.", {"Retry-After": str(RETRY_AFTER_S)})
