"""Measure the coverage of printed intervals by simulation: differences, means over categories, ratios, best-of-n."""

from collections.abc import Callable, Iterable, Sequence
from math import comb
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from verl_agent.results.scaling import interval_of_shares
from verl_agent.results.selectors import majority
from verl_agent.results.significance import difference_of_shares, paired_ratio
from verl_agent.results.statistics import (
    Estimate,
    clustered_wilson_interval,
    macro_mean,
    paired_difference,
    pass_at_k,
    pass_hat_k,
    wilson_interval,
)

LEAST = 0.92
"""Least coverage of a 95 % interval; Wilson's own for a single rate is 0.92 at worst beyond very few tasks."""


def coverage(data: Any, truth: float, interval: Callable[[list[Any]], Estimate | None]) -> float:
    """Return the share of simulated data sets whose interval holds the truth; equal ones are computed once."""
    rows, counts = np.unique(np.asarray(data), axis=0, return_counts=True)
    found = [(interval(row), count) for row, count in zip(rows.tolist(), counts.tolist(), strict=True)]
    held = sum(count for one, count in found if one is not None and one.low - 1e-9 <= truth <= one.high + 1e-9)
    return float(held / sum(count for one, count in found if one is not None))


def exact(truth: float, tasks: int) -> float:
    """Return the coverage of Wilson's interval for independent tasks, by enumeration."""
    covering = [k for k in range(tasks + 1) if (one := wilson_interval(k, tasks)).low <= truth <= one.high]
    return sum(comb(tasks, k) * truth**k * (1 - truth) ** (tasks - k) for k in covering)


def by_task(values: Iterable[float]) -> dict[str, list[float]]:
    return {str(task): [value] for task, value in enumerate(values)}


def paired(wins_losses: Sequence[int], tasks: int) -> Estimate:
    wins, losses = wins_losses
    values = [1.0] * wins + [0.0] * (tasks - wins)
    return paired_difference(by_task(values), by_task([0.0] * (tasks - losses) + [1.0] * losses))


@pytest.mark.parametrize(
    ("tasks", "gained", "lost"),
    [
        *((80, 0.06, 0.0), (100, 0.05, 0.0), (200, 0.03, 0.0), (400, 0.015, 0.0), (20, 0.1, 0.0), (5, 0.2, 0.0)),
        *((17, 0.95, 0.0), (20, 0.02, 0.02), (50, 0.1, 0.02), (100, 0.05, 0.02), (100, 0.3, 0.2), (3, 0.3, 0.1)),
    ],
)
def test_paired_differences_are_covered_when_few_tasks_differ_one_way(tasks, gained, lost):
    """A t interval without the two added tasks covers 0.85 to 0.88 in the first two cases, 0.59 in the seventh."""
    drawn = np.random.default_rng(0).multinomial(tasks, (gained, lost, 1 - gained - lost), 1500)[:, :2]
    assert coverage(drawn, gained - lost, lambda row: paired(row, tasks)) >= LEAST


@pytest.mark.parametrize("tasks", [5, 40])
@pytest.mark.parametrize("samples", [4, 16])
@pytest.mark.parametrize(
    ("rate", "baseline", "correlation"), [(0.3, 0.3, 0.3), (0.05, 0.01, 0.3), (0.98, 0.9, 0.3), (0.02, 0.02, 0.6)]
)
def test_paired_differences_are_covered_with_several_samples(tasks, samples, rate, baseline, correlation):
    random, scale = np.random.default_rng(0), 1 / correlation - 1
    sides = [
        random.binomial(samples, random.beta(mean * scale, (1 - mean) * scale, (200, tasks))) / samples
        for mean in (rate, baseline)
    ]

    def interval(row: list[float]) -> Estimate:
        return paired_difference(by_task(row[:tasks]), by_task(row[tasks:]))

    assert coverage(np.hstack(sides), rate - baseline, interval) >= LEAST


@pytest.mark.parametrize("samples", [4, 16])
def test_paired_differences_are_covered_when_few_tasks_change_wholly(samples):
    """The rest has no difference, so that a t interval covers 0.88."""
    gains = np.random.default_rng(0).binomial(100, 0.05, (1000, 1))

    def interval(row: list[int]) -> Estimate:
        values = {str(task): [float(task < row[0])] * samples for task in range(100)}
        return paired_difference(values, {task: [0.0] * samples for task in values})

    assert coverage(gains, 0.05, interval) >= LEAST


