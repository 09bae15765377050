"""Policy loss without a ratio: the policy gradient, for one update for each batch."""

from typing import Any

from torch import Tensor
from verl.trainer.ppo.core_algos import agg_loss


def plain_gradient(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str,
    config: Any,
    rollout_is_weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """Return -A log pi of each token (REINFORCE), aggregated by `loss_agg_mode`; all tensors are `(B, T)`."""
    losses = -advantages * log_prob
    if rollout_is_weights is not None:
        losses = losses * rollout_is_weights
    loss = agg_loss(losses, response_mask, loss_agg_mode, **config.global_batch_info)
    drift = ((old_log_prob - log_prob.detach()) * response_mask).sum() / response_mask.sum().clamp(min=1)
    return loss, {"actor/ppo_kl": drift.item()}
