"""Learning curves of a run, as one PNG file."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, pairwise
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from verl_agent.errors import ConfigError
from verl_agent.trace.metrics_log import ENTROPY, GAP_LOG_PROB, GAP_PROBABILITY, read_metrics, validation_scores
from verl_agent.trace.panels import (
    BLUE,
    ENTROPY_KIND,
    GAP_LOG_PROB_KIND,
    GAP_PROBABILITY_KIND,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    RETURN,
    SECONDS,
    STOP_COLOURS,
    STOPS,
    SUCCESS,
    TURNS,
    PanelKind,
    running_mean,
)
from verl_agent.types import StopReason

PHASE_COLOURS = {"gen": BLUE, "old_log_prob": ORANGE, "update_actor": GREEN, "update_weights": PURPLE}
"""Phases of a step with a colour of their own, as verl names them in `timing_s/<phase>`."""

SMOOTH_FROM = 40
"""Number of steps from which noisy curves get a running mean."""

Series = tuple[list[int], list[float]]
"""Steps and the values logged at them."""


@dataclass(frozen=True, slots=True)
class Log:
    """Metrics of a run, as series over steps."""

    by_step: Mapping[int, Mapping[str, float]]

    def series(self, *names: str) -> Series:
        """Return the series of the first of `names` that was logged, or an empty one."""
        for name in names:
            steps = [step for step, values in self.by_step.items() if name in values]
            if steps:
                return steps, [self.by_step[step][name] for step in steps]
        return [], []

    def validation(self, measure: str) -> dict[str, Series]:
        """Return the validation results of one measure by data source."""
        by_source: dict[str, Series] = {}
        for step, values in self.by_step.items():
            for score in validation_scores(dict(values)):
                if score.measure == measure:
                    steps, scores = by_source.setdefault(score.source, ([], []))
                    steps.append(step)
                    scores.append(score.value)
        return by_source


def plot_curves(metrics: Path | str | Iterable[Path | str], png: Path | str, title: str = "") -> Path:
    """Plot the learning curves of a run, 1200 pixels wide, without panels that have no data.

    Args:
        metrics: path of the log of verl's `file` logger, or paths of the logs of all starts, oldest first.
        png: path of the PNG file; its folder is created.
        title: title above the panels.

    Returns:
        Path of the PNG file.

    Raises:
        ConfigError: the log has no metric that a panel shows.
    """
    log = Log(read_metrics(metrics))
    panels = [panel for panel in PANELS if panel.has_data(log)]
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
        panel.draw(axes, log)
        _style(axes, panel.kind, log)
    path = Path(png)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png")
    return path


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
    first, last = min(log.by_step), max(log.by_step)
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
    horizons = list(zip(*log.series("episode/horizon"), strict=True))
    for (before, was), (step, horizon) in pairwise(horizons):
        if horizon != was:
            axes.axvline((before + step) / 2, color=GREY, linestyle=":", linewidth=1)
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))


def _line(axes: Axes, series: Series, colour: str, label: str = "") -> None:
    steps, values = series
    if not steps:
        return
    if len(steps) < SMOOTH_FROM:
        axes.plot(steps, values, color=colour, linewidth=1.8, marker=".", markersize=5, label=label or None)
        return
    window = len(steps) // 20
    axes.plot(steps, values, color=colour, linewidth=0.9, alpha=0.35)
    smooth = running_mean(values, window)
    axes.plot(steps, smooth, color=colour, linewidth=2.0, label=f"{label}, mean of {window} steps".removeprefix(", "))


def _validation_points(axes: Axes, log: Log, measure: str) -> None:
    styles = zip(cycle("osD^"), cycle((ORANGE, GREEN, RED, PURPLE)), strict=False)
    for (source, (steps, values)), (marker, colour) in zip(log.validation(measure).items(), styles, strict=False):
        (points,) = axes.plot(steps, values, color=colour, linestyle="--", linewidth=1.2, zorder=3)
        points.set(marker=marker, markersize=6, markeredgecolor="white", label=f"validation: {source}")


def _draw_reward(axes: Axes, log: Log) -> None:
    _line(axes, log.series("episode/reward_mean", "critic/score/mean"), BLUE, "training")
    _validation_points(axes, log, "reward")


def _draw_success(axes: Axes, log: Log) -> None:
    _line(axes, log.series("episode/success_rate"), BLUE, "training")
    _validation_points(axes, log, "success")


def _draw_turns(axes: Axes, log: Log) -> None:
    _line(axes, log.series("episode/turns_mean"), BLUE, "turns")
    steps, horizons = log.series("episode/horizon")
    if steps:
        axes.step(steps, horizons, where="mid", color="#333333", linewidth=1.5, label="horizon")


def _draw_stops(axes: Axes, log: Log) -> None:
    steps = [step for step, values in log.by_step.items() if any(f"stop/{reason}" in values for reason in StopReason)]
    shares = {reason: [log.by_step[step].get(f"stop/{reason}", 0.0) for step in steps] for reason in StopReason}
    present = [reason for reason in StopReason if any(shares[reason])]
    _stack(
        axes, steps, [shares[reason] for reason in present], [STOP_COLOURS[reason] for reason in present], list(present)
    )


def _draw_series(axes: Axes, log: Log, names: Sequence[str]) -> None:
    _line(axes, log.series(*names), BLUE)


def _draw_seconds(axes: Axes, log: Log) -> None:
    steps, totals = log.series("timing_s/step")
    phases = {phase: [log.by_step[step].get(f"timing_s/{phase}", 0.0) for step in steps] for phase in PHASE_COLOURS}
    present = [phase for phase in phases if any(phases[phase])]
    known = [sum(phases[phase][i] for phase in present) for i in range(len(steps))]
    rest = [max(0.0, total - part) for total, part in zip(totals, known, strict=True)]
    colours = [PHASE_COLOURS[phase] for phase in present]
    _stack(axes, steps, [*(phases[phase] for phase in present), rest], [*colours, GREY], [*present, "rest"])


def _stack(
    axes: Axes, steps: Sequence[int], layers: Sequence[Sequence[float]], colours: Sequence[str], labels: Sequence[str]
) -> None:
    """Draw stacked bars for few steps, where areas would hide that steps are discrete, and areas for many."""
    if len(steps) >= SMOOTH_FROM:
        axes.stackplot(steps, *layers, colors=colours, labels=labels, alpha=0.9, linewidth=0)
        return
    bottom = [0.0] * len(steps)
    for layer, colour, label in zip(layers, colours, labels, strict=True):
        axes.bar(steps, layer, bottom=bottom, color=colour, label=label, width=0.85)
        bottom = [low + height for low, height in zip(bottom, layer, strict=True)]


@dataclass(frozen=True, slots=True)
class Panel:
    """One plot.

    Attributes:
        kind: title and y axis.
        needs: prefixes of metric names; the panel has data if one of them was logged.
        draw: function that draws the plot.
        measure: validation measure that the panel shows too, or "".
        instead_of: metric names that hide the panel if one of them was logged.
    """

    kind: PanelKind
    needs: tuple[str, ...]
    draw: Callable[[Axes, Log], None]
    measure: str = ""
    instead_of: tuple[str, ...] = ()

    def has_data(self, log: Log) -> bool:
        """Return True if the log has data for the panel."""
        logged = {name for values in log.by_step.values() for name in values}
        if logged.intersection(self.instead_of):
            return False
        return any(name.startswith(self.needs) for name in logged) or bool(log.validation(self.measure))


PANELS = (
    Panel(RETURN, ("episode/reward_mean", "critic/score/mean"), _draw_reward, "reward"),
    Panel(SUCCESS, ("episode/success_rate",), _draw_success, "success"),
    Panel(TURNS, ("episode/turns_mean", "episode/horizon"), _draw_turns),
    Panel(STOPS, ("stop/",), _draw_stops),
    Panel(ENTROPY_KIND, ENTROPY, partial(_draw_series, names=ENTROPY)),
    Panel(GAP_PROBABILITY_KIND, GAP_PROBABILITY, partial(_draw_series, names=GAP_PROBABILITY)),
    Panel(GAP_LOG_PROB_KIND, GAP_LOG_PROB, partial(_draw_series, names=GAP_LOG_PROB), instead_of=GAP_PROBABILITY),
    Panel(SECONDS, ("timing_s/step",), _draw_seconds),
)
"""All panels, in reading order."""
