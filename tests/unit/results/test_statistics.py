"""Test intervals against published numbers, enumeration and measured coverage."""

from itertools import combinations

import pytest

from verl_agent.results.significance import difference_of_shares
from verl_agent.results.statistics import (
    clustered_wilson_interval,
    mean_over_tasks,
    mean_return,
    paired_difference,
    pass_at_k,
    return_margins,
    t_quantile,
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


@pytest.mark.parametrize("samples", [1, 9])
def test_a_success_interval_of_samples_that_agree_is_wilsons_over_tasks(samples):
    solved = {"a": [1.0] * samples, "b": [0.0] * samples, "c": [0.0] * samples}
    assert clustered_wilson_interval(solved) == wilson_interval(1, 3)
    assert clustered_wilson_interval({task: [0.0] * samples for task in solved}) == wilson_interval(0, 3)


@pytest.mark.parametrize("tasks", [1, 2, 8])
def test_a_success_interval_of_equal_tasks_has_a_width(tasks):
    """The shares of equal tasks have no variance."""
    estimate = clustered_wilson_interval({str(i): [1.0, 0.0] for i in range(tasks)})
    assert estimate.mean == 0.5
    whole = wilson_interval(tasks, 2 * tasks)
    assert 0 < estimate.low <= whole.low < whole.high <= estimate.high < 1


def test_a_success_interval_weights_tasks_equally():
    estimate = clustered_wilson_interval({"a": [1.0], "b": [0.0, 0.0, 0.0], "c": [1.0, 0.0], "d": [0.0]})
    assert estimate.mean == pytest.approx(0.375)
    assert estimate.tasks == 4


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


def test_pairing_removes_the_difficulty_of_tasks():
    """The solved samples of 16 differ widely between tasks, and by two on each task."""
    baseline = {str(i): [float(sample < i % 14) for sample in range(16)] for i in range(42)}
    better = {str(i): [float(sample < i % 14 + 2) for sample in range(16)] for i in range(42)}
    estimate = paired_difference(better, baseline)
    assert estimate.mean == pytest.approx(0.125)
    assert 0.1 < estimate.low < estimate.mean < estimate.high < 0.15
    apart = [clustered_wilson_interval(side) for side in (better, baseline)]
    assert apart[0].low < apart[1].high


@pytest.mark.parametrize(("gained", "lost", "tasks"), [(12, 4, 50), (0, 0, 10), (10, 0, 10), (0, 3, 100), (0, 0, 1)])
def test_the_paired_difference_of_single_samples_is_that_of_bonett_and_price(gained, lost, tasks):
    """With a quantile of t in place of the normal one, which they use."""
    after = {str(task): [float(task < gained)] for task in range(tasks)}
    before = {str(task): [float(task >= tasks - lost)] for task in range(tasks)}
    paired = paired_difference(after, before)
    assert (paired.mean, paired.tasks) == ((gained - lost) / tasks, tasks)
    centre, shares = (gained - lost) / (tasks + 2), (gained + lost + 2) / (tasks + 2)
    half = t_quantile(0.975, tasks + 1) * ((shares - centre**2) / (tasks + 1)) ** 0.5
    assert (paired.low, paired.high) == pytest.approx((max(-1, centre - half), min(1, centre + half)))
    assert paired.low < paired.mean < paired.high or paired.mean == paired.high == 1.0


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


def test_the_difference_of_shares_has_the_interval_of_newcombe():
    """Values of Newcombe (1998), Table II, method 10."""
    published = [((56, 70, 48, 80), 0.2, 0.0524, 0.3339), ((9, 10, 3, 10), 0.6, 0.1705, 0.8090)]
    for counts, difference, low, high in published:
        estimate = difference_of_shares(*counts)
        assert (estimate.mean, estimate.low, estimate.high) == pytest.approx((difference, low, high), abs=1e-4)


def test_margins_of_a_step_are_those_of_the_mean_return_over_tasks_of_all_and_of_each_environment():
    played = [("a", "1", 0.5), ("a", "1", 1.0), ("a", "2", 0.0), ("b", "1", 1.0)]
    margins = return_margins(played)
    every = mean_return({"a1": [0.5, 1.0], "a2": [0.0], "b1": [1.0]})
    assert margins["episode/reward_margin"] == pytest.approx((every.high - every.low) / 2)
    assert set(margins) == {"episode/reward_margin", "env/a/reward_margin"}, "one task has no interval"
    assert set(return_margins([("", "1", 0.5), ("", "2", 0.5)])) == {"episode/reward_margin"}
