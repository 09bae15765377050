"""Curves of runs as options of ECharts: data in, plain dicts out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, Literal, get_args

from verl_agent.results.findings_steps import StepSummary
from verl_agent.results.statistics import Estimate
from verl_agent.trace import panels as kinds
from verl_agent.trace.behaviors import BEHAVIORS
from verl_agent.trace.metrics_log import ENTROPY, GAP_LOG_PROB, GAP_PROBABILITY, MetricsLog, first_logged, read_log
from verl_agent.trace.panels import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    STOP_COLOURS,
    Curve,
    Panel,
    PanelKind,
    mean_over_steps,
    with_data,
)
from verl_agent.types import StopReason
from verl_agent.viewer.axes import COLORS, SHARES, axis_of, band
from verl_agent.viewer.filters import Filter
from verl_agent.viewer.queries import (
    count_uniform_groups,
    mean_divergence,
    mean_returns,
    success_rates,
    summarize_steps,
)
from verl_agent.viewer.state import OpenedSource

MOST_CURVES = 6
"""Curves of a chart; more cannot be told apart."""

Axis = Literal["step", "episodes", "turns", "tokens", "hours"]
"""Quantity of the x axis: `hours` count from the first episode to the beginning of a step; `episodes`, `turns` and
`tokens` are sums over the training episodes up to a step."""
AXES: tuple[Axis, ...] = get_args(Axis)
TRAIN, VALIDATION = {"purpose": "train"}, {"purpose": "validation,evaluation"}
BORDER = {"color": GREY, "type": "dotted"}
"""Line at a step with a new turn limit."""
PHASE = "timing_s/"
"""Prefix of the seconds of a step's phases in the metrics log."""
PHASES = ("gen", "old_log_prob", "values", "adv", "update_critic", "update_actor", "update_weights", "testing")
"""Phases that are shown, as verl names them."""
TESTING = "testing"


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


def panels(run: RunData) -> list[Panel]:
    """Return the charts of a run, without those that have no data."""
    train, validation = run.of_purpose("train"), run.of_purpose("validation", "evaluation")
    logged = partial(first_logged, run.logged)
    every = [
        Panel(kinds.RETURN, [
            _estimates("train", run.returns, {(at.purpose, at.step): at.reward for at in train}, BLUE, TRAIN),
            _estimates(
                "validation", run.returns, {(at.purpose, at.step): at.reward for at in validation}, ORANGE, VALIDATION
            ),
        ]),
        Panel(kinds.SUCCESS, [
            _success("train", run, train, BLUE, TRAIN),
            _success("validation", run, validation, ORANGE, VALIDATION),
        ]),
        Panel(kinds.TURNS, [
            Curve("turns", {at.step: at.turns for at in train}, parameters=TRAIN),
            Curve("turn limit", {at.step: float(at.max_turns) for at in train}, GREY, dashed=True),
        ]),
        Panel(kinds.STOPS, [
            Curve(
                reason,
                {at.step: at.stops.get(reason, 0.0) for at in train},
                STOP_COLOURS[reason],
                stack="stop",
                parameters=TRAIN | {"stop": reason},
            )
            for reason in StopReason
            if any(reason in at.stops for at in train)
        ]),
        Panel(kinds.TURN_BEHAVIORS, _in_colors([
            Curve(one.name, values, parameters=TRAIN | {one.name: "1.."})
            for one in BEHAVIORS
            if any((values := {at.step: at.behaviors[one.name] for at in train}).values())
        ])),
        Panel(kinds.EPISODE_BEHAVIORS, _in_colors([
            Curve(one.name, values)
            for one in BEHAVIORS
            if any((values := logged(f"behavior/{one.name}")).values())
        ])),
        Panel(kinds.DIVERGENCE, [Curve("turn", run.divergence, GREEN, parameters=TRAIN)]),
        Panel(kinds.EQUAL_GROUPS, [
            Curve("groups", {at: one / groups for at, (one, groups) in run.uniform.items()}, PURPLE, parameters=TRAIN),
        ]),
        Panel(kinds.ENTROPY_KIND, [Curve("entropy", logged(*ENTROPY))]),
        Panel(kinds.GAP_PROBABILITY_KIND, [Curve("difference", logged(*GAP_PROBABILITY))]),
        Panel(
            kinds.GAP_LOG_PROB_KIND,
            [Curve("difference", {} if logged(*GAP_PROBABILITY) else logged(*GAP_LOG_PROB))],
        ),
        Panel(kinds.SECONDS, _in_colors([
            Curve(phase, values, stack="seconds")
            for phase, values in _phases(logged).items()
            if values
        ])),
    ]  # fmt: skip
    return [Panel(panel.kind, _most(panel.curves)) for panel in with_data(every)]


def _phases(logged: Callable[[str], Mapping[int, float]]) -> dict[str, Mapping[int, float]]:
    """Return the seconds of each phase by step; `rest` is what a step took beside them, so that the sum is the step."""
    phases = {phase: logged(PHASE + phase) for phase in PHASES}
    of_step = [values for phase, values in phases.items() if phase != TESTING]  # tests follow a step
    rest = {
        step: max(0.0, seconds - sum(values.get(step, 0.0) for values in of_step))
        for step, seconds in logged(f"{PHASE}step").items()
    }
    return {**phases, "rest": rest if any(rest.values()) else {}}


