"""Policy of a model that continues an episode which it did not play."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from verl_agent.rollout.control_tokens import encode_content
from verl_agent.rollout.engine_policy import EnginePolicy
from verl_agent.rollout.tokens import add_given_reply
from verl_agent.types import Message, Reply, StopReason


@dataclass(slots=True)
class ContinuingPolicy(EnginePolicy):
    """Policy that is told of turns which were played before, and that completes a reply."""

    async def add_given(self, messages: Sequence[Message], reply: Reply) -> None:
        """Append a turn that was played before, so that the next reply continues from it.

        Args:
            messages: all messages that the model read before the reply.
            reply: the reply, which is encoded from its text.

        Raises:
            OverlongPromptError: see `reply`.
        """
        await self._add_messages(messages)
        await asyncio.to_thread(add_given_reply, self.tokens, self.tokenizer, reply)
        self._replies += 1

    async def continue_reply(self, messages: Sequence[Message], beginning: str) -> Reply:
        """Return a reply whose beginning is given; the policy writes the rest. The episode ends with it.

        Args:
            messages: all messages that the model reads.
            beginning: text, not empty.

        Returns:
            The whole reply; `tokens` counts the tokens that the policy wrote.

        Raises:
            OverlongPromptError: see `reply`.
        """
        await self._add_messages(messages)
        given = encode_content(self.tokenizer, beginning, self.tokens.marks_in(beginning))
        limit = min(self.budget.turn, self._tokens_left() - len(given))
        if limit < 1:
            return Reply("", truncated_by=StopReason.EPISODE_TOKENS)
        output = await self._generate([*self.tokens.ids, *given], limit)
        ids: list[int] = output.token_ids
        if not ids:
            return Reply("", truncated_by=StopReason.EPISODE_TOKENS)
        ended = ids[-1] in self.end_ids
        text = self.tokenizer.decode([*given, *(ids[:-1] if ended else ids)], skip_special_tokens=True)
        truncated_by, force_closed = self._truncation(ended, output, limit)
        return Reply(text, truncated_by, len(ids), force_closed)
