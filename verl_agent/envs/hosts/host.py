"""A host: sessions of one environment that are called in threads, and removed when a call hangs or they are idle.

It is independent of other hosts and of the connection to its pool.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from math import inf
from typing import Any, TypeVar

from verl_agent.envs import answers
from verl_agent.envs.base import EnvAdapter, Hosting
from verl_agent.envs.hosts.loops import Call, EventLoopThread, InlineLoop
from verl_agent.errors import AgentError, EnvError, EnvTimeoutError, UnknownSessionError, env_failure, exception_text
from verl_agent.types import Action, Message, StepResult, TaskItem

T = TypeVar("T")
CLOSE_TIMEOUT_S = 60.0
"""Most seconds of an adapter's `close` in its thread, even if no caller awaits it any more."""
TICK_S = 0.25
"""Most seconds between two checks for hanging calls and idle sessions."""
MAX_LOGGED = 100
"""Most different failures that a host logs; the episode record holds each of them."""
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CallLimits:
    """Time limits of a session.

    Attributes:
        timeout_s: most seconds of one reset or step, from its start in the thread.
        idle_s: seconds without a call after which a session is closed; None for a session that ends with its episode.
        grace_s: seconds after which the thread of an abandoned call counts as stuck; also most seconds that a caller
            waits for `close`.
    """

    timeout_s: float = 60.0
    idle_s: float | None = None
    grace_s: float = 5.0


@dataclass(frozen=True, slots=True)
class HostHealth:
    """Answer of a host to a health check.

    Attributes:
        sessions: numbers of its open sessions.
        episodes: number of episodes that have begun.
        reaped: number of sessions closed for being idle.
        stuck: number of threads that an abandoned call still occupies.
        memory_mb: memory in MiB of its process and the child processes; 0 for a host in the pool's process.
    """

    sessions: frozenset[int]
    episodes: int
    reaped: int
    stuck: int
    memory_mb: float


@dataclass(slots=True, eq=False)
class _Session:
    thread: EventLoopThread
    used_at: float
    env: EnvAdapter | None = None
    item: TaskItem | None = None
    calls: set[Call[Any]] = field(default_factory=set)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # held by the running call, in its thread


