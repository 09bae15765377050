"""Tests that gradients of an update through verl's estimators and loss equal those of the papers' equations."""

from dataclasses import replace

import pytest
import torch
from verl.trainer.config import AlgoConfig
from verl.workers.config import CriticConfig
from verl.workers.utils.losses import value_loss

from tests.support.estimators import TurnRow, turn_advantages, values_by_turn
from tests.support.gradients import (
    CLIP,
    Row,
    actor_gradients,
    batch,
    by_hand,
    estimated,
    fields,
    gae,
    hand_gradients,
    nested,
    padded,
    predicting_positions,
    verl_gradients,
    written_positions,
)
from tests.support.letters import SHORT
from verl_agent.config.reward_shaping import RewardShaping
from verl_agent.training.turns import reply_spans


@pytest.mark.parametrize(
    ("estimator", "config"),
    [
        ("gae", {"gamma": 0.99, "lam": 0.95}),
        ("gae", {}),
        ("grpo", {}),
        ("reinforce_plus_plus", {"gamma": 0.97}),
        ("reinforce_plus_plus", {}),
        ("rloo", {}),
    ],
)
def test_gradients_equal_the_equations_and_are_zero_on_observations(estimator, config):
    rows, settings = batch(), AlgoConfig(adv_estimator=estimator, **config)
    actual = verl_gradients(rows, estimator, settings)
    expected = hand_gradients(rows, by_hand(rows, estimator, settings), "token-mean")
    for row, left, right in zip(rows, actual, expected, strict=True):
        assert torch.allclose(left, right, rtol=0, atol=1e-7)
        positions = predicting_positions(row)
        rest = [position for position in range(len(left)) if position not in positions]
        assert (left[rest] == 0).all()
    assert sum(gradient.abs().sum() for gradient in actual) > 0.1


def test_dr_grpo_divides_by_a_constant():
    """The weight of a token depends neither on the length of its episode nor on the spread of its group."""
    rows, settings = batch(), AlgoConfig(adv_estimator="grpo", norm_adv_by_std_in_grpo=False)
    actual = verl_gradients(rows, "grpo", settings, loss_agg_mode="seq-mean-token-sum-norm", loss_scale_factor=50)
    expected = hand_gradients(rows, by_hand(rows, "grpo", settings), "constant", scale=50.0)
    for left, right in zip(actual, expected, strict=True):
        assert torch.allclose(left, right, rtol=0, atol=1e-7)


@pytest.mark.parametrize(("estimator", "gamma"), [("turn_returns", 0.9), ("gigpo", 0.95), ("gigpo", 1.0)])
def test_every_token_of_a_turn_has_the_gradient_of_its_advantage(estimator, gamma):
    """test_turn_estimators.py compares the advantages with the papers."""
    rows = batch()
    shaping = RewardShaping(place="turn", turn_gamma=gamma)
    turns = [as_turns(index, row) for index, row in enumerate(rows)]
    data = turn_advantages(estimator, turns, shaping)
    by_turn = values_by_turn(data, turns)
    by_token = [
        [value for value, (start, end) in zip(values, reply_spans(torch.tensor(row.segment.response_mask)), strict=True)
         for _ in range(end - start)]
        for row, values in zip(rows, by_turn, strict=True)
    ]  # fmt: skip
    actual = actor_gradients(rows, data.batch["advantages"].double())
    for row, left, right in zip(rows, actual, hand_gradients(rows, by_token, "token-mean"), strict=True):
        assert torch.allclose(left, right, rtol=0, atol=1e-6)
        positions = predicting_positions(row)
        assert (left[[position for position in range(len(left)) if position not in positions]] == 0).all()
    assert sum(gradient.abs().sum() for gradient in actual) > 0.1


def as_turns(index: int, row: Row) -> TurnRow:
    """Return the row with turns: a penalty for each turn but the last, the return there, and different states."""
    count = len(reply_spans(torch.tensor(row.segment.response_mask)))
    rewards = [-0.1] * (count - 1) + [row.reward]
    anchors = ["start", *(f"{row.reward}, {turn}" for turn in range(1, count))]
    return f"{row.group}_{index}_0", row.segment, rewards, anchors


def test_gradients_with_dapos_upper_clip_and_a_reference_model_equal_the_equations():
    rows, settings = batch(), AlgoConfig(adv_estimator="grpo")
    generator = torch.Generator().manual_seed(1)
    references = [row.old_T + 0.2 * torch.randn(len(row.old_T), generator=generator).double() for row in rows]
    advantages_BT, by_paper = estimated(rows, "grpo", settings).batch["advantages"], by_hand(rows, "grpo", settings)
    options = {"clip_ratio_low": CLIP, "clip_ratio_high": 0.28, "use_kl_loss": True, "kl_loss_type": "low_var_kl"}
    actual = actor_gradients(rows, advantages_BT, references, kl_loss_coef=0.5, **options)
    expected = hand_gradients(rows, by_paper, "token-mean", high=0.28, references=references, kl=0.5)
    narrow = hand_gradients(rows, by_paper, "token-mean", references=references, kl=0.5)
    for left, right in zip(actual, expected, strict=True):
        assert torch.allclose(left, right, rtol=0, atol=1e-7)
    assert not all(torch.allclose(left, right, atol=1e-7) for left, right in zip(actual, narrow, strict=True))


def test_padding_rows_have_no_gradient_and_change_no_other():
    rows, settings = batch(), AlgoConfig(adv_estimator="grpo")
    advantages_BT = estimated(rows, "grpo", settings).batch["advantages"]
    segment = replace(SHORT, response_mask=[0] * len(SHORT.response_ids))
    padding = replace(rows[4], segment=segment, logits_TV=rows[4].logits_TV.detach().clone().requires_grad_())
    longer_BT = torch.cat([advantages_BT, torch.zeros_like(advantages_BT[:1])])
    alone, with_padding = actor_gradients(rows, advantages_BT), actor_gradients([*rows, padding], longer_BT)
    assert (with_padding.pop() == 0).all()
    assert all(torch.allclose(left, right, rtol=0, atol=1e-12) for left, right in zip(alone, with_padding, strict=True))


def test_critic_learns_returns_of_written_tokens_only():
    """Half the squared error (arXiv 1707.06347, equation 9); 0 at observations, prompts and padding."""
    rows, settings = batch(), AlgoConfig(adv_estimator="gae", gamma=0.99, lam=0.95)
    returns_BT = estimated(rows, "gae", settings).batch["returns"]
    predictions = [
        torch.cat([torch.zeros(len(row.segment.prompt_ids) - 1), row.values_T + 0.1, torch.zeros(1)]).requires_grad_()
        for row in rows
    ]
    data = fields(rows, values=padded([row.values_T for row in rows]), returns=returns_BT)
    config = CriticConfig(strategy="fsdp", use_dynamic_bsz=True, cliprange_value=10.0, optim=None, model=None)
    loss, _ = value_loss(config, {"values": nested(predictions)}, data)
    tokens = sum(len(written_positions(row)) for row in rows)
    for row, gradient in zip(rows, torch.autograd.grad(loss, predictions), strict=True):
        expected = torch.zeros(len(gradient), dtype=torch.float64)
        for position, target in zip(predicting_positions(row), gae(row, settings)[1], strict=True):
            expected[position] = (row.values_T[position - len(row.segment.prompt_ids) + 1] + 0.1 - target) / tokens
        assert torch.allclose(gradient, expected, rtol=0, atol=1e-7)
