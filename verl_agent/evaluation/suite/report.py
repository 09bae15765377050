"""Report of a suite, with the outcomes of earlier runs: a row for each category and model, means, and transfer."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.table import Table

from verl_agent.evaluation.report import plain_table
from verl_agent.evaluation.suite.run import OTHER_MODEL, SuiteOutcome, outcome_of_report, played_model
from verl_agent.evaluation.suite.settings import Suite
from verl_agent.evaluation.training_differences import run_of_model
from verl_agent.results.folder import REPORT, planned_records, read_report
from verl_agent.results.leaderboard import SOURCE, published_rates
from verl_agent.results.leaderboard_report import FEW, to_cell
from verl_agent.results.report_files import escaped, markdown_table, write_report
from verl_agent.results.results import ALL, CategoryResult, summarize
from verl_agent.results.statistics import MIN_TASKS, Estimate, macro_mean
from verl_agent.runs.identity import differences, read_settings
from verl_agent.terminal import styled
from verl_agent.trace.provenance import read_json

SUITE_VERSION = 1
"""Version of the JSON. It increases when a field changes its meaning or disappears."""
JSON = "suite.json"
WITH_RESULT = ("played", "partial")
"""Statuses of evaluations with a result."""


@dataclass(frozen=True, slots=True)
class SuiteRow:
    """Result of one model on one category of a suite.

    Attributes:
        substitute: True if the tasks stand in for others that need outside data.
        status: status of the evaluation; `skipped` or `failed` rows have no result.
    """

    model: str
    evaluation: str
    category: str
    substitute: bool
    status: str
    reason: str
    result: CategoryResult | None

    @property
    def success(self) -> Estimate | None:
        """Success rate with its interval; None without a valid episode."""
        return self.result.success if self.result else None


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """Results of one model over a suite.

    Attributes:
        trained_on: environments of the run that trained the model; empty if they are not known.
        categories: number of categories of the suite, substitutes left out.
        measured: number of these with a valid episode.
        mean: mean of the success rates of the measured categories; None without one.
        by_evaluation: success rate over all tasks of each evaluation.
    """

    model: str
    trained_on: Sequence[str]
    categories: int
    measured: int
    mean: Estimate | None
    by_evaluation: Mapping[str, Estimate]


@dataclass(frozen=True)
class SuiteReport:
    """Report of the outcomes of a suite, for files and for the terminal. Each evaluation is read once."""

    suite: Suite
    outcomes: Sequence[SuiteOutcome]

    @cached_property
    def results(self) -> list[list[CategoryResult]]:
        """Results of each outcome by category, those over all tasks last; empty for one without a result."""
        return list(map(_results, self.outcomes))

    @cached_property
    def rows(self) -> list[SuiteRow]:
        """Rows in the order of the evaluations; categories that the suite does not list follow."""
        rows = []
        for outcome, results in zip(self.outcomes, self.results, strict=True):
            entry = self.suite.listed[outcome.evaluation]
            found = {result.category: result for result in results}
            others = [name for name in found if name != ALL and name not in entry.categories]
            for category in [*entry.categories, *others]:
                known = (category, entry.substitute, outcome.status, outcome.reason)
                rows.append(SuiteRow(outcome.model, outcome.evaluation, *known, found.get(category)))
        return rows

    @cached_property
    def models(self) -> list[ModelSummary]:
        """Means of each model."""
        summaries = []
        for model in dict.fromkeys(outcome.model for outcome in self.outcomes):
            own = [row for row in self.rows if row.model == model and not row.substitute]
            rates = [row.success for row in own if row.success is not None]
            played = [
                pair for pair in zip(self.outcomes, self.results, strict=True) if pair[0].model == model and pair[1]
            ]
            overall = {one.evaluation: results[-1].success for one, results in played if results[-1].success}
            trained_on = next(filter(None, (_trained_on(outcome) for outcome, _ in played)), [])
            mean = macro_mean(rates) if rates else None
            summaries.append(ModelSummary(model, trained_on, len(own), len(rates), mean, overall))
        return summaries

    def write(self, folder: Path) -> list[Path]:
        """Write JSON and Markdown into the folder of the suite, and return their paths."""
        facts = {
            "suite": self.suite.file.stem,
            "published_source": SOURCE,
            "rows": [asdict(row) for row in self.rows],
            "models": [asdict(model) for model in self.models],
        }
        return write_report(folder, "suite", SUITE_VERSION, facts, self.markdown())

    def table(self) -> Table:
        """Return the table for the terminal: a row for each category, a column for each model."""
        table = plain_table(self.suite.file.stem, "evaluation", "category")
        for model in self.models:
            table.add_column(styled(model.model), justify="right")
        for cells in self._by_model(self.rows, _text):
            table.add_row(*map(styled, cells))
        return table

    def markdown(self) -> str:
        """Return the tables: categories, substitutes, mean returns, skipped evaluations and transfer."""
        heads = ["evaluation", "category", *(model.model for model in self.models)]
        lines = [
            f"# {self.suite.file.stem}\n",
            "Success with 95 % intervals over tasks; behind each the number of tasks.\n",
        ]
        for title, substitute in (("Categories", False), ("Substitutes, which need no outside data", True)):
            chosen = [row for row in self.rows if row.substitute is substitute]
            if not chosen:
                continue
            table = self._by_model(chosen, lambda row: to_cell(row.success) or row.status)
            if not substitute:
                table.append(["", "mean", *(to_cell(model.mean) for model in self.models)])
                table.append(
                    ["", "measured", *(f"{one.measured} of {one.categories} categories" for one in self.models)]
                )
            lines += [f"## {title}\n", *markdown_table(heads, table)]
        returns = self._by_model(self.rows, lambda row: to_cell(row.result.mean_return if row.result else None))
        if any(any(cells[2:]) for cells in returns):
            lines += ["## Mean return\n", "In the units of each evaluation, with 95 % intervals over tasks.\n"]
            lines += markdown_table(heads, returns)
        if any(row.success and row.success.too_few for row in self.rows):
            lines.append(f"{escaped(FEW)} fewer than {MIN_TASKS} tasks: too few for a reliable interval.\n")
        if incomplete := self._incomplete():
            lines += ["## Skipped or not complete\n", *incomplete, ""]
        return "\n".join([*lines, *self._transfer()])

    def _by_model(self, rows: Sequence[SuiteRow], cell: Callable[[SuiteRow], str]) -> list[list[str]]:
        """Return a line for each evaluation and category, with a cell for each model."""
        cells = {(row.evaluation, row.category, row.model): cell(row) for row in rows}
        return [
            [evaluation, category, *(cells.get((evaluation, category, one.model), "") for one in self.models)]
            for evaluation, category in dict.fromkeys((row.evaluation, row.category) for row in rows)
        ]

    def _transfer(self) -> list[str]:
        """Return the table with the success of each model on all tasks of each evaluation, and published rates."""
        known = {name for model in self.models for name in model.by_evaluation}
        envs = {outcome.evaluation: outcome.env for outcome in self.outcomes if outcome.evaluation in known}
        if not envs:
            return []
        rows = [
            [model.model, ", ".join(model.trained_on), *(to_cell(model.by_evaluation.get(name)) for name in envs)]
            for model in self.models
        ]
        by_evaluation = {name: published_rates(env) for name, env in envs.items() if env == name}
        for model_name in dict.fromkeys(name for rates in by_evaluation.values() for name in rates):
            rates = [by_evaluation.get(name, {}).get(model_name) for name in envs]
            rows.append([f"{model_name} (published)", "", *("" if rate is None else f"{rate:.3f}" for rate in rates)])
        lines = ["## Models by evaluation\n", *markdown_table(["model", "trained on", *envs], rows)]
        if by_evaluation:
            lines += [f"Published: {SOURCE}. Its tasks, prompts and budgets may differ.", ""]
        return lines

    def _incomplete(self) -> list[str]:
        """Return a line for each evaluation, status and reason that is not complete, with the models it concerns."""
        models: dict[tuple[str, str, str], list[str]] = defaultdict(list)
        for outcome in self.outcomes:
            if outcome.reason:
                models[outcome.evaluation, outcome.status, outcome.reason].append(outcome.model)
        return [
            f"* {', '.join([name, *(found if len(found) < len(self.models) else ()), status])}: {escaped(reason)}"
            for (name, status, reason), found in models.items()
        ]


def _text(row: SuiteRow) -> str:
    """Return success and, below it, the return, each with interval and number of tasks; or the status."""
    if row.result is None or row.success is None:
        return row.status
    return f"{row.success} ({row.success.tasks})\n{row.result.mean_return} return"


def _results(outcome: SuiteOutcome) -> list[CategoryResult]:
    if outcome.status not in WITH_RESULT:
        return []
    count_operated = read_report(outcome.folder)["config"]["evaluation"].get("count_operated", False)
    return summarize(planned_records(outcome.folder), count_operated)


def _trained_on(outcome: SuiteOutcome) -> list[str]:
    """Return the environments of the run that trained the model of an evaluation; empty if it is not known."""
    run = run_of_model(str(read_report(outcome.folder)["model"]))
    env = read_settings(run).get("env", {}) if run else {}
    mixture = env.get("mixture") if isinstance(env, Mapping) else None
    entries = mixture if isinstance(mixture, list) else [env]
    return list(dict.fromkeys(str(one["name"]) for one in entries if isinstance(one, Mapping) and one.get("name")))


def with_earlier(suite: Suite, outcomes: Sequence[SuiteOutcome], into: Path) -> list[SuiteOutcome]:
    """Return the outcomes of a run and, for all other evaluations and models, those that the folder holds.

    Results are read again from the folders of the evaluations. `suite.json` has the reasons for which the others were
    skipped or failed. Results of another model with the same name, or of other weights, count as failed.

    Returns:
        The outcomes in the order of the suite's file, and of each evaluation those of this run first.
    """
    played = list(dict.fromkeys(one.model for one in outcomes))
    unplayed = _without_result(into)
    reports = {path.parent.parent.name for name in suite.listed for path in into.glob(f"*/{name}/{REPORT}")}
    models = [*played, *sorted((reports | {model for model, _ in unplayed}) - set(played))]
    found = {(one.model, one.evaluation): one for one in outcomes}
    for name in suite.listed:
        for model in models:
            folder = (into / model / name).resolve()
            if (model, name) in found:
                continue
            if (folder / REPORT).is_file():
                env = str(read_report(folder)["config"]["env"]["name"])
                found[model, name] = outcome_of_report(model, name, env, folder)
            elif (model, name) in unplayed:
                found[model, name] = unplayed[model, name]
    first: dict[str, Mapping[str, Any]] = {}
    for key, one in list(found.items()):  # those of this run first
        if one.status in WITH_RESULT:
            own = played_model(one.folder)
            if any(differences(first.setdefault(one.model, own), own)):
                found[key] = replace(one, status="failed", reason=OTHER_MODEL)
    return [found[model, name] for name in suite.listed for model in models if (model, name) in found]


def _without_result(into: Path) -> dict[tuple[str, str], SuiteOutcome]:
    """Return the skipped and failed outcomes of the last run, by the names of model and evaluation."""
    if not (into / JSON).is_file():
        return {}
    rows = read_json(into / JSON, "Delete it; the command writes it again.", ["rows"])["rows"]
    return {
        (row["model"], row["evaluation"]): SuiteOutcome(
            row["model"], row["evaluation"], "", into / row["model"] / row["evaluation"], row["status"], row["reason"]
        )
        for row in rows
        if row["status"] in ("skipped", "failed")
    }
