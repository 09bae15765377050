"""Curves of runs as options of ECharts: data in, plain dicts out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import accumulate
from typing import Any, Literal, get_args

from verl_agent.trace.behaviors import BEHAVIORS
from verl_agent.trace.curves import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, STOP_COLOURS, running_mean
from verl_agent.trace.metrics_log import ENTROPY, GAP_LOG_PROB, GAP_PROBABILITY
from verl_agent.types import StopReason
from verl_agent.viewer.queries import StepSummary

COLORS = (BLUE, ORANGE, GREEN, RED, PURPLE, GREY)

Axis = Literal["step", "episodes", "turns", "tokens", "hours"]
"""Quantity of the x axis; all but `step` are sums over the training episodes up to a step."""
AXES: tuple[Axis, ...] = get_args(Axis)
TRAIN, VALIDATION = {"purpose": "train"}, {"purpose": "validation,evaluation"}
PHASE = "timing_s/"
"""Prefix of the seconds of a step's phases in the metrics log."""
PHASES = ("gen", "old_log_prob", "values", "adv", "update_critic", "update_actor", "update_weights", "testing")
"""Phases that are shown, as verl names them."""


@dataclass(frozen=True, slots=True)
class RunData:
    """Numbers of one run by step.

    Attributes:
        name: name in the legend.
        steps: means over the episodes of each purpose and step.
        logged: metrics log by step.
        uniform: number of training groups whose returns are all equal, and of all training groups, by step.
        divergence: mean first different turn of the training groups, by step.
    """

    name: str
    steps: Sequence[StepSummary]
    logged: Mapping[int, Mapping[str, float]]
    uniform: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    divergence: Mapping[int, float] = field(default_factory=dict)

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


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a chart.

    Attributes:
        name: name in the legend.
        values: value by step.
        color: color of the line.
        dashed: draw the line dashed.
        stack: name of the stack that the line is added to; empty for none.
        parameters: filter of the episodes of a point, beside its step.
    """

    name: str
    values: Mapping[int, float]
    color: str = BLUE
    dashed: bool = False
    stack: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart.

    Attributes:
        title: title of the chart.
        curves: its curves for one run.
        share: True if the values are shares, which the y axis shows from 0 to 1.
    """

    title: str
    curves: Sequence[Curve]
    share: bool = False


def panels(run: RunData) -> list[Panel]:
    """Return the charts of a run, without those that have no data."""
    train, validation = run.of_purpose("train"), run.of_purpose("validation", "evaluation")
    every = [
        Panel("Return", [
            Curve("train", {at.step: at.reward for at in train}, parameters=TRAIN),
            Curve("validation", {at.step: at.reward for at in validation}, ORANGE, parameters=VALIDATION),
        ]),
        Panel("Success", [
            Curve("train", {at.step: at.success for at in train}, parameters=TRAIN),
            Curve("validation", {at.step: at.success for at in validation}, ORANGE, parameters=VALIDATION),
        ], share=True),
        Panel("Turns", [
            Curve("turns", {at.step: at.turns for at in train}, parameters=TRAIN),
            Curve("turn limit", {at.step: float(at.max_turns) for at in train}, GREY, dashed=True),
        ]),
        Panel("Stop reasons (train)", [
            Curve(
                reason,
                {at.step: at.stops.get(reason, 0.0) for at in train},
                STOP_COLOURS[reason],
                stack="stop",
                parameters=TRAIN | {"stop": reason},
            )
            for reason in StopReason
            if any(reason in at.stops for at in train)
        ], share=True),
        Panel("Behaviors (share of turns)", [
            Curve(
                behavior.name,
                {at.step: at.behaviors[behavior.name] for at in train},
                COLORS[number % len(COLORS)],
                parameters=TRAIN | {behavior.name: "1.."},
            )
            for number, behavior in enumerate(BEHAVIORS)
            if any(at.behaviors[behavior.name] for at in train)
        ], share=True),
        Panel("Behaviors (share of episodes)", [
            Curve(behavior.name, _logged(run, f"behavior/{behavior.name}"), COLORS[number % len(COLORS)])
            for number, behavior in enumerate(BEHAVIORS)
            if any(_logged(run, f"behavior/{behavior.name}").values())
        ], share=True),
        Panel("First different turn in a group", [Curve("turn", run.divergence, GREEN, parameters=TRAIN)]),
        Panel("Groups with equal returns (share)", [
            Curve("groups", {at: one / groups for at, (one, groups) in run.uniform.items()}, PURPLE, parameters=TRAIN),
        ], share=True),
        Panel("Entropy (nats per token)", [Curve("entropy", _logged(run, *ENTROPY))]),
        Panel("Engine against trainer (mean |Δ probability|)", [Curve("difference", _logged(run, *GAP_PROBABILITY))]),
        Panel(
            "Engine against trainer (mean Δ log-prob)",
            [Curve("difference", {} if _logged(run, *GAP_PROBABILITY) else _logged(run, *GAP_LOG_PROB))],
        ),
        Panel("Seconds by phase", [
            Curve(phase, _logged(run, PHASE + phase), COLORS[number % len(COLORS)], stack="seconds")
            for number, phase in enumerate(PHASES)
            if _logged(run, PHASE + phase)
        ]),
    ]  # fmt: skip
    return [panel for panel in every if any(curve.values for curve in panel.curves)]


