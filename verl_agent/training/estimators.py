"""Estimators that verl lacks: they look at turns, not at tokens alone. `algorithm.adv_estimator` names them."""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor
from verl.trainer.ppo.core_algos import register_adv_est
from verl.utils.torch_functional import masked_whiten

from verl_agent.training.turns import BATCH_TURNS, BatchTurns, TurnSpan, on_tokens

EPSILON = 1e-6
"""Keeps groups of equal returns finite, as verl's GRPO does."""


def current_turns() -> BatchTurns:
    """What the trainer knows of the turns of this batch.

    Raises:
        RuntimeError: another trainer runs, which knows nothing of turns.
    """
    try:
        return BATCH_TURNS.get()
    except LookupError:
        raise RuntimeError(
            "this estimator needs the turns of the batch. Set trainer.v1.trainer_mode=verl_agent."
        ) from None


def returns_to_go(turns: Sequence[TurnSpan], gamma: float) -> list[float]:
    """Discounted return of each turn: G_t = r_t + gamma * G_{t+1}, over the turns of its episode.

    Observations cost no discount, and neither does the length of a reply: gamma counts turns.
    """
    order = sorted(range(len(turns)), key=lambda place: (turns[place].session, -turns[place].number))
    returns = [0.0] * len(turns)
    session, following = "", 0.0
    for place in order:
        turn = turns[place]
        following = turn.reward + gamma * (following if turn.session == session else 0.0)
        session, returns[place] = turn.session, following
    return returns


def centred(values: Sequence[float], groups: Sequence[Hashable], by_std: bool, alone: float | None) -> list[float]:
    """Each value less the mean of its group, over the group's standard deviation if wished.

    Args:
        values: one for each member.
        groups: the group of each member.
        by_std: divide by the sample standard deviation plus `EPSILON`.
        alone: what the only member of a group gets; None leaves its value as it is, as verl's GRPO does.
    """
    members: dict[Hashable, list[float]] = defaultdict(list)
    for value, group in zip(values, groups, strict=True):
        members[group].append(value)
    out = []
    for value, group in zip(values, groups, strict=True):
        others = members[group]
        if len(others) == 1:
            out.append(value if alone is None else alone)
            continue
        scale = stdev(others) + EPSILON if by_std else 1.0
        out.append((value - fmean(others)) / scale)
    return out


@register_adv_est("turn_returns")
def turn_returns(
    token_level_rewards: Tensor, response_mask: Tensor, config: Any = None, **_: Any
) -> tuple[Tensor, Tensor]:
    """Returns to go with a discount a turn, normalised over the batch.

    REINFORCE with returns to go (Sutton and Barto, Reinforcement Learning, 2nd edition, section 13.3), with a turn as
    the action: A_t = (G_t - mean) / std with G_t = sum over k >= t of gamma^(k - t) r_k, mean and standard deviation
    over all tokens of the batch that the model wrote, as REINFORCE++ takes them (arXiv 2501.03262). With
    `credit.turn_gamma` 1 and `credit.place` outcome it is verl's `reinforce_plus_plus` with gamma 1.

    Args:
        token_level_rewards: float `(B, T)`; only its shape is used, the rewards come with the turns.
        response_mask: 0/1 `(B, T)`, 1 where the model wrote the token.
        config: verl's section `algorithm`.

    Returns:
        Advantages and returns, float `(B, T)`, 0 where the mask is 0.
    """
    batch = current_turns()
    returns_BT = on_tokens(batch.turns, returns_to_go(batch.turns, batch.credit.turn_gamma), token_level_rewards)
    returns_BT = returns_BT * response_mask
    return masked_whiten(returns_BT, response_mask) * response_mask, returns_BT


@register_adv_est("gigpo")
def gigpo(token_level_rewards: Tensor, response_mask: Tensor, config: Any = None, **_: Any) -> tuple[Tensor, Tensor]:
    """Group-in-group policy optimisation (GiGPO, arXiv 2505.10978).

    A(a_t) = A^E(tau) + omega * A^S(a_t). A^E(tau) = (R(tau) - mean) / norm compares the return of an episode with those
    of its task (the paper's episode relative advantages). A^S(a_t) = (G_t - mean) / norm compares the discounted return
    of an action with those of the actions of the task that were taken from the same state, the anchor (its step
    relative advantages); an action whose state occurs once has none. norm is the
    standard deviation of the group, or 1, as `algorithm.norm_adv_by_std_in_grpo` says. gamma is
    `credit.turn_gamma`, omega `credit.step_weight`; with omega 0 it is verl's `grpo`. A state is known by the
    observation that the action answers, as in the paper's own experiments.

    Args:
        token_level_rewards: float `(B, T)`; only its shape is used, the rewards come with the turns.
        response_mask: 0/1 `(B, T)`, 1 where the model wrote the token.
        config: verl's section `algorithm`.

    Returns:
        Advantages, twice, float `(B, T)`, 0 where the mask is 0.
    """
    batch = current_turns()
    turns, credit = batch.turns, batch.credit
    by_std = bool(config.get("norm_adv_by_std_in_grpo", True)) if config is not None else True
    totals: dict[str, float] = defaultdict(float)
    group_of: dict[str, str] = {}
    for turn in turns:
        totals[turn.session] += turn.reward
        group_of[turn.session] = turn.group
    episodes = dict(
        zip(
            totals, centred(list(totals.values()), [group_of[session] for session in totals], by_std, None), strict=True
        )
    )
    steps = centred(
        returns_to_go(turns, credit.turn_gamma), [(turn.group, turn.anchor) for turn in turns], by_std, alone=0.0
    )
    values = [episodes[turn.session] + credit.step_weight * step for turn, step in zip(turns, steps, strict=True)]
    advantages_BT = on_tokens(turns, values, token_level_rewards) * response_mask
    return advantages_BT, torch.clone(advantages_BT)
