"""Field of view of the agent: visible cells and the objects in them, nearest first.

Cells are relative to the agent: steps ahead, and steps to its right (negative: to its left).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from env_adapters.babyai.world import AHEAD, LevelGrid, Place, enterable, object_name

DEPTH = 7
"""Rows of the field of view, including the agent's own."""
SIDE = 3
"""Columns of the field of view on each side of the agent."""

COLUMNS = 2 * SIDE + 1
OUTSIDE: Any = object()
"""Placeholder for cells outside the grid."""

Cell = tuple[int, int]
"""Steps ahead of the agent and to its right."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Object in the field of view.

    Attributes:
        name: colour and type, for doors also the state.
        number: index among objects of the same name, from 1 for the nearest.
        cell: position relative to the agent.
    """

    name: str
    number: int
    cell: Cell
    thing: Any

    @property
    def label(self) -> str:
        """Name and number, as commands use them."""
        return f"{self.name} {self.number}"


@dataclass(frozen=True, slots=True)
class FieldOfView:
    """Everything that the agent sees from one pose.

    Attributes:
        cells: object in each visible cell, None for an empty one. The agent's own cell is left out.
        things: all visible objects except walls, nearest first.
        direction: direction of the agent, an index of `AHEAD`.
    """

    cells: Mapping[Cell, Any]
    things: list[Seen]
    carried: Any
    direction: int

    @property
    def front(self) -> Any:
        """Object in the cell in front of the agent, or None."""
        return self.cells[1, 0]

    def free(self, cell: Cell) -> bool:
        """Return True if the cell is visible and can be entered."""
        return cell == (0, 0) or (cell in self.cells and enterable(self.cells[cell]))

    def barrier(self) -> tuple[str, int] | None:
        """Return type and distance of the nearest visible wall or box straight ahead, or None."""
        for ahead in range(1, DEPTH):
            thing = self.cells.get((ahead, 0))
            if thing is not None and thing.type in ("wall", "box"):
                return thing.type, ahead
        return None


def field_of_view(world: LevelGrid, place: Place, direction: int) -> FieldOfView:
    """Return what the agent would see from a pose."""
    view = visible(world, place, direction)
    del view[0, 0]
    found = [
        (ahead + abs(right), cell)
        for cell, thing in view.items()
        if thing is not None and thing.type != "wall"
        for ahead, right in [cell]
    ]
    counts: dict[str, int] = {}
    things = []
    for _, cell in sorted(found, key=lambda pair: pair[0]):
        name = object_name(view[cell])
        counts[name] = counts.get(name, 0) + 1
        things.append(Seen(name, counts[name], cell, view[cell]))
    return FieldOfView(view, things, world.carried, direction)


def visible(world: LevelGrid, place: Place, direction: int) -> dict[Cell, Any]:
    """Return the object in each visible cell, from the farthest row to the agent's and from left to right.

    Visibility spreads from the agent as in minigrid: row by row, in each row first to the right and then to the left.
    It spreads from a cell to the cells beside, ahead and diagonally ahead, unless a wall or a closed door blocks it.
    """
    grid, width, height = world.env.grid.grid, world.env.grid.width, world.env.grid.height
    (x, y), (dx, dy) = place, AHEAD[direction]
    rows: list[list[Any]] = []
    lit = [[False] * COLUMNS for _ in range(DEPTH + 1)]  # one extra row, so that every row has a next one
    lit[0][SIDE] = True
    for ahead in range(DEPTH):
        row = []
        for right in range(-SIDE, SIDE + 1):
            cx, cy = x + ahead * dx - right * dy, y + ahead * dy + right * dx
            row.append(grid[cy * width + cx] if 0 <= cx < width and 0 <= cy < height else OUTSIDE)
        rows.append(row)
        here, beyond = lit[ahead], lit[ahead + 1]
        for order, step in ((range(COLUMNS - 1), 1), (range(COLUMNS - 1, 0, -1), -1)):
            for i in order:
                if here[i] and (row[i] is None or (row[i] is not OUTSIDE and row[i].see_behind())):
                    here[i + step] = beyond[i + step] = beyond[i] = True
    return {
        (ahead, i - SIDE): rows[ahead][i]
        for ahead in range(DEPTH - 1, -1, -1)
        for i in range(COLUMNS)
        if lit[ahead][i] and rows[ahead][i] is not OUTSIDE
    }
