"""Shortest paths through the visible cells, all from one search.

Ties are broken as in AgentGym's search, so that the agent stops at the same positions.
"""

from collections.abc import Iterable, Sequence

from env_adapters.babyai.sight import DEPTH, SIDE, Cell
from env_adapters.babyai.world import Move

STEPS: tuple[Cell, ...] = ((1, 0), (0, 1), (-1, 0), (0, -1))
"""Effect of a step forward, by the number of right turns since the start of the search."""

# Poses are small numbers, four to a cell: one for each direction. The board has one more row behind the agent and one
# more column to its right than the field of view; the strict rules need them.
ROWS, WIDTH = DEPTH + 1, 2 * SIDE + 2
NOWHERE = ROWS * WIDTH * 4


def pose(cell: Cell, turns: int) -> int:
    """Return the number of a pose; `NOWHERE` outside the board."""
    row, column = cell[0] + 1, cell[1] + SIDE
    if not (0 <= row < ROWS and 0 <= column < WIDTH):
        return NOWHERE
    return (row * WIDTH + column) * 4 + turns % 4


def moves_from(cell: Cell, turns: int) -> tuple[int, int, int]:
    """Return the poses after a step forward, a left turn and a right turn, in the order of the search."""
    step = STEPS[turns]
    return pose((cell[0] + step[0], cell[1] + step[1]), turns), pose(cell, turns - 1), pose(cell, turns + 1)


AFTER = [
    moves_from((row - 1, column - SIDE), turns) for row in range(ROWS) for column in range(WIDTH) for turns in range(4)
]
START = pose((0, 0), 0)


class Paths:
    """Reachable poses and the shortest path to each."""

    def __init__(self, free: Iterable[Cell]) -> None:
        """Search from the agent's pose.

        Args:
            free: cells that can be entered, all on the board, including the agent's own.
        """
        closed = bytearray(b"\1") * (NOWHERE + 1)
        for cell in free:
            first = pose(cell, 0)
            closed[first : first + 4] = b"\0\0\0\0"
        closed[START] = 1
        order, ring, back = [START], [START], [START]
        self._before: dict[int, int] = {}
        while ring:
            # AgentGym queues a pose once for each path to it. The first entry decides when the pose is expanded, the
            # last entry decides its predecessor. `ring` has the order of first entries, `back` the reverse order of
            # last entries.
            sources, back = back, []
            for here in sources:
                for after in reversed(AFTER[here]):
                    if not closed[after] and after not in self._before:
                        self._before[after] = here
                        back.append(after)
            sources, ring = ring, []
            for here in sources:
                for after in AFTER[here]:
                    if not closed[after]:
                        closed[after] = 1
                        ring.append(after)
            order += ring
        self._rank = {here: rank for rank, here in enumerate(order)}

    def facing(self, cell: Cell) -> Sequence[Move] | None:
        """Return the moves to the nearest pose that faces `cell`; None if there is no path."""
        return self._to(pose((cell[0] - step[0], cell[1] - step[1]), turns) for turns, step in enumerate(STEPS))

    def onto(self, cell: Cell) -> Sequence[Move] | None:
        """Return the moves that lead onto `cell`; None if there is no path."""
        return self._to(pose(cell, turns) for turns in range(4))

    def _to(self, goals: Iterable[int]) -> Sequence[Move] | None:
        reached = [goal for goal in goals if goal in self._rank]
        if not reached:
            return None
        here, moves = min(reached, key=self._rank.__getitem__), []
        while here != START:
            before = self._before[here]
            moves.append(Move.FORWARD if before // 4 != here // 4 else TURN[(here - before) % 4])
            here = before
        return moves[::-1]


TURN = {1: Move.RIGHT, 3: Move.LEFT}
