"""Concurrent loop of an evaluation: plays pending episodes and records each attempt as it ends."""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from verl_agent.errors import ConfigError, EnvErrorLimitError, ReplyUnavailableError
from verl_agent.results.results import final_records
from verl_agent.rollout.player import Player
from verl_agent.rollout.seeds import EpisodeSeed
from verl_agent.system.threads import in_thread
from verl_agent.trace.record import EpisodeMeta, EpisodeRecord, Purpose, to_record
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

    @property
    def key(self) -> tuple[str, int]:
        """Task and sample, as records have them."""
        return self.item.id, self.sample


@dataclass(frozen=True, slots=True)
class EvaluationSetup:
    """Player of an evaluation, and the values that the records of all its episodes share.

    Attributes:
        concurrency: number of episodes played at once, >= 1.
        max_env_error_rate: largest allowed share of episodes that are not valid or have an action error, 0 to 1.
        oracle_turns: see `EnvAdapter.oracle_turns`.
        on_valid: called with the policy, the task and the sample of each episode that is valid and in
            which no person intervened; None for nothing.
    """

    player: Player[Any]
    tasks: str
    model: str
    seed: int = 1
    concurrency: int = 1
    max_env_error_rate: float = 0.5
    purpose: Purpose = "evaluation"
    oracle_turns: Callable[[TaskItem], int | None] = lambda item: None
    on_valid: Callable[[Any, TaskItem, int], None] | None = None


def left_out(stop: StopReason) -> bool:
    """Return True if an episode that ended so counts towards `env.max_env_error_rate`."""
    return stop is StopReason.ACTION_ERROR or not (stop.valid or stop is StopReason.OPERATOR)


class ErrorShare:
    """Share of the planned episodes that count towards `env.max_env_error_rate`, over all starts of an evaluation.

    Args:
        stops: endings of the episodes of earlier starts that are not played again.
        error: message of the last one of these that failed.
    """

    def __init__(self, planned: int, allowed_rate: float, stops: Sequence[StopReason] = (), error: str = "") -> None:
        self._planned, self._allowed_rate, self._error = planned, allowed_rate, error
        self._stops = Counter(stops)

    @property
    def exceeded(self) -> bool:
        """True if the share is larger than allowed, or the first episodes all failed."""
        failed, ended = self.failed, self._stops.total()
        hopeless = MAX_INITIAL_ERRORS <= failed == ended and self._allowed_rate < 1
        return hopeless or failed > self._allowed_rate * self._planned

    @property
    def failed(self) -> int:
        """Number of failed episodes so far."""
        return sum(count for stop, count in self._stops.items() if left_out(stop))

    def add(self, episode: Episode) -> None:
        """Count an episode, and check the share."""
        self._stops[episode.stop] += 1
        self._error = episode.error if left_out(episode.stop) else self._error
        self.check()

    def check(self) -> None:
        """Check the share.

        Raises:
            EnvErrorLimitError: it is exceeded.
        """
        if self.exceeded:
            errors = "have errors" if self._stops[StopReason.ACTION_ERROR] else "are not valid"
            named = ", ".join(f"{stop} {count}" for stop, count in self._stops.items() if left_out(stop))
            raise EnvErrorLimitError(
                f"{self.failed} of {self._stops.total()} episodes {errors}, of {self._planned} planned; "
                f"env.max_env_error_rate={self._allowed_rate:g} ({named}). The last error: {self._error}"
            )


REPEATED = (StopReason.ENV_ERROR, StopReason.REQUEST_REFUSED, StopReason.CANCELLED)
"""Endings after which another start may play the episode again: the reason lies outside of the evaluation."""


