"""Intervals agree with published numbers and enumeration, and have the coverage that they claim."""

from itertools import combinations

import numpy as np
import pytest

from verl_agent.evaluation.statistics import (
    mean_over_items,
    paired_difference,
    pass_at_k,
    t_quantile,
    unanimous_interval,
    wilson_interval,
)


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [(8, 10, 0.4902, 0.9433), (0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (81, 263, 0.2553, 0.3662)],
)
def test_wilson_interval_agrees_with_published_values(successes, trials, low, high):
    estimate = wilson_interval(successes, trials)
    assert (estimate.low, estimate.high) == pytest.approx((low, high), abs=5e-5)
    assert estimate.mean == successes / trials


@pytest.mark.parametrize(("successes", "trials"), [(0, 0), (3, 2), (-1, 2)])
def test_wilson_interval_refuses_impossible_counts(successes, trials):
    with pytest.raises(ValueError, match="trials"):
        wilson_interval(successes, trials)


@pytest.mark.parametrize(
    ("samples", "successes", "k"), [(5, 2, 1), (5, 2, 3), (6, 1, 2), (6, 5, 2), (4, 0, 4), (4, 4, 1)]
)
def test_pass_at_k_agrees_with_counting_every_choice(samples, successes, k):
    solved = [i < successes for i in range(samples)]
    choices = list(combinations(solved, k))
    assert pass_at_k(samples, successes, k) == pytest.approx(sum(map(any, choices)) / len(choices))


def test_pass_at_more_samples_than_there_are_is_refused():
    with pytest.raises(ValueError, match="pass@5"):
        pass_at_k(4, 1, 5)


@pytest.mark.parametrize(
    ("probability", "degrees", "quantile"),
    [(0.975, 1, 12.7062), (0.975, 2, 4.3027), (0.975, 4, 2.7764), (0.975, 30, 2.0423), (0.995, 10, 3.1693)],
)
def test_t_quantiles_agree_with_tables(probability, degrees, quantile):
    assert t_quantile(probability, degrees) == pytest.approx(quantile, rel=1e-3)


def test_mean_over_items_is_the_t_interval_of_item_means():
    estimate = mean_over_items({"a": [0.0, 1.0], "b": [1.0], "c": [0.0, 0.0, 0.0]})
    assert estimate.mean == pytest.approx(0.5)
    assert estimate.high - estimate.mean == pytest.approx(4.30265 * 0.5 / 3**0.5, rel=1e-4)
    assert estimate.items == 3


def test_more_samples_of_the_same_items_do_not_pretend_to_be_more_items():
    few = mean_over_items({"a": [0.0], "b": [1.0], "c": [1.0]})
    assert mean_over_items({"a": [0.0] * 50, "b": [1.0] * 50, "c": [1.0] * 50}) == few


def test_the_interval_over_items_covers_the_truth_as_often_as_it_says():
    random = np.random.default_rng(0)
    covered = 0
    for _ in range(400):
        chances = random.beta(1, 1, size=30)
        estimate = mean_over_items({str(i): list(random.random(4) < chance) for i, chance in enumerate(chances)})
        covered += estimate.low <= 0.5 <= estimate.high
    assert 0.92 <= covered / 400 <= 0.98


def test_pairing_takes_out_how_hard_the_items_are():
    baseline = {str(i): [i / 10] for i in range(10)}
    better = {item: [values[0] + 0.1 + 0.01 * (int(item) % 2)] for item, values in baseline.items()}
    estimate = paired_difference(better, baseline)
    assert estimate.mean == pytest.approx(0.105)
    assert 0.1 < estimate.low < estimate.high < 0.11


@pytest.mark.parametrize(
    ("value", "items", "low", "high"),
    [(0.0, 10, -0.2589, 0.2589), (1.0, 10, 0.4823, 1.0), (0.0, 1, -0.95, 0.95), (-0.5, 100, -0.5148, -0.4557)],
)
def test_differences_that_are_all_alike_leave_room_for_items_that_differ(value, items, low, high):
    """Of n draws without an exception, at most 1 - 0.05 ** (1 / n) are exceptions: 25.9 % for 10, 2.95 % for 100."""
    estimate = unanimous_interval(value, items, -1.0, 1.0)
    assert (estimate.low, estimate.high) == pytest.approx((low, high), abs=5e-5)
    values = {str(i): [0.1 * i + max(value, 0.0)] for i in range(items)}
    baseline = {str(i): [0.1 * i - min(value, 0.0)] for i in range(items)}
    paired = paired_difference(values, baseline)
    assert (paired.low, paired.high, paired.items) == pytest.approx((low, high, items), abs=5e-5)


def test_pairing_needs_the_same_items():
    with pytest.raises(ValueError, match="only one has 2"):
        paired_difference({"a": [1.0]}, {"b": [1.0]})


@pytest.mark.parametrize("values", [{}, {"a": []}])
def test_a_mean_needs_samples(values):
    with pytest.raises(ValueError, match="needs a sample"):
        mean_over_items(values)
    with pytest.raises(ValueError, match="needs a sample"):
        paired_difference(values, values)


def test_one_item_has_no_spread():
    estimate = mean_over_items({"a": [0.0, 1.0]})
    assert (estimate.low, estimate.high) == (0.5, 0.5)
    assert str(estimate) == "0.500 [0.500, 0.500]"
