"""Prompts and their token budget: an observation that is too long is cut, the rules and instructions never are."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from typing_extensions import override

from verl_agent.agents.base import Agent
from verl_agent.envs.session import Session
from verl_agent.rollout.sessions import WrappedSession
from verl_agent.types import Message, TaskItem

if TYPE_CHECKING:  # evaluations of Python policies run without verl
    from verl.utils.tokenizer.continuous_token import ContinuousTokenBuilder

MARKER = "\n[... {count} characters are left out here: the prompt would be too long ...]\n"
"""Text in place of the middle of an observation that was cut."""

MANY_TURNS = 999
"""Turns left in a measured prompt, for an agent that tells them; few horizons have a longer number."""

CountTokens = Callable[[Sequence[Message]], int]
"""Returns the tokens of the prompt that an agent builds from an environment's first messages."""


def token_counter(builder: "ContinuousTokenBuilder", new_agent: Callable[[], Agent]) -> CountTokens:
    """Return a counter of the tokens of prompts."""
    from verl_agent.rollout.tokens import EpisodeTokens

    def count(messages: Sequence[Message]) -> int:
        agent = new_agent()
        *first, last = agent.build_prompt(list(messages))
        prompt = [*first, agent.with_turns_left(last, MANY_TURNS)]
        tokens = EpisodeTokens(builder, -1, agent.tools, agent.marks)
        tokens.add_messages(prompt)
        return len(tokens.ids)

    return count


def cut_observation(messages: Sequence[Message], kept: int) -> list[Message]:
    """Return the messages with only `kept` characters of the last one, half of its beginning and half of its end.

    Args:
        kept: characters to keep, >= 0.
    """
    *rules, last = messages
    text = last["content"]
    if kept >= len(text):
        return [*rules, last]
    head, tail = text[: kept - kept // 2], text[len(text) - kept // 2 :]
    return [*rules, {**last, "content": head + MARKER.format(count=f"{len(text) - kept:,}") + tail}]


def fit_prompt(messages: Sequence[Message], count: CountTokens, limit: int) -> list[Message]:
    """Return the messages, with as much of the first observation as a prompt of `limit` tokens holds.

    If even a prompt without the observation is too long, the observation is left out. The policy then refuses the
    prompt.
    """
    if count(messages) <= limit:
        return list(messages)
    fits, too_many = 0, len(messages[-1]["content"])
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        if count(cut_observation(messages, middle)) <= limit:
            fits = middle
        else:
            too_many = middle
    return cut_observation(messages, fits)


class FittedSession(WrappedSession):
    """Session whose first observation is cut so that the prompt fits (`data.overlong_prompt=truncate_observation`).

    Args:
        limit: most tokens of the prompt, `data.max_prompt_length`.
    """

    def __init__(self, session: Session, count: CountTokens, limit: int) -> None:
        super().__init__(session)
        self._count, self._limit = count, limit

    @override
    async def reset(self, item: TaskItem) -> list[Message]:
        messages = await super().reset(item)
        return await asyncio.to_thread(fit_prompt, messages, self._count, self._limit)
