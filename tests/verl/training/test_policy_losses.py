"""Tests that GSPO, the turn-level ratio and the off-policy correction change gradients as their equations say.

The batch and the plain reference are those of test_gradients.py. Its rows have prompts, observations between replies
and different lengths. verl computes weights and rejection (trainer/ppo/rollout_corr_helper.py).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor
from verl.protocol import DataProto
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo.core_algos import get_policy_loss_fn
from verl.trainer.ppo.rollout_corr_helper import (
    SUPPORTED_ROLLOUT_RS_OPTIONS,
    compute_rollout_correction_and_add_to_batch,
)
from verl.utils.metric import reduce_metrics
from verl.workers.config import ActorConfig
from verl.workers.utils.losses import ppo_loss

from tests.support.gradients import (
    Row,
    batch,
    by_hand,
    estimated,
    fields,
    log_probs,
    nested,
    padded,
    predicting_positions,
    written_positions,
)
from tests.support.letters import SHORT
from verl_agent.training.policy_losses import turn_means
from verl_agent.training.preflight.update_conditions import REJECTIONS
from verl_agent.training.rejection import Rejection
from verl_agent.training.turn_metrics import clip_fractions
from verl_agent.training.turns import reply_spans
from verl_agent.training.verl_config import for_trainer

LOW, HIGH = 0.05, 0.06
SETTINGS = AlgoConfig(adv_estimator="grpo")


def gradients(rows: list[Row], loss: str, aggregate: str, **columns: Tensor) -> list[Tensor]:
    """Return the gradients of the logits of each row through verl's loss of the actor."""
    value, _ = actor_loss(rows, loss, aggregate, **columns)
    return list(torch.autograd.grad(value, [row.logits_TV for row in rows]))


def actor_loss(rows: list[Row], loss: str, aggregate: str, **columns: Tensor) -> tuple[Tensor, dict[str, Any]]:
    """Return verl's loss of the actor, and its metrics."""
    data = fields(
        rows,
        old_log_probs=padded([row.old_T for row in rows]),
        **{"advantages": estimated(rows, "grpo", SETTINGS).batch["advantages"], **columns},
    )
    actor = ActorConfig(
        strategy="fsdp",
        rollout_n=4,
        use_dynamic_bsz=True,
        optim=None,
        clip_ratio_low=LOW,
        clip_ratio_high=HIGH,
        loss_agg_mode=aggregate,
    )
    actor.policy_loss.__dict__["loss_mode"] = loss
    return ppo_loss(actor, {"log_probs": nested([log_probs(row) for row in rows])}, data)


def reference(
    rows: list[Row], units: Sequence[Sequence[tuple[int, int]]], weights: Sequence[Tensor] | None = None
) -> list[Tensor]:
    """Return the gradients of a clipped surrogate with one ratio for each unit, as a mean over the tokens of a row."""
    losses = []
    for number, (row, own) in enumerate(zip(rows, by_hand(rows, "grpo", SETTINGS), strict=True)):
        written, begin, terms = written_positions(row), len(row.segment.prompt_ids), []
        advantage_of = dict(zip(written, own, strict=True))
        for start, end in units[number]:
            tokens = [position for position in range(start, end) if position in advantage_of]
            current = torch.stack([
                torch.log_softmax(row.logits_TV[begin + position - 1], -1)[row.segment.response_ids[position]]
                for position in tokens
            ])  # fmt: skip
            ratio = (current - row.old_T[tokens]).mean().exp()
            for index, position in enumerate(tokens):
                advantage, own_ratio, weight = advantage_of[position], ratio, 1.0
                if weights is not None:  # a weight belongs to a token: GSPO-token, arXiv 2507.18071, equation 14
                    own_ratio = ratio.detach() * (current[index] - current[index].detach()).exp()
                    weight = weights[number][position]
                clipped = own_ratio.clamp(1 - LOW, 1 + HIGH)
                terms.append(-weight * torch.min(own_ratio * advantage, clipped * advantage))
        losses.append(torch.stack(terms).mean())
    return list(torch.autograd.grad(torch.stack(losses).mean(), [row.logits_TV for row in rows]))


def turns(row: Row) -> list[tuple[int, int]]:
    return reply_spans(torch.tensor(row.segment.response_mask))


def whole(row: Row) -> list[tuple[int, int]]:
    return [(0, len(row.segment.response_mask))]


def tokens(row: Row) -> list[tuple[int, int]]:
    return [(position, position + 1) for position in written_positions(row)]


UNITS = {"gspo": whole, "turn_ratio": turns, "vanilla": tokens}


def close(left: list[Tensor], right: list[Tensor]) -> bool:
    return all(torch.allclose(one, other, rtol=0, atol=1e-7) for one, other in zip(left, right, strict=True))


