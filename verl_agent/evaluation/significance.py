"""Tests of paired differences between policies, and their correction for several comparisons."""

import random
from collections.abc import Sequence
from itertools import product

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

    Args:
        differences: difference of each task.
        seed: seed of the random assignments.
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
