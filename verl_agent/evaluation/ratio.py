"""Ratio of two success rates, paired by task."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from verl_agent.evaluation.statistics import Estimate, t_quantile

PSEUDO = ((1.0, 0.0), (0.0, 1.0))
"""Pairs of values of the two tasks that are added for the interval, so that it has a width if all tasks agree."""


def paired_ratio(
    values_by_task: Mapping[str, Sequence[float]],
    baseline_by_task: Mapping[str, Sequence[float]],
    confidence: float = 0.95,
) -> Estimate | None:
    """Return the ratio of a success rate to that of a baseline on the same tasks, with an interval over tasks.

    The interval holds every ratio r for which the mean of `value - r * baseline` over tasks does not differ from 0 by a
    t test (Fieller 1954). Two tasks with opposite outcomes, `PSEUDO`, are added to its data, as Agresti and Min (2005)
    do for the difference of paired shares. Without them it covers too seldom if few tasks differ.

    Args:
        values_by_task: 0.0 or 1.0 for each sample of each task.
        baseline_by_task: the same for the baseline, with the same tasks.
        confidence: coverage of the interval, in 0 to 1.

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
