"""Panels of a run for pages, exports and the PNG file: titles, curves with their colours, and running means."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import fmean

from verl_agent.types import StopReason

BLUE, ORANGE, GREEN, RED, PURPLE, GREY = "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#9a9a9a"
YELLOW, LIGHT_BLUE, BLACK, LIGHT_GREY, BROWN = "#f0e442", "#56b4e9", "#000000", "#d0d0d0", "#8c564b"
"""Palette for colour-blind readers (Okabe and Ito), two greys and a brown."""
COLORS = (BLUE, ORANGE, GREEN, PURPLE, RED, GREY)
"""Colors of curves, in order. The first ones differ most for colour-blind readers."""
SMOOTH_FROM = 40
"""Number of steps from which curves have a running mean unless a reader chooses another one."""

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
        sparse: True for a curve that few steps have, such as that of validations.
        faint: True for the values behind their running mean.
        stack: name of the stack that the line is added to; empty for none.
        band: ends of an interval by step.
        parameters: filter of the episodes of a point in the viewer, beside its step.
    """

    name: str
    values: Mapping[int, float]
    color: str = BLUE
    dashed: bool = False
    sparse: bool = False
    faint: bool = False
    stack: str = ""
    band: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart with its curves.

    Attributes:
        borders: steps at which the turn limit changes.
    """

    kind: PanelKind
    curves: Sequence[Curve]
    borders: Sequence[int] = ()


def with_data(panels: Sequence[Panel], limits: Mapping[int, float]) -> list[Panel]:
    """Return the charts without curves that have no value, and without charts that have no curve.

    The curves of a stack have a value at each step then: phases such as tests are not part of each step.

    Args:
        limits: turn limit by step, whose changes are the borders of each chart.
    """
    borders, found = changes(limits), []
    for panel in panels:
        curves = [curve for curve in panel.curves if curve.values]
        if any(curve.stack for curve in curves):
            steps = sorted({step for curve in curves for step in curve.values})
            curves = [replace(one, values={step: one.values.get(step, 0.0) for step in steps}) for one in curves]
        if curves:
            found.append(Panel(panel.kind, curves, borders))
    return found


def changes(values: Mapping[int, float]) -> list[int]:
    """Return the steps at which a value differs from that of the step before."""
    return [step for (_, before), (step, value) in pairwise(sorted(values.items())) if value != before]


def usual_window(steps: Collection[int]) -> int:
    """Return the number of steps of the running mean of a run with these steps; 1 for none."""
    return len(steps) // 20 if len(steps) >= SMOOTH_FROM else 1


def smoothed(curve: Curve, window: int) -> list[Curve]:
    """Return a curve as it is drawn: its running mean over `window` steps, and its own values faintly before it.

    A limit has no mean. The curves of a stack are their means alone.
    """
    if window == 1 or curve.dashed:
        return [curve]
    mean = replace(curve, values=mean_over_steps(curve.values, window), band={})
    return [mean] if curve.stack else [replace(curve, faint=True), mean]


def mean_over_steps(values: Mapping[int, float], window: int) -> dict[int, float]:
    """Return at each step the mean of the values of the last `window` steps, of which not all need to have one."""
    return {step: fmean(value for at, value in values.items() if step - window < at <= step) for step in sorted(values)}
