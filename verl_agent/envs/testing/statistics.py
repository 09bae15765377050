"""Statistics of an attack: an interval, a permutation test and a comparison of means."""

import random
from collections.abc import Sequence
from math import comb, prod, sqrt
from statistics import fmean, stdev

from verl_agent.returns import TOLERANCE

PERMUTATIONS = 40_000
"""Draws that estimate the probability of a permutation test."""


def upper_limit(successes: int, trials: int) -> float:
    """Return the upper end of the one-sided 95 % interval of Clopper and Pearson (1934) for a share.

    Without a success it is `1 - 0.05^(1/n)`, about 3/n.
    """
    low, high = successes / trials, 1.0
    for _ in range(40):
        share = (low + high) / 2
        at_most = sum(comb(trials, k) * share**k * (1 - share) ** (trials - k) for k in range(successes + 1))
        low, high = (share, high) if at_most > 0.05 else (low, share)
    return high if successes < trials else 1.0


def chance(attacked: Sequence[float], others: Sequence[Sequence[float]]) -> float:
    """Return the probability of such a sum or a larger one if the attack were one more of the others' episodes.

    A permutation test within tasks: each value of a task is equally likely to be the attack's.
    """
    draws, observed = random.Random(0), sum(attacked) - 1e-9
    pooled = [[value, *values] for value, values in zip(attacked, others, strict=True)]
    if observed >= sum(map(max, pooled)) - 2e-9:  # no sum is larger, so the probability is a product
        largest: float = prod(
            sum(one >= value - 1e-9 for one in values) / len(values)
            for value, values in zip(attacked, pooled, strict=True)
        )
        return largest
    columns = [draws.choices(values, k=PERMUTATIONS) for values in pooled]
    reached: int = sum(sum(row) >= observed for row in zip(*columns, strict=True))
    return (1 + reached) / (1 + PERMUTATIONS)


def surely_above(values: Sequence[float], bound: float) -> bool:
    """Return True if the mean of at least two values is above a bound by three standard errors."""
    return len(values) > 1 and fmean(values) - 3 * stdev(values) / sqrt(len(values)) > bound + TOLERANCE
