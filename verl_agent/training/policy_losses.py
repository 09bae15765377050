"""Policy losses of `actor_rollout_ref.actor.policy_loss.loss_mode`: `turn_ratio`, and the clip fraction of each turn.

verl imports this module in its workers, because preflight adds it to `actor_rollout_ref.model.external_lib`.
"""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypeAlias

import torch
from torch import Tensor
from verl.trainer.ppo.core_algos import agg_loss, get_policy_loss_fn, register_policy_loss
from verl.utils.torch_functional import masked_mean
from verl.workers.config import ActorConfig

from verl_agent import registry
from verl_agent.config.algorithms import LOSS, LOSS_GROUP, find_loss
from verl_agent.errors import ConfigError
from verl_agent.trace.metrics import TURN_BANDS
from verl_agent.training.turn_metrics import CLIPPED, WRITTEN

Loss: TypeAlias = Callable[..., tuple[Tensor, dict[str, Any]]]
"""Policy loss of verl; its arguments are those of `turn_ratio`."""

MAX_LOG_RATIO = 10.0
"""Upper bound of the logarithm of a ratio, as in verl's GSPO, so that its exponential stays finite."""


def turn_numbers(mask_BT: Tensor) -> Tensor:
    """Return int64 `(B, T)`, the number of each token's turn in its row, from 1; a token after a turn has its number.

    Args:
        mask_BT: 0/1 `(B, T)`, 1 where the model wrote the token. A turn is a run of ones.
    """
    begins_BT = torch.diff(mask_BT.long(), dim=-1, prepend=torch.zeros_like(mask_BT[:, :1]).long()) == 1
    return begins_BT.long().cumsum(-1)


