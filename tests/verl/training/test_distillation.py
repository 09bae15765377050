"""Test distillation on the policy's episodes: exact expectations, verl's own loss, and the columns of a batch."""

import pytest
import torch
from verl.trainer.distillation.losses import distillation_ppo_loss
from verl.workers.config import ActorConfig, DistillationConfig, DistillationLossConfig

from tests.support.decision_process import GO, Process
from tests.support.gradients import CLIP, actor_gradients, batch, fields, log_probs, nested, padded
from verl_agent.config.plan_parts import Teacher
from verl_agent.training.distillation import reverse_kl, taught_advantages

ALONE = Teacher(path="", adds_rewards=False, coefficient=1.0, clamp=None)


@pytest.fixture(params=[0, 1])
def pair(request):
    """Processes that differ in their policies: that of a policy and that of its teacher."""
    return Process(turns=3, seed=request.param), Process(turns=3, seed=request.param + 7)


def gaps_of(policy, teacher):
    """Return the estimate k1 at each written token of every episode."""
    own, its = ([process.log_probs(play).detach() for play in policy.plays] for process in (policy, teacher))
    return reverse_kl(own, its, [torch.ones(len(row)) for row in own])


def divergence_in_states(policy, teacher):
    """Return the reverse KL divergence of the next token, summed over the token states that the policy reaches.

    How often it reaches a state has no gradient, so that the divergence is that of each state.
    """
    total = torch.tensor(0.0, dtype=torch.float64)
    for play, probability in zip(policy.plays, policy.probabilities, strict=True):
        for state, reply in zip(play.states, play.replies, strict=True):
            column = policy._column[state]
            for logit in (column, column + 1)[: 2 if reply[0] == GO else 1]:
                own, its = (torch.sigmoid(one.logits[logit]) for one in (policy, teacher))
                its = its.detach()
                total = total + probability * (own * (own / its).log() + (1 - own) * ((1 - own) / (1 - its)).log())
    return total


def test_the_sum_over_an_episode_is_the_exact_reverse_kl_divergence(pair):
    policy, teacher = pair
    estimated = sum(p * gap.sum() for p, gap in zip(policy.probabilities, gaps_of(policy, teacher), strict=True))
    whole = sum(
        p * (policy.log_probs(play).sum() - teacher.log_probs(play).sum()).item()
        for p, play in zip(policy.probabilities, policy.plays, strict=True)
    )
    assert estimated == pytest.approx(whole, abs=1e-6)
    assert estimated == pytest.approx(divergence_in_states(policy, teacher).item(), abs=1e-6)
    assert whole > 0.1


def test_the_expected_gradient_is_that_of_the_exact_reverse_kl_divergence(pair):
    policy, teacher = pair
    gaps = gaps_of(policy, teacher)
    advantages = taught_advantages([torch.zeros_like(gap) for gap in gaps], gaps, ALONE)
    ascent = sum(
        p * advantage @ score
        for p, advantage, score in zip(policy.probabilities, advantages, policy.scores, strict=True)
    )
    exact = policy.gradient(divergence_in_states(policy, teacher))
    assert torch.allclose(-ascent, exact, rtol=0, atol=1e-6)
    assert exact.norm() > 0.1


def test_rewards_are_added_with_a_factor_and_a_limit():
    gaps = [torch.tensor([3.0, -0.5, 0.0])]
    both = Teacher(path="", adds_rewards=True, coefficient=0.5, clamp=2.0)
    assert taught_advantages([torch.ones(3)], gaps, both)[0].tolist() == [0.0, 1.25, 1.0]
    assert taught_advantages([torch.ones(3)], gaps, ALONE)[0].tolist() == [-3.0, 0.5, -0.0]


def test_tokens_of_the_environment_have_no_divergence():
    found = reverse_kl([torch.tensor([-1.0, -5.0])], [torch.tensor([-2.0, -float("inf")])], [torch.tensor([1, 0])])
    assert found[0].tolist() == [1.0, 0.0]


@pytest.mark.parametrize("clamp", [None, 0.3])
def test_the_gradient_is_that_of_verls_distillation_loss(clamp):
    """At the weights that sampled, where the ratio is 1; verl reads the teacher's log-prob of the next token."""
    rows, generator = batch(), torch.Generator().manual_seed(5)
    teacher = [log_probs(row).detach() + torch.randn(len(log_probs(row)), generator=generator) for row in rows]
    begins = [len(row.segment.prompt_ids) - 1 for row in rows]
    own, its = (
        [values[begin:-1] for values, begin in zip(each, begins, strict=True)]
        for each in ([log_probs(row).detach() for row in rows], teacher)
    )
    masks = [torch.tensor(row.segment.response_mask) for row in rows]
    settings = Teacher(path="", adds_rewards=False, coefficient=1.0, clamp=clamp)
    advantages = taught_advantages(own, reverse_kl(own, its, masks), settings)
    now = [
        type(row)(row.group, row.segment, row.reward, row.logits_TV, old, row.values_T)
        for row, old in zip(rows, own, strict=True)
    ]
    actual = actor_gradients(now, padded(advantages))

    data = fields(now, old_log_probs=padded(own), advantages=padded(own))
    data["teacher_logprobs"] = nested([values[:, None] for values in teacher])
    loss = DistillationLossConfig(loss_mode="k1", use_task_rewards=False, loss_max_clamp=clamp)
    actor = ActorConfig(strategy="fsdp", rollout_n=4, use_dynamic_bsz=True, clip_ratio=CLIP, optim=None)
    value, _ = distillation_ppo_loss(
        actor, DistillationConfig(distillation_loss=loss), {"log_probs": nested([log_probs(row) for row in now])}, data
    )
    expected = torch.autograd.grad(value, [row.logits_TV for row in now])
    for left, right in zip(actual, expected, strict=True):
        assert torch.allclose(left, right, rtol=0, atol=1e-9)
    assert sum(gradient.abs().sum() for gradient in actual) > 0.1
