"""Hosts and who lives where: places sessions, bounds their number, and replaces hosts that are worn or dead.

Knows nothing of how a host is started or spoken to; that is its `HostLink`.
"""

import asyncio
import logging
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

from verl_agent.envs.base import Hosting
from verl_agent.envs.hosts.host import Health
from verl_agent.envs.hosts.link import HostLink
from verl_agent.envs.hosts.slot import HostSlot, PoolLimits, worn_out
from verl_agent.errors import EnvError, EnvTimeoutError, HostLostError, PoolFullError, UnknownSessionError
from verl_agent.types import Message, StepResult, TaskItem

OPEN_TRIES = 3
"""Hosts that may die under a session before it is given up."""
START_PAUSE_S = 60.0
"""Seconds after a host did not start in which the others take its sessions."""
COUNTS = ("opened", "closed", "reaped", "faults", "hosts_started", "hosts_lost", "hosts_recycled")
"""What a pool counts from its start on."""
log = logging.getLogger(__name__)


class HostPool:
    """A `SessionPool` over hosts that are started when they are needed.

    It belongs to the event loop in which it is first used.

    Args:
        start: starts a host.
        hosting: what a host may hold.
        limits: of the pool.
    """

    def __init__(self, start: Callable[[], Awaitable[HostLink]], hosting: Hosting, limits: PoolLimits) -> None:
        self._start, self._hosting, self._limits = start, hosting, limits
        self._places: list[HostSlot] = []
        self._homes: dict[int, HostSlot] = {}
        self._room = asyncio.Semaphore(limits.count * hosting.sessions)
        self._waiting = 0
        self._start_after = 0.0
        self._counts: Counter[str] = Counter()
        self._watchers: set[asyncio.Task[None]] = set()
        self._endings: set[asyncio.Task[None]] = set()
        self._shut = False

    async def open(self) -> int:
        """See `SessionPool.open`."""
        self._waiting += 1
        try:
            async with asyncio.timeout(self._limits.wait_s):
                await self._room.acquire()
        except TimeoutError:
            raise PoolFullError(
                f"no place for another session became free in {self._limits.wait_s:g} s: {self._limits.count} hosts "
                f"hold {self._hosting.sessions} sessions each. Allow more hosts, or play fewer episodes at once."
            ) from None
        finally:
            self._waiting -= 1
        number = secrets.randbits(63)
        try:
            await self._settle(number)
        except BaseException:
            self._room.release()
            raise
        self._counts["opened"] += 1
        return number

    async def reset(self, session: int, item: TaskItem) -> list[Message]:
        """See `SessionPool.reset`."""
        messages: list[Message] = await self._call("reset", session, item)
        return messages

    async def step(self, session: int, action: str) -> StepResult:
        """See `SessionPool.step`."""
        result: StepResult = await self._call("step", session, action)
        return result

    async def close(self, session: int) -> None:
        """See `SessionPool.close`; a caller that waits no longer does not keep it from being closed."""
        place = self._homes.pop(session, None)
        if place is not None:
            await asyncio.shield(run(self._close(session, place), self._endings))

    def link(self, session: int) -> HostLink:
        """The host of a session.

        Raises:
            UnknownSessionError: no such session.
        """
        if session not in self._homes:
            raise UnknownSessionError(f"no session {session}: it was closed, or ended with its host or by being idle.")
        return self._homes[session].started.result()

    def stats(self) -> Mapping[str, float]:
        """See `SessionPool.stats`; `threads_stuck` and `memory_mb` are those of the hosts at their last answer."""
        health = [place.health for place in self._places]
        return {
            "sessions": len(self._homes),
            "waiting": self._waiting,
            "hosts": len(self._places),
            "threads_stuck": sum(one.stuck for one in health),
            "memory_mb": sum(one.memory_mb for one in health),
        } | {name: self._counts[name] for name in COUNTS}

    async def shutdown(self) -> None:
        """See `SessionPool.shutdown`."""
        self._shut = True
        for _ in range(self._waiting):
            self._room.release()
        for place in list(self._places):
            self._drop(place, "the pool is shut down.")
        for watcher in self._watchers:
            watcher.cancel()
        await asyncio.gather(*self._watchers, *self._endings, return_exceptions=True)

    async def _call(self, method: str, session: int, argument: object) -> Any:
        link = self.link(session)
        try:
            return await link.call(method, session, argument)
        except (EnvTimeoutError, UnknownSessionError):  # the host has ended it
            self._counts["faults"] += 1
            self._free(self._homes.pop(session, None), session)
            raise
        except HostLostError as error:
            self._lose(self._homes.get(session), str(error))
            raise
        except EnvError:
            self._counts["faults"] += 1
            raise

    async def _settle(self, number: int) -> None:
        """Open a session in a host; another one is tried if it dies over it."""
        for tries_left in reversed(range(OPEN_TRIES)):
            place = self._choose()
            place.opening += 1
            try:
                link = await asyncio.shield(place.started)
                await link.call("open", number)
                if place not in self._places:
                    raise HostLostError("the host was lost while the session was opened.")
                place.sessions.add(number)
                self._homes[number] = place
                return
            except EnvError as error:
                self._lose(place, str(error))
                did_start = place.started.exception() is None
                if not tries_left or not (did_start or self._places):
                    raise
            except asyncio.CancelledError:  # the session may have been opened all the same
                if place.started.done():
                    run(self._close(number, place), self._endings)
                raise
            finally:
                place.opening -= 1
                self._end_if_empty(place)

    def _choose(self) -> HostSlot:
        """The host with the fewest sessions, or a new one if that one has enough and there may be more."""
        if self._shut:
            raise EnvError("the pool is shut down.")
        open_places = [place for place in self._places if not place.retired]
        best = min(open_places, key=lambda place: place.load, default=None)
        full, spread = self._hosting.sessions, len(open_places) < self._limits.cores
        enough = min(self._hosting.busy, full) if spread else full
        no_more = len(open_places) >= self._limits.count or time.monotonic() < self._start_after
        if best is not None and (best.load < enough or no_more):
            return best
        place = HostSlot(asyncio.create_task(self._started()))
        self._places.append(place)
        run(self._watch(place), self._watchers)
        return place

    async def _started(self) -> HostLink:
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

    async def _watch(self, place: HostSlot) -> None:
        """Ask a host for its health until it is gone."""
        try:
            link = await asyncio.shield(place.started)
        except Exception as error:  # whoever waits for it is told by the task itself
            self._lose(place, f"it did not start: {error}")
            return
        while place in self._places:
            await asyncio.sleep(self._limits.ping_s)
            known = frozenset(place.sessions)
            try:
                async with asyncio.timeout(self._limits.frozen_s):
                    health: Health = await link.call("health")
            except TimeoutError:
                self._lose(place, f"a host did not answer for {self._limits.frozen_s:g} s.")
            except HostLostError as error:
                self._lose(place, str(error))
            else:
                self._note(place, health, known)

    def _note(self, place: HostSlot, health: Health, known: frozenset[int]) -> None:
        self._counts["reaped"] += health.reaped - place.health.reaped
        place.health = health
        for session in known - health.sessions:  # it was reaped, or its last call was given up; or it is closing
            self._free(self._homes.pop(session, None), session)
        worn = worn_out(health, self._hosting)
        if worn and not place.retired:
            log.warning("a host takes no more sessions and is replaced: %s", worn)
            self._counts["hosts_recycled"] += 1
            place.retired = True
            self._end_if_empty(place)

    async def _close(self, session: int, place: HostSlot) -> None:
        try:
            await place.started.result().call("close", session)
        except HostLostError as error:
            self._lose(place, str(error))
        finally:
            self._counts["closed"] += session in place.sessions
            self._free(place, session)

    def _free(self, place: HostSlot | None, session: int) -> None:
        """Give back the place of a session that is over."""
        if place is not None and session in place.sessions:
            place.sessions.discard(session)
            self._room.release()
            self._end_if_empty(place)

    def _end_if_empty(self, place: HostSlot) -> None:
        if place.retired and not place.load and place in self._places:
            self._drop(place, "the host was replaced.")

    def _lose(self, place: HostSlot | None, why: str) -> None:
        """A host is dead: its sessions are over, and the next one that needs a place starts another host."""
        if place is None or place not in self._places:
            return
        log.warning("a host with %d sessions is lost: %s", len(place.sessions), why)
        self._counts["hosts_lost"] += 1
        self._counts["faults"] += len(place.sessions)
        self._drop(place, why)

    def _drop(self, place: HostSlot, why: str) -> None:
        """Take a host out of the pool and end it."""
        self._places.remove(place)
        for session in list(place.sessions):
            self._homes.pop(session, None)
            self._free(place, session)
        run(self._end(place, why), self._endings)

    async def _end(self, place: HostSlot, why: str) -> None:
        try:
            link = await place.started
        except Exception:  # it never started
            return
        await link.end(why)


def run(work: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]]) -> asyncio.Task[None]:
    """Start work in the background; `tasks` hold it until it is done."""
    task = asyncio.create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task
