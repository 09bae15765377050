"""Runs of a study: their overrides, files, points and measures, and the comparisons of arms."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from verl_agent.json_lines import json_lines
from verl_agent.results.significance import holm
from verl_agent.results.statistics import Estimate
from verl_agent.study.inference import (
    COVERAGE,
    ArmComparison,
    Pair,
    Values,
    compare_arms,
    equal_arms,
    over_seeds,
    verdict,
)
from verl_agent.study.plan import Plan
from verl_agent.study.settings import DONE, LOWER_IS_BETTER, MEASURES, POINTS, Study

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

    def warm_start(self, out: Path) -> Path:
        """Return the file of the warm start, that of all arms."""
        return out / "warm" / self.stratum / f"{self.seed}.pt"

    def done(self, out: Path) -> bool:
        """Return True if the run has ended."""
        return (self.folder(out) / DONE).is_file()

    def points(self, out: Path) -> list[Point]:
        """Return the evaluations so far."""
        file = self.folder(out) / POINTS
        return [point for _, point in json_lines(file)] if file.is_file() else []

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
    overrides = [*plan.study.strata[run.stratum], *plan.study.of_recipe(run.arm), f"data.seed={run.seed}"]
    if plan.study.search is not None:
        value = chosen_value(plan, run.stratum, run.arm, out) if run.value is None else run.value
        overrides.append(f"{plan.study.search.key}={value:g}")
    return overrides


def run_study(study: Study, run: Run) -> Study:
    """Return the study as one run sees it: an arm may have keys of `tiny`, and the search has its own budget."""
    study = replace(study, tiny=study.tiny_of(run.arm))
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
    final = float(np.interp(budget, turns, success))
    best = max(final, *(one for at, one in zip(turns, success, strict=True) if at <= budget))
    return {
        "area": area(points, "turns", budget),
        "final": final,
        "gain": final - success[0],
        "best": best,
        "fall": best - final,
        "beyond": points[-1].get("success_beyond", 0.0),
        "turns": points[-1].get("turns_solved", math.nan),
    }[measure]


def area(points: Sequence[Point], over: str, end: float) -> float:
    """Return the mean success of a run over `turns` or `step`, from 0 to an end."""
    grid = np.linspace(0, end, 201)
    curve = np.interp(grid, [point.get(over, 0.0) for point in points], [point["success"] for point in points])
    return float(np.trapezoid(curve, grid) / end)


@dataclass(frozen=True, slots=True)
class Results:
    """Points of the runs of a study that have ended.

    Attributes:
        decided: pairs that successive stopping told apart, each with the arm of larger values.
    """

    plan: Plan
    points: Mapping[Run, Sequence[Point]]
    decided: Mapping[Pair, str] = field(default_factory=dict)

    def bounded(self, seeds: int) -> bool:
        """Return True if an estimate over a number of seeds has an interval.

        Where successive stopping has dropped an arm, only estimates over all seeds have one. Values decided how many
        seeds the others have, so that their intervals would cover too seldom: 48 of 73 of dropped arms in
        `python -m tests.bench.study_coverage`.
        """
        return not self.decided or seeds == len(self.plan.study.seeds)

    def over_seeds(self, by_seed: Values) -> Estimate:
        """Return the mean of values `(seeds,)`, with an interval if it may have one."""
        return over_seeds(by_seed, self.bounded(len(by_seed)))

    def seeds(self, *arms: str) -> list[int]:
        """Return the seeds that all of some arms have in all strata."""
        return [
            seed
            for seed in self.plan.study.seeds
            if all(run in self.points for run in study_runs(self.plan, [seed], arms))
        ]

    def values(self, arm: str, measure: str, seeds: Sequence[int]) -> Values:
        """Return a measure of the runs of an arm, `(strata, seeds)`."""
        budget = self.plan.study.budget_turns
        rows = [[self.points[Run(stratum, arm, seed)] for seed in seeds] for stratum in self.plan.study.strata]
        return np.array([[measured(points, measure, budget) for points in row] for row in rows])

    def measured(self) -> list[str]:
        """Return the measures that the runs have."""
        turns = all(points[-1].get("turns_solved") for points in self.points.values())  # a run may solve nothing
        missing = {"beyond": not self.plan.study.tiny.beyond_turns, "turns": not turns}
        return [name for name in MEASURES if not missing.get(name)]

    def differences(self, arm: str) -> dict[str, Estimate]:
        """Return the difference of an arm to the reference in each measure; empty without a shared seed."""
        reference = self.plan.study.reference_arm
        return {name: one for name in self.measured() if (one := self.difference(arm, reference, name))}

    def difference(self, arm: str, other: str, measure: str) -> Estimate | None:
        """Return the difference of two arms in a measure; None without a shared seed."""
        if not (seeds := self.seeds(arm, other)):
            return None
        own, base = (self.values(name, measure, seeds) for name in (arm, other))
        return self.over_seeds((own - base).mean(0))

    def at_equal_steps(self, arm: str, other: str) -> Estimate | None:
        """Return the difference of two arms in mean success over training steps; None without steps or a shared seed.

        It ends in each stratum at the last step of the shortest of their runs.
        """
        by_stratum = []
        for stratum in self.plan.study.strata:
            pairs = [[self.points[Run(stratum, one, seed)] for one in (arm, other)] for seed in self.seeds(arm, other)]
            end = min((points[-1].get("step", 0.0) for pair in pairs for points in pair), default=0.0)
            if not end:
                return None
            by_stratum.append([area(own, "step", end) - area(base, "step", end) for own, base in pairs])
        return self.over_seeds(np.array(by_stratum).mean(0))

    def notes(self) -> Iterator[str]:
        """Yield sentences on the limits of intervals and verdicts."""
        seeds = [len(found) for _, found in self.shared() if len(found) > 1]
        if covers := [percent for least, percent in COVERAGE.items() if seeds and least <= max(3, min(seeds))]:
            yield f"With {min(seeds)} seeds about {covers[-1]} % of such bootstrap intervals cover, not 95 %."
            yield "Of t intervals about 95 % cover, and 86 % or more where values are skewed."
        if any(not self.bounded(len(found)) for _, found in self.shared()):
            yield (
                "Values without an interval are of fewer seeds, since successive stopping dropped an arm: nothing is "
                "decided by them but what that rule decided."
            )
        if looks := len(self.plan.study.stop.looks):
            yield f"p values are multiplied by {looks}, the number of looks, before they are corrected by Holm."
            if not self.at_look():
                yield f"Verdicts follow after {' and '.join(map(str, self.plan.study.looks))} seeds of all arms only."
        if len(self.plan.study.arms) > 2:
            yield "Equal arms also pass two one-sided t tests within the margin, corrected by Holm over the arms."

    def others(self) -> list[str]:
        """Return the arms but the reference."""
        return [arm for arm in self.plan.study.arms if arm != self.plan.study.reference_arm]

    def settled(self, seeds: int) -> bool:
        """Return True if after a number of seeds each other arm is better or worse than the reference."""
        chosen = list(self.plan.study.seeds[:seeds])
        looked = replace(self, points={run: found for run, found in self.points.items() if run.seed in chosen})
        return looked.at_look() and all(
            said.startswith(("better", "worse")) for _, _, said in looked.compared().values()
        )

    def at_look(self) -> bool:
        """Return True if the study has no looks, or its runs are those of one: all arms have just its seeds."""
        study = self.plan.study
        looks = [list(study.seeds[:look]) for look in study.stop.looks]
        return not looks or {tuple(self.seeds(arm)) for arm in study.arms} in [{tuple(seeds)} for seeds in looks]

    def shared(self) -> list[tuple[str, list[int]]]:
        """Return the arms that have seeds, with them."""
        return [(arm, seeds) for arm in self.plan.study.arms if (seeds := self.seeds(arm))]

    def learned(self) -> bool:
        """Return True if an arm has learned for sure: the interval of its gain is above 0."""
        return any(self.over_seeds(self.values(arm, "gain", seeds).mean(0)).low > 0 for arm, seeds in self.shared())

    def compared(self) -> dict[str, tuple[ArmComparison, float, str]]:
        """Return the comparison of each other arm with the reference, its corrected p value and its verdict."""
        study, reference = self.plan.study, self.plan.study.reference_arm
        looks = max(1, len(study.stop.looks))
        lower, found, compared = study.measure in LOWER_IS_BETTER, {}, {}
        for arm in self.others():
            if seeds := self.seeds(reference, arm):
                own, base = (self.values(name, study.measure, seeds) for name in (arm, reference))
                found[arm] = compare_arms(own, base, lower, self.bounded(len(seeds)))
        at_look, learned, equal = self.at_look(), self.learned(), equal_arms(found, study.margin, looks)
        for (arm, one), p in zip(found.items(), holm([looks * one.p_value for one in found.values()]), strict=True):
            said = verdict(one.difference, p, study.margin, lower, arm in equal)
            larger = self.decided.get((reference, arm)) or self.decided.get((arm, reference))
            if said == "cannot tell" and larger:
                said = f"{'better' if (larger == arm) != lower else 'worse'} by successive stopping"
            few = one.difference.tasks < 2  # one seed says nothing about learning
            if not learned and not few and not said.startswith(("better", "worse")):  # an arm that falls is worse
                said = "cannot tell: no arm learned"
            compared[arm] = one, p, said if at_look else "none between looks"
        return compared
