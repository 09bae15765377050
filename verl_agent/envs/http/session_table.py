"""Table of a server's sessions: the state of each, and the rules for opening and calling them."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from verl_agent.envs.http.settings import ServerLimits
from verl_agent.envs.http.wire import RequestError

RETRY_AFTER_S = 1
"""Seconds after which a client may retry if the server had no free slot."""


@dataclass(slots=True)
class SessionState:
    """State of one session.

    Attributes:
        last_call_s: time of the last call, in seconds of the table's clock.
        score: sum of the rewards of this episode.
        done: true if the episode has ended.
        busy: true while a call is running.
        used: true from the first call on.
    """

    last_call_s: float
    observation: str | None = None
    score: float = 0.0
    done: bool = False
    busy: bool = False
    used: bool = False


class SessionTable:
    """All open sessions of a server. Only the server's event loop uses it, so it needs no lock."""

    def __init__(self, limits: ServerLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self.draining = False
        self._limits, self._clock = limits, clock
        self._sessions: dict[int, SessionState] = {}
        self._opening = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def __contains__(self, session: int) -> bool:
        return session in self._sessions

    @property
    def running(self) -> int:
        """Number of sessions whose episode has not ended."""
        return self._opening + sum(not state.done for state in self._sessions.values())

    @contextmanager
    def reserve_slot(self) -> Iterator[None]:
        """Reserve a slot while a session is opened."""
        if self.draining:
            raise _unavailable("this server is stopping. Use another one")
        if len(self._sessions) + self._opening >= self._limits.sessions:
            raise _unavailable(f"all {self._limits.sessions} sessions are open. Close one, or try again later")
        self._opening += 1
        try:
            yield
        finally:
            self._opening -= 1

    def add(self, session: int) -> None:
        """Add a session that was opened."""
        self._sessions[session] = SessionState(self._clock())

    def get(self, session: int) -> SessionState:
        """Return the state of an open session."""
        if session not in self:
            raise RequestError(
                404, f"there is no session {session}: it was closed, was idle too long, or never existed."
            )
        return self._sessions[session]

    @contextmanager
    def call(self, session: int) -> Iterator[SessionState]:
        """Mark a session as busy during one call."""
        state = self.get(session)
        if state.busy:
            raise RequestError(
                409, f"another call of session {session} is still running. Calls of a session run one after another."
            )
        state.busy, state.used, state.last_call_s = True, True, self._clock()
        try:
            yield state
        finally:
            state.busy, state.last_call_s = False, self._clock()

    def unused(self, session: int) -> bool:
        """Return True if a session is open and no call has used it."""
        return session in self and not self._sessions[session].used

    def remove(self, session: int) -> None:
        """Remove a session; an unknown one is ignored."""
        self._sessions.pop(session, None)

    def expired(self) -> list[int]:
        """Return the sessions that were idle for too long."""
        latest = self._clock() - self._limits.idle_s
        return [number for number, state in self._sessions.items() if state.last_call_s < latest and not state.busy]


def _unavailable(reason: str) -> RequestError:
    return RequestError(503, f"{reason}.", {"Retry-After": str(RETRY_AFTER_S)})
