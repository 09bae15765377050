"""Advantage estimators that use turns: `turn_returns`, `rae`, `gigpo` and `turn_gae` of `algorithm.adv_estimator`."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from functools import wraps
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
from torch import Tensor
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, register_adv_est
from verl.utils.torch_functional import masked_whiten

from verl_agent.returns import is_uniform, sum_rewards
from verl_agent.training.turns import BATCH_TURNS, BatchTurns, TurnSpan, values_on_tokens

EPSILON = 1e-6
"""Added to standard deviations, as in verl's GRPO, so that groups of equal returns stay finite."""


def current_turns() -> BatchTurns:
    """Return the turns of the present batch.

    Raises:
        RuntimeError: the trainer is not one of `verl_agent`, so the turns are not set.
    """
    try:
        return BATCH_TURNS.get()
    except LookupError:
        raise RuntimeError(
            "this estimator needs the turns of the batch. Set trainer.v1.trainer_mode=verl_agent."
        ) from None


def returns_to_go(turns: Sequence[TurnSpan], gamma: float) -> list[float]:
    """Return the discounted return of each turn: G_t = r_t + gamma * G_{t+1}, over the turns of its episode.

    The discount applies per turn, so neither observations nor the length of a reply change it.
    """
    order = sorted(range(len(turns)), key=lambda index: (turns[index].episode, -turns[index].number))
    returns = [0.0] * len(turns)
    episode, following = "", 0.0
    for index in order:
        turn = turns[index]
        following = turn.reward + gamma * (following if turn.episode == episode else 0.0)
        episode, returns[index] = turn.episode, following
    return returns


