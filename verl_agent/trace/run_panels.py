"""Panels of a run: the one list of what pages, exports and `curves.png` draw of its episodes and its metrics log."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from verl_agent.trace import panels as kinds
from verl_agent.trace.behaviors import BEHAVIORS
from verl_agent.trace.metrics_log import ENTROPY, GAP_LOG_PROB, GAP_PROBABILITY, first_logged, validation_scores
from verl_agent.trace.panels import (
    BLACK,
    COLORS,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    STOP_COLOURS,
    Curve,
    Panel,
    with_data,
)
from verl_agent.types import StopReason

MOST_CURVES = 6
"""Curves of a chart; more cannot be told apart."""
TRAIN = {"purpose": "train"}
"""Filter of the training episodes."""
PHASE = "timing_s/"
"""Prefix of the seconds of a step's phases in the metrics log."""
PHASES = ("gen", "old_log_prob", "values", "adv", "update_critic", "update_actor", "update_weights", "testing")
"""Phases that are shown, as verl names them."""
TESTING = "testing"

Log = Mapping[int, Mapping[str, float]]
"""Metrics of a run by step."""
Series = Mapping[int, float]
"""Values by step."""


@dataclass(frozen=True, slots=True)
class PlayedSteps:
    """Numbers of a run's episodes by step, of its records or, without records, of its metrics log.

    Attributes:
        returns: curves of the mean return, of training and of validations.
        success: curves of the success, likewise.
        limits: turn limit of the training steps.
        stops: share of the training episodes by the reason why they ended.
        behaviors: share of the training turns that show a behavior, by its name.
        divergence: mean first different turn of the training groups.
        equal_groups: share of the training groups whose returns are all equal.
    """

    returns: Sequence[Curve] = ()
    success: Sequence[Curve] = ()
    turns: Series = field(default_factory=dict)
    limits: Series = field(default_factory=dict)
    stops: Mapping[str, Series] = field(default_factory=dict)
    behaviors: Mapping[str, Series] = field(default_factory=dict)
    divergence: Series = field(default_factory=dict)
    equal_groups: Series = field(default_factory=dict)


def logged_steps(log: Log) -> PlayedSteps:
    """Return the numbers of the episodes that a metrics log has."""
    earned = first_logged(log, "episode/reward_mean", "critic/score/mean")
    margins = first_logged(log, "episode/reward_margin")
    band = {step: (earned[step] - margin, earned[step] + margin) for step, margin in margins.items() if step in earned}
    return PlayedSteps(
        [Curve("training", earned, band=band), *_validations(log, "reward")],
        [Curve("training", first_logged(log, "episode/success_rate")), *_validations(log, "success")],
        first_logged(log, "episode/turns_mean"),
        first_logged(log, "episode/horizon"),
        {reason: first_logged(log, f"stop/{reason}") for reason in StopReason},
    )


def _validations(log: Log, measure: str) -> list[Curve]:
    by_source: dict[str, dict[int, float]] = {}
    for step, values in log.items():
        for score in validation_scores(values):
            if score.measure == measure:
                by_source.setdefault(score.source, {})[step] = score.value
    colors = (ORANGE, GREEN, RED, PURPLE)
    return [
        Curve(
            "validation" if len(by_source) == 1 else f"validation: {source}",
            values,
            colors[number % len(colors)],
            sparse=True,
        )
        for number, (source, values) in enumerate(by_source.items())
    ]


def run_panels(played: PlayedSteps, log: Log) -> list[Panel]:
    """Return the charts of a run in reading order, without those that have no data."""
    logged = partial(first_logged, log)
    gap = logged(*GAP_PROBABILITY)
    stops = {reason: played.stops.get(reason, {}) for reason in StopReason}
    every = [
        Panel(kinds.LOSS, [
            Curve("training", logged("train/loss")),
            Curve("validation", logged("val/loss"), ORANGE, sparse=True),
        ]),
        Panel(kinds.RETURN, played.returns),
        Panel(kinds.SUCCESS, played.success),
        Panel(kinds.TURNS, [
            Curve("turns", played.turns, parameters=TRAIN),
            Curve("turn limit", played.limits, GREY, dashed=True),
        ]),
        Panel(kinds.STOPS, [
            Curve(reason, values, STOP_COLOURS[reason], stack="stop", parameters=TRAIN | {"stop": reason})
            for reason, values in stops.items()
            if any(values.values())
        ]),
        Panel(kinds.TURN_BEHAVIORS, _in_colors([
            Curve(name, values, parameters=TRAIN | {name: "1.."})
            for name, values in played.behaviors.items()
            if any(values.values())
        ])),
        Panel(kinds.EPISODE_BEHAVIORS, _in_colors([
            Curve(one.name, values)
            for one in BEHAVIORS
            if any((values := logged(f"behavior/{one.name}")).values())
        ])),
        Panel(kinds.DIVERGENCE, [Curve("turn", played.divergence, GREEN, parameters=TRAIN)]),
        Panel(kinds.EQUAL_GROUPS, [Curve("groups", played.equal_groups, PURPLE, parameters=TRAIN)]),
        Panel(kinds.ENTROPY_KIND, [Curve("entropy", logged(*ENTROPY))]),
        Panel(kinds.GAP_PROBABILITY_KIND, [Curve("difference", gap)]),
        Panel(kinds.GAP_LOG_PROB_KIND, [Curve("difference", {} if gap else logged(*GAP_LOG_PROB))]),
        Panel(kinds.SECONDS, _in_colors([
            Curve(phase, values, stack="seconds")
            for phase, values in _phases(log).items()
            if any(values.values())
        ])),
    ]  # fmt: skip
    shown = with_data(every, played.limits)
    return [replace(panel, curves=_most(panel.curves)) for panel in shown]


def _phases(log: Log) -> dict[str, Series]:
    """Return the seconds of each phase by step; `rest` is what a step took beside them, so that the sum is the step."""
    phases = {phase: first_logged(log, PHASE + phase) for phase in PHASES}
    of_step = [values for phase, values in phases.items() if phase != TESTING]  # tests follow a step
    rest = {
        step: max(0.0, seconds - sum(values.get(step, 0.0) for values in of_step))
        for step, seconds in first_logged(log, f"{PHASE}step").items()
    }
    return {**phases, "rest": rest}


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
    values = {step: sum(curve.values[step] for curve in rest) for step in curves[0].values}
    return [*kept, Curve(f"{len(rest)} others", values, BLACK, stack=curves[0].stack, parameters=TRAIN)]
