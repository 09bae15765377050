"""Selection of the episodes of a step that are trained on, and their metrics.

verl's replay buffer returns all rows of a prompt's group; an episode has one row for each of its segments. An episode
that is not valid has no row, so advantages are computed over the valid episodes of its group. This sampler
drops a group with fewer than `min_group_size` valid episodes.
"""

import logging
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import transfer_queue as tq
from transfer_queue import KVBatchMeta
from typing_extensions import override
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

from verl_agent.errors import ConfigError, EnvErrorLimitError
from verl_agent.results.statistics import return_margins
from verl_agent.trace.behaviors import divergence_turns
from verl_agent.trace.episode_summary import EpisodeSummary
from verl_agent.trace.metrics import episode_metrics
from verl_agent.training.groups import UNIFORM, by_part, episode_key, group_of, parts_of_equal_returns
from verl_agent.training.invalid_episodes import READ_RECORDS, check_invalid_rate, take_reports
from verl_agent.training.turn_batch import fetch_extra_fields
from verl_agent.types import StopReason

logger = logging.getLogger(__name__)

POLL_S = 0.2
"""Seconds between two polls for finished episodes. verl's default of 2 s is a large part of a short step."""
NO_ROWS = "no materializable trajectories"
"""Part of verl's error message for a batch in which no group has a row."""


class EpisodeCrashError(Exception):
    """An agent loop raised an exception that is not an environment error: a bug, or an invalid setting."""


