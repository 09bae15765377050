"""Charts of all pages: title, axes and legend of one look, and a sentence on what to look for."""

from collections.abc import Callable, Mapping
from typing import Any

from nicegui import ui
from nicegui.events import EChartPointClickEventArguments

from verl_agent.trace.panels import COLORS
from verl_agent.viewer.axes import INTERVAL
from verl_agent.viewer.layout import add_heading

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
    stacked = any("areaStyle" in one and not one["stack"].startswith(INTERVAL) for one in series)
    shown = stacked or len({one.get("name") for one in series}) > 1
    grid = _BASE["grid"] | ({} if shown else {"bottom": 40})
    return {**_BASE, "legend": _BASE["legend"] | {"show": shown}, "grid": grid, **options}
