"""Policy of a model behind an engine: messages in, tokens through the engine, a reply out."""

import asyncio
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias
from uuid import uuid4

from verl_agent.errors import OverlongPromptError
from verl_agent.messages import ReplyLimits, limits_on
from verl_agent.rollout.seeds import EpisodeSeed
from verl_agent.rollout.settings import TokenBudget
from verl_agent.rollout.tokens import EpisodeTokens, expand
from verl_agent.types import Message, Reply, StopReason

FULL = "length"
"""Stop reason of SGLang for a reply that reached its limit or that of the engine, whose context or cache is full."""
TopLogProbs: TypeAlias = Sequence[tuple[int, float]]
"""Ids and log-probs of the most likely tokens at one position, the most likely first."""


class TokenEngine(Protocol):
    """Engine that generates tokens; the only method of verl's `LLMServerClient` that policies call."""

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
        """Generate a reply; the result has `token_ids`, `log_probs`, `stop_reason` and `extra_fields`."""
        ...


@dataclass(slots=True)
class EnginePolicy:
    """Policy of one episode that samples from an engine.

    Attributes:
        tokens: tokens of the episode; training reads them afterwards.
        end_ids: ids with which the model ends its reply.
        seed: source of the seed of each request; None to use the engine's own random numbers.
        seed_name: name of the seed among the engine's sampling parameters.
        versions: training step of the weights that sampled each token of all replies.
        top_log_probs: most likely tokens at each token of all replies, where the engine returns them.
    """

    engine: TokenEngine
    tokenizer: Any
    tokens: EpisodeTokens
    budget: TokenBudget
    sampling: Mapping[str, Any]
    end_ids: frozenset[int]
    seed: EpisodeSeed | None = None
    seed_name: str = "seed"
    versions: list[int] = field(default_factory=list)
    _replies: int = 0
    top_log_probs: list[TopLogProbs] = field(default_factory=list)
    _request_id: str = field(default_factory=lambda: uuid4().hex)

    async def reply(self, messages: Sequence[Message]) -> Reply:
        """Let the engine write a reply.

        Raises:
            OverlongPromptError: the prompt of the episode exceeds its budget.
        """
        before = self.tokens.ids
        await self._add_messages(messages)
        prompt, limits = self.tokens.ids, limits_on(messages)
        limit = min(self.budget.turn, self._tokens_left())
        if limit < 1:
            return Reply("", truncated_by=StopReason.EPISODE_TOKENS)
        output = await self._generate(prompt, min(limit, limits.get("max_tokens", limit)))
        if not output.token_ids:
            return Reply("", truncated_by=StopReason.EPISODE_TOKENS)
        reply = self._to_reply(output, limit, limits)
        return replace(reply, prompt_tokens=len(prompt), cached_tokens=_same_tokens(before, prompt))

    async def _add_messages(self, messages: Sequence[Message]) -> None:
        begins = not self.tokens.ids
        await asyncio.to_thread(self.tokens.add_messages, messages)
        if begins and len(self.tokens.ids) > self.budget.prompt:
            raise OverlongPromptError(
                f"the prompt has {len(self.tokens.ids)} tokens, but data.max_prompt_length={self.budget.prompt}. "
                "Raise it, or set data.overlong_prompt=truncate_observation."
            )

    async def _generate(self, prompt_ids: Sequence[int], limit: int) -> Any:
        output = await self.engine.generate(
            self._request_id, prompt_ids=list(prompt_ids), sampling_params=self._sampling_params(limit)
        )
        if not output.token_ids and output.stop_reason != FULL:
            raise RuntimeError(f"the engine returned no tokens (stop reason {output.stop_reason!r}).")
        return output

    def _sampling_params(self, max_tokens: int) -> dict[str, Any]:
        """Return the parameters of the next reply, with its own seed.

        An engine ends replies by the files of the model's folder, which may name other ids than the run's tokenizer.
        """
        seed = {} if self.seed is None else {self.seed_name: self.seed.at(self._replies)}
        return {**self.sampling, **seed, "stop_token_ids": sorted(self.end_ids), "max_tokens": max_tokens}

    def _tokens_left(self) -> int:
        """Return the tokens that the episode may still have; after an edit of the context, the present segment."""
        if self.tokens.in_first_segment:
            return self.budget.episode - self.tokens.response_length
        return self.budget.prompt + self.budget.episode - len(self.tokens.ids)

    def _to_reply(self, output: Any, limit: int, limits: ReplyLimits) -> Reply:
        """Append the engine's tokens to the episode, up to a stop text, and return them as a reply."""
        size, stopped = self._size_to_stop(output.token_ids, limits.get("stop", ()))
        ids, removed = output.token_ids[:size], len(output.token_ids) - size
        said = output.extra_fields
        versions = expand(said.get("versions") or [(said.get("global_steps") or 0, size)])[:size]
        self._replies += 1
        self.versions += versions
        self.top_log_probs += (said.get("top_log_probs") or [])[:size]
        ended = ids[-1] in self.end_ids
        text = self.tokenizer.decode(ids[:-1] if ended else ids, skip_special_tokens=True)
        experts = getattr(output, "routed_experts", None)  # of verl's engines, if they return them
        experts = experts[:-removed] if removed and experts is not None else experts
        self.tokens.add_reply(text, ids, (output.log_probs or [])[:size] or None, versions, experts=experts)
        if stopped:
            truncated_by, force_closed = None, False
        elif not ended and size == limits.get("max_tokens", limit) < limit:
            truncated_by, force_closed = None, True
        else:
            truncated_by, force_closed = self._truncation(ended, output, limit)
        if not ended and truncated_by is None:
            self.tokens.close_reply()
        return Reply(text, truncated_by, size, force_closed, paused_s=said.get("paused_s", 0.0))

    def _size_to_stop(self, ids: Sequence[int], stops: Sequence[str]) -> tuple[int, bool]:
        """Return the number of tokens up to the one that completes the first stop text, and True if there is one.

        Engines that end a reply themselves would need its text, which they do not all have. Sampling is the same: a
        token depends on those before it alone.
        """

        def stopped(size: int) -> bool:
            text = self.tokenizer.decode(ids[:size], skip_special_tokens=True)
            return any(stop in text for stop in stops)

        if not stops or not stopped(len(ids)):
            return len(ids), False
        return bisect_left(range(len(ids)), True, key=stopped), True

    def _truncation(self, ended: bool, output: Any, limit: int) -> tuple[StopReason | None, bool]:
        """Return `truncated_by` and `force_closed` of a reply."""
        if not ended and len(output.token_ids) < limit and output.stop_reason == FULL:
            return StopReason.EPISODE_TOKENS, False
        if ended or len(output.token_ids) < limit:
            return None, False
        if limit < self.budget.turn:
            return StopReason.EPISODE_TOKENS, False
        return (None, True) if self.budget.play_truncated_turns else (StopReason.TURN_TOKENS, False)


def _same_tokens(before: Sequence[int], after: Sequence[int]) -> int:
    """Return the number of tokens at the beginning of `after` that the engine knows from the last request."""
    if after[: len(before)] == before:
        return len(before)
    return next(at for at, (one, other) in enumerate(zip(before, [*after, None], strict=False)) if one != other)
