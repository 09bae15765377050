"""Policy of a model behind an API, and the checks before an evaluation of one starts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from typing import Any

from typing_extensions import override

from verl_agent.envs.model_api.chat import ApiReply, ChatMessage, ChatRequest
from verl_agent.envs.model_api.client import ApiClient, ContextLimitError
from verl_agent.envs.model_api.prices import check_prices
from verl_agent.envs.model_api.settings import ApiSettings, read_key
from verl_agent.errors import ConfigError, OverlongPromptError
from verl_agent.messages import limits_on
from verl_agent.rollout.policy import Policy
from verl_agent.rollout.seeds import EpisodeSeed
from verl_agent.rollout.settings import TokenBudget
from verl_agent.types import Message, Reply, StopReason


@dataclass(slots=True)
class ApiPolicy(Policy):
    """Policy of one episode that asks a server for its replies.

    The text of an episode is not tokenized here, so its budget acts on the tokens that the server counts. The prompt
    is limited by the model's context. The episode may exceed its budget by the length of one observation.

    Attributes:
        budget: token limits; the limit of the prompt is not used.
        seed: position of the episode, from which the seed of each request follows.
        tools: functions of the agent in OpenAI's format, or None.
        parallel: a reply may call several functions.
    """

    client: ApiClient
    budget: TokenBudget
    sampling: Mapping[str, float]
    seed: EpisodeSeed
    send_seed: bool = True
    tools: Sequence[Mapping[str, Any]] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    parallel: bool = False
    _answers: list[ApiReply] = field(default_factory=list)

    @override
    async def reply(self, messages: Sequence[Message]) -> Reply:
        """Request a reply.

        Raises:
            OverlongPromptError: the prompt of the episode does not fit into the model's context.
            ReplyUnavailableError: there is no reply, also after retries.
            ConfigError: every other request would fail, too, or the budget is spent.
        """
        limit, limits = min(self.budget.turn, self._tokens_left()), limits_on(messages)
        if limit < 1:
            return Reply("", truncated_by=StopReason.EPISODE_TOKENS)
        asked = min(limit, limits.get("max_tokens", limit))
        position = self.seed.at(len(self._answers))
        seed = {"seed": position} if self.send_seed else {}
        request = ChatRequest(
            with_originals(messages, self._answers),
            asked,
            {**self.sampling, **seed},
            self.tools,
            self.options,
            self.parallel,
        )
        try:
            answer = await self.client.ask(request, position)
        except ContextLimitError as error:
            if self._answers:
                return Reply("", truncated_by=StopReason.EPISODE_TOKENS)
            raise OverlongPromptError(str(error)) from error
        answer = _to_stop(answer, limits.get("stop", ()))
        self._answers.append(answer)
        if answer.truncated and asked < limit:
            return replace(self._to_reply(answer, asked), truncated_by=None, force_closed=True)
        return self._to_reply(answer, limit)

    def _tokens_left(self) -> int:
        """Return the tokens that the episode may still have, as far as the server has counted them."""
        if not self._answers:
            return self.budget.episode
        first, last = self._answers[0].usage, self._answers[-1].usage
        if first.input_tokens is None or last.input_tokens is None:
            return self.budget.episode
        reply = (last.output_tokens or 0) - (last.reasoning_tokens or 0)
        return self.budget.episode - (last.input_tokens - first.input_tokens) - reply

    def _to_reply(self, answer: ApiReply, limit: int) -> Reply:
        truncated_by, force_closed = None, False
        if answer.truncated:
            truncated_by = StopReason.TURN_TOKENS if limit == self.budget.turn else StopReason.EPISODE_TOKENS
            if truncated_by is StopReason.TURN_TOKENS and self.budget.play_truncated_turns:
                truncated_by, force_closed = None, True
        tokens = answer.usage.output_tokens
        if tokens is None:  # 0 stands for an unknown number; a truncated reply has as many as the limit allows
            tokens = limit if answer.truncated else 0
        return Reply(answer.text, truncated_by, tokens, force_closed, answer.usage)


def _to_stop(answer: ApiReply, stops: Sequence[str]) -> ApiReply:
    """Return an answer up to the first text that ends it; the server's own form of the whole one is dropped.

    Not all servers take such texts, so they are not sent.
    """
    ends = [at + len(stop) for stop in stops if (at := answer.text.find(stop)) >= 0]
    return replace(answer, text=answer.text[: min(ends)], original={}, truncated=False) if ends else answer


def with_originals(messages: Sequence[Message], answers: Sequence[ApiReply]) -> list[ChatMessage]:
    """Return the messages of a request, in which the episode's own replies are as the server sent them.

    A context window may remove early replies, a prompt may contain examples of replies, and a person may have played
    another reply in place of one. The longest common runs of replies are therefore matched, the last ones first.
    """
    rendered = [ChatMessage(one["role"], one["content"], None, tuple(one.get("answers", ()))) for one in messages]
    own = [index for index, message in enumerate(messages) if message["role"] == "assistant"][::-1]
    texts = [messages[index]["content"] for index in own]
    matcher = SequenceMatcher(None, texts, [answer.text for answer in reversed(answers)], autojunk=False)
    for first, newest, length in matcher.get_matching_blocks():
        for offset in range(length):
            index, answer = own[first + offset], answers[len(answers) - 1 - newest - offset]
            rendered[index] = replace(rendered[index], original=answer.original or None)
    return rendered


def check_api(settings: ApiSettings, temperature: float, max_usd: float | None) -> None:
    """Check what a model behind an API needs before its evaluation starts.

    Raises:
        ConfigError: the key is missing, the temperature is too high for the protocol, or the budget needs
            prices that are unknown.
    """
    read_key(settings)
    if settings.kind == "anthropic" and temperature > 1:
        raise ConfigError(
            f"evaluation.temperature={temperature:g} is not allowed with model.api.kind='anthropic'. Allowed: a number "
            "from 0 to 1."
        )
    check_prices(settings, max_usd)