def test_several_samples_narrow_the_interval_of_a_paired_difference():
    few, many = (
        paired_difference(
            {str(task): [1.0, 0.0] * half for task in range(50)},
            {str(task): [1.0, 0.0, 0.0, 0.0] * half if task % 2 else [1.0, 0.0] * half for task in range(50)},
        )
        for half in (2, 8)
    )
    single = paired_difference(
        by_task(float(task % 2) for task in range(50)), by_task(float(task % 4 == 1) for task in range(50))
    )
    assert few == many and few.mean == pytest.approx(0.125)
    assert few.high - few.low < 0.5 * (single.high - single.low)


PAPER = (31, 41, 25, 3, 55, 15, 5, 5, 5, 5, 53, 83, 44, 5, 15, *[50] * 6, 100, 15, 15, 10, 5, 5)
"""Numbers of tasks of the 27 categories of the paper."""


@pytest.mark.parametrize(
    ("tasks", "rates"),
    [
        *(([50] * 27, [0.98] * 27), ([20] * 27, [0.05] * 27), ([5] * 27, [0.1] * 27), ([30] * 27, [0.5] * 27)),
        *((PAPER, [0.02] * 27), (PAPER, [0.97] * 27), (PAPER, [0.01, 0.99] * 13 + [0.5]), ([50] * 6, [0.98] * 6)),
        *(([22, 54, 21, 3], [0.95, 0.9, 0.3, 0.02]), ([22, 54, 21, 3], [0.98] * 4)),
        *(([53, 83, 44, 5, 15], [0.0, 0.0, 0.0, 0.3, 0.0]), ([50, 15, 5, 5, 8], [0.9, 0.7, 0.4, 0.2, 0.6])),
    ],
)
def test_means_over_categories_are_covered_also_at_extreme_rates(tasks, rates):
    """Joining the intervals of the categories covers 0.86 to 0.90 in the first three cases with extreme rates."""
    drawn = np.random.default_rng(0).binomial(tasks, rates, (300, len(rates)))

    def interval(row: list[int]) -> Estimate:
        return macro_mean([wilson_interval(solved, of) for solved, of in zip(row, tasks, strict=True)])

    assert coverage(drawn, fmean(rates), interval) >= LEAST


@pytest.mark.parametrize("rates", [[0.97] * 9, [0.03] * 9, [0.1, 0.5, 0.9] * 3])
def test_means_over_categories_are_covered_with_several_samples(rates):
    """Nine categories of 12 tasks with 4 correlated samples each."""
    random, scale, shape = np.random.default_rng(0), 1 / 0.5 - 1, (150, len(rates), 12)
    chances = random.beta(np.array(rates)[:, None] * scale, (1 - np.array(rates)[:, None]) * scale, shape)
    drawn = random.binomial(4, chances).reshape(150, -1)

    def interval(row: list[int]) -> Estimate:
        tasks = [[1.0] * solved + [0.0] * (4 - solved) for solved in row]
        parts = (tasks[begin : begin + 12] for begin in range(0, len(tasks), 12))
        return macro_mean([clustered_wilson_interval(dict(enumerate(part))) for part in parts])

    assert coverage(drawn, fmean(rates), interval) >= LEAST


def test_the_mean_of_one_category_has_its_own_interval():
    one = wilson_interval(3, 10)
    mean = macro_mean([one])
    assert (mean.mean, mean.low, mean.high) == pytest.approx((one.mean, one.low, one.high))


def test_a_macro_mean_of_other_estimates_than_rates_raises_value_error():
    with pytest.raises(ValueError, match="needs success rates with their trials"):
        macro_mean([Estimate(0.5, 0.4, 0.6, 10)])


@pytest.mark.parametrize(
    ("trials", "rate", "other_trials", "other"),
    [(10, 0.5, 10, 0.2), (20, 0.05, 20, 0.05), (8, 0.9, 8, 0.5), (40, 0.99, 10, 0.9), (30, 0.3, 60, 0.3)],
)
def test_differences_of_independent_shares_are_covered(trials, rate, other_trials, other):
    drawn = np.random.default_rng(0).binomial((trials, other_trials), (rate, other), (2000, 2))
    covered = coverage(drawn, rate - other, lambda row: difference_of_shares(row[0], trials, row[1], other_trials))
    assert covered >= LEAST