@pytest.mark.parametrize("loss", UNITS)
def test_gradients_equal_the_clipped_surrogate_of_the_ratios_unit(loss):
    rows = batch()
    actual = gradients(rows, loss, "seq-mean-token-mean")
    assert close(actual, reference(rows, [UNITS[loss](row) for row in rows]))
    assert sum(gradient.abs().sum() for gradient in actual) > 0.01
    others = [reference(rows, [unit(row) for row in rows]) for name, unit in UNITS.items() if name != loss]
    assert not any(close(actual, other) for other in others)


def test_turn_ratio_equals_gspo_in_rows_with_one_turn():
    rows = [row for row in batch() if len(turns(row)) == 1] * 2
    rows = [replace(row, logits_TV=row.logits_TV.detach().clone().requires_grad_()) for row in rows]
    assert rows and close(*(gradients(rows, loss, "token-mean") for loss in ("turn_ratio", "gspo")))


def test_turn_ratio_ignores_observations_and_padding_rows():
    rows = batch()
    padding = replace(
        rows[4],
        segment=replace(SHORT, response_mask=[0] * len(SHORT.response_ids)),
        logits_TV=rows[4].logits_TV.detach().clone().requires_grad_(),
    )
    alone = gradients(rows, "turn_ratio", "token-mean")
    for row, gradient in zip(rows, alone, strict=True):
        rest = [position for position in range(len(gradient)) if position not in predicting_positions(row)]
        assert (gradient[rest] == 0).all()
    advantages_BT = estimated(rows, "grpo", SETTINGS).batch["advantages"]
    longer_BT = torch.cat([advantages_BT, torch.ones_like(advantages_BT[:1])])
    with_padding = gradients([*rows, padding], "turn_ratio", "token-mean", advantages=longer_BT)
    assert (with_padding.pop() == 0).all() and close(alone, with_padding)


def test_turn_means_are_those_of_each_run_of_ones():
    mask_BT = torch.tensor([[1, 1, 0, 1, 0, 0], [0, 1, 1, 1, 0, 1], [0] * 6])
    values_BT = torch.arange(18.0).reshape(3, 6)
    expected = [[0.5, 0.5, 0, 3, 0, 0], [0, 8, 8, 8, 0, 11], [0] * 6]
    assert turn_means(values_BT, mask_BT).tolist() == expected


# Off-policy correction


def engine_log_probs(rows: list[Row]) -> list[Tensor]:
    """Return log-probs of an engine that differs from the trainer, in one token by a factor of e^3."""
    generator = torch.Generator().manual_seed(3)
    engine = [row.old_T + 0.2 * torch.randn(len(row.old_T), generator=generator).double() for row in rows]
    first = written_positions(rows[0])[0]
    engine[0][first] = rows[0].old_T[first] - 3.0
    return engine


def corrected(rows: list[Row], **settings: object) -> tuple[DataProto, dict[str, float]]:
    data = DataProto.from_dict(
        {
            "old_log_probs": padded([row.old_T for row in rows]),
            "rollout_log_probs": padded(engine_log_probs(rows)),
            "response_mask": padded([row.segment.response_mask for row in rows]).long(),
        }
    )
    return compute_rollout_correction_and_add_to_batch(data, OmegaConf.create(settings))


@pytest.mark.parametrize("loss", UNITS)
def test_token_weights_scale_the_gradient_of_each_token_and_are_truncated(loss):
    rows = batch()
    data, metrics = corrected(rows, rollout_is="token", rollout_is_threshold=2.0)
    pairs = zip(rows, engine_log_probs(rows), strict=True)
    weights = [(row.old_T - engine).exp().clamp(max=2.0) for row, engine in pairs]
    actual = gradients(rows, loss, "seq-mean-token-mean", rollout_is_weights=data.batch["rollout_is_weights"])
    units = [UNITS[loss](row) for row in rows]
    assert close(actual, reference(rows, units, weights))
    assert not close(actual, reference(rows, units))
    written = torch.cat([weight[written_positions(row)] for row, weight in zip(rows, weights, strict=True)])
    assert metrics["rollout_corr/rollout_is_mean"] == pytest.approx(written.mean().item())
    assert metrics["rollout_corr/rollout_is_max"] == 2.0
    size = written.mean() ** 2 / (written**2).mean()
    assert metrics["rollout_corr/rollout_is_eff_sample_size"] == pytest.approx(size.item(), rel=1e-6)


