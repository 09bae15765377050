"""Tests of exact expectations of gradients: which estimators and aggregations have a bias, and which have none."""

from dataclasses import replace

import pytest
import torch

from tests.bench.deepened_gradients import deepened
from tests.bench.exact_gradients import DR_GRPO, ESTIMATES, FORMULAS, MODES, Estimate, expected
from tests.support.decision_process import Process, direction_error

SUM = "token-sum"
"""Aggregation that weighs all tokens equally, whatever else is in the batch."""
RLOO = Estimate("rloo", place="outcome")


@pytest.fixture(params=[0, 1])
def process(request):
    return Process(turns=3, seed=request.param)


def test_the_enumeration_is_complete(process):
    assert sum(process.probabilities) == pytest.approx(1)
    assert sum(probability for probability, _ in process.batches(2)) == pytest.approx(1)
    assert process.value((0, 0), 0) == pytest.approx(
        sum(p * play.total for p, play in zip(process.probabilities, process.plays, strict=True))
    )


@pytest.mark.parametrize(
    ("estimate", "factor"),
    [
        (RLOO, 2),
        (DR_GRPO, 2 * (1 - 1 / 2)),  # the baseline contains the episode itself
        (Estimate("turn_returns", normalised=False), 2),
        (Estimate("turn_gae", normalised=False), 2),
        (Estimate("gae", normalised=False), 2),
        (replace(RLOO, split=True), 2),
        (replace(DR_GRPO, split=True), 1),
        (Estimate("turn_gae", normalised=False, split=True), 2),
    ],
)
def test_a_sum_over_tokens_gives_the_policy_gradient(process, estimate, factor):
    """A sum over the tokens of two episodes is twice the gradient of the expected return of one."""
    found = expected(process, 2, estimate)[SUM]
    assert torch.allclose(found, factor * process.policy_gradient, rtol=0, atol=1e-6)


@pytest.mark.parametrize("estimate", [RLOO, DR_GRPO])
def test_a_constant_divisor_keeps_the_direction_and_lengths_do_not(process, estimate):
    errors = {mode: direction_error(g, process.policy_gradient) for mode, g in expected(process, 2, estimate).items()}
    assert errors.pop(SUM) < 1e-6
    assert errors.pop("seq-mean-token-sum-norm") < 1e-6
    assert set(errors) == {"token-mean", "seq-mean-token-mean"}
    assert min(errors.values()) > 0.02


def test_episodes_of_several_rows_weigh_more_in_a_mean_over_rows(process):
    """A mean over rows divides by a number that the policy controls, where an episode has a row for each turn."""
    found = expected(process, 2, replace(RLOO, split=True))
    assert direction_error(found["seq-mean-token-sum-norm"], process.policy_gradient) > 0.02


def test_groups_made_smaller_by_errors_of_the_environment_keep_the_direction(process):
    """Errors that do not depend on the actions leave one to three episodes; one alone has no baseline."""
    share, gradient = 0.3, torch.zeros_like(process.policy_gradient)
    for size, sets in ((1, 3), (2, 3), (3, 1)):
        probability = sets * (1 - share) ** size * share ** (3 - size)
        gradient += probability * expected(process, size, DR_GRPO)[SUM]
    assert direction_error(gradient, process.policy_gradient) < 1e-6


def test_dropping_truncated_episodes_has_a_bias(process):
    found = expected(process, 2, replace(RLOO, truncated="drop"))
    assert direction_error(found[SUM], process.policy_gradient) > 0.02


def test_bootstrapped_episodes_give_the_gradient_without_the_limit():
    """With a perfect critic, the limit of two turns hides nothing of a process of three, for the tokens it shows."""
    longer = Process(turns=3)
    shorter = longer.with_limit(2)
    found = expected(shorter, 2, Estimate("turn_gae", normalised=False, truncated="bootstrap"))[SUM]
    objective = sum(
        shorter.probability(play) * (play.total + play.truncated * longer.value(play.last, 2)) for play in shorter.plays
    )
    assert torch.allclose(found, 2 * shorter.gradient(objective), rtol=0, atol=1e-6)


