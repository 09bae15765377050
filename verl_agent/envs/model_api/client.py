"""Client of one model behind an API: retries, refused settings, budget, and replies that are asked for once.

It sends the requests itself, without the vendors' own clients. These take seconds to import, read credentials from
several environment variables, and repeat requests by rules of their own.
"""

import asyncio
import json
import logging
import os
import random
import re
import socket
import ssl
from collections.abc import Mapping
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from verl_agent.envs.machine.proxies import proxy_of
from verl_agent.envs.model_api.anthropic_dialect import AnthropicDialect
from verl_agent.envs.model_api.chat import ApiDialect, ApiReply, ChatRequest
from verl_agent.envs.model_api.echo import PREFIX, extra_fields, has_call
from verl_agent.envs.model_api.failures import BROKEN_OFF, CONTENT_FILTER, Meaning, RequestFailure, explain_status
from verl_agent.envs.model_api.openai_dialect import OpenAiDialect
from verl_agent.envs.model_api.prices import Budget, PriceList
from verl_agent.envs.model_api.reply_log import ReplyLog, request_key
from verl_agent.envs.model_api.settings import OWN_FIELDS, ApiSettings, read_key
from verl_agent.envs.model_api.traffic import Traffic
from verl_agent.errors import (
    ConfigError,
    OverlongPromptError,
    ReplyUnavailableError,
    RequestRefusedError,
    counted,
)

SHORTEST = 6
"""Characters of a key in a row that are removed from a text."""

MAX_CHARS = 10_000
"""Characters of a text that are kept."""


def redact(text: str, key: str | None) -> str:
    """Return a text in which every word with a part of the key reads `***`, without the end of a very long text."""
    if not key:
        return text[:MAX_CHARS]
    size = min(SHORTEST, len(key))
    parts = "|".join(re.escape(key[start : start + size]) for start in range(len(key) - size + 1))
    return re.sub(rf"[^\s\"'`,;()\[\]{{}}]*(?:{parts})[^\s\"'`,;()\[\]{{}}]*", "***", text[:MAX_CHARS])


if TYPE_CHECKING:  # imported when a client is opened
    import aiohttp

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 10.0
FIRST_WAIT_S = 1.0
"""Seconds before the first retry; each further one waits twice as long."""
MAX_WAIT_S = 60.0
"""Longest wait before a retry that the server did not ask for."""
MAX_ASKED_WAIT_S = 300.0
"""Longest wait that a server may ask for; after a longer one the request counts as failed."""
SETTINGS = frozenset({"temperature", "top_p", "seed"})
"""Fields of a request that are settings of the evaluation, and recorded if they are dropped."""
MAX_FIRST_REFUSALS = 3
"""Refused requests, before any other one was answered, that point to a wrong setting."""
UNREACHABLE = "Start the server at this URL, or correct model.api.base_url."
EXTRA_TOKENS = 1000
"""Tokens that servers add to a request at most, for example to explain functions."""


class ContextLimitError(OverlongPromptError):
    """The conversation does not fit into the model's context."""


