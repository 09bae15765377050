"""Files of test-time scaling: JSON and a plot, in the folder of the evaluation."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from verl_agent.errors import ConfigError, counted
from verl_agent.results.folder import planned_records, read_report
from verl_agent.results.scaling import ScalingCurve, scaling_curves
from verl_agent.results.selectors import Selection, best_of_n
from verl_agent.trace.provenance import write_result

SCALING_VERSION = 1
"""Version of the JSON. It increases when a field changes its meaning or disappears."""
JSON, PLOT = "scaling.json", "scaling.png"
UPPER_BOUND = "upper bound: it knows the outcome"


@dataclass(frozen=True, slots=True)
class Scaling:
    """Test-time scaling of one evaluation.

    Attributes:
        curves: success over turns, samples, tokens and cost.
        selections: success of best-of-n by selector.
    """

    model: str
    curves: Sequence[ScalingCurve]
    selections: Sequence[Selection]


def read_scaling(folder: Path) -> Scaling:
    """Compute the curves of the evaluation in a folder.

    Raises:
        ConfigError: the folder holds no evaluation, or one without a valid episode.
    """
    report, records = read_report(folder), planned_records(folder)
    curves = scaling_curves(records, tells_limit=report["success_within_turns"] is None)
    selections = best_of_n(records, folder)
    if not curves and not selections:
        raise ConfigError(
            f"{folder} has no curve: no valid episode, or one sample per task and agent.options.turns_left."
        )
    return Scaling(str(report["model"]), curves, selections)


def write_scaling(scaling: Scaling, folder: Path) -> list[Path]:
    """Write JSON and plot, and return their paths."""
    write_result(folder / JSON, SCALING_VERSION, asdict(scaling))
    _plot(scaling, folder / PLOT)
    return [folder / JSON, folder / PLOT]


def describe_ends(curve: ScalingCurve) -> str:
    """Return success at the least and at the largest amount of a curve."""
    first, last = min(curve.points), max(curve.points)
    least = "" if first == last else f"{curve.points[first]} at {first:g}, "
    return f"{least}{curve.points[last]} at {last:g} {curve.unit.removesuffix('s') if last == 1 else curve.unit}"


def describe_selection(selection: Selection) -> str:
    """Return one line: the selector, its meaning, and its success with all samples or the reason without one."""
    name = f"{selection.name} ({UPPER_BOUND})" if selection.upper_bound else selection.name
    if not selection.points:
        return f"{name}: not available, {selection.missing}"
    most = max(selection.points)
    return f"{name}, {selection.meaning}: {selection.points[most]} with {counted(most, 'sample')}"


def _plot(scaling: Scaling, path: Path) -> None:
    """Plot one panel for each unit of the curves, and one for best-of-n."""
    from matplotlib.figure import Figure

    units = list(dict.fromkeys(curve.unit for curve in scaling.curves))
    chosen = [selection for selection in scaling.selections if selection.points]
    figure = Figure(figsize=(5 * (len(units) + bool(chosen)), 4), layout="constrained")
    every = figure.subplots(1, len(units) + bool(chosen), squeeze=False)[0]
    for curve in scaling.curves:
        xs, rates = list(curve.points), list(curve.points.values())
        axes = every[units.index(curve.unit)]
        (drawn,) = axes.plot(xs, [one.mean for one in rates], marker=".", label=curve.name)
        low, high = [one.low for one in rates], [one.high for one in rates]
        axes.fill_between(xs, low, high, alpha=0.15, color=drawn.get_color())
        axes.set(xlabel=curve.unit, ylabel="success rate")
    for selection in chosen:
        label, style = (f"{selection.name} (upper bound)", "--") if selection.upper_bound else (selection.name, "-")
        means = [one.mean for one in selection.points.values()]
        every[-1].plot(list(selection.points), means, marker=".", label=label, linestyle=style)
        every[-1].set(xlabel="samples to choose from", ylabel="success rate of the chosen one")
    for axes in every:
        axes.set(ylim=(0, 1))
        axes.legend()
    figure.suptitle(scaling.model)
    figure.savefig(path, dpi=120)
