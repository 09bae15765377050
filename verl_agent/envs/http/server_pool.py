"""Pool of servers: each new session goes to the server with the fewest sessions of this process."""

import asyncio
import itertools
import logging
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import cache
from typing import Any, TypeVar

from verl_agent.envs.http.transport import Transport, UnreachableError, transport
from verl_agent.errors import EnvError, EnvTimeoutError, PoolFullError

log = logging.getLogger(__name__)
T = TypeVar("T")
UNREACHABLE_S = 10.0
"""Seconds for which an unreachable server is tried last."""
FULL_S = 1.0
"""Seconds for which a full server is tried last."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 4.0
"""Longest first pause and longest pause in seconds between two rounds over all servers. Each pause is twice as long
as the last one."""


class ServerPool:
    """Servers of one list of URLs. Use it in the event loop of the transport only."""

    def __init__(self, urls: Sequence[str]) -> None:
        self.load = dict.fromkeys(urls, 0)
        self._last_until = dict.fromkeys(urls, 0.0)

    def order(self) -> list[str]:
        """Return the URLs, the best one first; ties are broken at random, so that processes choose different ones."""
        now = asyncio.get_running_loop().time()
        return sorted(self.load, key=lambda url: (self._last_until[url] > now, self.load[url], random.random()))

    async def place(self, open_at: Callable[[str, float], Awaitable[T]], timeout_s: float) -> tuple[str, T]:
        """Open a session on the best server with a free slot; return its URL and what `open_at` returned.

        Full and unreachable servers are tried again until the time limit.

        Args:
            open_at: opens a session at a URL within a number of seconds.

        Raises:
            PoolFullError: no server had a free slot in time.
            EnvTimeoutError: a server did not answer in time.
            UnreachableError: no server was reachable in time.
            EnvError: a server answered with an error.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        for pause in _pauses():
            failure: EnvError | None = None
            for url in self.order():
                self.load[url] += 1  # before the call, so that concurrent calls choose different servers
                try:
                    return url, await open_at(url, max(deadline - loop.time(), 0.1))
                except UnreachableError as error:
                    log.warning("%s", error)
                    self._give_back(url, UNREACHABLE_S)
                    failure = failure or error
                except PoolFullError as error:
                    self._give_back(url, FULL_S)
                    failure = error
                except BaseException:
                    self.release(url)
                    raise
            assert failure is not None  # urls is not empty
            if loop.time() + pause > deadline:
                raise failure
            await asyncio.sleep(pause)
        raise AssertionError("the pauses never end")

    def _give_back(self, url: str, last_s: float) -> None:
        """Count no session on this server, and try it last for some seconds."""
        self.release(url)
        self._last_until[url] = asyncio.get_running_loop().time() + last_s

    def release(self, url: str) -> None:
        """Count the end of a session on this server."""
        self.load[url] -= 1


@cache
def _server_pool(shared: Transport, urls: tuple[str, ...]) -> ServerPool:
    return ServerPool(urls)


def server_pool(urls: tuple[str, ...]) -> ServerPool:
    """Return the pool of `urls`, one object in each process."""
    return _server_pool(transport(), urls)


async def get_from_all(urls: Sequence[str], path: str, timeout_s: float) -> dict[str, Any]:
    """GET `path` from every server; return the answers of the reachable ones, at least one.

    Raises:
        EnvError: no server is reachable within three rounds, or a server answers with an error.
    """
    for pause in itertools.islice(_pauses(), 3):
        tasks = [transport().request("GET", url + path, timeout_s=timeout_s) for url in urls]
        answers = dict(zip(urls, await asyncio.gather(*tasks, return_exceptions=True), strict=True))
        unreachable = (UnreachableError, PoolFullError, EnvTimeoutError)
        for answer in answers.values():
            if isinstance(answer, BaseException) and not isinstance(answer, unreachable):
                raise answer
        reached = {url: answer for url, answer in answers.items() if not isinstance(answer, BaseException)}
        if reached:
            return reached
        await asyncio.sleep(pause)
    raise EnvError("; ".join(str(answer) for answer in answers.values()))


def _pauses() -> Iterator[float]:
    length = FIRST_PAUSE_S
    while True:
        yield length * random.uniform(0.5, 1.0)
        length = min(2 * length, LONGEST_PAUSE_S)