def test_sequence_weights_are_the_product_over_written_tokens_of_a_row():
    rows = batch()
    data, _ = corrected(rows, rollout_is="sequence", rollout_is_threshold=2.0)
    for row, engine, weights_T in zip(rows, engine_log_probs(rows), data.batch["rollout_is_weights"], strict=True):
        written = written_positions(row)
        product = (row.old_T - engine)[written].sum().exp().clamp(max=2.0)
        assert torch.allclose(weights_T[written], product)
        assert weights_T.sum().item() == pytest.approx(product.item() * len(written))


@pytest.mark.parametrize("estimator", ["gae", "reinforce_plus_plus", "grpo"])
def test_rejecting_the_last_token_keeps_the_outcome_of_an_episode(estimator):
    """With verl's order, rejection before advantages, an estimator that reads rewards through the mask loses it."""
    rows = batch()
    row = rows[0]
    last = written_positions(row)[-1]
    engine_BT = padded([one.old_T for one in rows])
    engine_BT[0, last] -= 3.0
    mask_BT = padded([one.segment.response_mask for one in rows]).long()
    rejection = Rejection("token_k1", "0.5_2.0")
    kept_BT, metrics = rejection.mask(padded([one.old_T for one in rows]), engine_BT, mask_BT)
    expected_BT = mask_BT.clone()
    expected_BT[0, last] = 0
    assert torch.equal(kept_BT, expected_BT)
    assert metrics["rollout_corr/rollout_rs_masked_fraction"] == pytest.approx(1 / mask_BT.sum().item(), rel=1e-5)
    advantages_BT = estimated(rows, estimator, AlgoConfig(adv_estimator=estimator)).batch["advantages"]
    shorter = replace(row, segment=replace(row.segment, response_mask=kept_BT[0, : len(row.old_T)].tolist()))
    before_BT = estimated([shorter, *rows[1:]], estimator, AlgoConfig(adv_estimator=estimator)).batch["advantages"]
    first = written_positions(row)[0]
    lost = before_BT[0, first] < advantages_BT[0, first] - 0.1
    assert lost == (estimator != "grpo"), "verl's order no longer matters: apply rejection where verl does"


def test_a_rejection_is_taken_from_the_config_so_that_verl_does_not_apply_it_too():
    section = {"bypass_mode": False, "rollout_rs": "token_k1", "rollout_rs_threshold": "0.5_2.0"}
    assert Rejection.of(section) == Rejection("token_k1", "0.5_2.0")
    config = OmegaConf.create({"algorithm": {"rollout_correction": section}, "trainer": {"v1": {"trainer_mode": "a"}}})
    changed = for_trainer(config, "sync")
    assert (changed.algorithm.rollout_correction.rollout_rs, changed.trainer.v1.trainer_mode) == (None, "sync")
    assert Rejection.of(changed.algorithm.rollout_correction) is None


def test_the_criteria_of_rejection_are_those_of_verl():
    assert set(REJECTIONS) == SUPPORTED_ROLLOUT_RS_OPTIONS
    assert callable(get_policy_loss_fn("turn_ratio")) and callable(get_policy_loss_fn("gspo"))


# Clip fraction


@pytest.mark.parametrize("loss", UNITS)
def test_clip_fraction_counts_the_clipped_tokens_of_each_turn(loss):
    rows = batch()
    counts: dict[str, list[bool]] = {"1": [], "2": [], "3-4": []}
    for row, advantages in zip(rows, by_hand(rows, "grpo", SETTINGS), strict=True):
        advantage_of = dict(zip(written_positions(row), advantages, strict=True))
        current_T = log_probs(row)[len(row.segment.prompt_ids) - 1 : -1]
        for start, end in UNITS[loss](row):
            written = [position for position in range(start, end) if position in advantage_of]
            ratio = (current_T - row.old_T)[written].mean().exp()
            for position in written:
                number = sum(begin <= position for begin, _ in turns(row))
                gain = ratio > 1 + HIGH if advantage_of[position] > 0 else ratio < 1 - LOW
                counts[str(number) if number < 3 else "3-4"].append(bool(gain and advantage_of[position]))
    _, found = actor_loss(rows, loss, "token-mean")
    metrics = clip_fractions(reduce_metrics(found), by_turn=True)
    for label, clipped in counts.items():
        assert metrics[f"turn/{label}/clip_fraction"] == pytest.approx(sum(clipped) / len(clipped))
    every = [clipped for part in counts.values() for clipped in part]
    assert metrics["actor/pg_clipfrac"] == pytest.approx(sum(every) / len(every))
    assert 0 < sum(every) < len(every)


def test_clip_fractions_are_left_out_where_turns_are_not_known():
    _, found = actor_loss(batch(), "vanilla", "token-mean")
    metrics = clip_fractions(reduce_metrics(found), by_turn=False)
    assert not [name for name in metrics if "turn" in name]
    assert "actor/pg_clipfrac" in metrics
