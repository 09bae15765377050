"""What the agent sees: the visible cells before it and the things in them, nearest first.

Cells are counted as the agent sees them: how many steps ahead, and how many to its right (negative: to its left).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from env_adapters.babyai.world import AHEAD, Grid, Place, enterable, name_of

DEPTH = 7
"""Rows of cells in view, the agent's own included."""
SIDE = 3
"""Columns in view on each side of the agent."""

COLUMNS = 2 * SIDE + 1
OUTSIDE: Any = object()
"""Stands for what is beyond the grid."""

Cell = tuple[int, int]
"""Steps ahead of the agent and to its right."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A thing in view.

    Attributes:
        name: what it looks like.
        number: tells it from others of its name, counted from the nearest, from 1.
        cell: where it is.
        thing: minigrid's object.
    """

    name: str
    number: int
    cell: Cell
    thing: Any

    @property
    def label(self) -> str:
        """Name and number."""
        return f"{self.name} {self.number}"


@dataclass(frozen=True, slots=True)
class Sight:
    """One look.

    Attributes:
        cells: what is in each visible cell, None for an empty one. The agent's own cell is not among them.
        things: all but walls, nearest first.
        carried: what the agent holds, or None.
        direction: where it looks, an index of `AHEAD`.
    """

    cells: Mapping[Cell, Any]
    things: list[Seen]
    carried: Any
    direction: int

    @property
    def front(self) -> Any:
        """What is right before the agent."""
        return self.cells[1, 0]

    def free(self, cell: Cell) -> bool:
        """Whether the agent sees that it could stand there."""
        return cell == (0, 0) or (cell in self.cells and enterable(self.cells[cell]))

    def barrier(self) -> tuple[str, int] | None:
        """The nearest wall or box straight ahead and how far it is, if one is in view."""
        for ahead in range(1, DEPTH):
            thing = self.cells.get((ahead, 0))
            if thing is not None and thing.type in ("wall", "box"):
                return thing.type, ahead
        return None


def look(world: Grid, place: Place, direction: int) -> Sight:
    """See what minigrid's agent sees, or would see from another place."""
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
        name = name_of(view[cell])
        counts[name] = counts.get(name, 0) + 1
        things.append(Seen(name, counts[name], cell, view[cell]))
    return Sight(view, things, world.carried, direction)


def visible(world: Grid, place: Place, direction: int) -> dict[Cell, Any]:
    """What is in each visible cell, from the farthest row to the agent's and from left to right.

    Sight spreads from the agent as in minigrid: row by row away from it, in each row to the right and then to the
    left, from a cell to the ones beside, before and diagonally before it, unless a wall or a shut door fills it.
    """
    grid, width, height = world.env.grid.grid, world.env.grid.width, world.env.grid.height
    (x, y), (dx, dy) = place, AHEAD[direction]
    rows: list[list[Any]] = []
    lit = [[False] * COLUMNS for _ in range(DEPTH + 1)]  # one row more than needed, so that a row has a next one
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
