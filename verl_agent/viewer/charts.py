"""Charts of all pages: title, axes, legend and interval bands of one look, and a sentence on what to look for."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nicegui import ui
from nicegui.events import EChartPointClickEventArguments

from verl_agent.trace.panels import COLORS, GREY, Panel, PanelKind, smoothed
from verl_agent.trace.run_panels import MOST_CURVES
from verl_agent.viewer.elements import add_heading
from verl_agent.viewer.run_data import Axis, RunData

_FAINT = "rgba(128, 128, 128, 0.3)"
"""Color of grid lines, on light and on dark pages."""
_INTERVAL = "interval of "
"""Beginning of the stack that an interval band has of its own."""
_LINES = ("solid", "dashed", "dotted")
"""Types of lines."""
_BORDER = {"color": GREY, "type": "dotted"}
"""Line at a step with a new turn limit."""
_BASE: Mapping[str, Any] = {
    "color": COLORS,
    "animation": False,
    "tooltip": {
        "trigger": "axis",
        "confine": True,
        "backgroundColor": "var(--surface)",
        "borderColor": "var(--line)",
        "textStyle": {"color": "var(--text)", "fontSize": 12},
    },
    "legend": {"type": "scroll", "bottom": 0, "itemWidth": 14, "itemHeight": 8},
    "grid": {"left": 50, "right": 16, "top": 12, "bottom": 60},
}


def axis_of(name: str = "", **values: Any) -> dict[str, Any]:
    """Return the options of an axis with its name beside its middle."""
    named = {"name": name, "nameLocation": "middle", "nameGap": 24, "nameTextStyle": {"color": GREY}} if name else {}
    line = {"lineStyle": {"color": _FAINT}}
    return {"type": "value", **named, "splitLine": line, "axisLine": line, "axisTick": line, **values}


SHARES = axis_of(min=0, max=1)
"""Axis of shares."""


def band(name: str, color: str, points: Sequence[tuple[float, float, float]]) -> list[dict[str, Any]]:
    """Return two series that fill the area between the ends of intervals.

    Args:
        name: name of the curve; a click on it in the legend hides the band, too.
        points: x, low and high of each interval.
    """
    line: dict[str, Any] = {"name": name, "type": "line", "stack": _INTERVAL + name, "color": color, "symbol": "none"}
    line |= {"silent": True, "lineStyle": {"opacity": 0}, "tooltip": {"show": False}}
    return [
        {**line, "data": [[x, low] for x, low, _ in points]},
        {**line, "data": [[x, high - low] for x, low, high in points], "areaStyle": {"opacity": 0.15}},
    ]


def chart(runs: Sequence[tuple[RunData, Panel]], axis: Axis = "step", smooth: int = 1) -> dict[str, Any]:
    """Return the options of one chart.

    Args:
        runs: each run with its panel; with several runs, the names of the curves begin with the run's.
        smooth: number of steps of the running mean; 1 for none.

    Returns:
        Options of ECharts. Each point is `[x, y, step]`, so that a click knows its step.
    """
    series: list[dict[str, Any]] = []
    for number, (run, panel) in enumerate(runs):
        positions = {step: round(position, 4) for step, position in run.positions(axis).items()}
        borders = [{"xAxis": positions[step]} for step in panel.borders if step in positions]
        curves = panel.curves[: max(1, MOST_CURVES // len(runs))]
        for place, curve in [(at, one) for at, plain in enumerate(curves) for one in smoothed(plain, smooth)]:
            color = curve.color if len(runs) == 1 else COLORS[number % len(COLORS)]
            line: dict[str, Any] = {
                "name": curve.name if len(runs) == 1 else f"{run.name}: {curve.name}",
                "type": "line",
                "data": [[positions[at], curve.values[at], at] for at in sorted(curve.values) if at in positions],
                "symbol": "none" if curve.faint else "circle",
                "symbolSize": 4 if curve.stack else 6,
                "color": color,
                # with several runs, which have a color each, the type tells the curves of a run apart
                "lineStyle": {"type": _LINES[place % 3] if len(runs) > 1 else _LINES[curve.dashed], "width": 2},
            }
            if curve.faint:
                line["lineStyle"] |= {"width": 1, "opacity": 0.35}
            if curve.dashed:
                line |= {"step": "end", "symbol": "none"}
            if borders:
                style = _BORDER if len(runs) == 1 else {**_BORDER, "color": color}
                line["markLine"] = {"silent": True, "symbol": "none", "label": {"show": False}, "lineStyle": style}
                line["markLine"]["data"], borders = borders, []
            if curve.stack and len(runs) == 1:
                line |= {"stack": curve.stack, "areaStyle": {"opacity": 0.4}}
            series.append(line)
            if len(curve.values) > 1 and curve.band:
                ends = [(positions[step], *curve.band[step]) for step in sorted(curve.band) if step in positions]
                series += band(line["name"], color, ends)
    return {
        "xAxis": axis_of(
            axis, min="dataMin", max="dataMax", minInterval=int(axis != "hours"), splitLine={"show": False}
        ),
        "yAxis": _y_axis(runs[0][1].kind),
        "series": series,
    }


def _y_axis(kind: PanelKind) -> dict[str, Any]:
    return SHARES if kind.share else axis_of(min=0) if kind.from_zero else axis_of(scale=True)


def add_chart(
    title: str,
    options: Mapping[str, Any],
    note: str = "",
    on_point_click: Callable[[EChartPointClickEventArguments], Any] | None = None,
) -> ui.echart:
    """Add a chart.

    Args:
        options: axes and series of ECharts; other options replace those of this module.
        note: sentence below it, on what to look for.
    """
    with ui.column().classes("w-full min-w-0 gap-1"):
        add_heading(title)
        # as SVG, whose texts follow the colors of the page
        chart = ui.echart(with_look(options), on_point_click, renderer="svg").classes("w-full h-64")
        if note:
            ui.label(note).classes("small muted")
    return chart


def with_look(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a chart with the look of all charts; one line alone, which the title names, has no legend.

    A single area of a stack has one, since the title does not name it.
    """
    series = options["series"]
    stacked = any("areaStyle" in one and not one["stack"].startswith(_INTERVAL) for one in series)
    shown = stacked or len({one.get("name") for one in series}) > 1
    grid = _BASE["grid"] | ({} if shown else {"bottom": 40})
    return {**_BASE, "legend": _BASE["legend"] | {"show": shown}, "grid": grid, **options}