def test_a_baseline_by_turn_index_hides_a_penalty_for_each_turn(process):
    """The mean reward of turn k, taken from each episode that reaches it, is subtracted more often the longer it is.

    Its expectation has the closed form: minus the sum over k of b_k times the gradient of the probability of reaching
    turn k. `turn_returns` and `turn_gae` subtract no such term, see above.
    """
    reached = [[index for index, play in enumerate(process.plays) if len(play.replies) > k] for k in range(3)]
    means = [
        sum(process.probabilities[i] * process.plays[i].rewards[k] for i in found)
        / sum(process.probabilities[i] for i in found)
        for k, found in enumerate(reached)
    ]
    by_index = torch.zeros_like(process.policy_gradient)
    for play, probability, scores in zip(process.plays, process.probabilities, process.scores, strict=True):
        begin = 0
        for number, reply in enumerate(play.replies):
            advantage = sum(play.rewards[k] - means[k] for k in range(number, len(play.replies)))
            by_index += probability * advantage * scores[begin : begin + len(reply)].sum(0)
            begin += len(reply)
    penalty = sum(
        -mean * process.gradient(sum(process.probability(process.plays[i]) for i in found))
        for mean, found in zip(means, reached, strict=True)
    )
    assert torch.allclose(by_index - process.policy_gradient, penalty, atol=1e-9)
    assert penalty.norm() > 0.05 * process.policy_gradient.norm()


def test_formulas_of_other_implementations_have_the_biases_that_were_reported():
    """TRL's formula is that of `grpo`, but for the constant of its divisor; a baseline by turn number has a bias."""
    process = Process(turns=3)
    found = {name: expected(process, 2, Estimate(name, place="outcome")) for name in ("trl", "turn_number", "grpo")}
    for mode in MODES:
        assert torch.allclose(found["trl"][mode], found["grpo"][mode], rtol=2e-3, atol=1e-4)
    assert direction_error(found["turn_number"][SUM], process.policy_gradient) > 0.02


def test_a_group_that_goes_on_until_a_success_is_between_the_limits():
    """The gradient of its own return fits it best; that return depends on the group's own successes."""
    process = Process(turns=3, dense=False)
    found = deepened(process, limit=1, size=4, bar=0.6)
    assert 0 < found.share < 1
    own, high = (direction_error(found.estimated, exact) for exact in (found.own, found.high))
    assert own < high < direction_error(found.low, found.high)


def test_groups_none_of_which_can_succeed_early_have_the_gradient_of_the_high_limit():
    process = Process(turns=3, seed=1, dense=False)
    early = max(play.total for play in process.plays if len(play.replies) == 1)
    found = deepened(process, limit=1, size=2, bar=early + 1e-9)
    assert found.low.norm() == 0
    goes_on = [any(len(process.plays[index].replies) > 1 for index in group) for _, group in process.batches(2)]
    probabilities = [probability for probability, _ in process.batches(2)]
    assert found.share == pytest.approx(sum(p for p, on in zip(probabilities, goes_on, strict=True) if on))
    assert torch.allclose(found.estimated, 2 * found.high, rtol=0, atol=1e-9)


def test_a_group_with_one_limit_has_the_policy_gradient():
    process = Process(turns=2, dense=False)
    found = deepened(process, limit=2, size=2, bar=0.3)
    assert found.share == 0
    assert torch.allclose(found.estimated, 2 * found.high, rtol=0, atol=1e-9)


def test_the_table_has_each_estimator():
    from verl_agent.config.algorithms import BUILT_IN

    assert {estimate.estimator for estimate in ESTIMATES.values()} - set(FORMULAS) == set(BUILT_IN)
    assert SUM in MODES
