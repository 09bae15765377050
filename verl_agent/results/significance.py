"""Comparisons of policies: ratios, differences of independent shares, p values and their correction."""

import math
import random
from collections.abc import Mapping, Sequence
from itertools import product
from statistics import fmean
from typing import Any

from verl_agent.results.statistics import Estimate, t_quantile, wilson_interval

PSEUDO = ((1.0, 0.0), (0.0, 1.0))
"""Pairs of values of the two tasks that are added for the interval, so that it has a width if all tasks agree."""


def paired_ratio(
    values_by_task: Mapping[Any, Sequence[float]],
    baseline_by_task: Mapping[Any, Sequence[float]],
    confidence: float = 0.95,
) -> Estimate | None:
    """Return the ratio of a success rate to that of a baseline on the same tasks, with an interval over tasks.

    The interval holds every ratio r for which the mean of `value - r * baseline` over tasks does not differ from 0 by a
    t test (Fieller 1954). Two tasks with opposite outcomes, `PSEUDO`, are added to its data, as Agresti and Min (2005)
    do for the difference of paired shares. Without them it covers too seldom if few tasks differ.

    Args:
        values_by_task: 0.0 or 1.0 for each sample of each task.
        baseline_by_task: the same for the baseline, with the same tasks.

    Returns:
        None if the ratio has no bounded interval, because the baseline solves too few tasks.
    """
    pairs = [(fmean(values), fmean(baseline_by_task[task])) for task, values in values_by_task.items()]
    base = fmean(y for _, y in pairs)
    data = [*pairs, *PSEUDO]
    mean_x, mean_y = fmean(x for x, _ in data), fmean(y for _, y in data)
    factor = t_quantile((1 + confidence) / 2, len(data) - 1) ** 2 / len(data) / (len(data) - 1)
    square_x = mean_x**2 - factor * math.fsum((x - mean_x) ** 2 for x, _ in data)
    product = mean_x * mean_y - factor * math.fsum((x - mean_x) * (y - mean_y) for x, y in data)
    square_y = mean_y**2 - factor * math.fsum((y - mean_y) ** 2 for _, y in data)
    if square_y <= 0 or base == 0:
        return None
    width = math.sqrt(max(0.0, product**2 - square_x * square_y))
    low, high = max(0.0, (product - width) / square_y), (product + width) / square_y
    ratio = fmean(x for x, _ in pairs) / base
    return Estimate(ratio, min(low, ratio), max(high, ratio), len(pairs))


def difference_of_shares(
    successes: int, trials: int, baseline_successes: int, baseline_trials: int, confidence: float = 0.95
) -> Estimate:
    """Return the difference of two shares of independent trials with the hybrid score interval of Newcombe (1998).

    It is method 10 of "Interval estimation for the difference between independent proportions". Let l and u be the
    Wilson limits of each share p. The interval of d = p - p' begins at `d - sqrt((p - l)² + (u' - p')²)` and ends at
    `d + sqrt((u - p)² + (p' - l')²)`. It stays in -1 to 1 and has a width even if all trials of a side agree.

    Args:
        successes: successes of the side that is compared.
        trials: trials of that side, >= 1.
        baseline_successes: successes of the baseline.
        baseline_trials: trials of the baseline, >= 1.

    Returns:
        The difference to the baseline; `tasks` is the smaller number of trials.
    """
    side, baseline = (
        wilson_interval(count, of, confidence)
        for count, of in ((successes, trials), (baseline_successes, baseline_trials))
    )
    difference = side.mean - baseline.mean
    low = difference - math.hypot(side.mean - side.low, baseline.high - baseline.mean)
    high = difference + math.hypot(side.high - side.mean, baseline.mean - baseline.low)
    return Estimate(difference, low, high, min(trials, baseline_trials))


EXACT = 12
"""Most tasks for which all signs are enumerated."""
DRAWS = 10_000
"""Random assignments of signs for more tasks."""


def sign_flip_p_value(differences: Sequence[float], seed: int = 0) -> float:
    """Return the two-sided p value of paired differences, by permutation of their signs.

    If neither policy is better, the difference of each task is as likely to have the other sign (Fisher 1935, The
    Design of Experiments, section 21). The p value is the share of assignments of signs whose sum is at least as far
    from 0 as the observed one. All assignments are enumerated up to `EXACT` tasks with a difference. For more,
    `DRAWS` random ones are drawn, and the observed one is added (Phipson and Smyth 2010).
    """
    values = [one for one in differences if one]
    if not values:
        return 1.0
    observed = abs(sum(values)) - 1e-9
    if len(values) <= EXACT:
        signs = product((1, -1), repeat=len(values))
        sums = [abs(sum(sign * value for sign, value in zip(chosen, values, strict=True))) for chosen in signs]
        return sum(one >= observed for one in sums) / len(sums)
    draws, total, least = random.Random(seed), sum(values), 1
    for _ in range(DRAWS):
        bits = draws.getrandbits(len(values))
        flipped = sum(value for index, value in enumerate(values) if bits >> index & 1)
        least += abs(total - 2 * flipped) >= observed
    return least / (DRAWS + 1)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p values adjusted for several comparisons, in the same order (Holm 1979).

    The probability that any true null hypothesis has an adjusted p value of at most alpha is at most alpha.
    """
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted
