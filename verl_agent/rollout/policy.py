"""The policy that verl serves: messages in, tokens through the engine, a reply out."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import uuid4

from verl_agent.errors import ConfigError
from verl_agent.rollout.tokens import EpisodeTokens
from verl_agent.types import Message, Reply, StopReason


class TokenEngine(Protocol):
    """The one call of verl's LLMServerClient that is used."""

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
        """Generate; the result has `token_ids`, `log_probs` and `extra_fields`."""
        ...


@dataclass(frozen=True, slots=True)
class TokenBudget:
    """Token limits of one episode, all >= 1.

    Attributes:
        prompt: tokens before the first reply.
        episode: tokens after it, replies and observations together. Where the context is edited, each further stretch
            has both budgets together.
        turn: tokens of one reply.
        play_truncated_turns: whether a reply that reaches `turn` is closed and played, rather than ending the episode.
    """

    prompt: int
    episode: int
    turn: int
    play_truncated_turns: bool = False


@dataclass(slots=True)
class EnginePolicy:
    """One episode's policy. Create a new one for each episode.

    Attributes:
        engine: verl's client.
        tokenizer: decodes replies.
        tokens: the episode's tokens, to be read when it is over.
        budget: token limits.
        sampling: parameters that the engine is given, such as temperature and `logprobs`; a `seed` is the episode's.
        end_ids: ids with which a model ends its reply.
        steps: versions of the weights that wrote the replies.
    """

    engine: TokenEngine
    tokenizer: Any
    tokens: EpisodeTokens
    budget: TokenBudget
    sampling: Mapping[str, Any]
    end_ids: frozenset[int]
    steps: list[int] = field(default_factory=list)
    _request_id: str = field(default_factory=lambda: uuid4().hex)

    async def reply(self, messages: Sequence[Message]) -> Reply:
        """See `Policy.reply`."""
        first = not self.tokens.ids
        await asyncio.to_thread(self.tokens.add_messages, messages)
        if first and len(self.tokens.ids) > self.budget.prompt:
            raise ConfigError(
                f"a prompt has {len(self.tokens.ids)} tokens, data.max_prompt_length allows {self.budget.prompt}. "
                "Raise it, or choose shorter words in env.options and agent.options."
            )
        room = min(self.budget.turn, self._room())
        if room < 1:
            return Reply("", truncated_by=StopReason.EPISODE_TOKENS)
        output = await self.engine.generate(
            self._request_id,
            prompt_ids=list(self.tokens.ids),
            sampling_params=self._sampling(room),
        )
        return self._take(output, room)

    def _sampling(self, room: int) -> dict[str, Any]:
        """Parameters of the next reply; each turn of an episode gets a stream of its own."""
        parameters = {**self.sampling, "max_tokens": room}
        if parameters.get("seed") is not None:
            parameters["seed"] += len(self.steps)
        return parameters

    def _room(self) -> int:
        """Tokens that may still follow; where the context was edited, in the engine's whole window."""
        if self.tokens.in_first_segment:
            return self.budget.episode - self.tokens.response_length
        return self.budget.prompt + self.budget.episode - len(self.tokens.ids)

    def _take(self, output: Any, room: int) -> Reply:
        ids: list[int] = output.token_ids
        if not ids:
            raise RuntimeError(f"the engine returned no tokens (stop reason {output.stop_reason!r}).")
        self.steps.append(output.extra_fields.get("global_steps") or 0)
        ended = ids[-1] in self.end_ids
        text = self.tokenizer.decode(ids[:-1] if ended else ids, skip_special_tokens=True)
        self.tokens.add_reply(text, ids, output.log_probs or None)
        cut, closed = None, False
        if not ended and len(ids) >= room:
            cut = StopReason.TURN_TOKENS if room == self.budget.turn else StopReason.EPISODE_TOKENS
            if cut is StopReason.TURN_TOKENS and self.budget.play_truncated_turns:
                cut, closed = None, True
        if not ended and cut is None:
            self.tokens.close_reply()
        return Reply(text, cut, len(ids), closed)
