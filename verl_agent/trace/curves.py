"""Draw the metrics of a run as one picture of learning curves."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from verl_agent.errors import ConfigError
from verl_agent.trace.metrics_log import ENTROPY, GAP, read_metrics, validation_scores
from verl_agent.types import StopReason

BLUE, ORANGE, GREEN, RED, PURPLE, GREY = "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#9a9a9a"
"""Colours that colour-blind readers can tell apart (Okabe and Ito)."""

STOP_COLOURS = {
    StopReason.TERMINATED: GREEN,
    StopReason.TURN_LIMIT: BLUE,
    StopReason.TURN_TOKENS: ORANGE,
    StopReason.EPISODE_TOKENS: PURPLE,
    StopReason.ENV_ERROR: RED,
    StopReason.CANCELLED: GREY,
}
PHASE_COLOURS = {"gen": BLUE, "old_log_prob": ORANGE, "update_actor": GREEN, "update_weights": PURPLE}
"""Phases of a step that are drawn apart, as verl names them in `timing_s/<phase>`."""

SMOOTH_FROM = 40
"""Steps from which noisy curves get a running mean."""

Series = tuple[list[int], list[float]]
"""Steps and the values logged there."""


@dataclass(frozen=True, slots=True)
class Log:
    """The metrics of a run, as series over steps."""

    by_step: Mapping[int, Mapping[str, float]]

    def series(self, *names: str) -> Series:
        """The first of `names` that was logged; empty if none was."""
        for name in names:
            steps = [step for step, values in self.by_step.items() if name in values]
            if steps:
                return steps, [self.by_step[step][name] for step in steps]
        return [], []

    def validation(self, measure: str) -> dict[str, Series]:
        """Validation results of one measure, by data source."""
        by_source: dict[str, Series] = {}
        for step, values in self.by_step.items():
            for score in validation_scores(dict(values)):
                if score.measure == measure:
                    steps, scores = by_source.setdefault(score.source, ([], []))
                    steps.append(step)
                    scores.append(score.value)
        return by_source


def plot_curves(metrics: Path | str | Iterable[Path | str], png: Path | str, title: str = "") -> Path:
    """Draw the learning curves of a run, 1200 pixels wide. Panels without data are left out.

    Args:
        metrics: the log of verl's `file` logger, or those of a run and its restarts, oldest first.
        png: the picture to write; its folder is created.
        title: heading of the picture.

    Returns:
        The path of the picture.

    Raises:
        ConfigError: the log holds nothing that can be drawn.
    """
    log = Log(read_metrics(metrics))
    panels = [panel for panel in PANELS if panel.has_data(log)]
    if not panels:
        raise ConfigError(f"Nothing to draw in {metrics}: none of the metrics that the curves show was logged.")
    rows = (len(panels) + 1) // 2
    figure = Figure(figsize=(12, 0.6 + 3.0 * rows), dpi=100, layout="constrained")
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.1)  # type: ignore[union-attr,call-arg]
    if title:
        figure.suptitle(title, fontsize=15, fontweight="bold")
    grid = figure.add_gridspec(rows, 2)
    for place, panel in enumerate(panels):
        alone = place % 2 == 0 and panel is panels[-1]
        axes = figure.add_subplot(grid[place // 2, :] if alone else grid[place // 2, place % 2])
        panel.draw(axes, log)
        _style(axes, panel.title, log)
    path = Path(png)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png")
    return path


def running_mean(values: Sequence[float], window: int) -> list[float]:
    """Mean of the `window` values that end at each position; of fewer at the start."""
    return [fmean(values[max(0, end - window) : end]) for end in range(1, len(values) + 1)]


def _style(axes: Axes, title: str, log: Log) -> None:
    """Same look and same steps for every panel; the legend lies between title and plot, hiding nothing."""
    labels = axes.get_legend_handles_labels()[1]
    axes.set_title(title, fontsize=12, loc="left", fontweight="bold", pad=24 if labels else 8)
    if labels:
        size = 9.5 if len(labels) < 5 else 8.5
        look: dict[str, float] = {"fontsize": size, "handlelength": 1.2, "columnspacing": 1.0, "handletextpad": 0.4}
        legend = axes.legend(loc="lower left", bbox_to_anchor=(-0.01, 0.985), ncols=len(labels), frameon=False, **look)
        legend.set_in_layout(False)
    first, last = min(log.by_step), max(log.by_step)
    margin = max(0.6, 0.01 * (last - first))
    axes.set_xlim(first - margin, last + margin)
    axes.set_xlabel("training step", fontsize=10)
    axes.tick_params(labelsize=10)
    axes.grid(True, color="#e4e4e4", linewidth=0.8)
    axes.set_axisbelow(True)
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
    looks = zip(cycle("osD^"), cycle((ORANGE, GREEN, RED, PURPLE)), strict=False)
    for (source, (steps, values)), (marker, colour) in zip(log.validation(measure).items(), looks, strict=False):
        (points,) = axes.plot(steps, values, color=colour, linestyle="--", linewidth=1.2, zorder=3)
        points.set(marker=marker, markersize=6, markeredgecolor="white", label=f"validation: {source}")


def _draw_reward(axes: Axes, log: Log) -> None:
    _line(axes, log.series("episode/reward_mean", "critic/score/mean"), BLUE, "training")
    _validation_points(axes, log, "reward")


def _draw_success(axes: Axes, log: Log) -> None:
    _line(axes, log.series("episode/success_rate"), BLUE, "training")
    _validation_points(axes, log, "success")
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1))


def _draw_turns(axes: Axes, log: Log) -> None:
    _line(axes, log.series("episode/turns_mean"), BLUE, "turns")
    steps, horizons = log.series("episode/horizon")
    if steps:
        axes.step(steps, horizons, where="mid", color="#333333", linewidth=1.5, label="horizon")
    axes.set_ylim(bottom=0)


def _draw_stops(axes: Axes, log: Log) -> None:
    steps = [step for step, values in log.by_step.items() if any(f"stop/{reason}" in values for reason in StopReason)]
    shares = {reason: [log.by_step[step].get(f"stop/{reason}", 0.0) for step in steps] for reason in StopReason}
    seen = [reason for reason in StopReason if any(shares[reason])]
    _stack(axes, steps, [shares[reason] for reason in seen], [STOP_COLOURS[reason] for reason in seen], list(seen))
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1))


def _draw_entropy(axes: Axes, log: Log) -> None:
    _line(axes, log.series(*ENTROPY), BLUE)
    axes.set_ylim(bottom=0)


def _draw_gap(axes: Axes, log: Log) -> None:
    _line(axes, log.series(*GAP), BLUE)


def _draw_seconds(axes: Axes, log: Log) -> None:
    steps, totals = log.series("timing_s/step")
    phases = {phase: [log.by_step[step].get(f"timing_s/{phase}", 0.0) for step in steps] for phase in PHASE_COLOURS}
    seen = [phase for phase in phases if any(phases[phase])]
    known = [sum(phases[phase][i] for phase in seen) for i in range(len(steps))]
    rest = [max(0.0, total - part) for total, part in zip(totals, known, strict=True)]
    colours = [PHASE_COLOURS[phase] for phase in seen]
    _stack(axes, steps, [*(phases[phase] for phase in seen), rest], [*colours, GREY], [*seen, "rest"])
    axes.set_ylim(bottom=0)


def _stack(
    axes: Axes, steps: Sequence[int], layers: Sequence[Sequence[float]], colours: Sequence[str], labels: Sequence[str]
) -> None:
    """Stacked bars for few steps, where an area would hide that steps are apart; else areas."""
    if len(steps) >= SMOOTH_FROM:
        axes.stackplot(steps, *layers, colors=colours, labels=labels, alpha=0.9, linewidth=0)
        return
    bottom = [0.0] * len(steps)
    for layer, colour, label in zip(layers, colours, labels, strict=True):
        axes.bar(steps, layer, bottom=bottom, color=colour, label=label, width=0.85)
        bottom = [low + height for low, height in zip(bottom, layer, strict=True)]


@dataclass(frozen=True, slots=True)
class Panel:
    """One plot: shown if any of the metrics that start with `needs` was logged, and `instead_of` was not."""

    title: str
    needs: tuple[str, ...]
    draw: Callable[[Axes, Log], None]
    measure: str = ""
    instead_of: str = ""

    def has_data(self, log: Log) -> bool:
        """Whether there is anything to show."""
        logged = {name for values in log.by_step.values() for name in values}
        if self.instead_of in logged:
            return False
        return any(name.startswith(self.needs) for name in logged) or bool(log.validation(self.measure))


PANELS = (
    Panel("Reward (environment's units, mean)", ("episode/reward_mean", "critic/score/mean"), _draw_reward, "reward"),
    Panel("Success (% of episodes)", ("episode/success_rate",), _draw_success, "success"),
    Panel("Turns of an episode (mean) under the horizon", ("episode/turns_mean", "episode/horizon"), _draw_turns),
    Panel("Why episodes ended (% of episodes)", ("stop/",), _draw_stops),
    Panel("Policy entropy (nats per token)", ENTROPY, _draw_entropy),
    Panel("Engine against trainer (mean |Δ probability|)", GAP[:1], _draw_gap),
    Panel("Engine against trainer (mean Δ log-prob)", GAP[1:], _draw_gap, instead_of=GAP[0]),
    Panel("Time of a step (seconds)", ("timing_s/step",), _draw_seconds),
)
"""The panels, in reading order."""
