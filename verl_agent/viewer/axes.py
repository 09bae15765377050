"""Axes, colors and interval bands of all charts, as options of ECharts."""

from collections.abc import Sequence
from typing import Any

from verl_agent.trace.panels import GREY

FAINT = "rgba(128, 128, 128, 0.3)"
"""Color of grid lines, on light and on dark pages."""
INTERVAL = "interval of "
"""Beginning of the stack that an interval band has of its own."""


def axis_of(name: str = "", **values: Any) -> dict[str, Any]:
    """Return the options of an axis with its name beside its middle."""
    named = {"name": name, "nameLocation": "middle", "nameGap": 24, "nameTextStyle": {"color": GREY}} if name else {}
    line = {"lineStyle": {"color": FAINT}}
    return {"type": "value", **named, "splitLine": line, "axisLine": line, "axisTick": line, **values}


SHARES = axis_of(min=0, max=1)
"""Axis of shares."""


def band(name: str, color: str, points: Sequence[tuple[float, float, float]]) -> list[dict[str, Any]]:
    """Return two series that fill the area between the ends of intervals.

    Args:
        name: name of the curve; a click on it in the legend hides the band, too.
        points: x, low and high of each interval.
    """
    line: dict[str, Any] = {"name": name, "type": "line", "stack": INTERVAL + name, "color": color, "symbol": "none"}
    line |= {"silent": True, "lineStyle": {"opacity": 0}, "tooltip": {"show": False}}
    return [
        {**line, "data": [[x, low] for x, low, _ in points]},
        {**line, "data": [[x, high - low] for x, low, high in points], "areaStyle": {"opacity": 0.15}},
    ]
