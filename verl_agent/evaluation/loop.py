"""Concurrent loop of an evaluation: plays pending episodes and records each attempt as it ends."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from verl_agent.agents.base import Agent
from verl_agent.envs.session import Session
from verl_agent.errors import ConfigError, EnvErrorLimitError, ReplyUnavailableError
from verl_agent.results.results import final_records
from verl_agent.rollout.episode import EpisodeLimits, play_until_valid
from verl_agent.rollout.oversight import Overseer
from verl_agent.rollout.policy import Policy
from verl_agent.rollout.seeds import EpisodeSeed
from verl_agent.trace.record import EpisodeMeta, EpisodeRecord, Purpose, to_episode, to_record
from verl_agent.trace.record_files import EpisodeWriter
from verl_agent.types import Episode, StopReason, TaskItem

MIN_OUTAGE = 3
"""Number of episodes in a row that stay without a reply, from which an evaluation may stop."""
MAX_INITIAL_ERRORS = 20
"""Number of environment errors, without one valid episode, after which an evaluation stops."""


@dataclass(frozen=True, slots=True)
class PlannedEpisode:
    """Episode of an evaluation that is not played yet.

    Attributes:
        sample: index among the samples of the task, from 0.
    """

    item: TaskItem
    sample: int


@dataclass(frozen=True, slots=True)
class EvaluationSetup:
    """Values that all episodes of an evaluation share.

    Attributes:
        new_policy: factory of the policy of one attempt, from the task and the attempt's seed.
        concurrency: number of episodes played at once, >= 1.
        max_env_error_rate: largest allowed share of episodes that are not valid or have an action error, 0 to 1.
        oracle_turns: see `EnvAdapter.oracle_turns`.
        on_valid: called with the policy, the task and the sample of each episode that is valid and in
            which no person intervened; None for nothing.
        overseer: sees each turn before its action is carried out; None to carry out everything.
    """

    new_env: Callable[[], Session]
    new_agent: Callable[[], Agent]
    new_policy: Callable[[TaskItem, EpisodeSeed], Policy]
    limits: EpisodeLimits
    tasks: str
    model: str
    seed: int = 1
    concurrency: int = 1
    max_env_error_rate: float = 0.5
    purpose: Purpose = "evaluation"
    oracle_turns: Callable[[TaskItem], int | None] = lambda item: None
    on_valid: Callable[[Any, TaskItem, int], None] | None = None
    overseer: Overseer | None = None


def pending_episodes(items: Sequence[TaskItem], samples: int, records: Iterable[EpisodeRecord]) -> list[PlannedEpisode]:
    """Return the episodes without a valid record; episodes with environment errors are pending again.

    An episode with an overlong prompt is not: a resumed evaluation has the same token limit. Nor is one that a person
    ended.

    The first samples of all tasks come before the second ones, so that an interrupted evaluation covers most tasks.
    """
    ended = [(record, to_episode(record)) for record in final_records(records)]
    decided = (StopReason.OVERLONG_PROMPT, StopReason.OPERATOR)
    final = [record for record, episode in ended if episode.valid or episode.stop in decided]
    done = {(record["task"], record["sample"]) for record in final}
    planned = [PlannedEpisode(item, sample) for sample in range(samples) for item in items]
    return [one for one in planned if (one.item.id, one.sample) not in done]


def attempt_seed(setup: EvaluationSetup, item: TaskItem, sample: int, attempt: int) -> EpisodeSeed:
    """Return the seed of one attempt, independent of all other episodes; purposes share it, since one may change."""
    return EpisodeSeed(setup.seed, "evaluation", item.env, item.id, step=0, sample=sample, attempt=attempt)


async def play_all(
    planned: Sequence[PlannedEpisode],
    setup: EvaluationSetup,
    writer: EpisodeWriter,
    on_episode: Callable[[Episode], None],
) -> None:
    """Play episodes concurrently; each is on disk before its worker starts the next one.

    An episode for which the policy's server gives no reply is not recorded, and the others continue.

    Raises:
        EnvErrorLimitError: the share of episodes that are not valid exceeds the limit, or the first ones all failed.
        ConfigError: some episodes are still pending, because the server gave no reply; or the server gave none for as
            many episodes in a row as are played at once.
    """
    queue, errors = iter(planned), _ErrorCount(len(planned), setup.max_env_error_rate)
    outages = _Outages(max(MIN_OUTAGE, setup.concurrency))

    async def work() -> None:
        for one in queue:
            try:
                episode = await play_one(one, setup, writer)
            except ReplyUnavailableError as error:
                outages.add(error)
                continue
            outages.in_a_row = 0
            on_episode(episode)
            errors.add(episode)

    workers = [asyncio.create_task(work()) for _ in range(setup.concurrency)]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    if outages.total:
        pending = "1 episode is" if outages.total == 1 else f"{outages.total} episodes are"
        raise ConfigError(f"{pending} pending, because {outages.last}")


async def play_one(planned: PlannedEpisode, setup: EvaluationSetup, writer: EpisodeWriter) -> Episode:
    """Play one episode, record its attempts, and return the last one."""
    item, policies = planned.item, list[Policy]()

    def new_policy() -> Policy:
        seed = attempt_seed(setup, item, planned.sample, len(policies) + 1)
        policies.append(setup.new_policy(item, seed))
        return policies[-1]

    attempts = await play_until_valid(item, setup.new_env, setup.new_agent, new_policy, setup.limits, setup.overseer)
    oracle_turns = await asyncio.to_thread(setup.oracle_turns, item)
    for number, episode in enumerate(attempts, start=1):
        episode.oracle_turns = oracle_turns
        meta = EpisodeMeta(
            purpose=setup.purpose,
            split=setup.tasks,
            step=0,
            group=item.id,
            sample=planned.sample,
            started_at=datetime.fromtimestamp(episode.started_at, UTC),
            seconds=episode.seconds,
            attempt=number,
            model=setup.model,
        )
        writer.write(to_record(episode, meta))
    if setup.on_valid is not None and attempts[-1].valid and not attempts[-1].operated:
        setup.on_valid(policies[-1], item, planned.sample)
    return attempts[-1]


@dataclass(slots=True)
class _Outages:
    """Episodes that stay pending because the policy's server gave no reply."""

    most_in_a_row: int
    total: int = 0
    in_a_row: int = 0
    last: str = ""

    def add(self, error: ReplyUnavailableError) -> None:
        self.total += 1
        self.in_a_row += 1
        self.last = str(error)
        if self.in_a_row >= self.most_in_a_row:
            raise ConfigError(f"{self.in_a_row} episodes in a row got no reply. The last error: {error}")


@dataclass(slots=True)
class _ErrorCount:
    planned: int
    allowed_rate: float
    ended: int = 0
    failed: int = 0
    action_errors: int = 0

    def add(self, episode: Episode) -> None:
        self.ended += 1
        self.action_errors += episode.stop is StopReason.ACTION_ERROR
        left_out = not episode.valid and episode.stop is not StopReason.OPERATOR
        self.failed += left_out or episode.stop is StopReason.ACTION_ERROR
        hopeless = self.failed == self.ended == MAX_INITIAL_ERRORS and self.allowed_rate < 1
        if hopeless or self.failed > self.allowed_rate * self.planned:
            raise EnvErrorLimitError(
                f"{self.failed} of {self.ended} episodes {'have errors' if self.action_errors else 'are not valid'}, "
                f"of {self.planned} planned; "
                f"env.max_env_error_rate={self.allowed_rate:g}. The last error: {episode.error}"
            )
