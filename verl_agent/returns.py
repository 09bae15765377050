"""Return of an episode, and the comparisons that count as equal what differs by rounding alone."""

import math
from collections.abc import Collection, Iterable

TOLERANCE = 1e-6
"""Largest difference between two equal small returns: above the rounding of float32, and not above the 1e-6 that verl's
GRPO adds to standard deviations."""
ROUNDING = 2.0**-23
"""Largest rounding error of a reward that was computed in float32, relative to the reward, with a margin of two."""


def sum_rewards(rewards: Iterable[float]) -> float:
    """Return the exact sum of rewards, rounded once: the same for every order and version of Python."""
    return math.fsum(rewards)


def reaches(rewards: Collection[float], bound: float) -> bool:
    """Return True if the sum of rewards is at least a bound, such as `EnvAdapter.success_reward`, up to rounding.

    Ten rewards of 0.1 reach 1, and so do differences of scores that end at 1. The tolerance is relative to the rewards
    and the bound, so that a bound may be as small as an environment likes. Large rewards that cancel out do not raise
    it above `TOLERANCE`, relative to the bound if that is above 1.
    """
    bound = float(bound)
    rounding = ROUNDING * max(abs(bound), math.fsum(map(abs, rewards)))
    return sum_rewards(rewards) >= bound - min(rounding, TOLERANCE * max(1.0, abs(bound)))


def differs_by(high: float, low: float, gap: float) -> bool:
    """Return True if a return is above another one by at least a gap, > 0, up to rounding; equal ones never are."""
    rounding = ROUNDING * max(abs(high), abs(low))
    return high - low > rounding and high - low >= gap - rounding


def is_uniform(returns: Iterable[float]) -> bool:
    """Return True if all returns are equal up to rounding."""
    values = list(returns)
    return math.isclose(min(values), max(values), rel_tol=ROUNDING, abs_tol=TOLERANCE)
