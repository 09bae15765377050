"""Onset of a change in a noisy series: the step at which a level was left for another one."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

MOST_POINTS = 60
"""Points of a series that are fitted; of a longer one, means of equal parts."""
FEWEST_POINTS = 4
LEAST_AFTER = 3
"""Points that a change lasts at least: the last ones may be outliers."""
NOISE = 7.0
"""Least ratio of explained to remaining variance, per degree of freedom, of a change (about p = 0.001)."""


@dataclass(frozen=True, slots=True)
class Onset:
    """Change of a series from one level to another.

    Attributes:
        step: first step that is not at the earlier level.
        before: earlier level.
        after: later level.
    """

    step: int
    before: float
    after: float


def find_onset(values: Mapping[int, float], least: float, rising: bool = True, noise: float = NOISE) -> Onset | None:
    """Return the largest change of a series, or None if it is not above the noise.

    The fit is the ramp with the least squared error: a level, a straight line, another level. A jump is a ramp between
    two neighbours, and a ramp may last to the end.

    Args:
        values: value of each step.
        least: smallest difference of the levels that counts, > 0.
        rising: True for a rise; False for a fall.
        noise: ratio of variances as `NOISE`; lower where something else also tells of the change.
    """
    steps, points = _binned(values)
    if len(points) < FEWEST_POINTS:
        return None
    of_mean = float(((np.array(points) - fmean(points)) ** 2).sum())
    error, start, before, after = _best_ramp(np.array(points))
    left = len(points) - 4
    explained, remaining = (of_mean - error) / 3, error / max(1, left)
    change = (after - before) if rising else (before - after)
    if change < least or explained < noise * remaining:
        return None
    low, high = min(points), max(points)  # a fitted level may lie a little outside, such as a share below 0
    return Onset(steps[start + 1], min(max(before, low), high), min(max(after, low), high))


def _binned(values: Mapping[int, float]) -> tuple[list[int], list[float]]:
    """Return first step and mean of at most `MOST_POINTS` equal parts of a series."""
    steps = sorted(values)
    bounds = [round(part * len(steps) / MOST_POINTS) for part in range(MOST_POINTS + 1)]
    if len(steps) <= MOST_POINTS:
        return steps, [values[step] for step in steps]
    parts = [steps[low:high] for low, high in pairwise(bounds)]
    return [part[0] for part in parts], [fmean(values[step] for step in part) for part in parts]


def _best_ramp(points: NDArray[np.float64]) -> tuple[float, int, float, float]:
    """Return squared error, last index of the first level, and both levels of the ramp with the least error."""
    count = len(points)
    starts, ends = np.triu_indices(count, k=1)
    starts, ends = starts[starts < count - LEAST_AFTER], ends[starts < count - LEAST_AFTER]
    share = np.clip((np.arange(count) - starts[:, None]) / (ends - starts)[:, None], 0, 1)
    # least squares of `before * (1 - share) + after * share`
    a, b, c = ((1 - share) ** 2).sum(1), ((1 - share) * share).sum(1), (share**2).sum(1)
    p, q = (1 - share) @ points, share @ points
    determinant = a * c - b * b
    befores, afters = (p * c - q * b) / determinant, (q * a - p * b) / determinant
    errors = ((points - befores[:, None] * (1 - share) - afters[:, None] * share) ** 2).sum(1)
    best = int(errors.argmin())
    return float(errors[best]), int(starts[best]), float(befores[best]), float(afters[best])
