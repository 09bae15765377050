"""Analysis of runs with several seeds: gains with intervals, and success by environment steps. Pure functions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from verl_agent.results.statistics import mean_over_tasks

COLLAPSE = 0.2
"""Share of success that a run may lose from its best validation to its last before it counts as collapsed."""


@dataclass(frozen=True, slots=True)
class Point:
    """One validation of a run.

    Attributes:
        step: training step.
        env_steps: turns of training episodes until this validation.
        seconds: duration of training until this validation.
        success: share of solved validation episodes, 0 to 1.
    """

    step: int
    env_steps: int
    seconds: float
    success: float


def over_seeds(values: Sequence[float]) -> str:
    """Return the mean over seeds with its 95 % t interval; a single seed has no interval."""
    if len(values) == 1:
        return f"{values[0]:.3f}"
    return str(mean_over_tasks({str(seed): [value] for seed, value in enumerate(values)}))


def at_budget(run: Sequence[Point], env_steps: int) -> float:
    """Return the success after a number of environment steps, linearly interpolated between two validations."""
    return float(np.interp(env_steps, [point.env_steps for point in run], [point.success for point in run]))


def reached(run: Sequence[Point], success: float) -> Point | None:
    """Return the first validation with at least that success, or None."""
    return next((point for point in run if point.success >= success), None)


def collapsed(run: Sequence[Point]) -> bool:
    """Return True if the last validation is far below the best."""
    return max(point.success for point in run) - run[-1].success > COLLAPSE


def compare(arms: Mapping[str, Sequence[Sequence[Point]]], target: float) -> dict[str, dict[str, object]]:
    """Compare the arms of a study at the number of environment steps that every run has reached.

    Args:
        arms: runs of each arm, one for each seed, with validations in order.
        target: success whose cost in environment steps and seconds is reported.

    Returns:
        Figures of a table for each arm, as plain values.
    """
    budget = min(run[-1].env_steps for runs in arms.values() for run in runs)
    table: dict[str, dict[str, object]] = {}
    for name, runs in arms.items():
        success = [at_budget(run, budget) for run in runs]
        first = [reached(run, target) for run in runs]
        costs = [point for point in first if point]
        table[name] = {
            "seeds": len(runs),
            "env_steps": budget,
            "before": over_seeds([run[0].success for run in runs]),
            "success": over_seeds(success),
            "gain": over_seeds([after - run[0].success for after, run in zip(success, runs, strict=True)]),
            "reached_target": f"{len(costs)} of {len(runs)}",
            "env_steps_to_target": over_seeds([p.env_steps for p in costs]) if costs else "-",
            "seconds_to_target": over_seeds([p.seconds for p in costs]) if costs else "-",
            "collapsed": sum(map(collapsed, runs)),
        }
    return table


def paired(arms: Mapping[str, Sequence[Sequence[Point]]]) -> dict[str, dict[str, object]]:
    """Compare each arm with the first one, seed by seed; runs at the same place have the same seed.

    Returns:
        Figures of a table for each arm: the difference of the success at the common number of environment steps, and
        of its mean over all environment steps until then, and of the success after the last training step, that is
        after the same number of episodes; each with a 95 % t interval over seeds.
    """
    budget = min(run[-1].env_steps for runs in arms.values() for run in runs)
    grid = np.linspace(0, budget, 101)
    means = {
        name: [float(np.mean([at_budget(run, int(steps)) for steps in grid])) for run in runs]
        for name, runs in arms.items()
    }
    ends = {name: [at_budget(run, budget) for run in runs] for name, runs in arms.items()}
    last = {name: [run[-1].success for run in runs] for name, runs in arms.items()}
    reference = next(iter(arms))
    return {
        name: {
            "mean_success": over_seeds(means[name]),
            **{
                figure: "-"
                if name == reference
                else over_seeds([own - other for own, other in zip(values[name], values[reference], strict=True)])
                for figure, values in (
                    ("paired_success", ends),
                    ("paired_mean_success", means),
                    ("paired_last_success", last),
                )
            },
        }
        for name in arms
    }
