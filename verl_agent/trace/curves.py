"""Learning curves of a run, as one PNG file."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle, pairwise
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from verl_agent.errors import ConfigError
from verl_agent.trace import panels as kinds
from verl_agent.trace.metrics_log import (
    ENTROPY,
    GAP_LOG_PROB,
    GAP_PROBABILITY,
    first_logged,
    read_metrics,
    validation_scores,
)
from verl_agent.trace.panels import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    STOP_COLOURS,
    Curve,
    Panel,
    PanelKind,
    running_mean,
    with_data,
)
from verl_agent.types import StopReason
from verl_agent.visible import make_visible

PHASE_COLOURS = {"gen": BLUE, "old_log_prob": ORANGE, "update_actor": GREEN, "update_weights": PURPLE}
"""Phases of a step with a colour of their own, as verl names them in `timing_s/<phase>`."""

SMOOTH_FROM = 40
"""Number of steps from which noisy curves get a running mean."""

Log = Mapping[int, Mapping[str, float]]
"""Metrics of a run by step."""


def plot_curves(metrics: Path | str | Iterable[Path | str], png: Path | str, title: str = "") -> Path:
    """Plot the learning curves of a run, 1200 pixels wide, without panels that have no data.

    Args:
        metrics: path of the log of verl's `file` logger, or paths of the logs of all starts, oldest first.
        png: path of the PNG file; its folder is created.

    Returns:
        Path of the PNG file.

    Raises:
        ConfigError: the log has no metric that a panel shows.
    """
    log = read_metrics(metrics)
    panels = logged_panels(log)
    if not panels:
        raise ConfigError(f"Nothing to plot in {metrics}: none of the metrics of the learning curves was logged.")
    rows = (len(panels) + 1) // 2
    figure = Figure(figsize=(12, 0.6 + 3.0 * rows), dpi=100, layout="constrained")
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.1)  # type: ignore[union-attr,call-arg]
    if title:
        figure.suptitle(title, fontsize=15, fontweight="bold")
    grid = figure.add_gridspec(rows, 2)
    for index, panel in enumerate(panels):
        alone = index % 2 == 0 and panel is panels[-1]
        axes = figure.add_subplot(grid[index // 2, :] if alone else grid[index // 2, index % 2])
        _draw(axes, panel.curves)
        _style(axes, panel.kind, log)
    path = Path(png)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_figure(figure, path, dpi=100)
    return path


def save_figure(figure: Figure, path: Path, dpi: float | None = None) -> None:
    """Write a figure as a PNG file. Its texts are visible ones, in which a dollar sign begins no formula.

    Args:
        dpi: pixels an inch; None for those of the figure.
    """
    texts = list(figure.texts)
    for axes in figure.axes:
        legend = axes.get_legend()
        texts += [axes.title, axes.xaxis.label, axes.yaxis.label, *axes.texts, *(legend.get_texts() if legend else ())]
    for text in texts:
        text.set_parse_math(False)
        text.set_text(make_visible(text.get_text()))
    figure.savefig(path, format="png", dpi=dpi or "figure")


def _style(axes: Axes, kind: PanelKind, log: Log) -> None:
    """Apply the same style and step range to a panel, with the legend between title and plot."""
    labels = axes.get_legend_handles_labels()[1]
    axes.set_title(kind.title, fontsize=12, loc="left", fontweight="bold", pad=24 if labels else 8)
    if labels:
        size = 9.5 if len(labels) < 5 else 8.5
        spacing: dict[str, float] = {"fontsize": size, "handlelength": 1.2, "columnspacing": 1.0, "handletextpad": 0.4}
        anchor = (-0.01, 0.985)
        legend = axes.legend(loc="lower left", bbox_to_anchor=anchor, ncols=len(labels), frameon=False, **spacing)
        legend.set_in_layout(False)
    first, last = min(log), max(log)
    margin = max(0.6, 0.01 * (last - first))
    axes.set_xlim(first - margin, last + margin)
    axes.set_xlabel("training step", fontsize=10)
    axes.tick_params(labelsize=10)
    axes.grid(True, color="#e4e4e4", linewidth=0.8)
    axes.set_axisbelow(True)
    if kind.share:
        axes.set_ylim(0, 1.02)
        axes.yaxis.set_major_formatter(PercentFormatter(xmax=1))
    elif kind.from_zero:
        axes.set_ylim(bottom=0)
    for (before, was), (step, horizon) in pairwise(first_logged(log, "episode/horizon").items()):
        if horizon != was:
            axes.axvline((before + step) / 2, color=GREY, linestyle=":", linewidth=1)
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))


def logged_panels(log: Log) -> list[Panel]:
    """Return the charts of a metrics log, in reading order, without those that have no data."""
    gap = first_logged(log, *GAP_PROBABILITY)
    earned = first_logged(log, "episode/reward_mean", "critic/score/mean")
    margins = first_logged(log, "episode/reward_margin")
    band = {step: (earned[step] - margin, earned[step] + margin) for step, margin in margins.items() if step in earned}
    reward = Curve("training", earned, band=band)
    success = Curve("training", first_logged(log, "episode/success_rate"))
    turns = Curve("turns", first_logged(log, "episode/turns_mean"))
    horizon = Curve("horizon", first_logged(log, "episode/horizon"), "#333333", dashed=True)
    every = [
        Panel(
            kinds.LOSS,
            [
                Curve("training", first_logged(log, "train/loss")),
                Curve("validation", first_logged(log, "val/loss"), ORANGE, marker="o"),
            ],
        ),
        Panel(kinds.RETURN, [reward, *_validation(log, "reward")]),
        Panel(kinds.SUCCESS, [success, *_validation(log, "success")]),
        Panel(kinds.TURNS, [turns, horizon]),
        Panel(kinds.STOPS, _stops(log)),
        Panel(kinds.ENTROPY_KIND, [Curve("", first_logged(log, *ENTROPY))]),
        Panel(kinds.GAP_PROBABILITY_KIND, [Curve("", gap)]),
        Panel(kinds.GAP_LOG_PROB_KIND, [Curve("", {} if gap else first_logged(log, *GAP_LOG_PROB))]),
        Panel(kinds.SECONDS, _seconds(log)),
    ]
    return with_data(every)


def _validation(log: Log, measure: str) -> list[Curve]:
    by_source: dict[str, dict[int, float]] = {}
    for step, values in log.items():
        for score in validation_scores(values):
            if score.measure == measure:
                by_source.setdefault(score.source, {})[step] = score.value
    styles = zip(cycle("osD^"), cycle((ORANGE, GREEN, RED, PURPLE)), strict=False)
    return [
        Curve(f"validation: {source}", values, colour, marker=marker)
        for (source, values), (marker, colour) in zip(by_source.items(), styles, strict=False)
    ]


def _stops(log: Log) -> list[Curve]:
    shares = {reason: first_logged(log, f"stop/{reason}") for reason in StopReason}
    steps = [step for step in log if any(step in values for values in shares.values())]
    return [
        Curve(reason, {step: values.get(step, 0.0) for step in steps}, STOP_COLOURS[reason], stack="stop")
        for reason, values in shares.items()
        if any(values.values())
    ]


def _seconds(log: Log) -> list[Curve]:
    totals = first_logged(log, "timing_s/step")
    logged = {phase: first_logged(log, f"timing_s/{phase}") for phase in PHASE_COLOURS}
    phases = {
        phase: {step: values.get(step, 0.0) for step in totals}
        for phase, values in logged.items()
        if any(values.values())
    }
    rest = {step: max(0.0, total - sum(of[step] for of in phases.values())) for step, total in totals.items()}
    known = [Curve(phase, values, PHASE_COLOURS[phase], stack="seconds") for phase, values in phases.items()]
    return [*known, Curve("rest", rest, GREY, stack="seconds")]


def _draw(axes: Axes, curves: Sequence[Curve]) -> None:
    if curves[0].stack:
        _stack(axes, curves)
        return
    for curve in curves:
        steps, values = list(curve.values), list(curve.values.values())
        if curve.band:
            low, high = zip(*curve.band.values(), strict=True)
            axes.fill_between(list(curve.band), low, high, color=curve.color, alpha=0.15, linewidth=0)
        if curve.dashed:
            axes.step(steps, values, where="mid", color=curve.color, linewidth=1.5, label=curve.name)
        elif curve.marker:
            (points,) = axes.plot(steps, values, color=curve.color, linestyle="--", linewidth=1.2, zorder=3)
            points.set(marker=curve.marker, markersize=6, markeredgecolor="white", label=curve.name)
        elif len(steps) < SMOOTH_FROM:
            label = curve.name or None
            axes.plot(steps, values, color=curve.color, linewidth=1.8, marker=".", markersize=5, label=label)
        else:
            window = len(steps) // 20
            axes.plot(steps, values, color=curve.color, linewidth=0.9, alpha=0.35)
            label = f"{curve.name}, mean of {window} steps".removeprefix(", ")
            axes.plot(steps, running_mean(values, window), color=curve.color, linewidth=2.0, label=label)


def _stack(axes: Axes, curves: Sequence[Curve]) -> None:
    """Draw stacked bars for few steps, where areas would hide that steps are discrete, and areas for many."""
    steps, layers = list(curves[0].values), [list(curve.values.values()) for curve in curves]
    if len(steps) >= SMOOTH_FROM:
        colours, labels = [curve.color for curve in curves], [curve.name for curve in curves]
        axes.stackplot(steps, *layers, colors=colours, labels=labels, alpha=0.9, linewidth=0)
        return
    bottom = [0.0] * len(steps)
    for curve, layer in zip(curves, layers, strict=True):
        axes.bar(steps, layer, bottom=bottom, color=curve.color, label=curve.name, width=0.85)
        bottom = [low + height for low, height in zip(bottom, layer, strict=True)]
