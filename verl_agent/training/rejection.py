"""Rejection of tokens and rows whose probabilities differ too much between trainer and engine."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_rejection_mask

from verl_agent.training.turn_batch import fetch_columns, write_columns


@dataclass(frozen=True, slots=True)
class Rejection:
    """Criteria of `algorithm.rollout_correction`, applied to the mask of the loss after advantages are estimated.

    verl applies them before (trainer/ppo/v1/trainer_base.py, `_compute_advantage`). GAE and REINFORCE++ read rewards
    through the mask, so they lose the outcome of an episode whose last token is rejected. GRPO then gives no advantage
    to the other rows of an episode whose last row is rejected.
    """

    criteria: str
    limits: str | float

    @classmethod
    def of(cls, correction: Mapping[str, Any]) -> Self | None:
        """Return the rejection of section `algorithm.rollout_correction`; None if it is off."""
        if correction["rollout_rs"] is None or correction["bypass_mode"]:
            return None
        return cls(correction["rollout_rs"], correction["rollout_rs_threshold"])

    def mask(self, old_BT: Tensor, engine_BT: Tensor, mask_BT: Tensor) -> tuple[Tensor, dict[str, float]]:
        """Return the mask without the rejected tokens, and metrics."""
        kept_BT, metrics = compute_rollout_rejection_mask(old_BT - engine_BT, mask_BT, self.criteria, self.limits)
        return kept_BT, {f"rollout_corr/{name}": float(value) for name, value in metrics.items()}

    def apply(self, batch: KVBatchMeta) -> dict[str, float]:
        """Remove the rejected tokens from `response_mask` of a batch in TransferQueue, and return metrics.

        `loss_mask` is unchanged. verl divides a mean over tokens by its sum, so a rejected token counts as one with
        no gradient.
        """
        columns = fetch_columns(batch, ["old_log_probs", "rollout_log_probs", "response_mask"])
        kept_BT, metrics = self.mask(*(pad_sequence(list(rows), batch_first=True) for rows in columns.values()))
        kept = [row[: len(mask)] for row, mask in zip(kept_BT, columns["response_mask"], strict=True)]
        write_columns(batch, {"response_mask": kept})
        return metrics
