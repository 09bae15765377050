"""Play every task of an evaluation, several episodes at once, and record each as it ends.

Knows neither model nor engine: a policy is made for each try from a seed.
"""

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from verl_agent.agents.base import Agent
from verl_agent.envs.session import Session
from verl_agent.errors import EnvErrorLimitError
from verl_agent.evaluation.results import final_records
from verl_agent.rollout.episode import EpisodeLimits, Policy, play_until_valid
from verl_agent.trace.record import EpisodeMeta, EpisodeRecord, Purpose, to_episode, to_record
from verl_agent.trace.record_files import EpisodeWriter
from verl_agent.types import Episode, TaskItem

ONLY_FAULTS = 20
"""Episodes that may fail one after the other, from the first on, before an evaluation is given up."""


@dataclass(frozen=True, slots=True)
class PlannedEpisode:
    """One episode to be played.

    Attributes:
        item: its task.
        sample: number of this sample of the task, from 0.
    """

    item: TaskItem
    sample: int


@dataclass(frozen=True, slots=True)
class EvaluationSetup:
    """What all episodes of an evaluation share.

    Attributes:
        new_env: makes a fresh session.
        new_agent: makes the agent of one try.
        new_policy: makes the policy of one try from the task and the episode's seed.
        limits: turns, seconds and retries.
        tasks: selection that the items are from, for the record.
        model: the policy's name, for the record.
        seed: of the whole evaluation.
        concurrency: episodes at once, >= 1.
        max_env_error_rate: share of the episodes, 0 to 1, whose environment may fail.
        purpose: what they are played for, for the record.
    """

    new_env: Callable[[], Session]
    new_agent: Callable[[], Agent]
    new_policy: Callable[[TaskItem, int], Policy]
    limits: EpisodeLimits
    tasks: str
    model: str
    seed: int = 1
    concurrency: int = 1
    max_env_error_rate: float = 0.5
    purpose: Purpose = "evaluation"


def pending(items: Sequence[TaskItem], samples: int, records: Iterable[EpisodeRecord]) -> list[PlannedEpisode]:
    """What is still to be played: all but the sound episodes on record; a failed environment gets a new chance.

    The first sample of every task comes before the second of any, so that a run that is stopped has seen most tasks.
    """
    final = [record for record in final_records(records) if to_episode(record).valid]
    done = {(record["task"], record["sample"]) for record in final}
    slots = [PlannedEpisode(item, sample) for sample in range(samples) for item in items]
    return [slot for slot in slots if (slot.item.id, slot.sample) not in done]


def episode_seed(seed: int, task: str, sample: int) -> int:
    """Seed of one episode, 32 bits; it depends on nothing else that is played."""
    return int.from_bytes(hashlib.sha256(f"{seed} {task} {sample}".encode()).digest()[:4])


async def play_all(
    slots: Sequence[PlannedEpisode],
    setup: EvaluationSetup,
    writer: EpisodeWriter,
    on_episode: Callable[[Episode], None],
) -> None:
    """Play all slots; each episode is on disk before the next one starts in its place.

    Args:
        slots: what to play.
        setup: how.
        writer: takes every try.
        on_episode: told of each episode's last try.

    Raises:
        EnvErrorLimitError: more environments failed than allowed, or nothing but failures came at first.
    """
    waiting, faults = iter(slots), _Faults(len(slots), setup.max_env_error_rate)
    workers = [asyncio.create_task(_work(waiting, setup, writer, faults, on_episode)) for _ in range(setup.concurrency)]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


async def _work(
    waiting: Iterator[PlannedEpisode],
    setup: EvaluationSetup,
    writer: EpisodeWriter,
    faults: "_Faults",
    on_episode: Callable[[Episode], None],
) -> None:
    for slot in waiting:
        episode = await _play(slot, setup, writer)
        on_episode(episode)
        faults.add(episode)


async def _play(slot: PlannedEpisode, setup: EvaluationSetup, writer: EpisodeWriter) -> Episode:
    seed = episode_seed(setup.seed, slot.item.id, slot.sample)
    tries = await play_until_valid(
        slot.item, setup.new_env, setup.new_agent, lambda: setup.new_policy(slot.item, seed), setup.limits
    )
    for attempt, episode in enumerate(tries, start=1):
        origin = EpisodeMeta(
            purpose=setup.purpose,
            split=setup.tasks,
            step=0,
            group=slot.item.id,
            sample=slot.sample,
            started_at=datetime.fromtimestamp(episode.started_at, UTC),
            seconds=episode.seconds,
            attempt=attempt,
            model=setup.model,
        )
        writer.write(to_record(episode, origin))
    return tries[-1]


@dataclass(slots=True)
class _Faults:
    planned: int
    allowed_share: float
    ended: int = 0
    failed: int = 0

    def add(self, episode: Episode) -> None:
        self.ended += 1
        self.failed += not episode.valid
        hopeless = self.failed == self.ended == ONLY_FAULTS and self.allowed_share < 1
        if hopeless or self.failed > self.allowed_share * self.planned:
            raise EnvErrorLimitError(
                f"{self.failed} of {self.ended} episodes failed in their environment, of {self.planned} planned; "
                f"env.max_env_error_rate={self.allowed_share:g}. The last one: {episode.error}"
            )
