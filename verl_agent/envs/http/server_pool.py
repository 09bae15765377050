"""Choose a server for each new session: the one with the fewest of ours, leaving out those that do not answer."""

import asyncio
import itertools
import logging
import random
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from verl_agent.envs.http.transport import Transport, UnreachableError, transport
from verl_agent.errors import EnvError, EnvTimeoutError, PoolFullError

log = logging.getLogger(__name__)

REST_S = 10.0
"""Seconds that a server which could not be reached is asked last."""
FULL_REST_S = 1.0
"""The same for a server that had no room."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 4.0
"""Longest pauses between rounds in which no server had room or answered; each is up to twice the last."""


class ServerPool:
    """The servers of one list of URLs, as this process sees them. To be used on the transport's loop only.

    Args:
        urls: base URLs, at least one.
    """

    def __init__(self, urls: Sequence[str]) -> None:
        self.load = dict.fromkeys(urls, 0)
        self._rest_until = dict.fromkeys(urls, 0.0)

    def order(self) -> list[str]:
        """The URLs, the best one first; equal ones by chance, so that processes do not all choose the same."""
        now = asyncio.get_running_loop().time()
        return sorted(self.load, key=lambda url: (self._rest_until[url] > now, self.load[url], random.random()))

    async def create(self, path: str, body: Any, timeout_s: float) -> tuple[str, Any]:
        """Open a session on the best server that has room; returns its URL and its answer.

        A server that is full or cannot be reached is asked again as long as there is time.

        Raises:
            PoolFullError: none had room in time.
            EnvTimeoutError: a server did not answer in time.
            UnreachableError: none could be reached in time.
            EnvError: a server refused.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        for pause in _pauses():
            failure: EnvError | None = None
            for url in self.order():
                try:
                    answer = await self._try(url, path, body, max(deadline - loop.time(), 0.1))
                except UnreachableError as error:
                    log.warning("%s", error)
                    self._rest_until[url] = loop.time() + REST_S
                    failure = failure or error
                except PoolFullError as error:
                    self._rest_until[url] = loop.time() + FULL_REST_S
                    failure = error
                else:
                    return url, answer
            assert failure is not None  # there is at least one URL
            if loop.time() + pause > deadline:
                raise failure
            await asyncio.sleep(pause)
        raise AssertionError("the pauses never end")

    async def _try(self, url: str, path: str, body: Any, timeout_s: float) -> Any:
        self.load[url] += 1  # at once, so that sessions opened side by side spread
        try:
            return await transport().request("POST", url + path, body, timeout_s)
        except BaseException:
            self.load[url] -= 1
            raise

    def leave(self, url: str) -> None:
        """A session on this server has ended."""
        self.load[url] -= 1


@cache
def _server_pool(shared: Transport, urls: tuple[str, ...]) -> ServerPool:
    return ServerPool(urls)


def server_pool(urls: tuple[str, ...]) -> ServerPool:
    """The servers of `urls`, one object a process."""
    return _server_pool(transport(), urls)


async def ask_all(urls: Sequence[str], path: str, timeout_s: float) -> dict[str, Any]:
    """GET `path` from every server; returns the answers of those that can be reached, at least one.

    Raises:
        EnvError: none can be reached within three rounds, or one refuses.
    """
    for pause in itertools.islice(_pauses(), 3):
        tasks = [transport().request("GET", url + path, timeout_s=timeout_s) for url in urls]
        answers = dict(zip(urls, await asyncio.gather(*tasks, return_exceptions=True), strict=True))
        away = (UnreachableError, PoolFullError, EnvTimeoutError)
        for answer in answers.values():
            if isinstance(answer, BaseException) and not isinstance(answer, away):
                raise answer
        found = {url: answer for url, answer in answers.items() if not isinstance(answer, BaseException)}
        if found:
            return found
        await asyncio.sleep(pause)
    raise EnvError("; ".join(str(answer) for answer in answers.values()))


def _pauses() -> Iterator[float]:
    length = FIRST_PAUSE_S
    while True:
        yield length * random.uniform(0.5, 1.0)
        length = min(2 * length, LONGEST_PAUSE_S)