def _success(name: str, run: RunData, steps: Sequence[StepSummary], color: str, parameters: Mapping[str, str]) -> Curve:
    """Return the curve of the success rates with their intervals."""
    return _estimates(name, run.rates, {(at.purpose, at.step): at.success for at in steps}, color, parameters)


def _estimates(
    name: str,
    estimates: Mapping[tuple[str, int], Estimate],
    means: Mapping[tuple[str, int], float],
    color: str,
    parameters: Mapping[str, str],
) -> Curve:
    """Return the curve of estimates by purpose and step, with their intervals; means where there is no estimate."""
    known = {at: estimates[at] for at in means if at in estimates}
    band = {step: (one.low, one.high) for (_, step), one in known.items()}
    values = {at[1]: known[at].mean if at in known else mean for at, mean in means.items()}
    return Curve(name, values, color, band=band, parameters=parameters)


def _in_colors(curves: Sequence[Curve]) -> list[Curve]:
    """Return the curves in the colors of the palette, in turn."""
    return [replace(curve, color=COLORS[number % len(COLORS)]) for number, curve in enumerate(curves)]


def _most(curves: Sequence[Curve]) -> list[Curve]:
    """Return the curves with the largest values, in their order; those of a stack that are left out become one."""
    if len(curves) <= MOST_CURVES:
        return list(curves)
    ranked = sorted(curves, key=lambda curve: -sum(curve.values.values()))
    stacked = bool(curves[0].stack)
    kept = [curve for curve in curves if curve in ranked[: MOST_CURVES - stacked]]
    if not stacked:
        return _in_colors(kept)
    rest = [curve for curve in curves if curve not in kept]
    steps = sorted({step for curve in rest for step in curve.values})
    values = {step: sum(curve.values.get(step, 0.0) for curve in rest) for step in steps}
    return [*kept, Curve(f"{len(rest)} others", values, BLACK, stack=curves[0].stack, parameters=TRAIN)]


def chart(runs: Sequence[tuple[RunData, Panel]], axis: Axis = "step", smooth: int = 1) -> dict[str, Any]:
    """Return the options of one chart.

    Args:
        runs: each run with its panel; with several runs, the names of the curves begin with the run's.
        smooth: number of steps of the running mean, which has no interval; 1 for none.

    Returns:
        Options of ECharts. Each point is `[x, y, step]`, so that a click knows its step.
    """
    series: list[dict[str, Any]] = []
    for number, (run, panel) in enumerate(runs):
        positions = {step: round(position, 4) for step, position in run.positions(axis).items()}
        borders = [{"xAxis": positions[step]} for step in stage_borders(run) if step in positions]
        for curve in panel.curves[: max(1, MOST_CURVES // len(runs))]:
            # a stack needs a value of each curve at each step: phases such as tests are not part of each
            present = {step for one in panel.curves for step in one.values} if curve.stack else curve.values
            steps = [step for step in sorted(present) if step in positions]
            plain = {step: curve.values.get(step, 0.0) for step in steps}
            values = plain if curve.dashed else mean_over_steps(plain, smooth)  # a limit has no mean
            color = curve.color if len(runs) == 1 else COLORS[number % len(COLORS)]
            line: dict[str, Any] = {
                "name": curve.name if len(runs) == 1 else f"{run.name}: {curve.name}",
                "type": "line",
                "data": [[positions[step], value, step] for step, value in values.items()],
                "symbol": "circle",
                "symbolSize": 4 if curve.stack else 6,
                "color": color,
                "lineStyle": {"type": _line_type(curve, panel, len(runs)), "width": 2},
            }
            if curve.dashed:
                line |= {"step": "end", "symbol": "none"}
            if borders and curve is panel.curves[0]:
                style = BORDER if len(runs) == 1 else {**BORDER, "color": color}
                line["markLine"] = {"silent": True, "symbol": "none", "label": {"show": False}, "lineStyle": style}
                line["markLine"]["data"] = borders
            if curve.stack and len(runs) == 1:
                line |= {"stack": curve.stack, "areaStyle": {"opacity": 0.4}}
            series.append(line)
            if smooth == 1 and len(steps) > 1 and curve.band:
                ends = [(positions[step], *curve.band[step]) for step in steps if step in curve.band]
                series += band(line["name"], color, ends)
    return {
        "xAxis": axis_of(
            axis, min="dataMin", max="dataMax", minInterval=int(axis != "hours"), splitLine={"show": False}
        ),
        "yAxis": _y_axis(runs[0][1].kind),
        "series": series,
    }


def stage_borders(run: RunData) -> list[int]:
    """Return the training steps at which the turn limit changes."""
    train = run.of_purpose("train")
    return [at.step for before, at in pairwise(train) if at.max_turns != before.max_turns]


def _y_axis(kind: PanelKind) -> dict[str, Any]:
    return SHARES if kind.share else axis_of(min=0) if kind.from_zero else axis_of(scale=True)


def _line_type(curve: Curve, panel: Panel, runs: int) -> str:
    """Return the type of a line. With several runs, which have a color each, it tells the curves of a run apart."""
    types = ("solid", "dashed", "dotted")
    return types[list(panel.curves).index(curve) % 3] if runs > 1 else types[curve.dashed]