class Host:
    """Sessions of one environment in this process."""

    def __init__(
        self, env: EnvAdapter, hosting: Hosting, limits: CallLimits, memory_mb: Callable[[], float] = lambda: 0.0
    ) -> None:
        self._env, self._hosting, self._limits = env, hosting, limits
        self._idle_s = inf if limits.idle_s is None else limits.idle_s
        self._memory_mb = memory_mb
        self._sessions: dict[int, _Session] = {}
        self._shared: list[EventLoopThread] = []
        self._calls: set[Call[Any]] = set()
        self._episodes = self._reaped = 0
        self._logged: set[str] = set()
        self._watcher: asyncio.Task[None] | None = None

    async def open(self, number: int) -> None:
        """Open a session; its first reset constructs the adapter."""
        if self._watcher is None:
            self._watcher = asyncio.create_task(self._watch())
        self._sessions[number] = _Session(self._choose_thread(), time.monotonic())

    def reset(self, number: int, item: TaskItem) -> Coroutine[Any, Any, list[Message]]:
        """Begin an episode in a session."""
        session = self._find(number)
        self._episodes += 1
        return self._call(session, "reset", lambda: self._begin(session, item))

    def step(self, number: int, action: Action) -> Coroutine[Any, Any, StepResult]:
        """Play an action in a session."""
        session = self._find(number)
        return self._call(session, "step", lambda: self._act(session, action))

    async def close(self, number: int) -> None:
        """Remove a session and close its adapter; a stuck thread closes it when its call returns."""
        if number in self._sessions:
            closing = self._remove(number, UnknownSessionError(f"session {number} was closed during the call."))
            await asyncio.wait([closing.answer], timeout=self._limits.grace_s)

    async def health(self) -> HostHealth:
        """Return the state of the host."""
        stuck = self._stuck(time.monotonic())
        return HostHealth(frozenset(self._sessions), self._episodes, self._reaped, len(stuck), self._memory_mb())

    async def shutdown(self) -> None:
        """Close all sessions and wait for their adapters for at most `grace_s`."""
        for number in list(self._sessions):
            self._remove(number, UnknownSessionError("the host is shut down."))
        if self._calls:
            await asyncio.wait([call.answer for call in self._calls], timeout=self._limits.grace_s)
        if self._watcher is not None:
            self._watcher.cancel()
        for thread in self._shared:
            thread.end()

    def _find(self, number: int) -> _Session:
        if number not in self._sessions:
            raise UnknownSessionError(f"no session {number}: it was closed, timed out, or was idle for too long.")
        return self._sessions[number]

    def _choose_thread(self) -> EventLoopThread:
        if self._hosting.threads is None:
            return EventLoopThread()
        if self._hosting.threads == 0:
            self._shared = self._shared or [InlineLoop()]
            return self._shared[0]
        if len(self._shared) < self._hosting.threads:
            self._shared.append(EventLoopThread())
            return self._shared[-1]
        threads = [session.thread for session in self._sessions.values()]
        return min(self._shared, key=threads.count)

    async def _call(self, session: _Session, name: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        call: Call[T] = Call(session.thread, name, self._limits.timeout_s, session.lock, self._failure)
        session.calls.add(call)
        self._calls.add(call)
        call.start(work)
        try:
            return await call.answer
        except asyncio.CancelledError:
            call.end(EnvError(f"{name} was cancelled by its caller."))
            raise
        finally:
            session.calls.discard(call)
            session.used_at = time.monotonic()
            if call.over:
                self._calls.discard(call)

    async def _begin(self, session: _Session, item: TaskItem) -> list[Message]:
        if session.env is not None:  # an instance plays one episode
            previous, session.env = session.env, None
            await previous.close()
        session.env, session.item = self._env.new_session(), item
        return await answers.reset(session.env, item)

    def _act(self, session: _Session, action: Action) -> Coroutine[Any, Any, StepResult]:
        if session.env is None:
            raise EnvError("step came before the first reset.")
        return answers.step(session.env, action, session.item)

    def _remove(self, number: int, error: EnvError) -> Call[None]:
        """Remove a session, end its calls with `error`, and start closing its adapter in its thread."""
        session = self._sessions.pop(number)
        for call in session.calls:
            call.end(error)
        closing: Call[None] = Call(session.thread, "close", CLOSE_TIMEOUT_S, session.lock, self._failure)
        self._calls.add(closing)
        closing.start(lambda: self._close(session))
        return closing

    async def _close(self, session: _Session) -> None:
        """Close an adapter in its thread; a failure is only logged."""
        try:
            if session.env is not None:
                await session.env.close()
        except AgentError as error:  # no caller awaits it
            self._log_once(error)
        finally:
            if session.thread not in self._shared:
                session.thread.end()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(min(TICK_S, self._limits.timeout_s / 4, self._idle_s / 4))
            self._check_calls(time.monotonic())

    def _check_calls(self, now: float) -> None:
        """Abandon calls that exceed their limit, and remove their sessions and idle ones."""
        self._calls = {call for call in self._calls if not call.over}
        late = {call for call in self._calls if call.overdue(now)}
        for call in late:
            call.end(EnvTimeoutError(f"{call.name} took more than {call.limit_s:g} s"))
        blocked = {thread for thread in self._stuck(now) if thread in self._shared}
        for number, session in list(self._sessions.items()):
            if late & session.calls:
                self._remove(number, EnvTimeoutError(f"an earlier call took more than {self._limits.timeout_s:g} s"))
            elif session.thread in blocked:
                self._remove(number, EnvError("its shared thread is stuck in a call of another session."))
            elif not session.calls and now - session.used_at > self._idle_s:
                self._remove(number, UnknownSessionError(f"it was idle for {self._idle_s:g} s."))
                self._reaped += 1

    def _stuck(self, now: float) -> set[EventLoopThread]:
        """Return the threads that abandoned calls still occupy."""
        return {call.thread for call in self._calls if call.is_stuck(now, self._limits.grace_s)}

    def _failure(self, name: str, error: BaseException) -> AgentError:
        """Return the error of a call for its caller: an `EnvError` for any exception but an `AgentError`."""
        if isinstance(error, AgentError):
            failure = _own(error)
        else:
            failure = env_failure(name, error)
            self._log_once(failure, error)
        failure.__cause__ = error
        return failure

    def _log_once(self, failure: AgentError, cause: BaseException | None = None) -> None:
        """Log a failure, and the traceback of its cause, unless this host logged the same before."""
        if str(failure) not in self._logged and len(self._logged) < MAX_LOGGED:
            self._logged.add(str(failure))
            log.warning("%s: %s", type(self._env).__name__, failure, exc_info=cause)


def _own(error: AgentError) -> AgentError:
    """Return the error as a class of this package: another process may be unable to unpickle an adapter's subclass."""
    kind = next(kind for kind in type(error).__mro__ if kind.__module__ == AgentError.__module__)
    own: AgentError = kind(exception_text(error))
    return own
