"""Test intervals, verdicts and the successive stopping of studies."""

import math

import numpy as np
import pytest

from verl_agent.results.significance import sign_flip_p_value
from verl_agent.results.statistics import Estimate
from verl_agent.study.inference import (
    ALPHA,
    ArmComparison,
    bootstrap,
    compare_arms,
    decided_pairs,
    equal_arms,
    first_decision,
    hopeless,
    interquartile_mean,
    least_seeds,
    over_seeds,
    probability_of_improvement,
    seeds_for,
    verdict,
)
from verl_agent.study.settings import StopRule


def test_the_interquartile_mean_leaves_out_a_quarter_on_each_side():
    assert interquartile_mean(np.array([[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 100.0]])) == 3.5


def test_the_bootstrap_resamples_seeds_within_strata():
    easy_and_hard = np.array([[0.9, 0.9, 0.9], [0.1, 0.1, 0.1]])
    found = bootstrap([easy_and_hard], lambda parts: float(parts[0].mean()))
    assert (found.mean, found.low, found.high) == pytest.approx((0.5, 0.5, 0.5))


def test_arms_with_the_same_noise_are_compared_seed_by_seed():
    noise = np.random.default_rng(1).normal(0, 0.3, (1, 8))
    found = compare_arms(noise + 0.1, noise)
    assert found.difference.low == pytest.approx(0.1) and found.deviation == pytest.approx(0)
    assert found.p_value == pytest.approx(2 / 2**8)


def test_the_interval_of_a_mean_covers_what_it_promises():
    random = np.random.default_rng(2)
    for seeds in (3, 8, 16):
        covered = [
            found.low <= 0 <= found.high for found in (over_seeds(row) for row in random.normal(size=(1000, seeds)))
        ]
        assert np.mean(covered) > 0.93


def test_probability_of_improvement_counts_ties_half():
    assert probability_of_improvement(np.array([[1.0, 0.0]]), np.array([[0.0, 0.0]])) == 0.75


@pytest.mark.parametrize(
    ("low", "high", "p", "expected"),
    [
        (-0.04, 0.04, 1.0, "equal within the margin"),
        (0.01, 0.2, 0.02, "better"),
        (-0.2, -0.01, 0.02, "worse"),
        (0.01, 0.2, 0.2, "cannot tell"),
        (-0.1, 0.2, 0.01, "cannot tell"),
        (-math.inf, math.inf, 1.0, "cannot tell"),
    ],
)
def test_a_verdict_needs_interval_and_corrected_p_value(low, high, p, expected):
    mean = (low + high) / 2 if math.isfinite(low) else 0.1
    assert verdict(Estimate(mean, low, high, 8), p, margin=0.05) == expected


def test_a_lower_value_is_better_for_some_measures():
    assert verdict(Estimate(-0.2, -0.3, -0.1, 8), 0.01, 0.05, lower_is_better=True) == "better"


def test_more_seeds_are_needed_for_a_wider_spread():
    assert seeds_for(0.1, 0.05) == 18
    assert seeds_for(0.02, 0.05) == 3


def test_successive_stopping_finds_a_hopeless_arm_early():
    random = np.random.default_rng(3)
    block = {
        "good": random.normal(0.6, 0.05, 5),
        "same": random.normal(0.6, 0.05, 5),
        "bad": random.normal(0.2, 0.05, 5),
    }
    decided = decided_pairs([block], most_blocks=4, alpha=0.05)
    assert hopeless(decided) == {"bad"}
    assert ("good", "same") not in decided


def test_successive_stopping_rarely_tells_equal_arms_apart():
    random = np.random.default_rng(4)
    wrong = 0
    for _ in range(60):
        blocks = [{arm: random.normal(size=4) for arm in "abc"} for _ in range(3)]
        wrong += bool(decided_pairs(blocks, most_blocks=3, alpha=0.05))
    assert wrong <= 7  # 3 expected; more than 7 has a probability of 1 %


def test_successive_stopping_decides_first_where_its_least_p_value_is_small_enough():
    assert StopRule().block == first_decision(16, StopRule().block, ALPHA) == 5
    assert first_decision(16, 4, ALPHA) == 8  # of blocks of four, the first has a p value of at least 2 / 70
    assert first_decision(3, 5, ALPHA) is None
    apart = {"good": [1.0, 1.1, 1.2, 1.3, 1.4], "bad": [0.0, 0.1, 0.2, 0.3, 0.4]}
    four = {arm: values[:4] for arm, values in apart.items()}
    assert decided_pairs([apart], 4, ALPHA) and not decided_pairs([four], 4, ALPHA)
    assert decided_pairs([four, four], 4, ALPHA)


def test_equal_arms_are_corrected_for_their_number_and_for_the_looks():
    """Holm's procedure with the p values of two one-sided t tests, which a table of t gives."""
    seeds, margin = 16, 0.05
    at = {0.05: 1.7531, 0.025: 2.1314, 0.01: 2.6025}  # t with 15 degrees of freedom

    def arm(level: float) -> ArmComparison:
        """Return an arm whose p value is a little below a level."""
        mean = margin - 1.001 * at[level] * 0.04 / math.sqrt(seeds)
        return ArmComparison(Estimate(mean, -0.04, 0.04, seeds), Estimate(0.5, 0, 1, seeds), 1.0, 0.04)

    assert equal_arms({"one": arm(0.05)}, margin) == {"one"}
    assert equal_arms({"one": arm(0.05), "other": arm(0.05)}, margin) == set()
    assert equal_arms({"one": arm(0.05), "other": arm(0.025)}, margin) == {"one", "other"}
    assert equal_arms({"one": arm(0.025), **{name: arm(0.025) for name in "abcd"}}, margin) == set()
    assert "a" in equal_arms({"a": arm(0.01), **{name: arm(0.025) for name in "bcde"}}, margin)
    assert [equal_arms({"one": arm(level)}, margin, looks=2) for level in (0.05, 0.025)] == [set(), {"one"}]
    assert verdict(arm(0.05).difference, 1.0, margin, equal=False) == "cannot tell"


def test_an_arm_without_an_interval_is_never_equal():
    found = compare_arms(np.full((1, 8), 0.5), np.full((1, 8), 0.5), bounded=False)
    assert (found.difference.low, found.p_value) == (-math.inf, 1.0) and equal_arms({"a": found}, 0.05) == set()


def test_two_seeds_that_agree_prove_nothing():
    assert verdict(Estimate(0.0, 0.0, 0.0, 2), 1.0, margin=0.05) == "cannot tell"


@pytest.mark.parametrize(("arms", "seeds"), [(2, 6), (3, 7), (6, 8)])
def test_fewer_seeds_than_the_least_ones_have_no_p_value_that_survives_the_correction(arms, seeds):
    assert least_seeds(arms) == seeds
    every = sign_flip_p_value([0.1 + 0.01 * seed for seed in range(seeds)])
    fewer = sign_flip_p_value([0.1 + 0.01 * seed for seed in range(seeds - 1)])
    assert every * (arms - 1) <= ALPHA < fewer * (arms - 1)
