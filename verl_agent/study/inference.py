"""Statistics of a study: means over paired seeds, interquartile means with a stratified bootstrap, and verdicts.

Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice" (arXiv 2108.13264), names
interquartile mean, probability of improvement and performance profiles. A stratum is what a task is there.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from verl_agent.results.significance import sign_flip_p_value
from verl_agent.results.statistics import Estimate, mean_over_tasks, t_quantile

Values = NDArray[np.float64]
"""Values of one arm, `(strata, seeds)`."""
RESAMPLES = 4_000
"""Resamples of a bootstrap."""
ALPHA = 0.05


@dataclass(frozen=True, slots=True)
class ArmComparison:
    """Comparison of an arm with the first one, over the seeds that both have.

    Attributes:
        difference: mean difference, with a t interval over seeds.
        iqm_difference: difference of interquartile means, with a bootstrap interval.
        improvement: probability that a run of the arm is better than one of the first arm, with a bootstrap interval.
        p_value: two-sided p value of the mean difference, by permutation of signs; not corrected.
        deviation: standard deviation of the differences over seeds; 0 with one seed.
    """

    difference: Estimate
    iqm_difference: Estimate
    improvement: Estimate
    p_value: float
    deviation: float


def compare_arms(arm: Values, first: Values, lower_is_better: bool = False) -> ArmComparison:
    """Compare two arms whose columns are the same seeds."""
    by_seed, sign = (arm - first).mean(0), -1 if lower_is_better else 1
    return ArmComparison(
        over_seeds(by_seed),
        bootstrap([arm, first], lambda arms: interquartile_mean(arms[0]) - interquartile_mean(arms[1])),
        bootstrap([sign * arm, sign * first], lambda arms: probability_of_improvement(*arms)),
        sign_flip_p_value(by_seed.tolist()),
        float(by_seed.std(ddof=1)) if len(by_seed) > 1 else 0.0,
    )


def over_seeds(values: Values) -> Estimate:
    """Return the mean of values `(seeds,)` with a t interval; that of one seed is not bounded.

    For 3 to 16 seeds a t interval covers what it promises, which a percentile bootstrap does not.
    """
    if len(values) == 1:
        return Estimate(float(values[0]), -math.inf, math.inf, 1)
    return mean_over_tasks({str(seed): [float(value)] for seed, value in enumerate(values)}, 1 - ALPHA)


def bootstrap(arms: Sequence[Values], statistic: Callable[[Sequence[Values]], float], seed: int = 0) -> Estimate:
    """Return a statistic of arms with its percentile interval over resampled seeds, shared in each stratum."""
    strata, seeds = arms[0].shape
    picks = np.random.default_rng(seed).integers(0, seeds, (RESAMPLES, strata, seeds))
    drawn = [statistic([np.take_along_axis(arm, pick, 1) for arm in arms]) for pick in picks]
    low, high = np.quantile(drawn, [ALPHA / 2, 1 - ALPHA / 2])
    return Estimate(statistic(arms), float(low), float(high), seeds)


def interquartile_mean(values: Values) -> float:
    """Return the mean without the lowest and the highest quarter, rounded down to whole values."""
    cut = values.size // 4
    return float(np.sort(values, axis=None)[cut : values.size - cut].mean())


def probability_of_improvement(arm: Values, first: Values) -> float:
    """Return the share of pairs of runs in which the arm is better, equal ones half; the mean over strata."""
    larger = arm[:, :, None] - first[:, None, :]
    return float(((larger > 0) + 0.5 * (larger == 0)).mean())


def verdict(difference: Estimate, corrected_p: float, margin: float, lower_is_better: bool = False) -> str:
    """Return what a study may say about an arm and the first one.

    Returns:
        `cannot tell` with fewer than `MIN_TASKS` seeds, whose spread says little. Else `equal within the margin` if the
        whole interval lies within the margin; else `better` or `worse` if the interval
        excludes 0 and the p value is at most 0.05; else `cannot tell`.
    """
    if difference.too_few:
        return "cannot tell"
    if -margin <= difference.low and difference.high <= margin:
        return "equal within the margin"
    if corrected_p <= ALPHA and not difference.low <= 0 <= difference.high:
        return "better" if (difference.mean < 0) == lower_is_better else "worse"
    return "cannot tell"


def seeds_for(deviation: float, half_width: float) -> int:
    """Return the seeds with which an interval has a half-width, from the deviation of the differences over seeds."""
    seeds = 2
    while t_quantile(1 - ALPHA / 2, seeds - 1) * deviation / math.sqrt(seeds) > half_width:
        seeds += 1
    return seeds