class ApiClient:
    """Asks one model for replies, from many episodes at once. Use it as an asynchronous context manager.

    Args:
        chosen: a person chose temperature and top_p. A value out of the server's range is then an error; otherwise it
            is left out, as a field that the server refuses.

    Raises:
        ConfigError: the key is missing, or the budget needs prices that are unknown.
    """

    def __init__(
        self,
        settings: ApiSettings,
        log: ReplyLog,
        max_usd: float | None = None,
        first_wait_s: float = FIRST_WAIT_S,
        traffic: Traffic | None = None,
        chosen: bool = False,
    ) -> None:
        self._settings, self._log, self._first_wait_s, self._chosen = settings, log, first_wait_s, chosen
        self._traffic = traffic or Traffic(logger.info)
        self._dialect: ApiDialect = OpenAiDialect() if settings.kind == "openai" else AnthropicDialect()
        self._key = read_key(settings)
        self._prices, self._budget = PriceList(settings), Budget(max_usd, log.spent_usd)
        self._refused = set(self._dialect.unsupported) | log.dropped
        self._answered, self._first_refusals = len(log) > 0, 0
        self._accepted = False  # by this server, now: the log may hold replies of another one
        self._not_before = 0.0  # time of the event loop before which the server asked to send nothing
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        import aiohttp

        timeout = aiohttp.ClientTimeout(self._settings.timeout_s, sock_connect=CONNECT_TIMEOUT_S)
        self._session = aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def ask(self, request: ChatRequest, position: int) -> ApiReply:
        """Return the reply to a request; one that was answered before is not sent again.

        Args:
            position: number that differs between turns, samples and attempts; see `request_key`.

        Raises:
            ReplyUnavailableError: there is no reply, also after retries.
            RequestRefusedError: the server refuses the request twice.
            ContextLimitError: the conversation does not fit into the model's context.
            ConfigError: every other request would fail, too, or the budget is spent.
        """
        key = request_key(self._settings.source, request, position)
        retries, refused = 0, False
        while (answer := self._log.get(key)) is None:
            outcome = await self._attempt(key, request)
            if isinstance(outcome, ApiReply):
                return outcome
            if outcome.meaning is Meaning.REFUSED_FIELD or (outcome.field and not self._chosen and not self._accepted):
                self._drop(outcome)
                continue
            if outcome.meaning is Meaning.REFUSED and not refused:
                refused = True  # a router may send the second request to another server
                continue
            self._stop_if_final(outcome, request)
            if retries == self._settings.retries:
                raise ReplyUnavailableError(
                    f"{self._where} gave no reply to {counted(retries + 1, 'request')}: {outcome.message}"
                )
            await self._wait(retries, outcome)
            retries += 1
        return answer

    async def _attempt(self, key: str, request: ChatRequest) -> ApiReply | RequestFailure:
        """Send a request once, within the budget; record what it cost."""
        await self._traffic.wait(self._not_before - asyncio.get_running_loop().time())
        body = self._dialect.body(self._settings.name or "", request, self._refused)
        data = json.dumps(body, ensure_ascii=False).encode(errors="replace")  # servers refuse half a surrogate pair
        most_usd = self._prices.most(len(data) + EXTRA_TOKENS, request.max_tokens)  # a token has a byte or more
        await self._budget.reserve(most_usd)
        charged, answer, lost = most_usd, None, True  # a cancelled request may have been charged
        self._log.begin(key, most_usd)
        try:
            outcome, lost = await self._send(data, body)
            if isinstance(outcome, ApiReply):
                answer = outcome = self._priced(outcome, request)
                self._answered = self._accepted = True
                self._traffic.answer(answer.usage)
            cost = None if answer is None else answer.usage.cost_usd
            charged = (most_usd if lost or answer is not None else 0.0) if cost is None else cost
            return outcome
        finally:
            self._log.end(key, charged, answer, lost)
            await self._budget.settle(most_usd, charged)

    async def _send(self, data: bytes, body: Mapping[str, Any]) -> tuple[ApiReply | RequestFailure, bool]:
        """Send a body; return the reply or the failure, and True if the server may have charged a lost reply."""
        import aiohttp

        assert self._session is not None, "the client is used outside its context"
        url = self._settings.url + self._dialect.path
        headers = {"Content-Type": "application/json", **self._dialect.headers(self._key)}
        try:
            async with self._session.post(
                url, data=data, headers=headers, proxy=proxy_of(url), allow_redirects=False
            ) as response:
                status, answered = response.status, response.headers
                text = (await response.read()).decode(errors="replace")
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            return RequestFailure(Meaning.RETRY, f"it cannot be reached ({_reason(error)}). {UNREACHABLE}"), False
        except TimeoutError:
            return RequestFailure(
                Meaning.RETRY, f"no answer within model.api.timeout_s={self._settings.timeout_s:g}"
            ), True
        except aiohttp.InvalidURL as error:
            raise ConfigError(f"model.api.base_url={self._settings.base_url!r} is not a URL: {error}.") from error
        except aiohttp.ClientError as error:
            return RequestFailure(Meaning.RETRY, f"the connection broke: {type(error).__name__} {error}".rstrip()), True
        if status != 200:
            return self._explain(status, answered, text, body), False
        return self._read(text, answered, body)

    def _read(
        self, text: str, headers: Mapping[str, str], body: Mapping[str, Any]
    ) -> tuple[ApiReply | RequestFailure, bool]:
        """Return the reply in a body of status 200, or the failure; see `_send`."""
        try:
            value = json.loads(text)
            if error := self._dialect.error(value):  # routers answer so if their own request failed
                code = error.get("code") if isinstance(error, dict) else None
                status = code if isinstance(code, int) and code >= 400 else 500
                return self._explain(status, headers, json.dumps({"error": error}), body), "choices" in value
            answer = self._dialect.answer(value)
            if (finish := answer.usage.finish) in BROKEN_OFF:
                return RequestFailure(Meaning.RETRY, f"it broke the reply off: {finish}"), True
            return answer, False
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
            return RequestFailure(
                Meaning.RETRY, f"its answer is not of this protocol: {type(error).__name__} {error}"
            ), True

    def _explain(self, status: int, headers: Mapping[str, str], text: str, body: Mapping[str, Any]) -> RequestFailure:
        said = [message for message in body["messages"] if message["role"] == "assistant"]
        extra, called = set[str]().union(*map(extra_fields, said)), any(map(has_call, said))
        variable = self._settings.key_variable
        return explain_status(status, headers, redact(text, self._key), body, variable, extra, called)

    def _priced(self, answer: ApiReply, request: ChatRequest) -> ApiReply:
        """Return an answer with its cost and the settings and fields that its request left out."""
        originals = [message.original for message in request.messages if message.original is not None]
        fields = {f"{PREFIX}{name}" for original in originals for name in extra_fields(original)}
        dropped = tuple(sorted(self._refused & ((SETTINGS & request.sampling.keys()) | fields)))
        cost = self._prices.cost(answer.usage)
        return replace(answer, usage=replace(answer.usage, cost_usd=cost, dropped=dropped))

    def _drop(self, failure: RequestFailure) -> None:
        """Leave a refused field out of all further requests."""
        if failure.field not in self._refused:  # a concurrent request may have met the same refusal
            logger.warning("%s refuses %s, which is left out: %s", self._where, failure.field, failure.message)
        self._refused.add(failure.field)

    def _stop_if_final(self, failure: RequestFailure, request: ChatRequest) -> None:
        """Raise the error for a failure that no retry can change.

        A request that the server refuses before it answered any other one may point to a wrong setting. So its episode
        is played again later, and the third such request stops. A value that the server does not allow stops at once.
        """
        if failure.meaning is Meaning.CONTEXT:
            raise ContextLimitError(f"{self._where} refuses the length of the conversation: {failure.message}")
        if failure.meaning is Meaning.STOP:
            raise ConfigError(f"{self._where}: {failure.message}")
        unsure = failure.meaning is Meaning.REFUSED and failure.kind != CONTENT_FILTER and not self._answered
        self._first_refusals += unsure
        if unsure and failure.field:
            raise ConfigError(
                f"{OWN_FIELDS[failure.field]}={request.sampling[failure.field]:g} is not allowed by {self._where}: "
                f"{failure.message.rstrip('.')}. Set a value that the server allows."
            )
        if failure.meaning is Meaning.NO_MODEL or (unsure and self._first_refusals >= MAX_FIRST_REFUSALS):
            raise ConfigError(f"{self._where}: {failure.message.rstrip('.')}. {self._hint}")
        if unsure:
            raise ReplyUnavailableError(f"{self._where} refuses a first request: {failure.message}", unsure=True)
        if failure.meaning is Meaning.REFUSED:
            raise RequestRefusedError(f"{failure.kind}: {self._where} refuses a request: {failure.message}")
        if failure.wait_s is not None and failure.wait_s > MAX_ASKED_WAIT_S:
            raise ReplyUnavailableError(f"{self._where} asks to wait for {failure.wait_s:g} s: {failure.message}")

    @property
    def _hint(self) -> str:
        end = " A base URL of this protocol usually ends with /v1." if self._settings.kind == "openai" else ""
        return f"Check model.api.name, model.api.base_url and model.api.options.{end}"

    async def _wait(self, retries: int, failure: RequestFailure) -> None:
        """Wait before a retry; if the server asked to wait, no other request is sent before, either."""
        wait_s = min(MAX_WAIT_S, self._first_wait_s * 2**retries) * random.uniform(0.5, 1.0)
        if failure.wait_s is not None:
            self._not_before = max(self._not_before, asyncio.get_running_loop().time() + failure.wait_s)
            wait_s = max(wait_s, failure.wait_s)
        await self._traffic.wait(wait_s, failure.message)

    @property
    def _where(self) -> str:
        return f"{self._settings.name!r} at {self._settings.url}"


def _reason(error: Exception) -> str:
    """Return the operating system's reason for a failed connection; aiohttp's message wraps it in its own fields."""
    cause = getattr(error, "os_error", None)
    if isinstance(cause, socket.gaierror):
        return cause.strerror or str(cause)
    if isinstance(cause, OSError) and not isinstance(cause, ssl.SSLError) and cause.errno:
        return os.strerror(cause.errno).lower()
    return str(error)
