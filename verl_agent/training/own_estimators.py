"""Advantage estimators of other packages: the batch that they read, and the check of what they return."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY

from verl_agent.config.algorithms import ESTIMATOR, find_estimator
from verl_agent.config.reward_shaping import RewardShaping
from verl_agent.errors import ConfigError
from verl_agent.training.estimators import current_turns
from verl_agent.training.turns import BatchTurns, TurnSpan, values_on_tokens


@dataclass(frozen=True, slots=True)
class EstimatorBatch:
    """Episodes of one update, as an estimator reads them.

    Rows of verl's padding have no turns. Episodes with an environment error are missing, so a group may be smaller than
    `rollout.n`. Truncated episodes that `credit.truncated=drop` leaves out of the loss are there.
    """

    turns: Sequence[TurnSpan]
    """Turns of all rows, with rewards, groups, and the critic's values (0 without a critic)."""
    mask_BT: Tensor
    """0/1 `(B, T)`, 1 where the model wrote the token; 0 in observations and padding."""
    values: Sequence[Tensor] | None
    """Float `(T,)` of each row, the critic's value of the state before each token; None without a critic."""
    shaping: RewardShaping
    """Section `credit` of the recipe."""

    @property
    def values_BT(self) -> Tensor:
        """Values of the critic, float `(B, T)`, 0 in padding; `ConfigError` without a critic."""
        if self.values is None:
            raise ConfigError(
                f"{ESTIMATOR}: the estimator reads the critic's values, and the run has no critic. Declare it with "
                "Estimator(critic='token') or 'turn', and set critic.enable=true."
            )
        padded_BT = pad_sequence(list(self.values), batch_first=True).float()
        return torch.nn.functional.pad(padded_BT, (0, self.mask_BT.shape[1] - padded_BT.shape[1]))

    def on_tokens(self, values: Sequence[float]) -> Tensor:
        """Return float `(B, T)` with one value for each turn of `turns` on all its tokens, and 0 elsewhere."""
        return values_on_tokens(self.turns, values, self.mask_BT)


def register(name: str) -> None:
    """Register an estimator of another package with verl, which calls those that are built in by their names."""
    if find_estimator(name).function is not None:
        ADV_ESTIMATOR_REGISTRY[name] = lambda response_mask, **_: estimate_by(name, current_turns(), response_mask)


def estimate_by(name: str, batch: BatchTurns, mask_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Return advantages and returns of an own estimator, float `(B, T)`, 0 where the mask is 0.

    Raises:
        ConfigError: they have another shape or are not finite, or the returns for a critic are missing.
    """
    estimator, options = find_estimator(name), batch.shaping.options
    assert estimator.function is not None  # of all that are registered here
    result = estimator.function(EstimatorBatch(batch.turns, mask_BT, batch.values, batch.shaping), **options)
    parts = (result,) if isinstance(result, Tensor) and not estimator.critic else result
    for part in parts if isinstance(parts, tuple) and len(parts) == 1 + bool(estimator.critic) else (None,):
        if not isinstance(part, Tensor) or part.shape != mask_BT.shape or not part.is_floating_point():
            got = f"{tuple(result.shape)} of {result.dtype}" if isinstance(result, Tensor) else f"{result!s:.60}"
            pair = " A critic learns the returns, so a tuple of both is needed." if estimator.critic else ""
            raise ConfigError(
                f"{ESTIMATOR}={name!r} returned {got}. Allowed: advantages, a float tensor of the shape of "
                f"batch.mask_BT, {tuple(mask_BT.shape)}.{pair} batch.on_tokens(values) makes it from a value of each "
                "turn."
            )
    written = [torch.where(mask_BT.bool(), part, torch.zeros_like(part)).float() for part in parts]
    for turn in batch.turns:
        if not all(part[turn.row, turn.start : turn.end].isfinite().all() for part in written):
            raise ConfigError(
                f"{ESTIMATOR}={name!r} returned NaN or an infinite number, first for turn {turn.number} of episode "
                f"{turn.episode}. Allowed: finite numbers. Look for the deviation of a single episode or a division by "
                f"0; `verl-agent check-estimator {name}` tries such batches."
            )
    return written[0], written[-1]
