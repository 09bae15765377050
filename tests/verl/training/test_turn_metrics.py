"""Tests of the metrics by turn, from tokens whose values are known by hand."""

import math

import pytest
import torch

from tests.support.estimators import batch_turns
from verl_agent.config.reward_shaping import RewardShaping
from verl_agent.rollout.tokens import Segment
from verl_agent.trace.metrics import METRICS
from verl_agent.training.turn_metrics import turn_metrics

MASK = [1, 1, 0, 1]
"""Two replies, of two tokens and of one."""


def measured(firsts: list[int], clip: tuple[float, float] = (0.2, 0.2), **columns: list[list[float]]) -> dict:
    rows = [(f"a_{row}_0", Segment([1], [5] * 4, MASK, None), [0.0, 0.0], ["s", "t"]) for row in range(len(firsts))]
    with batch_turns(rows, RewardShaping(), firsts) as turns:
        tensors = {name: [torch.tensor(row) for row in column] for name, column in columns.items()}
        return turn_metrics(turns, tensors, clip)


def test_a_metric_is_the_mean_over_the_tokens_of_the_turns_of_its_band():
    """Turns 1 and 2 of one row; turns 3 and 4 of another, which is a later segment of an episode."""
    metrics = measured([0, 2], advantages=[[1.0, 2.0, 99.0, 5.0], [4.0, 4.0, 99.0, 10.0]])
    assert metrics == {"turn/1/advantage": 1.5, "turn/2/advantage": 5.0, "turn/3-4/advantage": 6.0}


def test_absent_columns_leave_their_metrics_out():
    metrics = measured([0], advantages=[[0.0] * 4], entropy=[[1.0, 3.0, 99.0, 7.0]])
    assert {name.rpartition("/")[2] for name in metrics} == {"advantage", "entropy"}
    assert (metrics["turn/1/entropy"], metrics["turn/2/entropy"]) == (2.0, 7.0)
    assert measured([0]) == {}


def test_divergences_are_the_estimate_k3_in_their_own_direction():
    old, engine, ref = [-1.0, -1.0, 0.0, -2.0], [-1.0, -1.5, 0.0, -2.0], [-1.0, -1.0, 0.0, -3.0]
    metrics = measured([0], advantages=[[0.0] * 4], old_log_probs=[old], rollout_log_probs=[engine], ref_log_prob=[ref])
    assert metrics["turn/1/rollout_kl"] == pytest.approx((math.exp(0.5) - 1 - 0.5) / 2, abs=1e-6)
    assert metrics["turn/2/rollout_kl"] == pytest.approx(0.0, abs=1e-6)
    assert metrics["turn/2/ref_kl"] == pytest.approx(math.exp(-1.0) - 1 + 1.0, abs=1e-6)


def test_ratio_outside_counts_tokens_beyond_either_side_of_the_clip_range():
    old, engine = [0.0, math.log(1.25), 0.0, math.log(0.75)], [0.0] * 4
    columns = {"advantages": [[0.0] * 4], "old_log_probs": [old], "rollout_log_probs": [engine]}
    metrics = measured([0], (0.2, 0.2), **columns)
    assert (metrics["turn/1/ratio_outside"], metrics["turn/2/ratio_outside"]) == (0.5, 1.0)
    metrics = measured([0], (0.3, 0.28), **columns)
    assert (metrics["turn/1/ratio_outside"], metrics["turn/2/ratio_outside"]) == (0.0, 0.0)


def test_every_metric_is_in_the_table():
    full = {
        name: [[0.0] * 4] for name in ("advantages", "entropy", "old_log_probs", "rollout_log_probs", "ref_log_prob")
    }
    produced = {f"turn/<turns>/{name.rpartition('/')[2]}" for name in measured([0], **full)}
    assert produced == {metric.name for metric in METRICS if metric.name.startswith("turn/")} - {
        "turn/<turns>/alive",
        "turn/<turns>/clip_fraction",
    }
