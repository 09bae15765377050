"""Scripted sessions on a server: steps, durations and processor time within a time window."""

import asyncio
import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import median, quantiles

from tests.support.served import Server
from tests.support.wire_client import Connection, RequestFailedError, Script, Session


@dataclass(slots=True)
class Window:
    """Measurements of one time window.

    Attributes:
        seconds: length of the window.
        step_s: duration of each step in seconds.
        reset_s: duration of each reset in seconds.
        solved: number of episodes that terminated.
        ended: number of episodes whose script was played to its end.
        client_cores: cores that the client used.
        server_cores: cores that the server's own process used.
        host_cores: cores that the child processes of the server used.
    """

    seconds: float = 0.0
    step_s: list[float] = field(default_factory=list)
    reset_s: list[float] = field(default_factory=list)
    solved: int = 0
    ended: int = 0
    client_cores: float = 0.0
    server_cores: float = 0.0
    host_cores: float = 0.0

    @property
    def steps_per_s(self) -> float:
        """Steps per second of all clients; the time includes resets."""
        return len(self.step_s) / self.seconds

    def most_steps_per_s(self, cores: int) -> float:
        """Return the most steps per second on `cores` cores without other load, from the processor time of a step.

        Client and server are one process each and use at most one core. Child processes of the server use all cores.
        """
        used = self.client_cores + self.server_cores + self.host_cores
        bound = max(used / cores, self.client_cores, self.server_cores)
        return self.steps_per_s / bound if bound else 0.0

    @property
    def step_ms(self) -> tuple[float, float]:
        """Median and 95th percentile of a step, in milliseconds."""
        return _percentiles(self.step_s)

    @property
    def reset_ms(self) -> tuple[float, float]:
        """Median and 95th percentile of a reset, in milliseconds."""
        return _percentiles(self.reset_s)

    def __add__(self, other: "Window") -> "Window":
        """Return both windows as one."""
        total = self.seconds + other.seconds
        cores = ("client_cores", "server_cores", "host_cores")
        used = [(getattr(self, n) * self.seconds + getattr(other, n) * other.seconds) / total for n in cores]
        return Window(
            total,
            self.step_s + other.step_s,
            self.reset_s + other.reset_s,
            self.solved + other.solved,
            self.ended + other.ended,
            *used,
        )


def _percentiles(seconds: Sequence[float]) -> tuple[float, float]:
    if len(seconds) < 2:
        return (1000 * sum(seconds),) * 2
    return 1000 * median(seconds), 1000 * quantiles(seconds, n=20)[-1]


class Players:
    """Clients of one server. Each keeps its session from one window to the next.

    Args:
        server: server that they use.
        scripts: episodes that they play in a cycle.
    """

    def __init__(self, server: Server, scripts: Sequence[Script]) -> None:
        self.server, self._scripts = server, scripts
        self._numbers: list[int] = []
        self.first_s: list[float] = []
        """Seconds from the common start to each session's first observation."""

    async def begin(self, clients: int) -> None:
        """Open all sessions concurrently and begin a task in each."""
        start = time.perf_counter()

        async def one(script: Script) -> int:
            session = Session(await Connection.to(self.server.url))
            await session.create()
            await session.reset(script.item)
            self.first_s.append(time.perf_counter() - start)
            session.connection.close()
            return session.number

        scripts = itertools.islice(itertools.cycle(self._scripts), clients)
        self._numbers = list(await asyncio.gather(*map(one, scripts)))

    async def close(self) -> None:
        """Close the sessions if the server has that call."""
        connection = await Connection.to(self.server.url)
        for number in self._numbers:
            session = Session(connection, number)
            with suppress(RequestFailedError):  # the reference has no such call
                await session.close()
        connection.close()

    async def play(self, seconds: float) -> Window:
        """Play until the time is over; unfinished episodes are abandoned."""
        window = Window()
        sessions = []
        for number in self._numbers:  # the server closes idle connections between two windows
            sessions.append(Session(await Connection.to(self.server.url), number))
        count = len(self._scripts)
        turns = [itertools.islice(itertools.cycle(self._scripts), k % count, None) for k in range(len(sessions))]
        busy, (own, hosts) = time.process_time(), self.server.cpu_s()
        start = time.perf_counter()
        await asyncio.gather(
            *(
                _play(session, scripts, start + seconds, window)
                for session, scripts in zip(sessions, turns, strict=True)
            )
        )
        window.seconds = time.perf_counter() - start
        now_own, now_hosts = self.server.cpu_s()
        window.client_cores = (time.process_time() - busy) / window.seconds
        window.server_cores, window.host_cores = (now_own - own) / window.seconds, (now_hosts - hosts) / window.seconds
        for session in sessions:
            session.connection.close()
        return window


async def _play(session: Session, scripts: Iterator[Script], until: float, window: Window) -> None:
    for script in scripts:
        started = time.perf_counter()
        if started > until:
            return
        await session.reset(script.item)
        now = time.perf_counter()
        window.reset_s.append(now - started)
        done = False
        for action in script.actions:
            if now > until:
                return
            done = (await session.step(action))["done"]
            window.step_s.append(time.perf_counter() - now)
            now += window.step_s[-1]
            if done:
                break
        window.ended += 1
        window.solved += done
