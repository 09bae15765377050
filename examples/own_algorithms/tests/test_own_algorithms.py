"""Test the estimator with the check of verl-agent, and the loss and the schedule by hand."""

import pytest
import torch
from own_algorithms.estimator import leave_one_out
from own_algorithms.loss import plain_gradient
from own_algorithms.schedule import Waves
from own_algorithms.shuffled import shuffled_returns
from verl.workers.config import ActorConfig

from verl_agent import EstimatorBatch, TaskItem, check_estimator
from verl_agent.config.reward_shaping import RewardShaping
from verl_agent.training.turns import TurnSpan


@pytest.mark.parametrize("options", [{}, {"below": 0.5}])
def test_the_estimator_fulfils_the_contract(options):
    report = check_estimator("leave_one_out", options)
    assert not report.violations, str(report)


def test_the_gradient_of_the_loss_is_minus_the_advantage_of_each_written_token():
    log_prob, advantages = torch.zeros(2, 2, requires_grad=True), torch.tensor([[1.0, 0.5], [-2.0, 9.0]])
    mask = torch.tensor([[1, 1], [1, 0]]).bool()
    config = ActorConfig(strategy="fsdp", rollout_n=1, use_dynamic_bsz=True, optim=None)
    loss, metrics = plain_gradient(torch.zeros(2, 2), log_prob, advantages, mask, "token-mean", config)
    (gradient,) = torch.autograd.grad(loss, log_prob)
    assert torch.allclose(gradient, torch.tensor([[-1.0, -0.5], [2.0, 0.0]]) / 3)
    assert metrics == {"actor/ppo_kl": 0.0}


def test_bad_episodes_count_less():
    turns = [
        TurnSpan(row=row, start=0, end=2, group="a", episode=f"a_{row}", number=0, reward=reward, anchor="")
        for row, reward in enumerate((1.0, 0.0, 0.5))
    ]
    batch = EstimatorBatch(turns, torch.ones(3, 2), None, RewardShaping())
    assert leave_one_out(batch, below=0.5)[:, 0].tolist() == [0.75, -0.375, 0.0]


def test_shuffled_advantages_are_those_of_grpo_for_other_episodes():
    returns = {"a": [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], "b": [1.0, 1.0]}
    turns = [
        TurnSpan(
            row=8 * (group == "b") + at,
            start=0,
            end=1,
            group=group,
            episode=f"{group}{at}",
            number=0,
            reward=one,
            anchor="",
        )
        for group, values in returns.items()
        for at, one in enumerate(values)
    ]
    found = shuffled_returns(EstimatorBatch(turns, torch.ones(10, 1), None, RewardShaping()))[:, 0]
    first = torch.tensor(returns["a"])
    grpo = (first - first.mean()) / (first.std() + 1e-6)
    assert torch.allclose(found[:8].sort().values, grpo.sort().values) and not torch.allclose(found[:8], grpo)
    assert found[8:].tolist() == [0.0, 0.0]


def test_the_limit_rises_and_falls_back():
    waves, task = Waves([2, 4, 8], period=6), TaskItem("any", "1")
    assert [waves.limit(step, task) for step in range(1, 9)] == [2, 2, 4, 4, 8, 8, 2, 2]