def whitened(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return values with mean 0 and deviation 1 over the written tokens of the batch; exactly 0 if all are equal.

    verl subtracts a mean in float32 (utils/torch_functional.py, `masked_whiten`). Equal values such as 0.7 differ from
    it by rounding, and the division by the root of 1e-8 makes that up to 1e-3, and more for larger values.

    Args:
        values_BT: float `(B, T)`.
        mask_BT: 0/1 `(B, T)`, 1 where the model wrote the token.

    Returns:
        Float `(B, T)`, 0 where the mask is 0.
    """
    written = values_BT[mask_BT.bool()]
    if len(written) and is_uniform([float(written.min()), float(written.max())]):
        return torch.zeros_like(values_BT)
    return masked_whiten(values_BT, mask_BT) * mask_BT


def relative_to_group(
    values: Sequence[float], groups: Sequence[Hashable], by_std: bool, single: float | None
) -> list[float]:
    """Return each value minus the mean of its group, optionally divided by the group's standard deviation.

    The result is exactly 0 in a group of equal values.

    Args:
        values: one value for each member.
        groups: group of each member.
        by_std: divide by the sample standard deviation plus `EPSILON`.
        single: result for the only member of a group; None keeps its value, as verl's GRPO does.
    """
    members: dict[Hashable, list[float]] = defaultdict(list)
    for value, group in zip(values, groups, strict=True):
        members[group].append(value)
    relative = []
    for value, group in zip(values, groups, strict=True):
        of_group = members[group]
        if len(of_group) == 1:
            relative.append(value if single is None else single)
            continue
        if is_uniform(of_group):
            relative.append(0.0)
            continue
        scale = stdev(of_group) + EPSILON if by_std else 1.0
        relative.append((value - fmean(of_group)) / scale)
    return relative


@register_adv_est("turn_returns")
def turn_returns(
    token_level_rewards: Tensor, response_mask: Tensor, config: Any = None, **_: Any
) -> tuple[Tensor, Tensor]:
    """Estimate advantages by returns to go with a discount per turn, normalised over the batch.

    REINFORCE with returns to go (Sutton and Barto, Reinforcement Learning, 2nd edition, section 13.3), with a turn as
    the action: A_t = (G_t - mean) / std with G_t = sum over k >= t of gamma^(k - t) r_k. Mean and standard deviation
    are over all tokens of the batch that the model wrote, as in REINFORCE++ (arXiv 2501.03262). gamma is
    `credit.turn_gamma`. With gamma 1 and `credit.place=outcome` this is verl's `reinforce_plus_plus` with gamma 1.

    Args:
        token_level_rewards: float `(B, T)`; only its shape is used, because `BATCH_TURNS` has the rewards.
        response_mask: 0/1 `(B, T)`, 1 where the model wrote the token.
        config: verl's section `algorithm`.

    Returns:
        Advantages and returns, float `(B, T)`, 0 where the mask is 0.
    """
    batch = current_turns()
    returns = returns_to_go(batch.turns, batch.shaping.turn_gamma)
    returns_BT = values_on_tokens(batch.turns, returns, token_level_rewards) * response_mask
    return whitened(returns_BT, response_mask), returns_BT


ROLE_DECAY = 0.95
"""Decay of the baselines of `rae`, alpha of SPIRAL."""


@register_adv_est("rae")
def rae(token_level_rewards: Tensor, response_mask: Tensor, config: Any = None, **_: Any) -> tuple[Tensor, Tensor]:
    """Estimate advantages with a running baseline of each role (role-conditioned advantages, SPIRAL, arXiv 2506.24119).

    A role p is a seat of a game. Each episode moves its baseline, b_p = alpha * b_p + (1 - alpha) * R, and has the
    advantage A = R - b_p on all its tokens, without a division by a deviation. alpha is `ROLE_DECAY`, b begins at 0.
    Here the n episodes of a role in a batch move b by n steps on their mean, so that their order has no influence.
    Episodes without a seat share one baseline.

    Returns:
        Advantages and a copy of them as returns, float `(B, T)`, 0 where the mask is 0.
    """
    batch = current_turns()
    rewards: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for turn in batch.turns:
        rewards[turn.role][turn.episode].append(turn.reward)
    returns = {role: {name: sum_rewards(own) for name, own in of_role.items()} for role, of_role in rewards.items()}
    for role, of_role in returns.items():
        kept = ROLE_DECAY ** len(of_role)
        batch.baselines[role] = kept * batch.baselines.get(role, 0.0) + (1 - kept) * fmean(of_role.values())
    values = [returns[turn.role][turn.episode] - batch.baselines[turn.role] for turn in batch.turns]
    advantages_BT = values_on_tokens(batch.turns, values, token_level_rewards) * response_mask
    return advantages_BT, torch.clone(advantages_BT)


@register_adv_est("gigpo")
def gigpo(token_level_rewards: Tensor, response_mask: Tensor, config: Any = None, **_: Any) -> tuple[Tensor, Tensor]:
    """Estimate advantages by group-in-group policy optimisation (GiGPO, arXiv 2505.10978).

    A(a_t) = A^E(tau) + omega * A^S(a_t).

    The episode relative advantage is A^E(tau) = (R(tau) - mean) / norm, over the episodes of one task. The step
    relative advantage is A^S(a_t) = (G_t - mean) / norm, over the task's actions from the same state, the anchor. G_t
    is the discounted return of an action. A^S is 0 for a state that occurs once.

    norm is the standard deviation of the group with `algorithm.norm_adv_by_std_in_grpo`, else 1. gamma is
    `credit.turn_gamma`, omega is `credit.step_weight`, the anchor is `credit.anchor`. With omega 0 this is verl's
    `grpo`.

    Returns:
        Advantages and a copy of them as returns, float `(B, T)`, 0 where the mask is 0.
    """
    batch = current_turns()
    turns, shaping = batch.turns, batch.shaping
    by_std = bool(config.get("norm_adv_by_std_in_grpo", True)) if config is not None else True
    rewards: dict[str, list[float]] = defaultdict(list)
    for turn in turns:
        rewards[turn.episode].append(turn.reward)
    episode_returns = {episode: sum_rewards(own) for episode, own in rewards.items()}
    group_of = {turn.episode: turn.group for turn in turns}
    groups = [group_of[episode] for episode in episode_returns]
    relative = relative_to_group(list(episode_returns.values()), groups, by_std, single=None)
    episode_advantages = dict(zip(episode_returns, relative, strict=True))
    states = [(turn.group, turn.anchor) for turn in turns]
    step_advantages = relative_to_group(returns_to_go(turns, shaping.turn_gamma), states, by_std, single=0.0)
    advantages = [
        episode_advantages[turn.episode] + shaping.step_weight * step
        for turn, step in zip(turns, step_advantages, strict=True)
    ]
    advantages_BT = values_on_tokens(turns, advantages, token_level_rewards) * response_mask
    return advantages_BT, torch.clone(advantages_BT)


def once_an_episode(estimator: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return an estimator of groups that counts an episode once, whatever number of rows it has.

    verl does so for GRPO alone (trainer/ppo/v1/utils.py, `compute_advantage_for_multi_trajectories`). Otherwise each
    row of an episode whose agent edits its context is a member of the group, so an episode is part of its own
    baseline.
    """

    @wraps(estimator)
    def counting(
        token_level_rewards: Tensor, response_mask: Tensor, index: np.ndarray[Any, Any], **options: Any
    ) -> tuple[Tensor, Tensor]:
        batch = BATCH_TURNS.get(None)
        rows = {turn.row: turn.episode for turn in batch.turns} if batch else {}
        members = {episode: row for row, episode in rows.items()}
        if len(members) == len(rows):
            return estimator(token_level_rewards, response_mask, index=index, **options)
        of_member = {row: number for number, row in enumerate(members.values())}
        chosen = list(of_member)
        advantages_ET, _ = estimator(token_level_rewards[chosen], response_mask[chosen], index=index[chosen], **options)
        first_E1 = response_mask[chosen].argmax(-1, keepdim=True)
        values_E = advantages_ET.gather(-1, first_E1)[:, 0]
        values_B = torch.zeros_like(token_level_rewards[:, 0])
        for row, episode in rows.items():
            values_B[row] = values_E[of_member[members[episode]]]
        advantages_BT = values_B[:, None] * response_mask
        return advantages_BT, advantages_BT

    return counting


def zero_if_uniform(estimator: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return an estimator of verl that whitens returns, with the advantages of `whitened`."""

    @wraps(estimator)
    def whitening(token_level_rewards: Tensor, response_mask: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
        _, returns_BT = estimator(token_level_rewards, response_mask, **options)
        return whitened(returns_BT, response_mask), returns_BT

    return whitening


ADV_ESTIMATOR_REGISTRY["rloo"] = once_an_episode(ADV_ESTIMATOR_REGISTRY["rloo"])
ADV_ESTIMATOR_REGISTRY["reinforce_plus_plus"] = zero_if_uniform(ADV_ESTIMATOR_REGISTRY["reinforce_plus_plus"])


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

    Returns:
        Advantages and returns, float `(B, T)`, 0 where the mask is 0.
    """
    batch = current_turns()
    advantages = turn_advantages(batch.turns, batch.shaping.turn_gamma, batch.shaping.turn_lam)
    returns = [advantage + turn.value for advantage, turn in zip(advantages, batch.turns, strict=True)]
    advantages_BT = values_on_tokens(batch.turns, advantages, token_level_rewards) * response_mask
    returns_BT = values_on_tokens(batch.turns, returns, token_level_rewards) * response_mask
    return whitened(advantages_BT, response_mask), returns_BT
