"""Test-time scaling of an evaluation: success over samples, turns or tokens, and best of n."""

from collections.abc import Sequence
from typing import Any

from nicegui import ui
from starlette.requests import Request

from verl_agent.results.scaling import ScalingCurve
from verl_agent.results.scaling_report import describe_selection, read_scaling
from verl_agent.trace.panels import COLORS
from verl_agent.trace.run_panels import MOST_CURVES
from verl_agent.viewer.charts import SHARES, add_chart, axis_of, band
from verl_agent.viewer.elements import add_heading, show_text
from verl_agent.viewer.layout import Page
from verl_agent.viewer.state import OpenedSource


async def show(page: Page, opened: OpenedSource, request: Request) -> None:
    """Show the page `/run/<key>/scaling`."""
    found = await opened.fetch("scaling", lambda: read_scaling(opened.source.folder))
    with ui.element("div").classes("sides"):
        for unit in dict.fromkeys(curve.unit for curve in found.curves):
            curves = [curve for curve in found.curves if curve.unit == unit]
            notes = "; ".join(f"{curve.name}: {curve.meaning}" for curve in curves)
            add_chart(f"Success over {unit}", _chart(unit, curves), f"{notes}. Bands: 95 % intervals over tasks.")
    if found.selections:
        add_heading("Best of n")
    for selection in found.selections:
        show_text(describe_selection(selection))


def _chart(unit: str, curves: Sequence[ScalingCurve]) -> dict[str, Any]:
    """Return the options of a chart with the curves of one unit and their intervals."""
    series: list[dict[str, Any]] = []
    for curve, color in zip(curves[:MOST_CURVES], COLORS, strict=False):
        means = [[amount, one.mean] for amount, one in curve.points.items()]
        series.append({"name": curve.name, "type": "line", "data": means, "symbol": "circle", "color": color})
        series += band(curve.name, color, [(amount, one.low, one.high) for amount, one in curve.points.items()])
    return {"xAxis": axis_of(unit), "yAxis": SHARES, "series": series}
