"""Retrievers: an index in this process, or servers that speak Search-R1's protocol."""

import itertools
import re
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import httpx

from env_adapters.deepsearch.corpus import Passage, parse_contents
from env_adapters.deepsearch.index import PassageIndex
from env_adapters.deepsearch.store import embedded_folder, open_passage_index
from verl_agent.envs.machine.proxies import proxy_of
from verl_agent.envs.parsing import shorten
from verl_agent.errors import ConfigError, EnvError, EnvTimeoutError

EMBEDDED = "embedded"
URL = re.compile(r"https?://[^\s,]+")
ROUNDS = 3
"""Number of times that each server is asked before a search fails."""
PAUSE_S = 0.5
"""Seconds before the second round; doubled before the third."""
RETRY_STATUSES = (429, 502, 503, 504)
"""HTTP statuses of a busy or restarting server, or of a proxy in front of it; such a request is retried."""

_lock = threading.Lock()


class EmbeddedRetriever:
    """Retriever that searches an index in this process."""

    def __init__(self, index: PassageIndex) -> None:
        self._index = index

    def search(self, query: str, count: int) -> list[Passage]:
        """Return the `count` most relevant passages, the best first."""
        return [hit.passage for hit in self._index.search(query, count)]


class HttpRetriever:
    """Client of servers that answer `POST /retrieve`, used in turn. All threads share its connections.

    A search changes nothing on the server, so it is retried if the server is unreachable or busy. It is not retried
    after a timeout, because that would double the load of the server.
    """

    def __init__(self, urls: Sequence[str], timeout_s: float, transport: httpx.BaseTransport | None = None) -> None:
        """Configure the client without connecting.

        Args:
            urls: servers of the same corpus, each URL with or without `/retrieve` at its end.
            timeout_s: seconds that one search may take, retries included.
            transport: replacement of the network in tests.
        """
        self._urls = [url.rstrip("/").removesuffix("/retrieve") + "/retrieve" for url in urls]
        self._timeout_s = timeout_s
        self._turn = itertools.count()
        self._answered = False
        limits = httpx.Limits(max_connections=64, max_keepalive_connections=64)
        proxies = {url: proxy for url in self._urls if (proxy := proxy_of(url)) is not None}
        mounts = {url.removesuffix("/retrieve"): httpx.HTTPTransport(proxy=one) for url, one in proxies.items()}
        self._client = httpx.Client(transport=transport, mounts=mounts, limits=limits, trust_env=False)

    def check(self) -> None:
        """Search once, so that a wrong URL is reported before an episode starts.

        Raises:
            EnvError: searches fail.
        """
        if not self._answered:
            self.search("capital", 1)

    def search(self, query: str, count: int) -> list[Passage]:
        """Return the `count` most relevant passages, the best first.

        Raises:
            EnvError: the search failed.
        """
        body = {"queries": [query], "topk": count, "return_scores": True}
        deadline, first, failure = time.monotonic() + self._timeout_s, next(self._turn), ""
        for attempt in range(ROUNDS):
            if attempt:
                time.sleep(min(PAUSE_S * 2 ** (attempt - 1), max(deadline - time.monotonic(), 0)))
            for number in range(len(self._urls)):
                url = self._urls[(first + number) % len(self._urls)]
                response = self._post(url, body, deadline)
                if isinstance(response, httpx.Response):
                    passages = parse_response(url, response, count)
                    self._answered = True
                    return passages
                failure = f"{url}: {response}"
        raise EnvError(f"no retriever answered after {ROUNDS} rounds. The last failure: {failure}")

    def _post(self, url: str, body: Mapping[str, Any], deadline: float) -> httpx.Response | str:
        """Return the response of one server, or the reason to retry."""
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
        return f"HTTP {response.status_code}" if response.status_code in RETRY_STATUSES else response


def parse_response(url: str, response: httpx.Response, count: int) -> list[Passage]:
    """Return the passages in a response of Search-R1's protocol, with or without scores.

    Raises:
        EnvError: the response is an HTTP error or has another format.
    """
    if response.status_code != 200:
        raise EnvError(f"{url} answered HTTP {response.status_code}: {shorten(response.text, 200)}")
    try:
        (rows,) = response.json()["result"]
        documents = [row.get("document", row) for row in rows[:count]]
        return [parse_contents(str(document.get("id", "")), document["contents"]) for document in documents]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        expected = '{"result": [[{"document": {"id", "contents"}, "score"}]]}'
        raise EnvError(f"{url} should answer {expected}, got {shorten(response.text, 200)}") from error


Retriever = EmbeddedRetriever | HttpRetriever
"""Searches for passages. Threads may share one."""


def parse_location(option: object) -> tuple[str, ...]:
    """Return the option `retriever` as a tuple of `embedded`, one folder, or URLs.

    Raises:
        ConfigError: the option has another value.
    """
    values = (option,) if isinstance(option, str) else tuple(option) if isinstance(option, list | tuple) else ()
    texts = tuple(value for value in values if isinstance(value, str))
    if texts and len(texts) == len(values):
        parts = tuple(part.strip() for text in texts for part in text.split(",")) if "://" in texts[0] else texts
        if all(URL.fullmatch(part) for part in parts) or (len(parts) == 1 and parts[0] and "://" not in parts[0]):
            return parts
    raise ConfigError(
        f"env.options.retriever={option!r} is not allowed. Allowed: {EMBEDDED!r}, the folder of an index, "
        "a URL such as http://127.0.0.1:8000, or a list of URLs."
    )


def open_retriever(location: tuple[str, ...], timeout_s: float) -> Retriever:
    """Return the checked retriever of a location from `parse_location`; the process shares it.

    Raises:
        ConfigError: the corpus is missing.
        EnvError: no server answers.
    """
    resolved = (str(embedded_folder()),) if location == (EMBEDDED,) else location
    with _lock:  # so that an index is opened once
        retriever = _open(resolved, timeout_s)
    if isinstance(retriever, HttpRetriever):
        retriever.check()
    return retriever


@cache
def _open(location: tuple[str, ...], timeout_s: float) -> Retriever:
    if "://" in location[0]:
        return HttpRetriever(location, timeout_s)
    return EmbeddedRetriever(open_passage_index(Path(location[0])))
