"""Runs of a study: their overrides, files, points and measures."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from verl_agent.study.plan import Plan
from verl_agent.study.settings import DONE, FRESH, LOWER_IS_BETTER, POINTS, Study

Point = dict[str, float]
"""Evaluation of a run: `turns`, `success` and further measurements."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a stratum and an arm; one of the search has a value of the searched setting."""

    stratum: str
    arm: str
    seed: int
    value: float | None = None

    def folder(self, out: Path) -> Path:
        """Return the folder of the run."""
        return (
            out
            / ("runs" if self.value is None else f"search/{self.value:g}")
            / self.stratum
            / self.arm
            / str(self.seed)
        )

    def done(self, out: Path) -> bool:
        """Return True if the run has ended."""
        return (self.folder(out) / DONE).is_file()

    def points(self, out: Path) -> list[Point]:
        """Return the evaluations so far."""
        file = self.folder(out) / POINTS
        return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.is_file() else []

    def __str__(self) -> str:
        return f"{self.stratum}, {self.arm}, seed {self.seed}{'' if self.value is None else f', search {self.value:g}'}"


def search_runs(plan: Plan) -> list[Run]:
    """Return the runs of the search, ordered by seed."""
    if (search := plan.study.search) is None:
        return []
    pairs = [(stratum, arm) for stratum in plan.study.strata for arm in plan.study.arms]
    return [Run(*pair, seed, value) for seed in search.seeds for pair in pairs for value in search.values]


def study_runs(plan: Plan, seeds: Sequence[int], arms: Sequence[str]) -> list[Run]:
    """Return the runs of some seeds and arms, ordered by seed."""
    return [Run(stratum, arm, seed) for seed in seeds for stratum in plan.study.strata for arm in arms]


def run_overrides(plan: Plan, run: Run, out: Path) -> list[str]:
    """Return the overrides of a run: those of stratum and arm, the searched setting, and its seed."""
    own = [one for one in plan.study.arms[run.arm] if one != FRESH]
    overrides = [*plan.study.strata[run.stratum], *own, f"data.seed={run.seed}"]
    if plan.study.search is not None:
        value = chosen_value(plan, run.stratum, run.arm, out) if run.value is None else run.value
        overrides.append(f"{plan.study.search.key}={value:g}")
    return overrides


def run_study(study: Study, run: Run) -> Study:
    """Return the study as one run sees it: an arm may have a fresh optimizer, and the search has its own budget."""
    if FRESH in study.arms[run.arm]:
        study = replace(study, tiny=replace(study.tiny, fresh_optimizer=True))
    if run.value is not None and study.search is not None:
        study = replace(study, budget_turns=study.search.turns(study.budget_turns))
    return study


def chosen_value(plan: Plan, stratum: str, arm: str, out: Path) -> float:
    """Return the searched value with the best mean of the primary measure, once the search has ended."""
    sums: dict[float, float] = {}
    assert plan.study.search is not None  # the caller checks it
    for run in search_runs(plan):
        if run.value is not None and (run.stratum, run.arm) == (stratum, arm):
            sums[run.value] = sums.get(run.value, 0.0) + measured(
                run.points(out), plan.study.measure, plan.study.search.turns(plan.study.budget_turns)
            )
    best = min if plan.study.measure in LOWER_IS_BETTER else max
    return best(sums, key=lambda value: sums[value])


def measured(points: Sequence[Point], measure: str, budget: int) -> float:
    """Return a measure of a run, see `MEASURES`. Success between two evaluations is interpolated linearly."""
    turns, success = [point["turns"] for point in points], [point["success"] for point in points]
    grid = np.linspace(0, budget, 201)
    curve = np.interp(grid, turns, success)
    best = max(one for at, one in zip(turns, success, strict=True) if at <= budget or at == turns[-1])
    return {
        "area": float(np.trapezoid(curve, grid) / budget),
        "final": float(curve[-1]),
        "gain": float(curve[-1]) - success[0],
        "best": best,
        "fall": best - float(curve[-1]),
        "beyond": points[-1].get("success_beyond", 0.0),
        "turns": points[-1].get("turns_solved", math.nan),
    }[measure]
