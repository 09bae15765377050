"""Where searches go: an index in this process, or servers that speak Search-R1's protocol."""

import itertools
import re
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import httpx

from env_adapters.deepsearch.corpus import Passage, from_contents
from env_adapters.deepsearch.index import PassageIndex, embedded_folder, open_index
from verl_agent.envs.parsing import shorten
from verl_agent.errors import ConfigError, EnvError, EnvTimeoutError

EMBEDDED = "embedded"
URL = re.compile(r"https?://[^\s,]+")
ROUNDS = 3
"""How often each server is asked before a search fails."""
PAUSE_S = 0.5
"""Seconds before the second round; twice as many before the third."""
BUSY = (429, 502, 503, 504)
"""Answers of a server, or of a proxy before it, that may be better a moment later."""

_lock = threading.Lock()


class Retriever(Protocol):
    """Finds passages; threads may share one."""

    def check(self) -> None:
        """Make sure that searches can be made; costs something only the first time.

        Raises:
            EnvError: they cannot.
        """
        ...

    def search(self, query: str, count: int) -> list[Passage]:
        """The `count` passages that fit best, the best first.

        Raises:
            EnvError: the search could not be made.
            ConfigError: it never can, until somebody changes something.
        """
        ...


class EmbeddedRetriever:
    """Searches an index in this process."""

    def __init__(self, index: PassageIndex) -> None:
        self._index = index

    def check(self) -> None:
        """See `Retriever.check`; an index that is open can be searched."""

    def search(self, query: str, count: int) -> list[Passage]:
        """See `Retriever.search`."""
        return [hit.passage for hit in self._index.search(query, count)]


class HttpRetriever:
    """Asks servers that answer `POST /retrieve`, in turn; connections are kept and shared by all threads.

    A search changes nothing, so it is made again where nobody heard it or nobody had time for it. A server that
    takes too long is not asked again: that would double its load.
    """

    def __init__(self, urls: Sequence[str], timeout_s: float, transport: httpx.BaseTransport | None = None) -> None:
        """Prepare to ask.

        Args:
            urls: servers that hold the same corpus, each with or without `/retrieve` at its end.
            timeout_s: seconds that one search may take, all tries together.
            transport: stands in for the network.
        """
        self._urls = [url.rstrip("/").removesuffix("/retrieve") + "/retrieve" for url in urls]
        self._timeout_s = timeout_s
        self._turn = itertools.count()
        self._answered = False
        limits = httpx.Limits(max_connections=64, max_keepalive_connections=64)
        # Proxies of the environment are for the world outside; servers of passages stand in the cluster.
        self._client = httpx.Client(transport=transport, limits=limits, trust_env=False)

    def check(self) -> None:
        """See `Retriever.check`; a wrong URL is better found now than in the middle of an episode."""
        if not self._answered:
            self.search("capital", 1)

    def search(self, query: str, count: int) -> list[Passage]:
        """See `Retriever.search`."""
        body = {"queries": [query], "topk": count, "return_scores": True}
        deadline, first, failure = time.monotonic() + self._timeout_s, next(self._turn), ""
        for attempt in range(ROUNDS):
            if attempt:
                time.sleep(min(PAUSE_S * 2 ** (attempt - 1), max(deadline - time.monotonic(), 0)))
            for number in range(len(self._urls)):
                url = self._urls[(first + number) % len(self._urls)]
                answer = self._ask(url, body, deadline)
                if isinstance(answer, httpx.Response):
                    passages = read_passages(url, answer, count)
                    self._answered = True
                    return passages
                failure = f"{url}: {answer}"
        raise EnvError(f"no retriever answered after {ROUNDS} rounds. The last one, {failure}")

    def _ask(self, url: str, body: Mapping[str, Any], deadline: float) -> httpx.Response | str:
        """The answer of one server, or why it can be asked again."""
        left = deadline - time.monotonic()
        if left <= 0:
            raise EnvTimeoutError(f"the search took more than {self._timeout_s:g} s, the limit of timeout_s.")
        try:
            response = self._client.post(url, json=body, timeout=httpx.Timeout(left, connect=min(left, 5.0)))
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.RemoteProtocolError) as error:
            return f"{type(error).__name__}: {error}"
        except httpx.TimeoutException as error:
            raise EnvTimeoutError(
                f"{url} did not answer within {self._timeout_s:g} s, the limit of timeout_s."
            ) from error
        except httpx.HTTPError as error:
            raise EnvError(f"{url} failed: {type(error).__name__}: {error}") from error
        return f"HTTP {response.status_code}" if response.status_code in BUSY else response


def read_passages(url: str, response: httpx.Response, count: int) -> list[Passage]:
    """The passages in an answer of Search-R1's protocol, with scores or without.

    Raises:
        EnvError: it is an HTTP error, or is not in that form.
    """
    if response.status_code != 200:
        raise EnvError(f"{url} answered HTTP {response.status_code}: {shorten(response.text, 200)}")
    try:
        (rows,) = response.json()["result"]
        documents = [row.get("document", row) for row in rows[:count]]
        return [from_contents(str(document.get("id", "")), document["contents"]) for document in documents]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        wanted = '{"result": [[{"document": {"id", "contents"}, "score"}]]}'
        raise EnvError(f"{url} should answer {wanted}, got {shorten(response.text, 200)}") from error


def check_place(place: object) -> tuple[str, ...]:
    """Where searches go, as a tuple: `embedded`, a folder, or URLs.

    Raises:
        ConfigError: it is none of these.
    """
    places = (place,) if isinstance(place, str) else tuple(place) if isinstance(place, list | tuple) else ()
    texts = tuple(one for one in places if isinstance(one, str))
    if texts and len(texts) == len(places):
        parts = tuple(part.strip() for one in texts for part in one.split(",")) if "://" in texts[0] else texts
        if all(URL.fullmatch(part) for part in parts) or (len(parts) == 1 and parts[0] and "://" not in parts[0]):
            return parts
    raise ConfigError(
        f"env.options.retriever={place!r} is not allowed. Allowed: {EMBEDDED!r}, the folder of an index, "
        "a URL such as http://127.0.0.1:8000, or a list of URLs."
    )


def open_retriever(place: tuple[str, ...], timeout_s: float) -> Retriever:
    """The retriever of a place that `check_place` allows; shared by the process, and known to work.

    Raises:
        ConfigError: there is no corpus.
        EnvError: no server answers.
    """
    where = (str(embedded_folder()),) if place == (EMBEDDED,) else place
    with _lock:  # so that an index is opened once
        retriever = _open(where, timeout_s)
    retriever.check()
    return retriever


@cache
def _open(place: tuple[str, ...], timeout_s: float) -> Retriever:
    return HttpRetriever(place, timeout_s) if "://" in place[0] else EmbeddedRetriever(open_index(Path(place[0])))
