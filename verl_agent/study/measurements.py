"""Measurements of training in the report of a study: their means, and early warnings of a collapse."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from verl_agent.results.report_files import markdown_table
from verl_agent.study.runs import Point, Results

TRAINING = {
    "signal": "share of groups whose returns differ",
    "uniform": "groups of equal returns, a step",
    "uniform_turns": "share of turns in groups of equal returns",
    "limited": "share of episodes at the turn limit",
    "limited_tokens": "share of tokens in them",
    "turns_mean": "turns of an episode",
    "noise_first": "squared policy gradient at a token's logits, first third of turns",
    "noise_middle": "second third",
    "noise_last": "last third",
    "grad_norm": "gradient norm",
    "invalid": "invalid actions",
    "full_replies": "replies at full length",
    "entropy": "entropy, nats",
    "step": "training steps",
    "tokens": "tokens",
    "cpu_s": "CPU seconds",
}
"""Measurements of training, and their columns."""
THIRDS = tuple(name for name in TRAINING if name.startswith("noise_"))
"""Measurements of a third of the turns."""
TOTALS = ("step", "tokens", "cpu_s")
"""Measurements of training that are totals of a run."""
WARNINGS: dict[str, tuple[str, Callable[[float, float], bool]]] = {
    "invalid": ("invalid actions grew by 0.1", lambda first, last: last > first + 0.1),
    "full_replies": ("replies at full length grew by 0.1", lambda first, last: last > first + 0.1),
    "entropy": ("entropy fell below a third", lambda first, last: last < first / 3),
}
"""Early warnings, from the first to the last point under the last turn limit, since invalid actions are more frequent
under a longer one. With limits by task or group, from the first third of the points to the last third."""


def why(results: Results) -> Iterator[str]:
    """Yield the means of the measurements of training, and the runs with early warnings of a collapse."""
    runs = {arm: [found for run, found in results.points.items() if run.arm == arm] for arm in results.plan.study.arms}
    runs = {arm: found for arm, found in runs.items() if found}
    known = {key for found in runs.values() for points in found for point in points[1:] for key in point}
    if not (shown := [name for name in TRAINING if name in known]):
        return
    yield "\nMeans over the training of all runs:\n"
    rows = []
    for arm, found in runs.items():
        spent = {name: f"{np.mean([one[-1][name] for one in found]):.3g}" for name in shown if name in TOTALS}
        seen = {name: [point[name] for points in found for point in points[1:] if name in point] for name in shown}
        for name in {*THIRDS} & {*seen}:  # 0: no such turn
            seen[name] = [point[name] for points in found for point in with_one_limit(points) if point[name]]
        means = {name: f"{np.mean(values):.3g}" if values else "" for name, values in seen.items()}
        rows.append([arm, *(means | spent).values()])
    yield from markdown_table(["arm", *(TRAINING[name] for name in shown)], rows)
    if known >= WARNINGS.keys():
        yield (
            "Runs with an early warning, of those with two points under their last turn limit, or three points where "
            "limits differ by task or group:\n"
        )
        rows = []
        for arm, found in runs.items():
            ends = [first_and_last(points, arm in results.plan.by_group) for points in found]
            compared = [one for one in ends if one is not None]
            counts = [sum(warns(a[name], b[name]) for a, b in compared) for name, (_, warns) in WARNINGS.items()]
            rows.append([arm, *map(str, (len(compared), *counts))])
        yield from markdown_table(["arm", "runs", *(said for said, _ in WARNINGS.values())], rows)


def with_one_limit(points: Sequence[Point]) -> list[Point]:
    """Return the points whose steps had one turn limit; none if the limits are random, where a mean can be a limit."""
    limits = [point[name] for point in points[1:] if "limit" in point for name in ("max_turns", "limit")]
    ordered = limits in (sorted(limits), sorted(limits, reverse=True))
    return [point for point in points[1:] if ordered and point.get("limit") == point["max_turns"]]


def first_and_last(points: Sequence[Point], by_group: bool) -> tuple[Point, Point] | None:
    """Return the first and the last point under the last turn limit; None if there is one alone.

    Args:
        by_group: groups of one step may have different limits. The points are then the means of the first and of the
            last third, in which no limit is the last one.
    """
    trained = points[1:]
    if by_group:
        third = len(trained) // 3
        return (mean_point(trained[:third]), mean_point(trained[-third:])) if third else None
    same = [point for point in trained if point["max_turns"] == trained[-1]["max_turns"]]
    return (same[0], same[-1]) if len(same) > 1 else None


def mean_point(points: Sequence[Point]) -> Point:
    """Return the means of the early warnings over points."""
    return {name: float(np.mean([point[name] for point in points])) for name in WARNINGS}