def chart(title: str, runs: Sequence[tuple[RunData, Panel]], axis: Axis = "step", smooth: int = 1) -> dict[str, Any]:
    """Return the options of one chart.

    Args:
        title: title of the panel.
        runs: each run with its panel of this title; with several runs, the names of the curves begin with the run's.
        axis: quantity of the x axis.
        smooth: number of steps of the running mean; 1 for none.

    Returns:
        Options of ECharts. Each point is `[x, y, step]`, so that a click knows its step.
    """
    series = []
    for number, (run, panel) in enumerate(runs):
        positions = run.positions(axis)
        for curve in panel.curves:
            steps = [step for step in sorted(curve.values) if step in positions]
            values = running_mean([curve.values[step] for step in steps], smooth)
            color = curve.color if len(runs) == 1 else COLORS[number % len(COLORS)]
            line: dict[str, Any] = {
                "name": curve.name if len(runs) == 1 else f"{run.name}: {curve.name}",
                "type": "line",
                "data": [[round(positions[step], 4), value, step] for step, value in zip(steps, values, strict=True)],
                "symbolSize": 6,
                "color": color,
                "lineStyle": {"type": _line_type(curve, panel, len(runs)), "width": 1.5},
            }
            if curve.stack and len(runs) == 1:
                line |= {"stack": curve.stack, "areaStyle": {"opacity": 0.4}}
            series.append(line)
    return {
        "title": {"text": title, "textStyle": {"fontSize": 13}},
        "tooltip": {"trigger": "axis"},
        "legend": {"type": "scroll", "bottom": 0},
        "grid": {"left": 55, "right": 15, "top": 35, "bottom": 55},
        "xAxis": {"type": "value", "name": axis, "nameLocation": "middle", "nameGap": 22, "min": "dataMin"},
        "yAxis": {"type": "value", "scale": True} | ({"min": 0, "max": 1} if runs[0][1].share else {}),
        "animation": False,
        "series": series,
    }


def _line_type(curve: Curve, panel: Panel, runs: int) -> str:
    """Return the type of a line. With several runs, which have a color each, it tells the curves of a run apart."""
    types = ("solid", "dashed", "dotted")
    return types[list(panel.curves).index(curve) % 3] if runs > 1 else types[curve.dashed]


def _logged(run: RunData, *names: str) -> dict[int, float]:
    """Return the series of the first of these metrics that was logged."""
    for name in names:
        values = {step: values[name] for step, values in run.logged.items() if name in values}
        if values:
            return values
    return {}
