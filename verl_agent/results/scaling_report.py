"""Files of test-time scaling: JSON and a plot, in the folder of the evaluation."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from verl_agent.errors import ConfigError, counted
from verl_agent.results.folder import planned_records, read_report
from verl_agent.results.report_files import write_report
from verl_agent.results.scaling import ScalingCurve, scaling_curves
from verl_agent.results.selectors import Selection, best_of_n
from verl_agent.results.statistics import Estimate

SCALING_VERSION = 1
"""Version of the JSON. It increases when a field changes its meaning or disappears."""
UPPER_BOUND = "upper bound: it knows the outcome"


@dataclass(frozen=True, slots=True)
class Scaling:
    """Test-time scaling of one evaluation.

    Attributes:
        curves: success and return over turns, samples, tokens and cost.
        selections: success and return of best-of-n by selector.
    """

    model: str
    curves: Sequence[ScalingCurve]
    selections: Sequence[Selection]


def read_scaling(folder: Path) -> Scaling:
    """Compute the curves of the evaluation in a folder.

    Raises:
        ConfigError: the folder holds no evaluation, or one without a valid episode.
    """
    report, records = read_report(folder, "model", "success_within_turns"), planned_records(folder)
    operated = bool(report["config"]["evaluation"].get("count_operated"))
    curves = scaling_curves(records, report["success_within_turns"] is None, operated)
    selections = best_of_n(records, folder, count_operated=operated)
    if not curves and not selections:
        raise ConfigError(
            f"{folder} has no curve: no valid episode, or one sample per task and agent.options.turns_left or "
            "judge.mode=replace."
        )
    return Scaling(str(report["model"]), curves, selections)


def write_scaling(scaling: Scaling, folder: Path) -> list[Path]:
    """Write JSON and plot, and return their paths."""
    return write_report(folder, "scaling", SCALING_VERSION, asdict(scaling), figure=_plot(scaling))


def describe_ends(curve: ScalingCurve) -> str:
    """Return success, and the return where it is known, at the least and at the largest amount of a curve."""
    first, last = min(curve.points), max(curve.points)
    unit = curve.unit.removesuffix("s") if last == 1 else curve.unit
    parts = []
    for name, points in (("", curve.points), ("; return ", curve.returns)):
        if points:
            least = "" if first == last else f"{points[first]} at {first:g}, "
            parts.append(f"{name}{least}{points[last]} at {last:g} {unit}")
    return "".join(parts)


def describe_selection(selection: Selection) -> str:
    """Return one line: the selector, its meaning, and its success with all samples or the reason without one."""
    name = f"{selection.name} ({UPPER_BOUND})" if selection.upper_bound else selection.name
    if not selection.points:
        return f"{name}: not available, {selection.missing}"
    most = max(selection.points)
    found = f"{selection.points[most]}, return {selection.returns[most]}"
    return f"{name}, {selection.meaning}: {found} with {counted(most, 'sample')}"


def _plot(scaling: Scaling) -> Any:
    """Return a figure: a panel for each unit of the curves, one for best-of-n, and below each the return if known."""
    from matplotlib.figure import Figure

    units = list(dict.fromkeys(curve.unit for curve in scaling.curves))
    chosen = [selection for selection in scaling.selections if selection.points]
    rows = 1 + (any(curve.returns for curve in scaling.curves) or any(one.returns for one in chosen))
    figure = Figure(figsize=(5 * (len(units) + bool(chosen)), 4 * rows), dpi=120, layout="constrained")
    every, below = (*figure.subplots(rows, len(units) + bool(chosen), squeeze=False), ())[:2]
    for curve in scaling.curves:
        column = units.index(curve.unit)
        _draw(every[column], curve.points, curve.unit, "success rate", curve.name)
        if curve.returns:
            _draw(below[column], curve.returns, curve.unit, "mean return")
    for selection in chosen:
        label, style = (f"{selection.name} (upper bound)", "--") if selection.upper_bound else (selection.name, "-")
        unit = "samples to choose from"
        _draw(every[-1], selection.points, unit, "success rate of the chosen one", label, style)
        _draw(below[-1], selection.returns, unit, "mean return of the chosen one", "", style)
    for axes in below:
        axes.set_visible(bool(axes.lines))
    for axes in every:
        axes.set(ylim=(0, 1))
        axes.legend()
    figure.suptitle(scaling.model)
    return figure


def _draw(axes: Any, points: Mapping[Any, Estimate], unit: str, title: str, label: str = "", style: str = "-") -> None:
    """Draw a curve with the band of its intervals."""
    xs, values = list(points), list(points.values())
    (drawn,) = axes.plot(xs, [one.mean for one in values], marker=".", label=label or None, linestyle=style)
    low, high = [one.low for one in values], [one.high for one in values]
    axes.fill_between(xs, low, high, alpha=0.15, color=drawn.get_color())
    axes.set(xlabel=unit, ylabel=title)
