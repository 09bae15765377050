"""The inside of a host: sessions of one environment, called in threads, and forgotten when they hang or idle.

Knows nothing of other hosts, and not through which process boundary it is called.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from verl_agent.envs.base import EnvAdapter, Hosting
from verl_agent.envs.hosts.loops import Call, EventLoopThread, InlineLoop
from verl_agent.errors import AgentError, EnvError, EnvTimeoutError, UnknownSessionError, describe_exception
from verl_agent.types import Message, StepResult, TaskItem

T = TypeVar("T")
CLOSE_TIMEOUT_S = 60.0
"""Seconds that an adapter's close may take in its thread, whether or not somebody still waits for it."""
TICK_S = 0.25
MAX_LOGGED = 100
"""Most different failures that a host logs; each is also in the record of its episode."""
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CallLimits:
    """Seconds that the sessions of a host have.

    Attributes:
        timeout_s: for one reset or step, from when its thread begins it.
        idle_s: between two calls; a session that is left alone for longer is closed.
        grace_s: for a thread to come back from a call that was given up, before it counts as stuck; also for a
            close to be waited for.
    """

    timeout_s: float = 60.0
    idle_s: float = 3600.0
    grace_s: float = 5.0


@dataclass(frozen=True, slots=True)
class Health:
    """What a host says of itself.

    Attributes:
        sessions: numbers of the sessions that it has.
        episodes: begun so far.
        reaped: sessions closed so far because they were left alone.
        stuck: threads that did not come back from a call that was given up.
        memory_mb: MiB of its process and those that it started; 0 where it shares its process.
    """

    sessions: frozenset[int]
    episodes: int
    reaped: int
    stuck: int
    memory_mb: float


@dataclass(slots=True, eq=False)
class _Session:
    lane: EventLoopThread
    used_at: float
    env: EnvAdapter | None = None
    calls: set[Call[Any]] = field(default_factory=set)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)  # taken in the lane: one call after another


