"""Advantage estimator with a critic of turns: `turn_gae` of `algorithm.adv_estimator`."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from verl.trainer.ppo.core_algos import register_adv_est
from verl.utils.torch_functional import masked_whiten

from verl_agent.training.estimators import current_turns
from verl_agent.training.turns import TurnSpan, values_on_tokens


def turn_advantages(turns: Sequence[TurnSpan], gamma: float, lam: float) -> list[float]:
    """Return the generalised advantage of each turn, before normalisation.

    A_k = delta_k + gamma * lam * A_{k+1} with delta_k = r_k + gamma * V(s_{k+1}) - V(s_k), over the turns of an
    episode. After its last turn A is 0, and V is 0 or, for a bootstrapped episode, `TurnSpan.turn_value_after`.

    Args:
        turns: turns of the batch.
        gamma: discount per turn, 0 to 1.
        lam: lambda per turn, 0 to 1.
    """
    order = sorted(range(len(turns)), key=lambda index: (turns[index].episode, -turns[index].number))
    advantages = [0.0] * len(turns)
    episode, following, value_after = "", 0.0, 0.0
    for index in order:
        turn = turns[index]
        if turn.episode != episode:
            episode, following, value_after = turn.episode, 0.0, turn.turn_value_after
        following = turn.reward + gamma * value_after - turn.value + gamma * lam * following
        advantages[index], value_after = following, turn.value
    return advantages


@register_adv_est("turn_gae")
def turn_gae(token_level_rewards: Tensor, response_mask: Tensor, config: Any = None, **_: Any) -> tuple[Tensor, Tensor]:
    """Estimate advantages by GAE with a turn as the action (Turn-PPO, arXiv 2512.17008; GAE arXiv 1506.02438).

    A state is everything that the model reads before a reply, so its value is the critic's value before the reply's
    first token. All tokens of the reply have the advantage of the turn, normalised over the tokens of the batch as in
    verl's GAE. The target of the critic is R_k = A_k + V(s_k); `TurnBatch.masks_of_first_tokens` limits its loss to
    the first token of each reply. gamma is `credit.turn_gamma`, lambda is `credit.turn_lam`. VAGEN (arXiv 2510.16907)
    adds a second GAE over the tokens of a turn, which needs a critic of both.

    Args:
        token_level_rewards: float `(B, T)`; only its shape is used, because `BATCH_TURNS` has rewards and values.
        response_mask: 0/1 `(B, T)`, 1 where the model wrote the token.
        config: verl's section `algorithm`.

    Returns:
        Advantages and returns, float `(B, T)`, 0 where the mask is 0.
    """
    batch = current_turns()
    advantages = turn_advantages(batch.turns, batch.shaping.turn_gamma, batch.shaping.turn_lam)
    returns = [advantage + turn.value for advantage, turn in zip(advantages, batch.turns, strict=True)]
    advantages_BT = values_on_tokens(batch.turns, advantages, token_level_rewards) * response_mask
    returns_BT = values_on_tokens(batch.turns, returns, token_level_rewards) * response_mask
    return masked_whiten(advantages_BT, response_mask) * response_mask, returns_BT
