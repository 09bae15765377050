"""Numbers of opened runs by step, from the index and the metrics log, and their panels."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from itertools import accumulate
from typing import Literal, get_args

from verl_agent.results.findings_steps import StepSummary
from verl_agent.results.statistics import Estimate
from verl_agent.trace.behaviors import BEHAVIORS
from verl_agent.trace.metrics import METRICS
from verl_agent.trace.metrics_log import MetricsLog, read_log
from verl_agent.trace.panels import BLUE, ORANGE, Curve, Panel, PanelKind, changes, usual_window
from verl_agent.trace.run_panels import TRAIN, PlayedSteps, logged_steps, run_panels
from verl_agent.types import StopReason
from verl_agent.viewer.filters import Filter
from verl_agent.viewer.queries import (
    count_uniform_groups,
    mean_divergence,
    mean_returns,
    success_rates,
    summarize_steps,
)
from verl_agent.viewer.state import OpenedSource, in_thread

Axis = Literal["step", "episodes", "turns", "tokens", "hours"]
"""Quantity of the x axis: `hours` count from the first episode to the beginning of a step; `episodes`, `turns` and
`tokens` are sums over the training episodes up to a step."""
AXES: tuple[Axis, ...] = get_args(Axis)
VALIDATION = {"purpose": "validation,evaluation"}
WATCHED = (
    "actor/grad_norm",
    "actor/ppo_kl",
    "actor/pg_clipfrac",
    "episode/tokens_mean",
    "staleness/mean",
    "train/margin",
    "train/grad_norm",
)
"""Metrics that are shown unless others are chosen: of the update, lengths and ages."""
MOST = 24
"""Charts of metrics on one page."""
_MEANINGS = {one.name: f"{one.meaning} ({one.unit})" for one in METRICS}


@dataclass(frozen=True, slots=True)
class RunData:
    """Numbers of one run by step.

    Attributes:
        steps: means over the episodes of each purpose and step.
        uniform: number of training groups whose returns are all equal, and of all training groups, by step.
        divergence: mean first different turn of the training groups, by step.
        rates: success with its interval, by purpose and step.
        returns: mean return with its interval, by purpose and step.
    """

    name: str
    steps: Sequence[StepSummary]
    logged: Mapping[int, Mapping[str, float]]
    uniform: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    divergence: Mapping[int, float] = field(default_factory=dict)
    rates: Mapping[tuple[str, int], Estimate] = field(default_factory=dict)
    returns: Mapping[tuple[str, int], Estimate] = field(default_factory=dict)

    @property
    def usual_window(self) -> int:
        """Number of steps of the running mean unless a reader chooses another one."""
        return usual_window({at.step for at in self.steps} | set(self.logged))

    def of_purpose(self, *purposes: str) -> list[StepSummary]:
        """Return the summaries of these purposes that have a valid episode."""
        return [summary for summary in self.steps if summary.purpose in purposes and summary.episodes]

    def positions(self, axis: Axis) -> dict[int, float]:
        """Return the value of the x axis at each step."""
        every = sorted({summary.step for summary in self.steps} | set(self.logged))
        if axis == "step":
            return {step: float(step) for step in every}
        amounts = dict.fromkeys(every, 0.0)
        if axis == "hours":
            starts = {summary.step: datetime.fromisoformat(summary.started_at).timestamp() for summary in self.steps}
            first = min(starts.values(), default=0.0)
            return {step: (starts[step] - first) / 3600 for step in every if step in starts}
        for summary in self.of_purpose("train"):
            amounts[summary.step] += {
                "episodes": summary.episodes,
                "turns": summary.turns * summary.episodes,
                "tokens": summary.tokens,
            }[axis]
        return dict(zip(every, accumulate(amounts.values()), strict=True))


def read_logs(opened: OpenedSource) -> MetricsLog:
    """Return the metrics log of an opened run; empty for other sources."""
    return read_log(file for file in opened.source.metrics_files() if file.exists())


def read_run(opened: OpenedSource) -> RunData:
    """Return the numbers of an opened run."""
    return RunData(
        opened.key,
        summarize_steps(opened.index, Filter()),
        opened.cached("log", partial(read_logs, opened)).by_step,
        count_uniform_groups(opened.index),
        mean_divergence(opened.index),
        success_rates(opened.index),
        mean_returns(opened.index),
    )


def cached_run(opened: OpenedSource) -> RunData:
    """Return the numbers of an opened run, read again only after it has changed."""
    return opened.cached("run", partial(read_run, opened))


async def fetch_run(opened: OpenedSource) -> RunData:
    """Return `cached_run`; a thread reads, so that other pages are served meanwhile."""
    return await in_thread(partial(cached_run, opened))


def panels(run: RunData) -> list[Panel]:
    """Return the charts of a run; without records, those of its metrics log."""
    train = run.of_purpose("train")
    if not run.of_purpose("train", "validation", "evaluation"):
        return run_panels(logged_steps(run.logged), run.logged)
    played = PlayedSteps(
        _curves(run, {(at.purpose, at.step): at.reward for at in run.steps}, run.returns),
        _curves(run, {(at.purpose, at.step): at.success for at in run.steps}, run.rates),
        {at.step: at.turns for at in train},
        {at.step: float(at.max_turns) for at in train},
        {reason: {at.step: at.stops.get(reason, 0.0) for at in train} for reason in StopReason},
        {one.name: {at.step: at.behaviors[one.name] for at in train} for one in BEHAVIORS},
        run.divergence,
        {at: one / groups for at, (one, groups) in run.uniform.items()},
    )
    return run_panels(played, run.logged)


def _curves(
    run: RunData, means: Mapping[tuple[str, int], float], estimates: Mapping[tuple[str, int], Estimate]
) -> list[Curve]:
    """Return a curve of training and one of validations, with the intervals of their estimates where there are any."""
    found = []
    for name, color, parameters in (("training", BLUE, TRAIN), ("validation", ORANGE, VALIDATION)):
        steps = [(at.purpose, at.step) for at in run.of_purpose(*parameters["purpose"].split(","))]
        values = {at[1]: estimates[at].mean if at in estimates else means[at] for at in steps}
        band = {at[1]: (estimates[at].low, estimates[at].high) for at in steps if at in estimates}
        found.append(Curve(name, values, color, band=band, parameters=parameters, sparse=name == "validation"))
    return found


def metric_names(runs: Iterable[RunData]) -> list[str]:
    """Return the names of all metrics that runs have logged, in order."""
    return sorted({name for run in runs for values in run.logged.values() for name in values})


def watched(runs: Sequence[RunData]) -> list[str]:
    """Return the metrics of `WATCHED` that one of the runs has logged with a value other than 0."""
    return [name for name in WATCHED if any(values.get(name) for run in runs for values in run.logged.values())]


def metric_panels(run: RunData, names: Sequence[str]) -> list[Panel]:
    """Return a chart for each metric that the run has logged, with its meaning where it is one of this package."""
    limits = {at.step: at.max_turns for at in run.of_purpose("train")}
    found = []
    for name in names[:MOST]:
        if values := {step: logged[name] for step, logged in run.logged.items() if name in logged}:
            meaning = _MEANINGS.get(name, "")
            kind = PanelKind(name, meaning and f"{meaning[0].upper()}{meaning[1:]}.")
            found.append(Panel(kind, [Curve(name, values)], changes(limits)))
    return found


def describe_panel(panel: Panel, smooth: int) -> str:
    """Return the note of a chart, and what its lines and areas are."""
    parts = [panel.kind.note]
    if any(curve.band for curve in panel.curves):
        parts.append("Band: 95 % interval over tasks.")
    if panel.borders:
        parts.append("Dotted lines: the turn limit changes.")
    if smooth > 1:
        parts.append(f"Thick lines: mean of {smooth} steps.")
    return " ".join(parts)