class Host:
    """Sessions of one environment in this process.

    Args:
        env: the environment with its options.
        hosting: how many threads there are.
        limits: seconds.
        memory_mb: tells the memory of the process.
    """

    def __init__(
        self,
        env: EnvAdapter,
        hosting: Hosting,
        limits: CallLimits,
        memory_mb: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._env, self._hosting, self._limits = env, hosting, limits
        self._memory_mb = memory_mb
        self._sessions: dict[int, _Session] = {}
        self._shared: list[EventLoopThread] = []
        self._calls: set[Call[Any]] = set()
        self._episodes = self._reaped = 0
        self._logged: set[str] = set()
        self._watcher: asyncio.Task[None] | None = None

    async def open(self, number: int) -> None:
        """Make a session; its adapter is created at the first reset."""
        if self._watcher is None:
            self._watcher = asyncio.create_task(self._watch())
        self._sessions[number] = _Session(self._lane(), time.monotonic())

    async def reset(self, number: int, item: TaskItem) -> list[Message]:
        """See `SessionPool.reset`."""
        session = self._find(number)
        self._episodes += 1
        return await self._call(session, "reset", lambda: self._begin(session, item))

    async def step(self, number: int, action: str) -> StepResult:
        """See `SessionPool.step`."""
        session = self._find(number)
        return await self._call(session, "step", lambda: self._act(session, action))

    async def close(self, number: int) -> None:
        """Forget a session and close its adapter; a thread that is stuck does so when its call returns."""
        if number in self._sessions:
            closing = self._forget(number, UnknownSessionError(f"session {number} was closed during the call."))
            await asyncio.wait([closing.answer], timeout=self._limits.grace_s)

    async def health(self) -> Health:
        """How it is."""
        stuck = self._stuck(time.monotonic())
        return Health(frozenset(self._sessions), self._episodes, self._reaped, len(stuck), self._memory_mb())

    async def shutdown(self) -> None:
        """Close all sessions; waits a while for adapters that take their time."""
        gone = UnknownSessionError("the host is shut down.")
        for number in list(self._sessions):
            self._forget(number, gone)
        if self._calls:
            await asyncio.wait([call.answer for call in self._calls], timeout=self._limits.grace_s)
        if self._watcher is not None:
            self._watcher.cancel()
        for lane in self._shared:
            lane.end()

    def _find(self, number: int) -> _Session:
        if number not in self._sessions:
            raise UnknownSessionError(f"no session {number}: it was closed, or ended after a fault or by being idle.")
        return self._sessions[number]

    def _lane(self) -> EventLoopThread:
        if self._hosting.threads is None:
            return EventLoopThread()
        if self._hosting.threads == 0:
            self._shared = self._shared or [InlineLoop()]
            return self._shared[0]
        if len(self._shared) < self._hosting.threads:
            self._shared.append(EventLoopThread())
            return self._shared[-1]
        lanes = [session.lane for session in self._sessions.values()]
        return min(self._shared, key=lanes.count)

    async def _call(self, session: _Session, what: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        call: Call[T] = Call(session.lane, what, self._limits.timeout_s)
        session.calls.add(call)
        self._calls.add(call)
        call.start(lambda: self._guard(call, session.turn, work))
        try:
            return await call.answer
        except asyncio.CancelledError:
            call.end(EnvError(f"{what} was given up by its caller."))
            raise
        finally:
            session.calls.discard(call)
            session.used_at = time.monotonic()
            if call.over:
                self._calls.discard(call)

    async def _begin(self, session: _Session, item: TaskItem) -> list[Message]:
        if session.env is not None:  # an adapter plays one episode
            last, session.env = session.env, None
            await last.close()
        session.env = self._env.new_session()
        return await session.env.reset(item)

    async def _act(self, session: _Session, action: str) -> StepResult:
        if session.env is None:
            raise EnvError("step came before the first reset.")
        return await session.env.step(action)

    def _forget(self, number: int, why: EnvError) -> Call[None]:
        """Take a session off the table, end its calls with `why`, and have its adapter closed in its thread."""
        session = self._sessions.pop(number)
        for call in session.calls:
            call.end(why)
        closing: Call[None] = Call(session.lane, "close", CLOSE_TIMEOUT_S)
        self._calls.add(closing)
        closing.start(lambda: self._close(closing, session))
        return closing

    async def _close(self, closing: Call[None], session: _Session) -> None:
        """Close an adapter, in its lane; one that fails has nobody left to tell but the log."""

        async def end() -> None:
            if session.env is not None:
                await session.env.close()

        try:
            await self._guard(closing, session.turn, end)
        except AgentError as error:  # the caller has left
            self._log_once(error)
        finally:
            if session.lane not in self._shared:
                session.lane.end()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(min(TICK_S, self._limits.timeout_s / 4, self._limits.idle_s / 4))
            self._look(time.monotonic())

    def _look(self, now: float) -> None:
        """Give up calls that take too long and sessions that nobody calls."""
        self._calls = {call for call in self._calls if not call.over}
        late = {call for call in self._calls if call.overdue(now)}
        for call in late:
            call.end(EnvTimeoutError(f"{call.what} took more than {call.limit_s:g} s"))
        blocked = {lane for lane in self._stuck(now) if lane in self._shared}
        for number, session in list(self._sessions.items()):
            if late & session.calls:
                self._forget(number, EnvTimeoutError(f"an earlier call took more than {self._limits.timeout_s:g} s"))
            elif session.lane in blocked:
                self._forget(number, EnvError("the thread that it shares is stuck in a call of another session."))
            elif not session.calls and now - session.used_at > self._limits.idle_s:
                self._forget(number, UnknownSessionError(f"nobody called it for {self._limits.idle_s:g} s."))
                self._reaped += 1

    def _stuck(self, now: float) -> set[EventLoopThread]:
        return {call.lane for call in self._calls if call.holds_thread(now, self._limits.grace_s)}

    async def _guard(self, call: Call[Any], turn: asyncio.Lock, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run `work` when the session's last call has ended, and raise an `AgentError` for any other exception."""
        async with turn:
            call.began_at = time.monotonic()
            try:
                return await work()
            except AgentError as error:
                raise _own(error) from error
            except BaseException as error:  # boundary: adapters may raise anything; SystemExit would end the thread
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                failure = EnvError(f"{call.what} failed: {describe_exception(error)}")
                self._log_once(failure, error)
                raise failure from error

    def _log_once(self, failure: AgentError, cause: BaseException | None = None) -> None:
        """Log a failure, and the traceback of its cause, unless this host logged the same before."""
        if str(failure) not in self._logged and len(self._logged) < MAX_LOGGED:
            self._logged.add(str(failure))
            log.warning("%s: %s", type(self._env).__name__, failure, exc_info=cause)


def _own(error: AgentError) -> AgentError:
    """The same as an error of ours, for one of an adapter's own may not survive the way to another process."""
    kind = next(kind for kind in type(error).__mro__ if kind.__module__ == AgentError.__module__)
    own: AgentError = kind(str(error))
    return own
