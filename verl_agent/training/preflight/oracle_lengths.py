"""Lengths of the oracle's episodes in turns and tokens, from which the limits of a run are planned."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import fmean, quantiles
from typing import Any

from verl_agent.agents.functions import call_marks
from verl_agent.config.plan import RunPlan
from verl_agent.config.settings import AgentEnv
from verl_agent.envs.hosts.local import local_pool
from verl_agent.envs.session import PooledEnv
from verl_agent.envs.tasks import sample_tasks
from verl_agent.errors import AgentError, ConfigError, counted
from verl_agent.models.hf import load_tokenizer
from verl_agent.models.resolve import SMOLLM2, resolve_model
from verl_agent.rollout.control_tokens import encode_content
from verl_agent.rollout.limits import template_tokens
from verl_agent.rollout.oracle import oracle_policy, play_oracle
from verl_agent.training.preflight.estimates import MeanEpisode
from verl_agent.training.preflight.prompts import policy_tokenizer

MOST_TURNS = 200
"""Turn limit of the oracle's episodes."""

SAMPLE, SAMPLE_S = 8, 3.0
"""Most tasks, and seconds after which no further one begins, for the expected episode of an environment."""

LAST_EPISODE_S = 60.0
"""Seconds that the episode in play may take after those."""


@dataclass(frozen=True, slots=True)
class OracleLengths:
    """Lengths of the oracle's episodes.

    Attributes:
        turns: turns of each episode.
        replies: tokens of each reply.
        answers: tokens of each answer of the environment, with those that the chat template puts around a turn.
        prompts: tokens of each prompt, about.
    """

    turns: list[int]
    replies: list[int]
    answers: list[int]
    prompts: list[int]

    def __str__(self) -> str:
        return (
            f"{counted(len(self.turns), 'episode')} of the oracle: {most(self.turns)} turns (95 %), at most "
            f"{max(self.turns)}; tokens (95 %): reply {most(self.replies)}, answer {most(self.answers)}"
        )

    def expected(self, limit: int) -> MeanEpisode:
        """Return the episode that a policy of few skills may have: between the oracle's turns and the turn limit."""
        turns = (min(limit, fmean(self.turns)) + limit) / 2
        reply, answer = fmean(self.replies), fmean(self.answers or [0])
        return MeanEpisode(fmean(self.prompts) + turns * (reply + answer), turns * reply)


def find_tokenizer(model: str, report: Callable[[str], None]) -> str:
    """Return the model whose tokenizer counts: that of the recipe, or SmolLM2's if it is not on this machine."""
    try:
        load_tokenizer(resolve_model(model), "actor_rollout_ref.model.path")
    except ConfigError:
        report(
            f"the tokenizer of {model} is not on this machine: {SMOLLM2} counts instead. Its lengths are not those of "
            f"{model}, whose tokenizer and chat template may need more or fewer tokens."
        )
        return SMOLLM2
    return model


def measure_oracle(played: AgentEnv, tokenizer: Any, limit: int, limit_s: float) -> OracleLengths | None:
    """Let the oracle play a sample of the training tasks; return None if the environment has no oracle.

    Args:
        limit: most tasks.
        limit_s: seconds after which no further episode begins; after `LAST_EPISODE_S` more the one in play is given up.

    Raises:
        ConfigError: every episode failed.
    """
    items = sample_tasks(played.tasks(played.env.train_tasks), limit)
    try:
        oracle_policy(items[0], played.live, played.new_agent())
    except ConfigError as refused:
        if isinstance(refused.__cause__, NotImplementedError):
            return None
        raise  # the environment has one, and refuses this task
    found, around = OracleLengths([], [], [], []), template_tokens(tokenizer)

    async def play_them() -> str:
        pool, until, error = local_pool(played.live, played.env, count=1), time.monotonic() + limit_s, ""
        try:
            async with asyncio.timeout(limit_s + LAST_EPISODE_S):
                for item in items:
                    session = PooledEnv(played.live, pool)
                    episode = await play_oracle(item, played.live, session, played.new_agent(), MOST_TURNS)
                    error = error or episode.error or ""
                    if episode.success:
                        found.turns.append(len(episode.turns))
                        prompt = episode.messages[: episode.prompt_length]
                        found.prompts.append(sum(_count(tokenizer, one["content"]) + around for one in prompt))
                        found.replies.extend(_count(tokenizer, turn.reply.text) for turn in episode.turns)
                        shown = [turn.step.observation for turn in episode.turns[:-1] if turn.step]
                        found.answers.extend(_count(tokenizer, text) + around for text in shown)
                    if time.monotonic() > until:
                        break
        except TimeoutError:
            error = error or f"An episode of it took more than {LAST_EPISODE_S:g} s."
        finally:
            await pool.shutdown()
        return error

    error = asyncio.run(play_them())
    if not found.turns:
        raise ConfigError(f"the oracle of env {played.env.name!r} solved none of its tasks. {error}")
    return found


def mean_episode(plan: RunPlan) -> MeanEpisode | None:
    """Return the expected episode of a run, over its environments by their weights.

    None if one of them has no oracle that solves tasks in time: this is for a line of an estimate, and stops no run.
    """
    tokenizer = policy_tokenizer(plan)
    try:
        found = [(one, measure_oracle(one, tokenizer, SAMPLE, SAMPLE_S)) for one in plan.envs]
    except AgentError:
        return None
    means = [oracle.expected(one.horizon.first_limit) for one, oracle in found if oracle]
    if len(means) < len(found):
        return None
    weights = [one.weight for one in plan.envs]
    tokens = fmean((min(one.tokens, plan.lengths.episode) for one in means), weights)
    return MeanEpisode(tokens, fmean((one.written for one in means), weights))


def _count(tokenizer: Any, text: str) -> int:
    return len(encode_content(tokenizer, text, call_marks(text)))


def most(lengths: Sequence[int]) -> int:
    """Return the length that 95 % of the values do not exceed; 0 without values."""
    if len(lengths) < 2:
        return max(lengths, default=0)
    return ceil(quantiles(lengths, n=20, method="inclusive")[-1])
