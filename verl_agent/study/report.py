"""Report of a study: tables in Markdown, every point as JSON, and plots."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from verl_agent.errors import ConfigError
from verl_agent.results.significance import holm
from verl_agent.results.statistics import Estimate
from verl_agent.runs.identity import read_settings
from verl_agent.study.execution import RECORD, decisions
from verl_agent.study.inference import (
    Comparison,
    Values,
    bootstrap,
    compare_arms,
    interquartile_mean,
    over_seeds,
    seeds_for,
    verdict,
)
from verl_agent.study.plan import Plan
from verl_agent.study.runs import Point, Run, measured, study_runs
from verl_agent.study.settings import LOWER_IS_BETTER, MEASURES
from verl_agent.trace.provenance import Provenance

FALL = 0.2
"""Fall of success after which a run has collapsed."""


@dataclass(frozen=True, slots=True)
class Results:
    """Points of the runs of a study that have ended."""

    plan: Plan
    points: Mapping[Run, Sequence[Point]]

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

    def compared(self) -> dict[str, tuple[Comparison, float, str]]:
        """Return the comparison of each other arm with the first, its corrected p value and its verdict."""
        study, (first, *others) = self.plan.study, self.plan.study.arms
        lower, found = study.measure in LOWER_IS_BETTER, {}
        for arm in others:
            if seeds := self.seeds(first, arm):
                own, base = (self.values(name, study.measure, seeds) for name in (arm, first))
                found[arm] = compare_arms(own, base, lower)
        corrected = zip(found.items(), holm([one.p_value for one in found.values()]), strict=True)
        return {arm: (one, p, verdict(one.difference, p, study.margin, lower)) for (arm, one), p in corrected}


def write_report(plan: Plan, out: Path) -> list[Path]:
    """Write `report.md`, `report.json` and plots into the folder of a study, and return their paths.

    Raises:
        ConfigError: no run has ended, or the folder is that of another study.
    """
    recorded = read_settings(out, RECORD) or plan.facts
    if recorded["file"] != plan.facts["file"]:
        raise ConfigError(
            f"{out} holds runs of another version of {plan.file}. Restore the file, or give its own --out."
        )
    runs = study_runs(plan, plan.study.seeds, list(plan.study.arms))
    results = Results(plan, {run: run.points(out) for run in runs if run.done(out)})
    if not any(results.seeds(arm) for arm in plan.study.arms):
        raise ConfigError(f"{out}: no arm has a seed that has ended. Play the runs: verl-agent study run {plan.file}")
    compared = results.compared()
    content = {
        "question": plan.study.question,
        "hashes": recorded,
        "provenance": asdict(Provenance.collect()),
        "changes": {"/".join(key): changed for key, changed in plan.changes.items()},
        "comparisons": {arm: {**asdict(one), "holm": p, "verdict": said} for arm, (one, p, said) in compared.items()},
        "points": {str(run.folder(Path())): points for run, points in results.points.items()},
    }
    (out / "report.json").write_text(json.dumps(content, indent=1, default=str) + "\n", encoding="utf-8")
    plots = plot(results, out)
    lines = [*head(results, recorded), *verdicts(results, compared), *told_apart(plan, out), *measures(results)]
    lines += [f"\n![{path.stem}]({path.name})" for path in plots]
    (out / "report.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return [out / "report.md", out / "report.json", *plots]


def head(results: Results, recorded: Mapping[str, str]) -> Iterator[str]:
    """Yield question, state, measure and hashes."""
    study, ended = results.plan.study, len(results.points)
    total = len(study.arms) * len(study.seeds) * len(study.strata)
    yield f"# {results.plan.file.stem}\n\n{' '.join(study.question.split())}\n"
    yield f"{ended} of {total} runs have ended, each with {study.budget_turns:,} environment turns."
    yield f"Primary measure: {study.measure}, the {MEASURES[study.measure]}. Margin: {study.margin:g}."
    yield f"Hashes before the first run: {', '.join(f'{name} `{value}`' for name, value in recorded.items())}."


def verdicts(results: Results, compared: Mapping[str, tuple[Comparison, float, str]]) -> Iterator[str]:
    """Yield the table of the primary measure."""
    study, first = results.plan.study, next(iter(results.plan.study.arms))
    yield f"\n| arm | seeds | {study.measure} | interquartile mean | minus {first} | p (Holm) | better in | verdict |"
    yield "|---|---|---|---|---|---|---|---|"
    for arm in study.arms:
        if not (seeds := results.seeds(arm)):
            yield f"| {arm} | 0 | | | | | | no run has ended |"
            continue
        values, rest = results.values(arm, study.measure, seeds), " | | | "
        if arm in compared:
            one, p, said = compared[arm]
            rest = f"{span(one.difference)} | {p:.3f} | {one.improvement.mean:.0%} of pairs | **{said}**"
        middle = bootstrap([values], lambda arms: interquartile_mean(arms[0]))
        yield f"| {arm} | {len(seeds)} | {span(over_seeds(values.mean(0)))} | {span(middle)} | {rest} |"
    yield "\nMeans and differences: 95 % t intervals over paired seeds. Interquartile means: stratified bootstrap."
    spread = [
        f"{arm} {seeds_for(one.deviation, study.margin)}" for arm, (one, _, _) in compared.items() if one.deviation
    ]
    if spread:
        yield f"Seeds for intervals of ±{study.margin:g}, from the spread so far: {', '.join(spread)}."


def told_apart(plan: Plan, out: Path) -> Iterator[str]:
    """Yield the decisions of successive stopping."""
    if plan.study.stop.rule == "successive":
        pairs = [f"{left} and {right} (larger: {larger})" for (left, right), larger in decisions(plan, out).items()]
        yield f"\nPairs that successive stopping told apart: {', '.join(pairs) or 'none'}."


def measures(results: Results) -> Iterator[str]:
    """Yield the tables of all measures, and of the measurements of the last evaluation, means over seeds and strata."""
    arms = {arm: seeds for arm in results.plan.study.arms if (seeds := results.seeds(arm))}
    known = [name for name in MEASURES if name != "beyond" or results.plan.study.tiny.beyond_turns]
    yield f"\n| arm | {' | '.join(known)} | runs that fell by more than {FALL} |\n{'|---' * (len(known) + 2)}|"
    for arm, seeds in arms.items():
        found = {name: results.values(arm, name, seeds) for name in known}
        fell = f"{int((found['fall'] > FALL).sum())} of {found['fall'].size}"
        yield f"| {arm} | {' | '.join(span(over_seeds(one.mean(0))) for one in found.values())} | {fell} |"
    last = {arm: [points[-1] for run, points in results.points.items() if run.arm == arm] for arm in arms}
    names = [name for name in next(iter(last.values()))[0] if name not in ("points", "success", "success_beyond")]
    yield f"\nAt the last evaluation:\n\n| arm | {' | '.join(names)} |\n{'|---' * (len(names) + 1)}|"
    for arm, points in last.items():
        yield f"| {arm} | {' | '.join(f'{np.mean([point[name] for point in points]):.4g}' for name in names)} |"


def span(estimate: Estimate) -> str:
    """Return an estimate as text; without an interval if it has none."""
    return str(estimate) if np.isfinite(estimate.low) else f"{estimate.mean:.3f}"


def plot(results: Results, out: Path) -> list[Path]:
    """Plot success over environment turns in each stratum, and performance profiles; return the paths."""
    from matplotlib.figure import Figure

    study, paths = results.plan.study, list[Path]()
    grid = np.linspace(0, study.budget_turns, 101)
    for panel in (*study.strata, "profiles"):
        figure = Figure(figsize=(7, 4.5), layout="constrained")
        axes = figure.add_subplot()
        for number, arm in enumerate(study.arms):
            if panel == "profiles":
                values = np.sort(results.values(arm, study.measure, results.seeds(arm)), axis=None)
                axes.step([0, *values], [*np.linspace(1, 0, len(values) + 1)], where="post", label=arm)
                continue
            runs = [points for run, points in results.points.items() if (run.stratum, run.arm) == (panel, arm)]
            curves = [np.interp(grid, [p["turns"] for p in one], [p["success"] for p in one]) for one in runs]
            for curve in curves:
                axes.plot(grid, curve, color=f"C{number}", lw=0.5, alpha=0.4)
            if curves:
                axes.plot(grid, np.mean(curves, axis=0), color=f"C{number}", lw=2, label=f"{arm} ({len(curves)})")
        labels = (
            (study.measure, "share of runs above") if panel == "profiles" else ("environment turns", "held-out success")
        )
        axes.set(xlabel=labels[0], ylabel=labels[1], ylim=(0, 1.02))
        axes.legend()
        paths.append(out / f"{panel if panel == 'profiles' else f'success_{panel}'}.png")
        figure.savefig(paths[-1])
    return paths
