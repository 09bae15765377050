"""Questions to a judge: asked until the answer can be read; a judge that is down is an environment error."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from verl_agent.envs.judge.settings import named
from verl_agent.envs.model_api.chat import ApiReply, ChatMessage, ChatRequest
from verl_agent.envs.model_api.client import ApiClient
from verl_agent.envs.model_api.reply_log import FILE, ReplyLog, request_key
from verl_agent.envs.model_api.settings import ApiSettings
from verl_agent.errors import ConfigError, EnvError, EpisodeEndError, ReplyUnavailableError, counted

T = TypeVar("T")
TRIES = 3
"""Most answers of a judge to one question."""
MOST_SHOWN = 100
"""Characters of an answer in an error."""


@dataclass(frozen=True, slots=True)
class JudgeLimits:
    """Limits on the requests of one judge; `judges` have equal shares of the last two, which are for the whole run."""

    concurrency: int = 16
    max_requests: int | None = None
    max_usd: float | None = None
    judges: int = 1


class JudgeModel:
    """Model that answers questions of a judge. Its replies are cached by the content of the request.

    Args:
        folder: folder of this process for its replies.
        cache: folder with the replies of earlier starts and of other processes, which contains `folder`.
        first_wait_s: seconds before the first retry.
    """

    def __init__(
        self,
        api: ApiSettings,
        folder: Path,
        cache: Path | None = None,
        limits: JudgeLimits | None = None,
        first_wait_s: float = 1.0,
    ) -> None:
        limits = limits or JudgeLimits()
        path = folder / FILE
        others = sorted(one for one in (cache or folder).rglob(FILE) if one != path)
        self._api, self._log = api, ReplyLog(path, others)
        self._most = None if limits.max_requests is None else self._share(limits.max_requests, limits.judges)
        self._limits, self._slots = limits, asyncio.Semaphore(limits.concurrency)
        spent = self._log.spent_usd
        budget = None if limits.max_usd is None else spent + max(0.0, limits.max_usd - spent) / limits.judges
        self._client = ApiClient(api, self._log, budget, first_wait_s)
        self._opened, self._in_flight = False, 0
        self._asked: set[str] = set()
        """Keys of the requests of this start."""

    def _share(self, most: int, judges: int) -> int:
        return len(self._log) + max(0, most - len(self._log)) // judges

    async def close(self) -> None:
        """Close the connections and the file."""
        await self._client.__aexit__(None, None, None)
        self._log.close()

    async def ask(self, prompt: str, read: Callable[[str], T], again: str, most_tokens: int) -> tuple[T, ApiReply]:
        """Return the answer as `read` returns it, and the reply.

        Where an earlier start asked in vain, its replies are in the cache, and the question is asked anew.

        Args:
            read: reads an answer, or raises a ValueError with the reason why it cannot be used.
            again: text with which it is asked again, with a place for `{problem}`.
            most_tokens: most tokens of an answer; twice as many after one that they cut.

        Raises:
            EnvError: the judge gives no answer, refuses the question, or no answer can be read.
            ConfigError: every other request would fail, too, or a limit is reached.
        """
        asked_now, position, problem = False, 0, ""
        while not asked_now:
            messages, limit = [ChatMessage("user", prompt)], most_tokens
            for _ in range(TRIES):
                request = ChatRequest(tuple(messages), limit, {"temperature": 0.0}, options=self._api.options)
                reply = await self._reply(request, position)
                asked_now |= self._key(request, position) in self._asked
                try:
                    return read(reply.text), reply
                except ValueError as error:
                    problem = f"{error}: {reply.text[:MOST_SHOWN]!r}"
                    cut = "the token limit cut it" if reply.truncated else str(error)
                limit = limit if not reply.truncated else 2 * most_tokens
                messages = [
                    messages[0],
                    ChatMessage("assistant", reply.text),
                    ChatMessage("user", again.format(problem=cut)),
                ]
                position += 1
        raise EnvError(f"{self._where} gave {counted(TRIES, 'answer')} that cannot be used; the last: {problem}")

    def _key(self, request: ChatRequest, position: int) -> str:
        return request_key(self._api.source, request, position)

    async def _reply(self, request: ChatRequest, position: int) -> ApiReply:
        async with self._slots:
            await self._open()
            key = self._key(request, position)
            if self._log.get(key) is None:
                self._check_number()
                self._asked.add(key)
            self._in_flight += 1
            try:
                return await self._client.ask(request, position)
            except (ReplyUnavailableError, EpisodeEndError) as error:
                raise EnvError(f"{self._where} failed: {named(error)}") from error
            except ConfigError as error:
                raise ConfigError(f"{self._where}: {named(error)}") from error
            finally:
                self._in_flight -= 1

    async def _open(self) -> None:
        if not self._opened:
            self._opened = True
            await self._client.__aenter__()

    def _check_number(self) -> None:
        if self._most is not None and len(self._log) + self._in_flight >= self._most:
            shares = f", in equal shares of {self._limits.judges} judges" if self._limits.judges > 1 else ""
            raise ConfigError(
                f"judge.max_requests={self._limits.max_requests} is reached{shares}. The replies are kept: raise it to "
                "judge further episodes."
            )

    @property
    def _where(self) -> str:
        return f"the judge {self._api.name} at {self._api.url}"
