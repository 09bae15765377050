"""Returns that count as equal, so that a group estimator learns nothing from them."""

import math
from collections.abc import Iterable

TOLERANCE = 1e-6
"""Largest difference between two equal returns, relative to the larger one if that is above 1: above the rounding of
float32, and not above the 1e-6 that verl's GRPO adds to standard deviations."""


def is_uniform(returns: Iterable[float]) -> bool:
    """Return True if all returns are equal up to rounding."""
    values = list(returns)
    return math.isclose(min(values), max(values), rel_tol=TOLERANCE, abs_tol=TOLERANCE)