def pending_episodes(
    items: Sequence[TaskItem], samples: int, records: Iterable[EpisodeRecord], allowed_rate: float = 0.0
) -> list[PlannedEpisode]:
    """Return the episodes that a start has to play: those without a record, then those to repeat.

    An evaluation is finished if each episode has a record and the share of failed ones is allowed; nothing is repeated
    then. Else episodes that ended for a reason of `REPEATED` are played again. An episode with an overlong prompt is
    not: a resumed evaluation has the same token limit. Nor is one that a person ended.

    The first samples of all tasks come before the second ones, so that an interrupted evaluation covers most tasks.
    """
    ended = _endings(records)
    planned = [PlannedEpisode(item, sample) for sample in range(samples) for item in items]
    unplayed = [one for one in planned if one.key not in ended]
    again = [one for one in planned if one.key in ended and ended[one.key][0] in REPEATED]
    stops = [ended[one.key][0] for one in planned if one.key in ended]
    finished = not unplayed and not ErrorShare(len(planned), allowed_rate, stops).exceeded
    return [] if finished else [*unplayed, *again]


def error_share(
    planned: int, records: Iterable[EpisodeRecord], pending: Iterable[PlannedEpisode], allowed_rate: float
) -> ErrorShare:
    """Return the share of failed episodes of earlier starts, without those that are still pending.

    Args:
        planned: number of episodes of the whole evaluation.
        records: records of the planned tasks and samples.
    """
    left = {one.key for one in pending}
    decided = [ending for key, ending in _endings(records).items() if key not in left]
    error = next((error for stop, error in reversed(decided) if left_out(stop)), "")
    return ErrorShare(planned, allowed_rate, [stop for stop, _ in decided], error)


def _endings(records: Iterable[EpisodeRecord]) -> dict[tuple[str, int], tuple[StopReason, str]]:
    """Return stop reason and error of the last attempt at each episode, by `PlannedEpisode.key`."""
    return {(one["task"], one["sample"]): (StopReason(one["stop"]), one["error"]) for one in final_records(records)}


def episode_seed(setup: EvaluationSetup, item: TaskItem, sample: int) -> EpisodeSeed:
    """Return the seed of one episode, independent of all others; purposes share it, since one may change."""
    return EpisodeSeed(setup.seed, "evaluation", item.env, item.id, step=0, sample=sample)


async def play_all(
    pending: Sequence[PlannedEpisode],
    setup: EvaluationSetup,
    writer: EpisodeWriter,
    on_episode: Callable[[Episode], None],
    errors: ErrorShare | None = None,
) -> None:
    """Play episodes concurrently; each is on disk before its worker starts the next one.

    An episode for which the policy's server gives no reply is not recorded, and the others continue.

    Args:
        errors: share of failed episodes so far; None if these are all episodes of the evaluation.

    Raises:
        EnvErrorLimitError: the share of episodes that are not valid exceeds the limit, or the first ones all failed.
        ConfigError: some episodes are still pending, because the server gave no reply; or the server gave none for as
            many episodes in a row as are played at once.
    """
    queue = deque(pending)
    share = errors or ErrorShare(len(pending), setup.max_env_error_rate)
    outages = _Outages(max(MIN_OUTAGE, setup.concurrency))

    async def work() -> None:
        while queue:
            planned = queue.popleft()
            try:
                episode = await play_one(planned, setup, writer)
            except ReplyUnavailableError as error:
                if error.unsure:
                    queue.append(planned)
                else:
                    outages.add(error)
                continue
            outages.in_a_row = 0
            on_episode(episode)
            share.add(episode)

    workers = [asyncio.create_task(work()) for _ in range(setup.concurrency)]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    if outages.total:
        still = "1 episode is" if outages.total == 1 else f"{outages.total} episodes are"
        raise ConfigError(f"{still} pending, because {outages.last}")


async def play_one(planned: PlannedEpisode, setup: EvaluationSetup, writer: EpisodeWriter) -> Episode:
    """Play one episode, record its attempts, and return the last one."""
    item = planned.item
    played = await setup.player.play(item, episode_seed(setup, item, planned.sample))
    oracle_turns = await in_thread(setup.oracle_turns, item)
    for number, episode in enumerate(played.attempts, start=1):
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
    if setup.on_valid is not None and played.episode.valid and not played.episode.operated:
        setup.on_valid(played.policy, item, planned.sample)
    return played.episode


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