@pytest.mark.parametrize(
    ("tasks", "clean", "kept", "gained"),
    [
        *((100, 0.9, 0.95, 0.0), (20, 0.5, 0.5, 0.1), (200, 0.3, 0.9, 0.01), (100, 0.95, 0.99, 0.0)),
        *((50, 0.2, 0.5, 0.05), (50, 0.6, 0.0, 0.0)),
    ],
)
def test_ratios_of_success_rates_are_covered(tasks, clean, kept, gained):
    chances = (clean * kept, clean * (1 - kept), (1 - clean) * gained, (1 - clean) * (1 - gained))
    drawn = np.random.default_rng(0).multinomial(tasks, chances, 300)

    def interval(row: list[int]) -> Estimate | None:
        after, before = ((1.0, 0.0, 1.0, 0.0), (1.0, 1.0, 0.0, 0.0))
        sides = (
            [value for value, count in zip(side, row, strict=True) for _ in range(count)] for side in (after, before)
        )
        return paired_ratio(*map(by_task, sides))

    assert coverage(drawn, (clean * kept + (1 - clean) * gained) / clean, interval) >= LEAST


@pytest.mark.parametrize("rate", [0.02, 0.3, 0.9])
@pytest.mark.parametrize("k", [1, 2, 4])
@pytest.mark.parametrize("estimator", [pass_at_k, pass_hat_k])
def test_points_over_samples_are_covered(rate, k, estimator):
    """Success of the best and of the worst of k among 4 samples, over 30 tasks with a correlation of 0.4.

    Wilson's own coverage varies with the rate and is below 0.92 at some.
    """
    random, scale = np.random.default_rng(0), 1 / 0.4 - 1
    solved = random.binomial(4, random.beta(rate * scale, (1 - rate) * scale, (300, 30)))
    chances = random.beta(rate * scale, (1 - rate) * scale, 200_000)
    truth = float(np.mean(1 - (1 - chances) ** k if estimator is pass_at_k else chances**k))
    shares = {count: estimator(4, count, k) for count in range(5)}
    covered = coverage(
        np.sort(solved), truth, lambda row: interval_of_shares({str(n): shares[count] for n, count in enumerate(row)})
    )
    assert covered >= min(LEAST, exact(truth, 30) - 0.03)


def test_points_of_a_selector_are_covered():
    """Majority of 3 samples of 30 tasks; a sample is right with the chance of its task, else one of 2 wrong answers."""
    random = np.random.default_rng(0)

    def answers(simulations: int) -> Any:
        right = random.random((simulations, 30, 3)) < random.beta(1, 1, (simulations, 30, 1))
        return np.where(right, 0, random.integers(1, 3, (simulations, 30, 3)))

    def share(given: Sequence[int]) -> float:
        weights = majority([{"turns": [{"action": str(answer)}]} for answer in given])  # type: ignore[typeddict-item]
        return sum(weight for weight, answer in zip(weights, given, strict=True) if answer == 0)

    choices = {given: share(given) for given in {tuple(sorted(one)) for one in np.ndindex(3, 3, 3)}}
    shares = np.vectorize(lambda *given: choices[tuple(sorted(given))])(*np.moveaxis(answers(3000), 2, 0))
    covered = coverage(
        np.sort(shares[:400]),
        float(shares.mean()),
        lambda row: interval_of_shares({str(n): one for n, one in enumerate(row)}),
    )
    assert covered >= LEAST


@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.6, 1.0])
@pytest.mark.parametrize(("tasks", "samples"), [(5, 1), (5, 4), (20, 8), (100, 4)])
def test_success_rates_are_covered_as_by_wilsons_interval_for_independent_tasks(tasks, samples, correlation):
    """Wilson's own coverage varies with the rate: 0.895 for 10 tasks at a rate of 0.99, 0.95 on average over rates.

    A task's chance of success is drawn from the beta distribution with this correlation of two samples.
    """

    def interval(row: list[int]) -> Estimate:
        return clustered_wilson_interval({str(n): [1.0] * c + [0.0] * (samples - c) for n, c in enumerate(row)})

    random, covered = np.random.default_rng(0), []
    for rate in (0.01, 0.05, 0.3, 0.5, 0.9, 0.99):
        chances: Any = random.random((400, tasks)) < rate if correlation == 1 else rate
        if 0 < correlation < 1:
            scale = 1 / correlation - 1
            chances = random.beta(rate * scale, (1 - rate) * scale, (400, tasks))
        covered.append(coverage(np.sort(random.binomial(samples, chances, (400, tasks))), rate, interval))
        assert covered[-1] > min(exact(rate, tasks), 0.94) - 0.04, rate
    assert fmean(covered) > 0.93
