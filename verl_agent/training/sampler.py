"""Which episodes of a step are trained on, and what is measured of them.

verl's sampler hands over all rows of a prompt's group; an episode has several where its context was edited.
Here a group that has lost so many episodes to failing environments that its statistics mean nothing is dropped
whole; the others keep their survivors, whose advantages are those of the smaller group, since a failed episode
leaves no row behind.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

import transfer_queue as tq
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

from verl_agent.errors import ConfigError, EnvErrorLimitError
from verl_agent.trace.metrics import EpisodeSummary, episode_metrics
from verl_agent.types import StopReason

WHERE = "The episode records (episode.record_dir) say what failed: mend it, or raise env.timeout_s or env.retries."


POLL_S = 0.2
"""Seconds between two looks at what has been played; verl's 2 are lost time where a step takes a few."""
NOTHING_LEFT = "no materializable trajectories"
"""Verl's word for a batch of groups of which none left a row."""


class EpisodeCrashError(Exception):
    """An agent loop raised: a bug, or a setting that could only be found wrong while playing."""


class EpisodeSampler(ReplayBuffer):
    """verl's synchronous replay buffer (trainer/ppo/v1/replay_buffer.py) with groups checked for survivors.

    verl creates it through `trainer.v1.sampler.custom_sampler`; `sampler_kwargs` holds `group_size`
    (rollout.n), `val_group_size`, `min_group_size` (survivors that a group needs, 1 to `group_size`), `skip_uniform`
    (leave out groups whose episodes all earned the same, as DAPO does, arXiv 2503.14476, section 3.2, but without
    playing others in their place: the loss is then the mean over groups that tell good from bad), `retries` and
    `max_env_error_rate`. verl fills the batch up with rows of 128 tokens that carry no loss, so an update of longer
    episodes is shorter, too.
    """

    def __init__(self, *args: Any, sampler_kwargs: Any, **kwargs: Any) -> None:
        super().__init__(*args, sampler_kwargs=sampler_kwargs, poll_interval=POLL_S, **kwargs)
        self.group_size = int(sampler_kwargs["group_size"])
        self.min_group_size = min(int(sampler_kwargs["min_group_size"]), self.group_size)
        self.skip_uniform = bool(sampler_kwargs["skip_uniform"])
        self.val_group_size = int(sampler_kwargs["val_group_size"])
        self.tries = int(sampler_kwargs["retries"]) + 1
        self.max_env_error_rate = float(sampler_kwargs["max_env_error_rate"])
        self._most_filtered = self._filtered = self._emptied = 0

    def replace_uniform(self, metric: str, batch_size: int, max_inflight: int, max_batches: int) -> None:
        """Play other tasks in place of groups whose episodes all earned the same (DAPO, arXiv 2503.14476, 3.2).

        Args:
            metric: `reward`, or a name in `reward_extra_info`, such as `success`.
            batch_size: groups of a step.
            max_inflight: batches that may be played at once, >= 1.
            max_batches: batches that a step may leave out before it is given up; 0 for no limit.
        """
        self.filter_groups_metric, self.train_batch_size, self.gen_batch_size = metric, batch_size, 1
        self.max_inflight_gen_batches = max_inflight
        self._most_filtered = max_batches * batch_size
        self._validate_mode_config()

    def _dapo_filtered_keys(self, partition_id: str) -> tuple[set[str], Counter[float]]:
        """See `ReplayBuffer`; a group that lost every episode to its environment is replaced, too.

        Raises:
            EnvErrorLimitError: as many groups as a batch has were lost in this step.
            ConfigError: nothing but uniform groups comes.
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
        self._emptied += len(empty)
        self._filtered += len(uniform)
        if self._emptied > (self.train_batch_size or 0):
            raise EnvErrorLimitError(f"{self._emptied} groups of this step lost all their episodes. {WHERE}")
        if 0 < self._most_filtered < self._filtered:
            raise ConfigError(
                f"{self._filtered} groups of this step earned the same in all their episodes (by return: "
                f"{dict(counts)}), more than algorithm.filter_groups.max_num_gen_batches allows. Choose tasks that the "
                "model solves sometimes, or set algorithm.filter_groups.enable=false."
            )
        return uniform | empty, counts

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict[str, float]]:
        """See `ReplayBuffer.sample`; the metrics gain those of the episodes.

        Raises:
            EnvErrorLimitError: too many episodes were left out, or no group has enough survivors.
        """
        self._filtered = self._emptied = 0
        try:
            batch, metrics = super().sample(global_steps, partition_id, batch_size)
        except RuntimeError as error:
            if NOTHING_LEFT not in str(error):
                raise
            self._check_crashes(partition_id, self.finished_keys[partition_id] | self.failure_keys[partition_id])
            raise EnvErrorLimitError(f"step {global_steps}: no episode is left to train on. {WHERE}") from error
        size = self.val_group_size if partition_id == "val" else self.group_size
        lost = batch_size * size - len({episode_of(key) for key in batch.keys})
        self._check_faults(lost, batch_size * size)
        if partition_id == "val":
            return batch, metrics
        summaries = self._summaries(batch)
        intact = self._intact(batch.keys)
        if not intact:
            raise EnvErrorLimitError(
                f"step {global_steps}: no group has {self.min_group_size} episodes whose environment worked. {WHERE}"
            )
        uniform = uniform_groups(summaries)
        kept, dropped = self._split(batch.keys, intact, uniform)
        if dropped:
            tq.kv_clear(partition_id=partition_id, keys=dropped)
            tags = dict(zip(batch.keys, batch.tags, strict=True))
            batch = KVBatchMeta(partition_id=partition_id, keys=kept, tags=[tags[key] for key in kept])
        played = list(summaries.values())
        failure = EpisodeSummary(0.0, False, 0, played[0].max_turns, StopReason.ENV_ERROR, attempts=self.tries)
        every = [*played, *[failure] * lost]
        return batch, metrics | episode_metrics(every, batch_size - len(intact), len(uniform))

    def _materialize_batch(
        self, partition_id: str, selected_prompt_uids: list[str], partition_snapshot: dict[str, dict[str, Any]]
    ) -> KVBatchMeta:
        """See `ReplayBuffer`; verl would train on what a crashed agent loop left, and say nothing.

        Raises:
            EpisodeCrashError: an episode raised; its environment is not the cause, since that is caught.
        """
        self._check_crashes(partition_id, set(selected_prompt_uids))
        return super()._materialize_batch(partition_id, selected_prompt_uids, partition_snapshot)

    def _check_crashes(self, partition_id: str, groups: set[str]) -> None:
        crashed = self.failure_keys[partition_id] & groups
        if crashed:
            raise EpisodeCrashError(f"{len(crashed)} of {len(groups)} groups have an episode that raised.")

    def _check_faults(self, lost: int, total: int) -> None:
        if lost == total or lost / total > self.max_env_error_rate:
            raise EnvErrorLimitError(
                f"{lost} of {total} episodes of this step failed in their environment after all retries; "
                f"env.max_env_error_rate allows {self.max_env_error_rate:.0%}. {WHERE}"
            )

    def _intact(self, keys: list[str]) -> set[str]:
        """Groups with enough survivors."""
        sizes = Counter(group_of(episode) for episode in {episode_of(key) for key in keys})
        return {group for group, size in sizes.items() if size >= self.min_group_size}

    def _split(self, keys: list[str], intact: set[str], uniform: set[str]) -> tuple[list[str], list[str]]:
        """Keys to train on, and the others. A batch of uniform groups alone is kept: verl cannot skip an update."""
        wanted = intact - uniform if self.skip_uniform else intact
        chosen = wanted or intact
        return [key for key in keys if group_of(key) in chosen], [key for key in keys if group_of(key) not in chosen]

    def _summaries(self, batch: KVBatchMeta) -> dict[str, EpisodeSummary]:
        """What the episodes were, by episode; all rows of one say the same."""
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["extra_fields"])
        fields = [getattr(value, "data", value) for value in data["extra_fields"]]
        if not all("episode" in field for field in fields):
            raise ConfigError(
                "rows without an episode: data.custom_cls and the agent loop of verl_agent belong together."
            )
        return {
            episode_of(key): EpisodeSummary.from_fields(field["episode"])
            for key, field in zip(batch.keys, fields, strict=True)
        }


def group_of(key: str) -> str:
    """The group of a row, whose key verl writes as `<group>_<sample>_<part>`."""
    return key.split("_")[0]


def episode_of(key: str) -> str:
    """The episode of a row: an episode whose context was edited has several."""
    return key.rsplit("_", 1)[0]


def uniform_groups(summaries: Mapping[str, EpisodeSummary]) -> set[str]:
    """Groups whose episodes all teach the same.

    Args:
        summaries: by episode, `<group>_<sample>`.
    """
    rewards: dict[str, set[float]] = defaultdict(set)
    for episode, summary in summaries.items():
        rewards[group_of(episode)].add(summary.effective_return)
    return {group for group, values in rewards.items() if len(values) == 1}
