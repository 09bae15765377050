"""Drawings of an environment's states: asked from its adapter, and turned into HTML."""

from base64 import b64encode
from collections.abc import Sequence
from html import escape

from verl_agent.envs.drawing import COLORS, Drawing, Grid, Node, Table, Tree
from verl_agent.envs.registry import load_adapter
from verl_agent.errors import ConfigError, describe_exception
from verl_agent.trace.record import EpisodeRecord, to_episode
from verl_agent.viewer.episode_html import block

CELL = 18
"""Pixels of a grid's cell."""
MAX_CELLS = 10_000
"""Most cells of a grid that is drawn."""
_SHADES = {"yellow": "#f0c000", "grey": "#999999", "green": "#00a000"}
"""Colors that differ from those of CSS, which are too bright on white."""


def as_html(states: Sequence[Sequence[Drawing]], env: str) -> list[str]:
    """Return the drawings of each state as HTML.

    Raises:
        ConfigError: a drawing of the environment cannot be shown.
    """
    try:
        return ["".join(map(_drawing_html, state)) for state in states]
    except ConfigError:
        raise
    except Exception as error:  # boundary: the drawings are made by the author's code
        message = f"{env!r} has drawings that cannot be shown: {describe_exception(error)}"
        raise ConfigError(message) from error


def _drawing_html(drawing: Drawing) -> str:
    if isinstance(drawing, Grid):
        return f"<div>{block(drawing.title)}<img alt='' src='{grid_url(drawing)}'></div>"
    return block(as_text(drawing))


def draw_states(record: EpisodeRecord) -> list[list[Drawing]]:
    """Return the drawings of an episode: for the start and after each turn; those that did not change are left out.

    Raises:
        ConfigError: the adapter fails.
    """
    if record.get("given_turns"):
        return []  # other turns came before those of the record
    try:
        adapter = load_adapter(record["env"])
    except ConfigError:
        return []  # of another machine: the text remains
    try:
        states = [list(state) for state in adapter.draw(to_episode(record))]
    except Exception as error:  # boundary: the drawing is the author's code
        raise ConfigError(f"{record['env']!r} cannot draw this episode: {describe_exception(error)}") from error
    earlier: list[list[Drawing]] = [[], *states]
    return [
        [drawing for drawing in state if drawing not in before] for before, state in zip(earlier, states, strict=False)
    ]


def as_text(drawing: Table | Tree) -> str:
    """Return a table or a tree as lines of text."""
    if isinstance(drawing, Tree):
        return "\n".join([drawing.title, *(line for root in drawing.roots for line in _node_lines(root, 1))])
    rows = [list(map(str, row)) for row in ([drawing.columns] if drawing.columns else []) + list(drawing.rows)]
    widths = [max(len(row[at]) if at < len(row) else 0 for row in rows) for at in range(max(map(len, rows), default=0))]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=False)).rstrip() for row in rows]
    return "\n".join([drawing.title, *(f"  {line}" for line in lines)])


def _node_lines(node: Node, depth: int) -> list[str]:
    mark = {True: "✓ ", False: "· ", None: ""}[node.done]
    return [
        f"{'  ' * depth}{mark}{node.label}",
        *(line for child in node.children for line in _node_lines(child, depth + 1)),
    ]


def grid_url(grid: Grid) -> str:
    """Return a grid as a `data:` URL of an SVG image. A browser runs no script of an image.

    Raises:
        ConfigError: the grid is too large.
    """
    width = max(map(len, grid.rows), default=0)
    if width * len(grid.rows) > MAX_CELLS:
        raise ConfigError(f"a grid of {width} times {len(grid.rows)} cells is too large to be drawn.")
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width * CELL}" height="{len(grid.rows) * CELL}" '
        f'font-size="{CELL - 4}" text-anchor="middle" font-family="sans-serif">'
    ]
    for y, row in enumerate(grid.rows):
        for x, cell in enumerate(row):
            place = f'x="{x * CELL}" y="{y * CELL}" width="{CELL}" height="{CELL}"'
            parts.append(f'<rect {place} fill="{_css(cell.fill)}" stroke="#ddd"/>')
            if cell.text:
                at = f'x="{(x + 0.5) * CELL}" y="{(y + 0.78) * CELL}"'
                parts.append(f'<text {at} fill="{_css(cell.color)}">{escape(cell.text[:3])}</text>')
    image = "".join([*parts, "</svg>"]).encode("utf-8", "replace")
    return f"data:image/svg+xml;base64,{b64encode(image).decode()}"


def _css(color: str) -> str:
    return _SHADES.get(color, color) if color in COLORS else "black"
