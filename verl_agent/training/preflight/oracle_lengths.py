"""Lengths of the oracle's episodes in turns and tokens, from which the limits of a run are planned."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import quantiles
from typing import Any

from verl_agent.config.settings import RunEnv
from verl_agent.envs.hosts.local import local_pool
from verl_agent.envs.session import PooledEnv
from verl_agent.envs.tasks import sample_tasks
from verl_agent.errors import ConfigError, counted
from verl_agent.models.hf import load_tokenizer
from verl_agent.models.resolve import SMOLLM2, resolve_model
from verl_agent.rollout.episode import EpisodeLimits, play_episode
from verl_agent.rollout.oracle import oracle_policy

MOST_TURNS = 200
"""Turn limit of the oracle's episodes."""


@dataclass(frozen=True, slots=True)
class OracleLengths:
    """Lengths of the oracle's episodes.

    Attributes:
        turns: turns of each episode.
        replies: tokens of each reply.
        answers: tokens of each answer of the environment, with those that the chat template puts around a turn.
    """

    turns: list[int]
    replies: list[int]
    answers: list[int]

    def __str__(self) -> str:
        return (
            f"{counted(len(self.turns), 'episode')} of the oracle: {most(self.turns)} turns (95 %), at most "
            f"{max(self.turns)}; tokens (95 %): reply {most(self.replies)}, answer {most(self.answers)}"
        )


def find_tokenizer(model: str, report: Callable[[str], None]) -> str:
    """Return the model whose tokenizer counts: that of the recipe, or SmolLM2's if it is not on this machine."""
    try:
        load_tokenizer(resolve_model(model), "actor_rollout_ref.model.path")
    except ConfigError:
        report(f"the tokenizer of {model} is not on this machine; {SMOLLM2} counts instead, which needs more tokens")
        return SMOLLM2
    return model


def measure_oracle(played: RunEnv, tokenizer: Any, limit: int, limit_s: float) -> OracleLengths | None:
    """Let the oracle play a sample of the training tasks; return None if the environment has no oracle.

    Args:
        limit: most tasks.
        limit_s: seconds after which no further episode begins.

    Raises:
        ConfigError: every episode failed.
    """
    items = sample_tasks(played.tasks(played.env.train_tasks), limit)
    try:
        oracle_policy(items[0], played.live, played.new_agent())
    except ConfigError:
        return None
    found, around = OracleLengths([], [], []), _template_tokens(tokenizer)

    async def play_them() -> str:
        pool, until, error = local_pool(played.live, played.env, count=1), time.monotonic() + limit_s, ""
        try:
            for item in items:
                agent = played.new_agent()
                policy = oracle_policy(item, played.live, agent)
                episode = await play_episode(
                    item, PooledEnv(played.live, pool), agent, policy, EpisodeLimits(MOST_TURNS)
                )
                error = error or episode.error or ""
                if episode.success:
                    found.turns.append(len(episode.turns))
                    found.replies.extend(_count(tokenizer, turn.reply.text) for turn in episode.turns)
                    shown = [turn.step.observation for turn in episode.turns[:-1] if turn.step]
                    found.answers.extend(_count(tokenizer, text) + around for text in shown)
                if time.monotonic() > until:
                    break
        finally:
            await pool.shutdown()
        return error

    error = asyncio.run(play_them())
    if not found.turns:
        raise ConfigError(f"the oracle of env {played.env.name!r} solved none of its tasks. {error}")
    return found


def _count(tokenizer: Any, text: str) -> int:
    return len(tokenizer.encode(text, add_special_tokens=False))


def _template_tokens(tokenizer: Any) -> int:
    """Return the tokens that the chat template puts around a reply and an answer."""
    turn = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "x"}]
    lengths = [
        _count(tokenizer, tokenizer.apply_chat_template(turn * count + turn[:1], tokenize=False)) for count in (1, 2)
    ]
    return lengths[1] - lengths[0] - 2


def most(lengths: Sequence[int]) -> int:
    """Return the length that 95 % of the values do not exceed; 0 without values."""
    if len(lengths) < 2:
        return max(lengths, default=0)
    return ceil(quantiles(lengths, n=20, method="inclusive")[-1])
