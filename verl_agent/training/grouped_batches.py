"""Part of a trainer that composes batches of whole groups, in an order that does not depend on the clock."""

import itertools
import math
from typing import Any

import torch
from tensordict import NonTensorStack, TensorDict
from transfer_queue import KVBatchMeta
from typing_extensions import override
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils.seqlen_balancing import calculate_workload, log_seqlen_unbalance

from verl_agent.config.algorithms import UNIFORM_IS_ZERO
from verl_agent.config.plan import RunPlan
from verl_agent.training.batch_order import BatchRow, order_batch
from verl_agent.training.groups import UNIFORM
from verl_agent.training.short_rows import cut_padding
from verl_agent.training.turn_batch import write_columns


class GroupedBatches(PPOTrainer):
    """verl's `PPOTrainer`, whose mini-batches have whole groups; subclasses choose how episodes are played.

    Attributes:
        plan: plan of the run, read once from the config that verl passes.
    """

    plan: RunPlan

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._prompt_numbers = itertools.count()

    @override
    def _fetch_one_gen_batch(self) -> TensorDict:
        """Give groups names that sort in the order of tasks. verl's are random."""
        batch = super()._fetch_one_gen_batch()
        batch["uid"] = NonTensorStack(*(self._group_name(uid) for uid in batch["uid"]))
        return batch

    def _group_name(self, uid: object) -> str:
        return f"{self.global_steps:07d}-{next(self._prompt_numbers):09d}-{uid}"

    @override
    def _balance_batch(
        self, batch: KVBatchMeta, metrics: dict[str, Any], logging_prefix: str = "global_seqlen", **options: Any
    ) -> KVBatchMeta:
        """Each mini-batch has whole groups, see `verl_agent.training.batch_order`."""
        batch = super()._balance_batch(batch, metrics, logging_prefix=logging_prefix, **options)
        cut_padding(batch)
        ranks = max(self.actor_rollout_wg._dispatch_info["actor"]) + 1
        lengths = torch.tensor([tag["seq_len"] for tag in batch.tags], dtype=torch.int64)
        rows = [
            BatchRow(*row)
            for row in zip(batch.keys, calculate_workload(lengths).tolist(), self._without_loss(batch), strict=True)
        ]
        order = order_batch(rows, self._mini_batch_rows(), ranks, self.plan.batch.seed, self.global_steps)
        batch.reorder(order)
        share = len(order) // ranks
        shares = [order[begin : begin + share] for begin in range(0, len(order), share)]
        metrics.update(log_seqlen_unbalance(lengths.tolist(), shares, logging_prefix))
        return batch

    def _without_loss(self, batch: KVBatchMeta) -> list[bool]:
        """Return True for each row without loss, which is spread over the mini-batches to fill them up."""
        return [tag.get("is_padding", False) for tag in batch.tags]

    def _mini_batch_rows(self) -> int:
        """Return the rows of a mini-batch, or of the part that mini-batches of actor and critic are composed of."""
        return math.gcd(*(one.mini_tasks for one in self.plan.trained)) * self.plan.batch.samples

    @override
    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        """The advantages of a group of equal returns are exactly 0.

        verl subtracts a mean in float32 (core_algos.py, `compute_grpo_outcome_advantage`). Equal returns such as 0.7
        differ from it by rounding, and the division by an equally small standard deviation makes that up to 0.1.
        """
        batch = super()._compute_advantage(batch, metrics)
        estimation = self.plan.estimation
        uniform = [(key, tag) for key, tag in zip(batch.keys, batch.tags, strict=True) if tag.get(UNIFORM)]
        if uniform and estimation.name in UNIFORM_IS_ZERO and not estimation.kl_in_reward:
            keys, tags = zip(*uniform, strict=True)
            zeros = [torch.zeros(tag["response_len"]) for tag in tags]
            part = KVBatchMeta(partition_id=batch.partition_id, keys=list(keys), tags=list(tags))
            write_columns(part, {"advantages": zeros, "returns": zeros})
        return batch
