"""Small pictures in SVG: curves of exported pages, and sparklines."""

from collections.abc import Mapping, Sequence
from html import escape

from verl_agent.trace.panels import BLUE, PanelKind

WIDTH, HEIGHT = 460, 200
_LEFT, _RIGHT, _TOP, _BOTTOM = 45, 10, 24, 20


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


def line_chart(kind: PanelKind, curves: Mapping[str, tuple[str, Sequence[tuple[float, float]]]]) -> str:
    """Return curves with axes and a legend below; texts are escaped.

    Args:
        kind: title and y axis.
        curves: color and points of each curve, by its name; each has a point.
    """
    every = [point for _, points in curves.values() for point in points]
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
    parts.append(f'<polyline fill="none" stroke="#999" points="{frame}"/>')
    for number, (name, (color, points)) in enumerate(curves.items()):
        placed = _points([place(point) for point in points])
        parts.append(f'<polyline fill="none" stroke="{escape(color)}" stroke-width="1.5" points="{placed}"/>')
        if len(points) == 1:
            at = place(points[0])
            parts.append(f'<circle cx="{at[0]}" cy="{at[1]}" r="3" fill="{escape(color)}"/>')
        x, y = 8 + number % 2 * WIDTH // 2, HEIGHT + 14 * (number // 2 + 1)
        parts.append(f'<rect x="{x}" y="{y - 8}" width="10" height="8" style="fill: {escape(color)}"/>')
        parts.append(f'<text x="{x + 14}" y="{y}">{escape(name)}</text>')
    height = HEIGHT + 14 * ((len(curves) + 1) // 2) + 6
    style = f"width: {WIDTH}px; max-width: 100%"
    return f'<svg viewBox="0 0 {WIDTH} {height}" style="{style}" role="img">{"".join(parts)}</svg>'


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _points(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x},{y}" for x, y in points)
