"""Pool of hosts that run environment sessions: assigns sessions to hosts and replaces retired and dead hosts.

It is independent of how a host is started and called; see `HostLink`.
"""

import asyncio
import logging
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager

from typing_extensions import override

from verl_agent.envs.base import Hosting
from verl_agent.envs.hosts.host import HostHealth
from verl_agent.envs.hosts.link import HostLink
from verl_agent.envs.hosts.slot import HostSlot, PoolLimits, retirement_reason
from verl_agent.envs.session import SessionPool, in_background
from verl_agent.errors import EnvError, EnvTimeoutError, HostLostError, PoolFullError, UnknownSessionError
from verl_agent.types import Action, Message, StepResult, TaskItem

OPEN_ATTEMPTS = 3
"""Most hosts that `open` tries if they die meanwhile."""
START_PAUSE_S = 60.0
"""Seconds after a failed start in which no other host is started."""
COUNTS = ("opened", "closed", "reaped", "env_errors", "hosts_started", "hosts_lost", "hosts_recycled")
"""Statistics that are counted since the start of the pool."""
log = logging.getLogger(__name__)


class HostPool(SessionPool):
    """A `SessionPool` that starts hosts on demand.

    It belongs to the event loop in which it is first used.
    """

    def __init__(self, start: Callable[[], Awaitable[HostLink]], hosting: Hosting, limits: PoolLimits) -> None:
        self._start, self._hosting, self._limits = start, hosting, limits
        self._slots: list[HostSlot] = []
        self._slot_of: dict[int, HostSlot] = {}
        self._capacity = asyncio.Semaphore(limits.count * hosting.sessions)
        self._waiting = 0
        self._start_after = 0.0
        self._counts: Counter[str] = Counter()
        self._watchers: set[asyncio.Task[None]] = set()
        self._background: set[asyncio.Task[None]] = set()
        self._shut = False

    @override
    async def open(self) -> int:
        self._waiting += 1
        try:
            async with asyncio.timeout(self._limits.wait_s):
                await self._capacity.acquire()
        except TimeoutError:
            raise PoolFullError(
                f"no slot for another session became free in {self._limits.wait_s:g} s: {self._limits.count} hosts "
                f"hold {self._hosting.sessions} sessions each. Allow more hosts, or play fewer episodes at once."
            ) from None
        finally:
            self._waiting -= 1
        number = secrets.randbits(63)
        try:
            await self._open_in_host(number)
        except BaseException:
            self._capacity.release()
            raise
        self._counts["opened"] += 1
        return number

    @override
    async def reset(self, session: int, item: TaskItem) -> list[Message]:
        with self._calling(session) as link:
            messages: list[Message] = await link.call("reset", session, item)
        return messages

    @override
    async def step(self, session: int, action: Action) -> StepResult:
        with self._calling(session) as link:
            result: StepResult = await link.call("step", session, action)
        return result

    @override
    async def close(self, session: int) -> None:
        """The session is closed even if the caller is cancelled."""
        slot = self._slot_of.pop(session, None)
        if slot is not None:
            await asyncio.shield(in_background(self._close(session, slot), self._background))

    def link(self, session: int) -> HostLink:
        """Return the connection to the host of a session."""
        if session not in self._slot_of:
            raise UnknownSessionError(
                f"no session {session}: it was closed, was idle for too long, or ended with its host."
            )
        return self._slot_of[session].started.result()

    @override
    def stats(self) -> Mapping[str, float]:
        """`threads_stuck` and `memory_mb` come from the last health checks."""
        health = [slot.health for slot in self._slots]
        return {
            "sessions": len(self._slot_of),
            "waiting": self._waiting,
            "hosts": len(self._slots),
            "threads_stuck": sum(one.stuck for one in health),
            "memory_mb": sum(one.memory_mb for one in health),
        } | {name: self._counts[name] for name in COUNTS}

    @override
    async def shutdown(self) -> None:
        self._shut = True
        for _ in range(self._waiting):
            self._capacity.release()
        for slot in list(self._slots):
            self._stop(slot, "the pool is shut down.")
        for watcher in self._watchers:
            watcher.cancel()
        await asyncio.gather(*self._watchers, *self._background, return_exceptions=True)

    @contextmanager
    def _calling(self, session: int) -> Iterator[HostLink]:
        """Yield the connection to the host of a session; an error of the call may end the session, or the host."""
        link = self.link(session)
        try:
            yield link
        except (EnvTimeoutError, UnknownSessionError):  # the host has removed the session
            self._counts["env_errors"] += 1
            self._release(self._slot_of.pop(session, None), session)
            raise
        except HostLostError as error:
            self._stop_dead(self._slot_of.get(session), str(error))
            raise
        except EnvError:
            self._counts["env_errors"] += 1
            raise

    async def _open_in_host(self, number: int) -> None:
        """Open a session in a host, or in another one if that dies meanwhile."""
        for attempts_left in reversed(range(OPEN_ATTEMPTS)):
            slot = self._choose()
            slot.opening += 1
            try:
                link = await asyncio.shield(slot.started)
                await link.call("open", number)
                if slot not in self._slots:
                    raise HostLostError("the host was lost while the session was opened.")
                slot.sessions.add(number)
                self._slot_of[number] = slot
                return
            except EnvError as error:
                self._stop_dead(slot, str(error))
                did_start = slot.started.exception() is None
                if not attempts_left or not (did_start or self._slots):
                    raise
            except asyncio.CancelledError:  # the session may have been opened nevertheless
                if slot.started.done():
                    in_background(self._close(number, slot), self._background)
                raise
            finally:
                slot.opening -= 1
                self._stop_if_empty(slot)

    def _choose(self) -> HostSlot:
        """Return the host with the fewest sessions, or start another one if that host is busy."""
        if self._shut:
            raise EnvError("the pool is shut down.")
        available = [slot for slot in self._slots if not slot.retired]
        best = min(available, key=lambda slot: slot.load, default=None)
        cores_free = len(available) < self._limits.cores
        busy = min(self._hosting.busy, self._hosting.sessions) if cores_free else self._hosting.sessions
        no_more = len(available) >= self._limits.count or time.monotonic() < self._start_after
        if best is not None and (best.load < busy or no_more):
            return best
        slot = HostSlot(asyncio.create_task(self._start_host()))
        self._slots.append(slot)
        in_background(self._watch(slot), self._watchers)
        return slot

    async def _start_host(self) -> HostLink:
        try:
            async with asyncio.timeout(self._limits.start_s):
                link = await self._start()
        except TimeoutError:
            self._start_after = time.monotonic() + START_PAUSE_S
            raise EnvError(f"a host did not start in {self._limits.start_s:g} s.") from None
        except EnvError:
            self._start_after = time.monotonic() + START_PAUSE_S
            raise
        self._counts["hosts_started"] += 1
        return link

    async def _watch(self, slot: HostSlot) -> None:
        """Check the health of a host until it leaves the pool."""
        try:
            link = await asyncio.shield(slot.started)
        except Exception as error:  # boundary: callers of `open` get the error from the task
            self._stop_dead(slot, f"it did not start: {error}")
            return
        while slot in self._slots:
            await asyncio.sleep(self._limits.ping_s)
            known = frozenset(slot.sessions)
            try:
                async with asyncio.timeout(self._limits.frozen_s):
                    health: HostHealth = await link.call("health")
            except TimeoutError:
                self._stop_dead(slot, f"a host did not answer for {self._limits.frozen_s:g} s.")
            except HostLostError as error:
                self._stop_dead(slot, str(error))
            else:
                self._update(slot, health, known)

    def _update(self, slot: HostSlot, health: HostHealth, known: frozenset[int]) -> None:
        """Store the health of a host, release the sessions that it removed, and retire it if there is a reason."""
        self._counts["reaped"] += health.reaped - slot.health.reaped
        slot.health = health
        for session in known - health.sessions:  # idle, timed out, or being closed
            self._release(self._slot_of.pop(session, None), session)
        reason = retirement_reason(health, self._hosting)
        if reason and not slot.retired:
            log.warning("a host takes no more sessions and is replaced: %s", reason)
            self._counts["hosts_recycled"] += 1
            slot.retired = True
            self._stop_if_empty(slot)

    async def _close(self, session: int, slot: HostSlot) -> None:
        try:
            await slot.started.result().call("close", session)
        except HostLostError as error:
            self._stop_dead(slot, str(error))
        finally:
            self._counts["closed"] += session in slot.sessions
            self._release(slot, session)

    def _release(self, slot: HostSlot | None, session: int) -> None:
        """Make room for another session after this one has ended."""
        if slot is not None and session in slot.sessions:
            slot.sessions.discard(session)
            self._capacity.release()
            self._stop_if_empty(slot)

    def _stop_if_empty(self, slot: HostSlot) -> None:
        if slot.retired and not slot.load and slot in self._slots:
            self._stop(slot, "the host was replaced.")

    def _stop_dead(self, slot: HostSlot | None, reason: str) -> None:
        """Remove a dead host and its sessions; the next session that needs one starts another host."""
        if slot is None or slot not in self._slots:
            return
        log.warning("a host with %d sessions is lost: %s", len(slot.sessions), reason)
        self._counts["hosts_lost"] += 1
        self._counts["env_errors"] += len(slot.sessions)
        self._stop(slot, reason)

    def _stop(self, slot: HostSlot, reason: str) -> None:
        """Remove a host from the pool and stop it in the background."""
        self._slots.remove(slot)
        for session in list(slot.sessions):
            self._slot_of.pop(session, None)
            self._release(slot, session)
        in_background(self._end(slot, reason), self._background)

    async def _end(self, slot: HostSlot, reason: str) -> None:
        try:
            link = await slot.started
        except Exception:  # boundary: the host did not start
            return
        await link.end(reason)
