"""Episodes of a step, played together by the product's episode loop, and their rows for training."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from transformers import PreTrainedModel
from typing_extensions import override

from verl_agent.config.reward_shaping import turn_rewards
from verl_agent.config.settings import RunEnv
from verl_agent.errors import ConfigError
from verl_agent.rollout.deepening import GroupLimit
from verl_agent.rollout.engine_policy import EnginePolicy
from verl_agent.rollout.episode import EpisodeLimits
from verl_agent.rollout.player import Player
from verl_agent.rollout.seeds import EpisodeSeed
from verl_agent.rollout.settings import TokenBudget
from verl_agent.rollout.tokens import EpisodeTokens, Segment
from verl_agent.study.tiny.engine import LockstepEngine
from verl_agent.study.tiny.words import WordBuilder, Words
from verl_agent.training.agent_loop import add_last_state, count_replies
from verl_agent.training.solved_episodes import SolvedEpisodes
from verl_agent.types import Episode, TaskItem

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class SegmentRow:
    """Training row: a segment of an episode, with verl's key and `TurnRewards.to_fields()` of its turns."""

    key: str
    segment: Segment
    rewards: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Plays:
    """Episodes of a step in the order of tasks and samples, their rows, and the mean entropy of a token in nats."""

    episodes: list[Episode]
    rows: list[SegmentRow]
    entropy: float

    @property
    def valid(self) -> list[Episode]:
        """The episodes without an environment error.

        Raises:
            ConfigError: all of them failed.
        """
        if not (found := [one for one in self.episodes if one.valid]):
            one = self.episodes[0]
            raise ConfigError(
                f"all {len(self.episodes)} episodes of a step failed, such as that of task {one.item.id}: {one.stop}: "
                f"{one.error}. Repair the environment; the next start resumes."
            )
        return found

    @property
    def turns(self) -> int:
        """Number of turns of all episodes, replayed ones included."""
        return sum(len(episode.turns) + episode.given_turns for episode in self.episodes)


class InThisThread(ThreadPoolExecutor):
    """Executor that calls at once: rendering words takes less time than a change of threads."""

    @override
    def submit(self, fn: Callable[..., Result], /, *args: Any, **options: Any) -> "Future[Result]":
        future: Future[Result] = Future()
        future.set_result(fn(*args, **options))
        return future


class TinyPlayer:
    """Plays episodes of one environment with a small model; the seed is that of sampling."""

    def __init__(self, env: RunEnv, words: Words, budget: TokenBudget, seed: int) -> None:
        self._env, self._words, self._budget, self._seed = env, words, budget, seed
        self._builder = WordBuilder(words)
        replay = env.horizon.replay
        self._solved = None if replay is None else SolvedEpisodes(env, replay)

    def play(
        self,
        model: PreTrainedModel,
        items: Sequence[TaskItem],
        samples: int,
        limits: Sequence[EpisodeLimits],
        step: int,
    ) -> Plays:
        """Play `samples` episodes of each task within its limits; step 0 is an evaluation."""
        engine, label = LockstepEngine(model), self._env.label
        deepens = step > 0 and self._env.horizon.deepen
        solved = self._solved if step > 0 else None
        jobs = []
        for group, item in enumerate(items):
            shared = GroupLimit(self._env.horizon.stages, samples) if deepens else None
            given = solved.given(item, self._env.new_agent(), limits[group].max_turns) if solved else []
            for sample in range(samples):
                seed = EpisodeSeed(self._seed, "train" if step else "validation", label, item.id, step, sample, group)
                jobs.append(
                    partial(self._episode, engine, item, f"{group:05d}_{sample}", seed, limits[group], shared, given)
                )

        async def together() -> list[tuple[Episode, list[SegmentRow]]]:
            asyncio.get_running_loop().set_default_executor(InThisThread(1))
            return await engine.run(jobs)

        played = asyncio.run(together())
        return Plays([episode for episode, _ in played], [row for _, rows in played for row in rows], engine.entropy)

    async def _episode(
        self,
        engine: LockstepEngine,
        item: TaskItem,
        name: str,
        seed: EpisodeSeed,
        limits: EpisodeLimits,
        group: GroupLimit | None,
        given: Sequence[str],
    ) -> tuple[Episode, list[SegmentRow]]:
        """Play one episode, and return it with its rows; without any if it is not valid."""

        def new_policy(item: TaskItem, seed: EpisodeSeed) -> EnginePolicy:
            tokens, ends = EpisodeTokens(self._builder, Words.eos_token_id), frozenset({Words.eos_token_id})
            return EnginePolicy(engine, self._words, tokens, self._budget, {}, ends, seed)

        async def at_limit(episode: Episode) -> int:
            assert group is not None
            with engine.waiting():
                return await group.at_limit(episode)

        player = Player(self._env.new_agent, self._env.live.new_session, new_policy, limits)
        played = await player.play(item, seed, at_limit if group else None, given)
        episode, tokens = played.episode, played.policy.tokens
        if group:
            group.end(episode.success)
            with engine.waiting():
                episode.max_turns = await group.final()
        if not episode.valid:
            return episode, []
        segments, credit = tokens.segments(), self._env.credit
        if credit.truncated == "bootstrap" and episode.truncated:
            most = self._budget.prompt + self._budget.episode
            segments = add_last_state(segments, episode, played.agent, tokens, most)
        counts = [count_replies(segment.response_mask) for segment in segments]
        parts = zip(segments, turn_rewards(episode, credit).split(counts), strict=True)
        return episode, [
            SegmentRow(f"{name}_{at}", segment, part.to_fields()) for at, (segment, part) in enumerate(parts)
        ]
