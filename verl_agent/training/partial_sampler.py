"""Selection of the episodes of a step where unfinished episodes continue after the step."""

from collections import Counter

from verl.trainer.ppo.v1.replay_buffer import ReplayBufferAsync

from verl_agent.training.sampler import EpisodeSampler


class PartialEpisodeSampler(EpisodeSampler, ReplayBufferAsync):
    """`EpisodeSampler` over verl's asynchronous replay buffer.

    By the order of bases, `EpisodeSampler.sample` calls `ReplayBufferAsync.sample`. A step trains on the first groups
    in the order of dispatch that are finished, and first waits for groups that would otherwise become too old.

    With `max_off_policy_threshold` T, a group of step d is trained on in step d + T - 1 at the latest. After a step at
    most `num_warmup_batches` <= 1 batches are left, so a step has room for all groups that have become that old.
    """

    def _terminal_eviction_reasons(
        self, global_steps: int, partition_id: str
    ) -> tuple[set[str], set[str], set[str], Counter[float]]:
        """Raise for crashed groups; `ReplayBufferAsync` replaces them for ever and without a message.

        Raises:
            EpisodeCrashError: an agent loop raised an exception.
        """
        self._check_crashes(partition_id, self.failure_keys[partition_id])
        reasons: tuple[set[str], set[str], set[str], Counter[float]] = super()._terminal_eviction_reasons(
            global_steps, partition_id
        )
        return reasons
