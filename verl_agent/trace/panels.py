"""Charts of the curves of a run, for the PNG file and the viewer: titles, colours, curves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from verl_agent.types import StopReason

BLUE, ORANGE, GREEN, RED, PURPLE, GREY = "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#9a9a9a"
YELLOW, LIGHT_BLUE, BLACK, LIGHT_GREY, BROWN = "#f0e442", "#56b4e9", "#000000", "#d0d0d0", "#8c564b"
"""Palette for colour-blind readers (Okabe and Ito), two greys and a brown."""

STOP_COLOURS = {
    StopReason.TERMINATED: GREEN,
    StopReason.TURN_LIMIT: BLUE,
    StopReason.TURN_TOKENS: ORANGE,
    StopReason.EPISODE_TOKENS: PURPLE,
    StopReason.ENV_ERROR: RED,
    StopReason.ACTION_ERROR: BLACK,
    StopReason.OVERLONG_PROMPT: YELLOW,
    StopReason.REQUEST_REFUSED: LIGHT_GREY,
    StopReason.CANCELLED: GREY,
    StopReason.OPERATOR: LIGHT_BLUE,
    StopReason.UNRATED: BROWN,
}


@dataclass(frozen=True, slots=True)
class PanelKind:
    """Content of a chart, wherever it is drawn.

    Attributes:
        note: sentence on what to look for.
        share: True if the values are shares, which the y axis shows from 0 to 1.
        from_zero: True if the y axis begins at 0.
    """

    title: str
    note: str
    share: bool = False
    from_zero: bool = False


LOSS = PanelKind("Loss (nats per token; of DPO per pair)", "A validation loss that rises means overfit.")
RETURN = PanelKind(
    "Return (environment's units, mean)", "Training rises first; validation that stays behind is overfit."
)
SUCCESS = PanelKind("Success (share of episodes)", "The share of solved tasks, which the training is for.", share=True)
TURNS = PanelKind(
    "Turns of an episode (mean)", "At the limit, episodes are cut before they are solved.", from_zero=True
)
STOPS = PanelKind("Why episodes ended (share of episodes)", "Limits and errors should shrink.", share=True)
TURN_BEHAVIORS = PanelKind(
    "Behaviors (share of turns)", "The six most frequent ones. A habit that grows wastes turns.", share=True
)
EPISODE_BEHAVIORS = PanelKind(
    "Behaviors (share of episodes)", "The six most frequent ones, of episodes with at least one such turn.", share=True
)
DIVERGENCE = PanelKind(
    "First different turn in a group", "The later the samples of a task part, the less they teach.", from_zero=True
)
EQUAL_GROUPS = PanelKind(
    "Groups with equal returns (share)", "A group estimator learns nothing from these groups.", share=True
)
ENTROPY_KIND = PanelKind(
    "Policy entropy (nats per token)", "Near 0, the samples of a group become equal.", from_zero=True
)
GAP_PROBABILITY_KIND = PanelKind(
    "Engine against trainer (mean |Δ probability|)",
    "A rise means that sampled and trained policy differ.",
    from_zero=True,
)
GAP_LOG_PROB_KIND = PanelKind(
    "Engine against trainer (mean Δ log-prob)", "Far from 0, sampled and trained policy differ."
)
SECONDS = PanelKind("Time of a step (seconds)", "The largest part is worth the first optimization.", from_zero=True)


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a chart.

    Attributes:
        dashed: draw a limit, which holds until the next step.
        marker: mark of each point of a curve that few steps have; empty for none.
        stack: name of the stack that the line is added to; empty for none.
        band: ends of an interval by step.
        parameters: filter of the episodes of a point in the viewer, beside its step.
    """

    name: str
    values: Mapping[int, float]
    color: str = BLUE
    dashed: bool = False
    marker: str = ""
    stack: str = ""
    band: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart with its curves."""

    kind: PanelKind
    curves: Sequence[Curve]


def with_data(panels: Sequence[Panel]) -> list[Panel]:
    """Return the charts without curves that have no value, and without charts that have no curve."""
    drawn = [Panel(panel.kind, [curve for curve in panel.curves if curve.values]) for panel in panels]
    return [panel for panel in drawn if panel.curves]


def mean_over_steps(values: Mapping[int, float], window: int) -> dict[int, float]:
    """Return at each step the mean of the values of the last `window` steps, of which not all need to have one."""
    return {step: fmean(value for at, value in values.items() if step - window < at <= step) for step in sorted(values)}


def running_mean(values: Sequence[float], window: int) -> list[float]:
    """Return the mean of the last `window` values at each position, of fewer at the start."""
    return [fmean(values[max(0, end - window) : end]) for end in range(1, len(values) + 1)]
