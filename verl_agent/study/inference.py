"""Statistics of a study: means over paired seeds, interquartile means with a bootstrap, verdicts, and early stopping.

Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice" (arXiv 2108.13264), names
interquartile mean, probability of improvement and performance profiles. A stratum is what a task is there.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from verl_agent.results.significance import sign_flip_p_value
from verl_agent.results.statistics import Estimate, mean_over_tasks, t_quantile

Values = NDArray[np.float64]
"""Values of one arm, `(strata, seeds)`."""
RESAMPLES = 4_000
"""Resamples of a bootstrap."""
COVERAGE = {3: 74, 4: 83, 5: 90, 8: 93}
"""Percent of bootstrap intervals of interquartile means that cover, by seeds: the least of normal, skewed and
two-peaked values in one stratum, `python -m tests.bench.study_coverage`."""
ALPHA = 0.05
DRAWS = 10_000
"""Random permutations."""
Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class ArmComparison:
    """Comparison of an arm with the reference, over the seeds that both have.

    Attributes:
        difference: mean difference, with a t interval over seeds.
        improvement: probability that a run of the arm is better than one of the other, with a bootstrap interval.
        p_value: two-sided p value of the mean difference, by permutation of signs; not corrected.
        deviation: standard deviation of the differences over seeds; 0 with one seed.
    """

    difference: Estimate
    improvement: Estimate
    p_value: float
    deviation: float


def compare_arms(arm: Values, reference: Values, lower_is_better: bool = False, bounded: bool = True) -> ArmComparison:
    """Compare two arms whose columns are the same seeds; without intervals and with a p value of 1 if not `bounded`."""
    by_seed, sign = (arm - reference).mean(0), -1 if lower_is_better else 1
    return ArmComparison(
        over_seeds(by_seed, bounded),
        bootstrap([sign * arm, sign * reference], lambda arms: probability_of_improvement(*arms), bounded=bounded),
        sign_flip_p_value(by_seed.tolist()) if bounded else 1.0,
        float(by_seed.std(ddof=1)) if len(by_seed) > 1 else 0.0,
    )


def over_seeds(values: Values, bounded: bool = True) -> Estimate:
    """Return the mean of values `(seeds,)` with a t interval; that of one seed is not bounded.

    For 3 to 16 seeds 92 to 96 % of the intervals cover if the values are normal, and 86 to 93 % if they are as skewed
    as an exponential distribution (`python -m tests.bench.study_coverage`).

    Args:
        bounded: False for an estimate without an interval.
    """
    if len(values) == 1 or not bounded:
        return Estimate(float(values.mean()), -math.inf, math.inf, len(values))
    return mean_over_tasks({str(seed): [float(value)] for seed, value in enumerate(values)}, 1 - ALPHA)


def bootstrap(
    arms: Sequence[Values], statistic: Callable[[Sequence[Values]], float], seed: int = 0, bounded: bool = True
) -> Estimate:
    """Return a statistic of arms with its percentile interval over resampled seeds, shared in each stratum.

    With few seeds these intervals are too narrow, see `COVERAGE`. They have no bounds if not `bounded`.
    """
    strata, seeds = arms[0].shape
    if not bounded:
        return Estimate(statistic(arms), -math.inf, math.inf, seeds)
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


def equal_arms(found: Mapping[str, ArmComparison], margin: float, looks: int = 1) -> set[str]:
    """Return the arms that are equal to the reference within the margin, corrected for their number and for the looks.

    Each has two one-sided t tests at `ALPHA` (Schuirmann 1987), corrected by Holm: of m arms that are left, one is
    equal if its t interval with a probability of `1 - ALPHA / looks / m` on each side lies within the margin; then the
    next one is tested with m - 1. So the probability that any arm outside of the margin is called equal at any look is
    at most `ALPHA`.
    """
    equal = set[str]()

    def passes(one: ArmComparison) -> bool:
        seeds, left = one.difference.tasks, len(found) - len(equal)
        if one.difference.too_few or not math.isfinite(one.difference.low):
            return False
        half = t_quantile(1 - ALPHA / looks / left, seeds - 1) * one.deviation / math.sqrt(seeds)
        return abs(one.difference.mean) + half <= margin

    while arm := next((arm for arm, one in found.items() if arm not in equal and passes(one)), None):
        equal.add(arm)
    return equal


def verdict(
    difference: Estimate, corrected_p: float, margin: float, lower_is_better: bool = False, equal: bool = True
) -> str:
    """Return what a study may say about an arm and the reference.

    Args:
        equal: False if the arm is not one of `equal_arms`.

    Returns:
        `cannot tell` with fewer than `MIN_TASKS` seeds, whose spread says little. Else `equal within the margin` if the
        whole interval lies within the margin and `equal` is true; else `better` or `worse` if the interval excludes 0
        and the p value is at most 0.05; else `cannot tell`.
    """
    if difference.too_few:
        return "cannot tell"
    if equal and -margin <= difference.low and difference.high <= margin:
        return "equal within the margin"
    if corrected_p <= ALPHA and not difference.low <= 0 <= difference.high:
        return "better" if (difference.mean < 0) == lower_is_better else "worse"
    return "cannot tell"


def least_seeds(arms: int, looks: int = 1) -> int:
    """Return the seeds from which an arm of a study can be better or worse.

    Of n signs, the least p value is 2 / 2**n. It is multiplied by the number of looks, and by Holm the smallest one by
    the number of compared arms.
    """
    return math.ceil(math.log2(2 * (arms - 1) * looks / ALPHA))


def first_decision(seeds: int, block: int, alpha: float) -> int | None:
    """Return the seeds after which successive stopping can decide a pair for the first time; None for never.

    Of the ways to divide the 2n runs of a block of two arms, two give the largest difference, and blocks multiply.
    """
    least, ends = 2.0, range(0, seeds, block)
    for start in ends:
        size = min(block, seeds - start)
        least /= math.comb(2 * size, size)
        if least <= alpha / len(ends):
            return start + size
    return None


def seeds_for(deviation: float, half_width: float) -> int:
    """Return the seeds with which an interval has a half-width, from the deviation of the differences over seeds."""
    seeds = 2
    while t_quantile(1 - ALPHA / 2, seeds - 1) * deviation / math.sqrt(seeds) > half_width:
        seeds += 1
    return seeds


def decided_pairs(
    blocks: Sequence[Mapping[str, Sequence[float]]], most_blocks: int, alpha: float, seed: int = 0
) -> dict[Pair, str]:
    """Return the pairs of arms that differ, each with the arm of larger values, after some blocks of runs.

    This is the successive stopping of AdaStop (Mathieu et al., arXiv 2306.10882).

    The statistic of a pair after block k is |sum over the blocks of (sum of one arm - sum of the other)|. Its reference
    are permutations of the runs of the two arms within each block. Step-down over pairs: while the largest statistic
    of the undecided pairs reaches the threshold, its pair is decided and left out. The threshold of block k is the
    smallest one that permutations without an earlier decision reach with a share of at most `alpha / most_blocks`.
    Equal arms are then told apart anywhere with a probability of at most `alpha`.

    Args:
        blocks: values of each arm, by block; an arm that a block lacks was dropped before.
        most_blocks: blocks of the whole study.
        alpha: see above.
        seed: seed of the permutations.
    """
    pairs = list(combinations(blocks[0], 2)) if blocks else []
    observed, drawn = dict.fromkeys(pairs, 0.0), {pair: np.zeros(DRAWS) for pair in pairs}
    decided: dict[Pair, str] = {}
    random, alive = np.random.default_rng(seed), np.ones(DRAWS, dtype=bool)
    for block in blocks:
        pairs = [pair for pair in pairs if pair not in decided and block.keys() >= set(pair)]
        for pair in pairs:
            left, right = (np.asarray(block[arm], dtype=float) for arm in pair)
            pooled = np.concatenate([left, right])
            order = random.random((DRAWS, len(pooled))).argsort(1)
            drawn[pair] += 2 * pooled[order[:, : len(left)]].sum(1) - pooled.sum()
            observed[pair] += left.sum() - right.sum()
        while pairs:
            largest = np.max([np.abs(drawn[pair]) for pair in pairs], axis=0)
            reached = np.sort(np.where(alive, largest, -1.0))[::-1]
            allowed = int(alpha / most_blocks * (DRAWS + 1)) - 1  # the observed value counts as a draw
            threshold = float(reached[allowed]) + 1e-9 if allowed >= 0 else float("inf")
            widest = max(pairs, key=lambda pair: abs(observed[pair]))
            if abs(observed[widest]) < threshold:
                alive &= largest < threshold
                break
            decided[widest] = widest[0] if observed[widest] > 0 else widest[1]
            pairs.remove(widest)
    return decided


def hopeless(decided: Mapping[Pair, str], lower_is_better: bool = False) -> set[str]:
    """Return the arms that are worse than another one."""
    return {next(arm for arm in pair if (arm == larger) == lower_is_better) for pair, larger in decided.items()}
