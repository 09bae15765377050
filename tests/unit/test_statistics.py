"""Test intervals against published numbers, enumeration and measured coverage."""

from itertools import combinations

import numpy as np
import pytest

from verl_agent.evaluation.statistics import (
    mean_over_tasks,
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
def test_wilson_interval_rejects_impossible_counts(successes, trials):
    with pytest.raises(ValueError, match="trials"):
        wilson_interval(successes, trials)


@pytest.mark.parametrize(
    ("samples", "successes", "k"), [(5, 2, 1), (5, 2, 3), (6, 1, 2), (6, 5, 2), (4, 0, 4), (4, 4, 1)]
)
def test_pass_at_k_agrees_with_counting_every_choice(samples, successes, k):
    solved = [i < successes for i in range(samples)]
    choices = list(combinations(solved, k))
    assert pass_at_k(samples, successes, k) == pytest.approx(sum(map(any, choices)) / len(choices))


def test_pass_at_k_rejects_k_above_the_number_of_samples():
    with pytest.raises(ValueError, match="pass@5"):
        pass_at_k(4, 1, 5)


@pytest.mark.parametrize(
    ("probability", "degrees", "quantile"),
    [(0.975, 1, 12.7062), (0.975, 2, 4.3027), (0.975, 4, 2.7764), (0.975, 30, 2.0423), (0.995, 10, 3.1693)],
)
def test_t_quantiles_agree_with_tables(probability, degrees, quantile):
    assert t_quantile(probability, degrees) == pytest.approx(quantile, rel=1e-3)


def test_mean_over_tasks_is_the_t_interval_of_task_means():
    estimate = mean_over_tasks({"a": [0.0, 1.0], "b": [1.0], "c": [0.0, 0.0, 0.0]})
    assert estimate.mean == pytest.approx(0.5)
    assert estimate.high - estimate.mean == pytest.approx(4.30265 * 0.5 / 3**0.5, rel=1e-4)
    assert estimate.tasks == 3


def test_more_samples_per_task_do_not_narrow_the_interval():
    few = mean_over_tasks({"a": [0.0], "b": [1.0], "c": [1.0]})
    assert mean_over_tasks({"a": [0.0] * 50, "b": [1.0] * 50, "c": [1.0] * 50}) == few


def test_the_interval_over_tasks_has_its_nominal_coverage():
    random = np.random.default_rng(0)
    covered = 0
    for _ in range(400):
        chances = random.beta(1, 1, size=30)
        estimate = mean_over_tasks({str(i): list(random.random(4) < chance) for i, chance in enumerate(chances)})
        covered += estimate.low <= 0.5 <= estimate.high
    assert 0.92 <= covered / 400 <= 0.98


def test_pairing_removes_the_difficulty_of_tasks():
    baseline = {str(i): [i / 10] for i in range(10)}
    better = {item: [values[0] + 0.1 + 0.01 * (int(item) % 2)] for item, values in baseline.items()}
    estimate = paired_difference(better, baseline)
    assert estimate.mean == pytest.approx(0.105)
    assert 0.1 < estimate.low < estimate.high < 0.11


@pytest.mark.parametrize(
    ("value", "tasks", "low", "high"),
    [(0.0, 10, -0.2589, 0.2589), (1.0, 10, 0.4823, 1.0), (0.0, 1, -0.95, 0.95), (-0.5, 100, -0.5148, -0.4557)],
)
def test_equal_differences_have_an_interval_with_a_width(value, tasks, low, high):
    """After n equal draws, at most a share 1 - 0.05 ** (1 / n) of draws differs: 25.9 % for 10, 2.95 % for 100."""
    estimate = unanimous_interval(value, tasks, -1.0, 1.0)
    assert (estimate.low, estimate.high) == pytest.approx((low, high), abs=5e-5)
    values = {str(i): [0.1 * i + max(value, 0.0)] for i in range(tasks)}
    baseline = {str(i): [0.1 * i - min(value, 0.0)] for i in range(tasks)}
    paired = paired_difference(values, baseline)
    assert (paired.low, paired.high, paired.tasks) == pytest.approx((low, high, tasks), abs=5e-5)


def test_pairing_requires_the_same_tasks():
    with pytest.raises(ValueError, match="only one has 2"):
        paired_difference({"a": [1.0]}, {"b": [1.0]})


@pytest.mark.parametrize("values", [{}, {"a": []}])
def test_a_mean_requires_samples(values):
    with pytest.raises(ValueError, match="needs a sample"):
        mean_over_tasks(values)
    with pytest.raises(ValueError, match="needs a sample"):
        paired_difference(values, values)


def test_the_interval_of_one_task_is_the_whole_range():
    estimate = mean_over_tasks({"a": [0.0, 1.0]}, least=0.0, most=1.0)
    assert (estimate.mean, estimate.low, estimate.high) == (0.5, 0.0, 1.0)


def test_the_interval_of_one_task_without_a_range_is_its_mean():
    estimate = mean_over_tasks({"a": [0.0, 1.0]})
    assert (estimate.low, estimate.high) == (0.5, 0.5)
    assert str(estimate) == "0.500 [0.500, 0.500]"


def test_intervals_of_few_tasks_are_clipped_to_the_possible_range():
    two = mean_over_tasks({"a": [0.0], "b": [1.0]}, least=0.0, most=1.0)
    assert (two.low, two.high) == (0.0, 1.0)
    paired = paired_difference({"a": [1.0], "b": [0.0]}, {"a": [0.0], "b": [0.0]})
    assert (paired.mean, paired.low, paired.high) == (0.5, -1.0, 1.0)


@pytest.mark.parametrize(("tasks", "too_few"), [(1, True), (4, True), (5, False)])
def test_an_estimate_of_fewer_than_five_tasks_is_marked(tasks, too_few):
    assert wilson_interval(0, tasks).too_few is too_few