class EpisodeSampler(ReplayBuffer):
    """verl's synchronous replay buffer (trainer/ppo/v1/replay_buffer.py), which drops groups with too few episodes.

    verl creates it through `trainer.v1.sampler.custom_sampler`. It pads the batch with rows without loss, which are cut
    to two tokens (`verl_agent.training.short_rows`), so an update with dropped groups is also faster.

    Args:
        args: positional arguments of `ReplayBuffer`.
        sampler_kwargs: section with the following keys.
            group_size: episodes of a training prompt (`rollout.n`).
            val_group_size: episodes of a validation prompt.
            min_group_size: valid episodes that a group needs, 1 to `group_size`; in an arena, each of its seats.
            skip_uniform: drop groups whose episodes all have the same return, as DAPO does (arXiv 2503.14476, section
                3.2). Unlike there, no other groups replace them: `loss_agg_mode=token-mean` is the mean over the
                remaining groups, and the modes `seq-mean-*` divide by the rows of a whole mini-batch.
            max_env_error_rate: share of a step's episodes that may not be valid, 0 to 1.
        kwargs: keyword arguments of `ReplayBuffer`.
    """

    def __init__(self, *args: Any, sampler_kwargs: Any, **kwargs: Any) -> None:
        super().__init__(*args, sampler_kwargs=sampler_kwargs, poll_interval=POLL_S, **kwargs)
        self.group_size = int(sampler_kwargs["group_size"])
        self.min_group_size = min(int(sampler_kwargs["min_group_size"]), self.group_size)
        self.skip_uniform = bool(sampler_kwargs["skip_uniform"])
        self.val_group_size = int(sampler_kwargs["val_group_size"])
        self.max_env_error_rate = float(sampler_kwargs["max_env_error_rate"])
        self._max_uniform = self._uniform = self._empty = 0
        self._invalid: list[EpisodeSummary] = []
        self.begin_validation()
        self._played: list[EpisodeSummary] = []

    def begin_validation(self) -> None:
        """Forget the batches of the last validation; one of another step begins by itself."""
        self._validated: tuple[int, Counter[str], list[EpisodeSummary]] = (-1, Counter(), [])

    def take_played(self) -> list[EpisodeSummary]:
        """Return the valid episodes of the training batches since the last call, those of dropped groups included."""
        played, self._played = self._played, []
        return played

    def replace_uniform(self, metric: str, batch_size: int, max_inflight: int, max_batches: int) -> None:
        """Replace groups whose episodes all have the same value (DAPO, arXiv 2503.14476, section 3.2).

        Args:
            metric: name of the value: `reward`, or a key of `reward_extra_info` such as `success`.
            batch_size: number of groups of a step.
            max_inflight: most batches that are played at once, >= 1.
            max_batches: most batches of uniform groups in a step, after which the run stops; 0 for no limit.
        """
        self.filter_groups_metric, self.train_batch_size, self.gen_batch_size = metric, batch_size, 1
        self.max_inflight_gen_batches = max_inflight
        self._max_uniform = max_batches * batch_size
        self._validate_mode_config()

    @override
    def _dapo_filtered_keys(self, partition_id: str) -> tuple[set[str], Counter[float]]:
        """Also replaces groups without a valid episode.

        Raises:
            EnvErrorLimitError: more groups of this step than a batch has are without a valid episode.
            ConfigError: too many groups of this step are uniform.
        """
        if partition_id == "val" or self.filter_groups_metric is None:
            return set(), Counter()
        finished = self.finished_keys[partition_id]
        empty = finished - {group_of(key) for key in self.partitions[partition_id]}
        finished -= empty
        try:
            uniform, counts = super()._dapo_filtered_keys(partition_id)
        finally:
            finished |= empty
        self._empty += len(empty)
        self._uniform += len(uniform)
        if self._empty > (self.train_batch_size or 0):
            raise EnvErrorLimitError(f"{self._empty} groups of this step have no valid episode. {READ_RECORDS}")
        if 0 < self._max_uniform < self._uniform:
            raise ConfigError(
                f"{self._uniform} groups of this step have the same return in all their episodes (groups by return: "
                f"{dict(counts)}), more than algorithm.filter_groups.max_num_gen_batches allows. Choose tasks that the "
                "model solves sometimes, or set algorithm.filter_groups.enable=false."
            )
        return uniform | empty, counts

    @override
    def _select_prompt_uids(
        self, partition_id: str, sampleable_keys: set[str], batch_size: int
    ) -> tuple[list[str], dict[str, dict[str, Any]], dict[str, int]]:
        """Of more groups than a batch has, the first ones in the order of tasks are used."""
        _, rows, steps = super()._select_prompt_uids(partition_id, sampleable_keys, batch_size)
        return sorted(sampleable_keys)[:batch_size], rows, steps

    @override
    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict[str, float]]:
        """Drop groups with too few valid episodes, and add the metrics of the episodes.

        Raises:
            EnvErrorLimitError: too many episodes have an environment error, or no group has enough valid episodes.
        """
        self._uniform = self._empty = 0
        try:
            batch, metrics = super().sample(global_steps, partition_id, batch_size)
        except RuntimeError as error:
            if NO_ROWS not in str(error):
                raise
            groups = self.finished_keys[partition_id] | self.failure_keys[partition_id]
            self._check_crashes(partition_id, groups)
            batch, metrics = KVBatchMeta(partition_id=partition_id, keys=[], tags=[]), {}
            self._take_reports(partition_id, groups)
        size = self.val_group_size if partition_id == "val" else self.group_size
        lost = batch_size * size - len({episode_key(key) for key in batch.keys})
        summaries = self._summaries(batch) if batch.keys else {}
        action_errors = sum(summary.stop is StopReason.ACTION_ERROR for summary in summaries.values())
        counts = Counter(lost=lost, total=batch_size * size, action_errors=action_errors)
        self._check_valid(counts, global_steps if partition_id == "val" else None)
        if partition_id == "val":
            if lost:  # verl does not log the metrics of a validation's batch
                by_stop = Counter(str(summary.stop) for summary in self._invalid)
                stops = ", ".join(f"{count} {stop}" for stop, count in by_stop.items())
                logger.warning("validation: %d of %d episodes are left out: %s", lost, batch_size * size, stops)
            return batch, metrics
        seats = {key: summary.category for key, summary in summaries.items()}  # of one task, only those of seats differ
        intact = self._intact(batch.keys, seats)
        if not intact:
            raise EnvErrorLimitError(
                f"step {global_steps}: no group has {self.min_group_size} valid episodes. {READ_RECORDS}"
            )
        returns = {key: summary.effective_return for key, summary in summaries.items()}
        equal = parts_of_equal_returns(returns, seats)
        different = {key for key, seat in seats.items() if (group_of(key), seat) not in equal}
        uniform = set(map(group_of, seats)) - set(map(group_of, different))
        kept, dropped = self._split(batch.keys, intact, uniform)
        if dropped:
            tq.kv_clear(partition_id=partition_id, keys=dropped)
            tags = dict(zip(batch.keys, batch.tags, strict=True))
            batch = KVBatchMeta(partition_id=partition_id, keys=kept, tags=[tags[key] for key in kept])
        self._mark(batch, seats.keys() - different)
        valid = list(summaries.values())
        self._played += [replace(summary, group=group_of(key)) for key, summary in summaries.items()]
        apart = divergence_turns(by_part({key: summary.actions for key, summary in summaries.items()}, seats).values())
        metrics |= episode_metrics([*valid, *self._invalid], batch_size - len(intact), len(uniform), apart)
        return batch, metrics | return_margins((one.env_label, one.task, one.reward) for one in valid)

    def _check_valid(self, counts: Counter[str], validated: int | None = None) -> None:
        """Check the share of valid episodes of a training batch, or of all batches of a validation so far.

        Args:
            counts: `lost`, `total` and `action_errors` of the batch, see `check_invalid_rate`.
            validated: step that the batch validates; None for a training batch.

        Raises:
            EnvErrorLimitError: too many episodes have an environment error, or no episode of the batch is valid.
        """
        invalid, no_rows = self._invalid, counts["lost"] == counts["total"]
        if validated is not None:
            step, earlier, reports = self._validated
            if step == validated:
                counts, invalid = earlier + counts, reports + invalid
            self._validated = (validated, counts, invalid)
        check_invalid_rate(counts["lost"], counts["total"], invalid, self.max_env_error_rate, counts["action_errors"])
        if no_rows:  # verl reads the rows of each batch
            raise EnvErrorLimitError(
                f"no episode of the last batch of this validation is valid. Raise data.val_batch_size. {READ_RECORDS}"
            )

    def _mark(self, batch: KVBatchMeta, episodes: Collection[str]) -> None:
        """Set the tag `UNIFORM` of the rows of these episodes; verl reads tags from the queue again after each pass."""
        rows = [row for row, key in enumerate(batch.keys) if episode_key(key) in episodes]
        for row in rows:
            batch.tags[row][UNIFORM] = True
        if rows:
            keys, tags = [batch.keys[row] for row in rows], [batch.tags[row] for row in rows]
            tq.kv_batch_put(keys=keys, partition_id=batch.partition_id, tags=tags)

    def _materialize_batch(
        self, partition_id: str, selected_prompt_uids: list[str], partition_snapshot: dict[str, dict[str, Any]]
    ) -> KVBatchMeta:
        """Stop the run if an agent loop crashed; verl's `ReplayBuffer` would train on its group without a message.

        Raises:
            EpisodeCrashError: an agent loop raised an exception; environment errors are recorded instead.
        """
        self._check_crashes(partition_id, set(selected_prompt_uids))
        self._take_reports(partition_id, set(selected_prompt_uids))
        return super()._materialize_batch(partition_id, selected_prompt_uids, partition_snapshot)

    def _take_reports(self, partition_id: str, selected: set[str]) -> None:
        others = self.prompt_global_steps[partition_id].keys() - selected
        self._invalid = take_reports(self.partitions, partition_id, selected, others)

    def _check_crashes(self, partition_id: str, groups: set[str]) -> None:
        crashed = self.failure_keys[partition_id] & groups
        if crashed:
            raise EpisodeCrashError(
                f"{len(crashed)} of {len(groups)} groups have an episode whose agent loop raised an exception."
            )

    def _intact(self, keys: list[str], seats: Mapping[str, str] = MappingProxyType({})) -> set[str]:
        """Return the groups with enough valid episodes of each seat: estimators do not compare seats."""
        sizes: dict[str, list[int]] = defaultdict(list)
        for (group, _), episodes in by_part({episode_key(key): None for key in keys}, seats).items():
            sizes[group].append(len(episodes))
        return {
            group
            for group, by_seat in sizes.items()
            if min(by_seat) >= min(self.min_group_size, self.group_size // len(by_seat))
        }

    def _split(self, keys: list[str], intact: set[str], uniform: set[str]) -> tuple[list[str], list[str]]:
        """Return the keys to train on, and the dropped keys.

        If all groups are uniform they are kept, since verl cannot skip an update.
        """
        chosen = (intact - uniform if self.skip_uniform else intact) or intact
        return [key for key in keys if group_of(key) in chosen], [key for key in keys if group_of(key) not in chosen]

    def _summaries(self, batch: KVBatchMeta) -> dict[str, EpisodeSummary]:
        """Return the summary of each episode by its key; all rows of an episode have the same one."""
        fields = fetch_extra_fields(batch)
        if not all("episode" in field for field in fields):
            raise ConfigError(
                "the batch has rows without an episode: data.custom_cls and the agent loop of verl_agent must be used "
                "together. Start from a recipe in recipes/."
            )
        return {
            episode_key(key): EpisodeSummary.from_fields(field["episode"])
            for key, field in zip(batch.keys, fields, strict=True)
        }
