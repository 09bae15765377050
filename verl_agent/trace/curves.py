"""Learning curves of a run, as one PNG file or one for each panel."""

from collections.abc import Collection, Iterable, Sequence
from io import BytesIO
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from verl_agent.errors import ConfigError
from verl_agent.trace.metrics_log import read_metrics
from verl_agent.trace.panels import GREY, SMOOTH_FROM, Curve, Panel, smoothed, usual_window
from verl_agent.trace.run_panels import logged_steps, run_panels
from verl_agent.visible import make_visible


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
    panels = run_panels(logged_steps(log), log)
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
        _draw(axes, panel.curves, usual_window(log))
        _style(axes, panel, log, usual_window(log))
    path = Path(png)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_figure(figure, path, dpi=100)
    return path


def panel_png(panel: Panel, steps: Collection[int], window: int) -> bytes:
    """Return one panel as a PNG file, 690 pixels wide.

    Args:
        steps: steps of the x axis.
        window: number of steps of the running mean; 1 for none.
    """
    figure = Figure(figsize=(6, 3), dpi=115, layout="constrained")
    axes = figure.add_subplot()
    _draw(axes, panel.curves, window)
    _style(axes, panel, steps, window)
    png = BytesIO()
    save_figure(figure, png)
    return png.getvalue()


def save_figure(figure: Figure, path: Path | BytesIO, dpi: float | None = None) -> None:
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


def _style(axes: Axes, panel: Panel, steps: Collection[int], window: int) -> None:
    """Apply the same style and step range to a panel, with the legend between title and plot."""
    kind = panel.kind
    labels = axes.get_legend_handles_labels()[1]
    axes.set_title(kind.title, fontsize=12, loc="left", fontweight="bold", pad=24 if labels else 8)
    if labels:
        size = 9.5 if len(labels) < 5 else 8.5
        spacing: dict[str, float] = {"fontsize": size, "handlelength": 1.2, "columnspacing": 1.0, "handletextpad": 0.4}
        anchor = (-0.01, 0.985)
        legend = axes.legend(loc="lower left", bbox_to_anchor=anchor, ncols=len(labels), frameon=False, **spacing)
        legend.set_in_layout(False)
    first, last = min(steps), max(steps)
    margin = max(0.6, 0.01 * (last - first))
    axes.set_xlim(first - margin, last + margin)
    axes.set_xlabel("training step" if window == 1 else f"training step (mean of {window} steps)", fontsize=10)
    axes.tick_params(labelsize=10)
    axes.grid(True, color="#e4e4e4", linewidth=0.8)
    axes.set_axisbelow(True)
    if kind.share:
        axes.set_ylim(0, 1.02)
        axes.yaxis.set_major_formatter(PercentFormatter(xmax=1))
    elif kind.from_zero:
        axes.set_ylim(bottom=0)
    for step in panel.borders:
        axes.axvline(step, color=GREY, linestyle=":", linewidth=1)
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))


def _draw(axes: Axes, curves: Sequence[Curve], window: int) -> None:
    drawn = [one for curve in curves for one in smoothed(curve, window)]
    if curves[0].stack:
        _stack(axes, drawn)
        return
    for curve in drawn:
        steps, values = list(curve.values), list(curve.values.values())
        if curve.band:
            low, high = zip(*curve.band.values(), strict=True)
            axes.fill_between(list(curve.band), low, high, color=curve.color, alpha=0.15, linewidth=0)
        if curve.dashed:
            axes.step(steps, values, where="post", color=curve.color, linewidth=1.5, label=curve.name)
        elif curve.faint:
            axes.plot(steps, values, color=curve.color, linewidth=0.9, alpha=0.35)
        elif curve.sparse:
            (points,) = axes.plot(steps, values, color=curve.color, linestyle="--", linewidth=1.2, zorder=3)
            points.set(marker="o", markersize=6, markeredgecolor="white", label=curve.name)
        else:
            label = curve.name if len(curves) > 1 else None
            mark = "." if len(steps) < SMOOTH_FROM else ""
            axes.plot(steps, values, color=curve.color, linewidth=1.8, marker=mark, markersize=5, label=label)


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
