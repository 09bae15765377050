"""Small pictures in SVG: curves of exported pages, and sparklines."""

from collections.abc import Sequence
from html import escape
from itertools import pairwise

from verl_agent.trace.panels import BLUE, GREY, Curve, Panel, smoothed

WIDTH, HEIGHT = 460, 200
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 10, 24, 20
"""Margins in pixels; the left one holds the longest number, such as -1.23e-05 in 10 px."""


def sparkline(values: Sequence[float], width: int = 120, height: int = 18) -> str:
    """Return a curve of values from 0 to 1, without axes."""
    if not values:
        return ""
    gap = width / max(1, len(values) - 1)
    points = [(round(number * gap, 1), round((height - 2) * (1 - value) + 1, 1)) for number, value in enumerate(values)]
    if len(points) == 1:
        points.append((width, points[0][1]))
    return (
        f'<svg width="{width}" height="{height}" role="img" aria-label="from {values[0]:.2f} to {values[-1]:.2f}">'
        f'<polyline fill="none" stroke="{BLUE}" stroke-width="1.5" points="{_points(points)}"/></svg>'
    )


def line_chart(panel: Panel, window: int = 1) -> str:
    """Return a chart over steps with axes and a legend below; texts are escaped.

    Args:
        window: number of steps of the running mean; 1 for none.
    """
    kind, shapes = panel.kind, _stacked([one for curve in panel.curves for one in smoothed(curve, window)])
    every = [point for _, points in shapes for point in points]
    x_range = _range([x for x, _ in every])
    y_range = (0.0, 1.0) if kind.share else _range([0.0] * kind.from_zero + [y for _, y in every])

    def place(point: tuple[float, float]) -> tuple[float, float]:
        x = _LEFT + (point[0] - x_range[0]) / (x_range[1] - x_range[0]) * (WIDTH - _LEFT - _RIGHT)
        y = _TOP + (y_range[1] - point[1]) / (y_range[1] - y_range[0]) * (HEIGHT - _TOP - _BOTTOM)
        return round(x, 1), round(y, 1)

    parts = [f'<text x="4" y="14" class="title">{escape(kind.title)}</text>']
    parts += [
        f'<text x="{_LEFT - 4}" y="{y}" text-anchor="end">{value:.3g}</text>'
        for y, value in ((_TOP + 4, y_range[1]), (HEIGHT - _BOTTOM, y_range[0]))
    ]
    parts += [
        f'<text x="{x}" y="{HEIGHT - 5}" text-anchor="{anchor}">{value:.6g}</text>'
        for x, anchor, value in ((_LEFT, "start", x_range[0]), (WIDTH - _RIGHT, "end", x_range[1]))
    ]
    frame = f"{_LEFT},{_TOP} {_LEFT},{HEIGHT - _BOTTOM} {WIDTH - _RIGHT},{HEIGHT - _BOTTOM}"
    parts.append(f'<polyline fill="none" stroke="{GREY}" points="{frame}"/>')
    for border in panel.borders:
        (x, top), (_, bottom) = place((border, y_range[1])), place((border, y_range[0]))
        parts.append(f'<line x1="{x}" x2="{x}" y1="{top}" y2="{bottom}" stroke="{GREY}" stroke-dasharray="2 3"/>')
    for number, (curve, points) in enumerate(shapes):
        color = curve.color
        if area := _area(curve, points, shapes[number - 1][1] if number else []):
            opacity = 0.4 if curve.stack else 0.15
            placed = _points(list(map(place, area)))
            parts.append(f'<polygon fill="{escape(color)}" fill-opacity="{opacity}" points="{placed}"/>')
        if curve.dashed:  # a limit, which holds until the next step
            points = [at for one, two in pairwise([*points, points[-1]]) for at in (one, (two[0], one[1]))]
        placed = _points(list(map(place, points)))
        width = 'stroke-width="1" stroke-opacity="0.35"' if curve.faint else 'stroke-width="1.5"'
        parts.append(f'<polyline fill="none" stroke="{escape(color)}" {width} points="{placed}"/>')
        if len(points) == 1:
            at = place(points[0])
            parts.append(f'<circle cx="{at[0]}" cy="{at[1]}" r="3" fill="{escape(color)}"/>')
    for number, curve in enumerate(panel.curves):
        x, y = 8 + number % 2 * WIDTH // 2, HEIGHT + 14 * (number // 2 + 1)
        parts.append(f'<rect x="{x}" y="{y - 8}" width="10" height="8" style="fill: {escape(curve.color)}"/>')
        parts.append(f'<text x="{x + 14}" y="{y}">{escape(curve.name)}</text>')
    height = HEIGHT + 14 * ((len(panel.curves) + 1) // 2) + 6
    style = f"width: {WIDTH}px; max-width: 100%"
    return f'<svg viewBox="0 0 {WIDTH} {height}" style="{style}" role="img">{"".join(parts)}</svg>'


def _stacked(curves: Sequence[Curve]) -> list[tuple[Curve, list[tuple[float, float]]]]:
    """Return each curve with its points, those of a stack on top of the ones before."""
    sums: dict[int, float] = {}
    shapes = []
    for curve in curves:
        values = dict(sorted(curve.values.items()))
        if curve.stack:
            values = sums = {step: sums.get(step, 0.0) + value for step, value in values.items()}
        shapes.append((curve, [(float(step), value) for step, value in values.items()]))
    return shapes


def _area(
    curve: Curve, points: Sequence[tuple[float, float]], below: Sequence[tuple[float, float]]
) -> list[tuple[float, float]]:
    """Return the corners of the area that a curve of a stack or an interval fills; empty for other curves."""
    if curve.stack:
        return [*points, *(reversed(below) if below else [(x, 0.0) for x, _ in reversed(points)])]
    ends = sorted(curve.band.items())
    return [(float(step), high) for step, (_, high) in ends] + [(float(step), low) for step, (low, _) in reversed(ends)]


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _points(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x},{y}" for x, y in points)
