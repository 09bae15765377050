"""Report of a study: tables in Markdown, every point as JSON, and plots."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from verl_agent.errors import ConfigError
from verl_agent.results.report_files import markdown_table, write_report
from verl_agent.results.statistics import Estimate
from verl_agent.runs.identity import read_settings
from verl_agent.study.execution import RECORD, code_hashes, decisions
from verl_agent.study.inference import ArmComparison, bootstrap, interquartile_mean, seeds_for
from verl_agent.study.measurements import why
from verl_agent.study.plan import Plan
from verl_agent.study.runs import Results, chosen_value, search_runs, study_runs
from verl_agent.study.settings import MEASURES

REPORT_VERSION = 1
"""Version of the JSON. It increases when a field changes its meaning or disappears."""
FALL = 0.2
"""Fall of success after which a run has collapsed."""


def write_study_report(plan: Plan, out: Path) -> tuple[list[Path], list[str]]:
    """Write `report.md`, `report.json` and plots into the folder of a study.

    Returns:
        Their paths, and a line on each compared arm.

    Raises:
        ConfigError: no run has ended, or the folder is that of another study.
    """
    recorded = read_settings(out, RECORD) or plan.facts
    if recorded["file"] != plan.facts["file"]:
        raise ConfigError(
            f"{out} holds runs of another version of {plan.file}. Restore the file, or give its own --out."
        )
    runs = study_runs(plan, plan.study.seeds, list(plan.study.arms))
    decided = decisions(plan, out) if plan.study.stop.rule == "successive" else {}
    results = Results(plan, {run: run.points(out) for run in runs if run.done(out)}, decided)
    if not any(results.seeds(arm) for arm in plan.study.arms):
        raise ConfigError(f"{out}: no arm has a seed that has ended. Play the runs: verl-agent study run {plan.file}")
    compared = results.compared()
    content = {
        "question": plan.study.question,
        "study": {
            **{name: getattr(plan.study, name) for name in ("measure", "margin", "budget_turns")},
            "runs": len(runs),
            "seeds": len(plan.study.seeds),
        },
        "hashes": recorded,
        "changes": {"/".join(key): changed for key, changed in plan.changes.items()},
        "comparisons": {arm: {**asdict(one), "holm": p, "verdict": said} for arm, (one, p, said) in compared.items()},
        "measures": {
            arm: {
                name: asdict(results.over_seeds(results.values(arm, name, seeds).mean(0)))
                for name in results.measured()
            }
            for arm, seeds in results.shared()
        },
        "differences": {
            arm: {name: asdict(found) for name, found in results.differences(arm).items()} for arm in compared
        },
        "points": {str(run.folder(Path())): points for run, points in results.points.items()},
    }
    plots = plot(results, out)
    lines = [*head(results, recorded), *verdicts(results, compared), *strata_table(results), *told_apart(results)]
    lines += ["\n## All measures", *pairs_tables(results), *measures_tables(results), *why(results)]
    lines += [*searched(plan, out), *(f"\n![{path.stem}]({path.name})" for path in plots)]
    written = write_report(out, "report", REPORT_VERSION, content, "\n".join(lines) + "\n")
    base = plan.study.reference_arm
    answers = [f"{arm} minus {base}: {span(one.difference)}, {said}" for arm, (one, _, said) in compared.items()]
    return [*written, *plots], answers


def head(results: Results, recorded: Mapping[str, Any]) -> Iterator[str]:
    """Yield question, state, measure and hashes."""
    study, ended = results.plan.study, len(results.points)
    total = len(study.arms) * len(study.seeds) * len(study.strata)
    yield f"# {results.plan.file.stem}\n\n{' '.join(study.question.split())}\n"
    yield from (f"* {line}" for line in results.plan.describe_arms())
    yield f"\nRecipe `{Path(study.recipe).name}`, runner `{study.runner}`."
    yield f"{ended} of {total} runs have ended, compared at {study.budget_turns:,} environment turns."
    yield f"Primary measure: {study.measure}, the {MEASURES[study.measure]}. Margin: {study.margin:g}."
    yield from (f"{line[0].upper()}{line[1:]}." for line in results.plan.describe_seen())
    first, *later = code_hashes(recorded)
    hashes = {name: recorded[name] for name in ("file", "configs")} | {"code": first or "unknown"}
    yield f"Hashes before the first run: {', '.join(f'{name} `{value}`' for name, value in hashes.items())}."
    if later:
        yield f"Later runs had other code: {', '.join(f'`{value}`' for value in later)}."
    if recorded["configs"] != (now := results.plan.facts["configs"]):
        yield f"The recipe or its defaults have changed since; their configs now have the hash `{now}`."


def verdicts(results: Results, compared: Mapping[str, tuple[ArmComparison, float, str]]) -> Iterator[str]:
    """Yield the table of the primary measure."""
    study = results.plan.study
    heads = ["arm", "seeds", study.measure, "interquartile mean", f"minus {study.reference_arm}", "p (Holm)"]
    rows = []
    for arm in study.arms:
        if not (seeds := results.seeds(arm)):
            rows.append([arm, "0", *[""] * 5, "no run has ended"])
            continue
        values, minus = results.values(arm, study.measure, seeds), [""] * 4
        if arm in compared:
            found, p, said = compared[arm]
            p_shown = p_text(p) if results.bounded(found.difference.tasks) else ""
            minus = [span(found.difference), p_shown, f"{found.improvement.mean:.0%}", said]
        middle = bootstrap([values], lambda arms: interquartile_mean(arms[0]), bounded=results.bounded(len(seeds)))
        rows.append([arm, str(len(seeds)), span(results.over_seeds(values.mean(0))), span(middle), *minus])
    yield from ("", *markdown_table([*heads, "better in, of all pairs of runs", "verdict"], rows))
    if all(len(seeds) < 2 for _, seeds in results.shared()):
        yield "\nOne seed has no interval: it shows how a run goes, and decides nothing."
    elif not results.learned():
        yield "\n**No arm has learned for sure: no interval of the gain excludes 0. Equal arms then say nothing.**"
    yield "\nMeans and differences: 95 % t intervals over paired seeds. Interquartile means: stratified bootstrap."
    yield from results.notes()
    yield from (f"{line[0].upper()}{line[1:]}." for line in results.plan.describe_least_seeds())
    spreads = {arm: one for arm, (one, _, _) in compared.items() if one.deviation and not one.difference.too_few}
    if spread := [f"{arm} {seeds_for(one.deviation, study.margin)}" for arm, one in spreads.items()]:
        yield f"Seeds that an interval of ±{study.margin:g} needs, from the spread so far: {', '.join(spread)}."


def strata_table(results: Results) -> Iterator[str]:
    """Yield the primary measure in each of several strata: an arm may gain in one and lose in another."""
    study, reference = results.plan.study, results.plan.study.reference_arm
    if len(study.strata) > 1:
        yield f"\n{study.measure} in each stratum; minus {reference} over paired seeds, not corrected:\n"
        rows = []
        for arm in study.arms:
            if not (seeds := results.seeds(reference, arm)):
                continue
            own, base = (results.values(one, study.measure, seeds) for one in (arm, reference))
            pairs = zip(own, own - base, strict=True)
            cells = [f"{span(results.over_seeds(value))}; {span(results.over_seeds(minus))}" for value, minus in pairs]
            rows.append([arm, *cells])
        yield from markdown_table(["arm", *study.strata], rows)


def told_apart(results: Results) -> Iterator[str]:
    """Yield the decisions of the stopping rule."""
    study = results.plan.study
    if study.stop.rule == "looks":
        ended = next(
            (f"ended after {seeds}" for seeds in study.looks if results.settled(seeds)), "not ended by one yet"
        )
        yield f"\nLooks after {' and '.join(map(str, study.looks))} seeds: {ended}."
    if study.stop.rule == "successive":
        said = [f"{left} and {right} (larger: {larger})" for (left, right), larger in results.decided.items()]
        yield f"\nPairs that successive stopping told apart: {', '.join(said) or 'none'}."


def searched(plan: Plan, out: Path) -> Iterator[str]:
    """Yield the values that the search chose."""
    if plan.study.search is not None and all(run.done(out) for run in search_runs(plan)):
        edges = {min(plan.study.search.values): " (least tried)", max(plan.study.search.values): " (largest tried)"}
        chosen = list[str]()
        for stratum, arm in plan.changes:
            value = chosen_value(plan, stratum, arm, out)
            name = f"{stratum}, {arm}" if len(plan.study.strata) > 1 else arm
            chosen.append(f"{name} {value:g}{edges.get(value, '')}")
        yield f"\n{plan.study.search.key} by the search: {'; '.join(chosen)}."


def measures_tables(results: Results) -> Iterator[str]:
    """Yield two tables: the mean of each measure over seeds and strata, and its difference to the reference."""
    known, rows = results.measured(), []
    for arm, seeds in results.shared():
        fell = results.values(arm, "fall", seeds) > FALL
        means = [span(results.over_seeds(results.values(arm, name, seeds).mean(0))) for name in known]
        rows.append([arm, *means, f"{int(fell.sum())} of {fell.size}"])
    yield from ("", *markdown_table(["arm", *known, f"runs that fell by more than {FALL}"], rows))
    yield f"Minus {results.plan.study.reference_arm}, means over paired seeds, not corrected:\n"
    minus = [(arm, results.differences(arm)) for arm in results.others()]
    rows = [[arm, *(span(found[name]) if found else "" for name in known)] for arm, found in minus]
    yield from markdown_table(["arm", *known], rows)


def pairs_tables(results: Results) -> Iterator[str]:
    """Yield the differences of all pairs of arms, in the primary measure and after equal training steps."""
    measure = results.plan.study.measure
    if len(results.plan.study.arms) > 2:  # else it is in the table of verdicts
        yield from pairs_table(results, measure, lambda row, column: results.difference(row, column, measure))
    said = "after equal updates: mean success up to the last training step of the shortest run of both arms"
    yield from pairs_table(results, said, results.at_equal_steps)


def pairs_table(results: Results, said: str, difference: Callable[[str, str], Estimate | None]) -> Iterator[str]:
    """Yield a difference of all pairs of arms, for a reader who asks what lies between two of them."""
    arms = list(results.plan.study.arms)
    found = {(row, column): one for column, row in combinations(arms, 2) if (one := difference(row, column))}
    if found:
        yield f"\nRow minus column, {said}, means over paired seeds, not corrected:\n"
        cells = {pair: span(difference) for pair, difference in found.items()}
        rows = [[row, *(cells.get((row, column), "") for column in arms[:-1])] for row in arms[1:]]
        yield from markdown_table(["", *arms[:-1]], rows)


def span(estimate: Estimate) -> str:
    """Return an estimate as text; without an interval if it has none."""
    return str(estimate) if np.isfinite(estimate.low) else f"{estimate.mean:.3f}"


def p_text(p_value: float) -> str:
    """Return a p value as text."""
    return f"{p_value:.3f}" if p_value >= 0.001 else "below 0.001"


def plot(results: Results, out: Path) -> list[Path]:
    """Plot success over environment turns in each stratum, and performance profiles; return the paths."""
    from matplotlib.figure import Figure

    from verl_agent.trace.curves import save_figure

    study, paths = results.plan.study, list[Path]()
    grid = np.linspace(0, study.budget_turns, 101)
    for panel in (*study.strata, "profiles"):
        axes = (figure := Figure(figsize=(7, 4.5), layout="constrained")).add_subplot()
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
        x, y = (study.measure, "share of runs above") if panel == "profiles" else ("environment turns", "success")
        axes.set(xlabel=x, ylabel=y, ylim=(0, 1.02))
        axes.legend()
        paths.append(out / f"{panel if panel == 'profiles' else f'success_{panel}'}.png")
        save_figure(figure, paths[-1])
    return paths