def row_means(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return the mean of the values over the written tokens of each row, `(B, T)`; see `turn_means`."""
    means_B1 = (values_BT * mask_BT).sum(-1, keepdim=True) / mask_BT.sum(-1, keepdim=True).clamp(min=1)
    return means_B1 * mask_BT


def turn_means(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return the mean of the values over each turn, on every token of the turn.

    Args:
        values_BT: float `(B, T)`.
        mask_BT: 0/1 `(B, T)`, 1 where the model wrote the token. A turn is a run of ones.

    Returns:
        Float `(B, T)`, 0 where the mask is 0.
    """
    written_BT, turn_BT = mask_BT.to(values_BT.dtype), turn_numbers(mask_BT)
    sums_BK = torch.zeros(len(turn_BT), turn_BT.shape[1] + 1, dtype=values_BT.dtype, device=values_BT.device)
    counts_BK = sums_BK.scatter_add(1, turn_BT, written_BT).clamp(min=1)
    means_BK = sums_BK.scatter_add(1, turn_BT, values_BT * written_BT) / counts_BK
    return means_BK.gather(1, turn_BT) * written_BT


@register_policy_loss("turn_ratio")
def turn_ratio(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str,
    config: ActorConfig,
    rollout_is_weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """Return PPO's clipped surrogate with the ratio of a whole turn in place of that of a token.

    The ratio is that of GSPO (arXiv 2507.18071, equation 7) with a turn in place of the whole response:
    s_k = (pi(y_k) / pi_old(y_k))^(1 / |y_k|), the geometric mean of the ratios of the tokens of turn k. A token of the
    turn has the ratio sg[s_k] * pi(y_kt) / sg[pi(y_kt)] (equation 14 there, GSPO-token), so that turns of one row may
    have different advantages. ST-PPO (arXiv 2511.20718) argues for the turn as the unit of the ratio of agents.
    With one turn in each row this is verl's `gspo`.

    Args:
        old_log_prob: float `(B, T)`, log-probs of the policy before the update.
        log_prob: float `(B, T)`, log-probs of the policy that is updated.
        advantages: float `(B, T)`.
        response_mask: 0/1 `(B, T)`, 1 where the model wrote the token. A turn is a run of ones.
        loss_agg_mode: `actor_rollout_ref.actor.loss_agg_mode`.
        config: verl's section `actor_rollout_ref.actor`.
        rollout_is_weights: float `(B, T)`, weights of the off-policy correction; None without it.

    Returns:
        The loss, and metrics.
    """
    log_ratio = log_prob - old_log_prob
    of_turn = turn_means(log_ratio.detach(), response_mask)
    ratio = torch.exp(torch.clamp(log_prob - log_prob.detach() + of_turn, max=MAX_LOG_RATIO))
    clipped = torch.clamp(ratio, 1 - config.clip_ratio_low, 1 + config.clip_ratio_high)
    plain_loss, clipped_loss = -advantages * ratio, -advantages * clipped
    losses = torch.maximum(plain_loss, clipped_loss)
    if rollout_is_weights is not None:
        losses = losses * rollout_is_weights
    loss = agg_loss(losses, response_mask, loss_agg_mode, **config.global_batch_info)
    metrics: dict[str, Any] = {
        "actor/pg_clipfrac": masked_mean((clipped_loss > plain_loss).float(), response_mask),
        "actor/pg_clipfrac_lower": torch.tensor(0.0),
        "actor/ppo_kl": masked_mean(-log_ratio, response_mask),
    }
    return loss, {name: value.detach().item() for name, value in metrics.items()}


RATIO_UNITS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "vanilla": lambda log_ratio_BT, mask_BT: log_ratio_BT,
    "gspo": row_means,
    "turn_ratio": turn_means,
}
"""By loss, the logarithm of the ratio that is clipped, from that of each token and the mask."""


def clip_counts(
    log_ratio_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor, low: float, high: float
) -> dict[str, float]:
    """Return the number of clipped and of written tokens by band of turns, for `clip_fractions`."""
    ratio_BT = log_ratio_BT.exp()
    clipped_BT = torch.where(advantages_BT > 0, ratio_BT > 1 + high, (advantages_BT < 0) & (ratio_BT < 1 - low))
    first_K = torch.tensor(list(TURN_BANDS.values()), device=mask_BT.device)
    band_N = torch.bucketize(turn_numbers(mask_BT)[mask_BT.bool()], first_K, right=True) - 1
    in_band_KN = band_N == torch.arange(len(TURN_BANDS), device=mask_BT.device)[:, None]
    return {
        prefix + label: float(count)
        for prefix, found_KN in ((CLIPPED, in_band_KN & clipped_BT[mask_BT.bool()]), (WRITTEN, in_band_KN))
        for label, count in zip(TURN_BANDS, found_KN.sum(1).tolist(), strict=True)
    }


def with_clip_counts(loss: Loss, unit: Callable[[Tensor, Tensor], Tensor]) -> Loss:
    """Return a loss that also reports `clip_counts`."""

    @wraps(loss)
    def counting(
        old_log_prob: Tensor, log_prob: Tensor, advantages: Tensor, response_mask: Tensor, *args: Any, **options: Any
    ) -> tuple[Tensor, dict[str, Any]]:
        value, metrics = loss(old_log_prob, log_prob, advantages, response_mask, *args, **options)
        config = options["config"]
        log_ratio_BT = unit((log_prob - old_log_prob).detach(), response_mask)
        return value, metrics | clip_counts(
            log_ratio_BT, advantages, response_mask, config.clip_ratio_low, config.clip_ratio_high
        )

    return counting


def own_loss(name: str) -> Loss:
    """Return the policy loss of another package, which is imported with the first update.

    The loss raises `ConfigError` if its result is not that of `turn_ratio`. It reports no `clip_counts`, because only
    the loss knows which ratio it clips.
    """

    def checked(*args: Any, **options: Any) -> tuple[Tensor, dict[str, Any]]:
        loss = find_loss(name)
        assert loss is not None  # of all that are registered here
        result = loss(*args, **options)
        pair = result if isinstance(result, tuple) and len(result) == 2 else (None, None)
        if not isinstance(pair[0], Tensor) or pair[0].ndim or not isinstance(pair[1], Mapping):
            raise ConfigError(
                f"{LOSS}={name!r} returned {result!s:.100}. Allowed: a pair of a loss, a tensor without dimensions, "
                "and a dictionary of metrics. verl.trainer.ppo.core_algos.agg_loss makes the first from losses (B, T)."
            )
        return pair[0], dict(pair[1])

    return checked


for _name in registry.registered_packages(LOSS_GROUP):
    register_policy_loss(_name)(own_loss(_name))
for _mode, _unit in RATIO_UNITS.items():
    register_policy_loss(_mode)(with_clip_counts(get_policy_loss_fn(_mode), _unit))
