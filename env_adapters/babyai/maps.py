"""Shortest paths through the whole grid, visible or not: knowledge of the oracle that the agent lacks."""

import heapq
from collections.abc import Iterable
from typing import Any

from env_adapters.babyai.commands import missing_key
from env_adapters.babyai.world import AHEAD, Grid, Place

Pose = tuple[Place, int]
"""Position and direction of the agent; the direction is an index of `AHEAD`."""

THING, LOCK = 30, 60
"""Estimated cost, in moves, of removing an object from a path and of fetching a key."""


def ahead(place: Place, direction: int, steps: int = 1) -> Place:
    """Return the position `steps` ahead, or behind for a negative number."""
    return place[0] + steps * AHEAD[direction][0], place[1] + steps * AHEAD[direction][1]


def facing(place: Place) -> list[Pose]:
    """Return the poses next to a cell that face it."""
    return [(ahead(place, direction, -1), direction) for direction in range(4)]


class Map:
    """Distance of every pose to the nearest goal."""

    def __init__(self, world: Grid, goals: Iterable[Pose], hands_off: bool = False) -> None:
        """Search backwards from the goals.

        Args:
            hands_off: True if no object may be moved; boxes can still be opened, which removes them.
        """
        self.world, self.hands_off = world, hands_off
        self.carried = world.carried
        self.distances: dict[Pose, int] = {}
        queue = [(0, goal) for goal in goals]
        while queue:
            distance, pose = heapq.heappop(queue)
            cost = self.entry_cost(pose[0])
            if cost is None or pose in self.distances:
                continue
            self.distances[pose] = distance
            place, direction = pose
            heapq.heappush(queue, (distance + 1, (place, (direction + 1) % 4)))
            heapq.heappush(queue, (distance + 1, (place, (direction + 3) % 4)))
            heapq.heappush(queue, (distance + 1 + cost, (ahead(place, direction, -1), direction)))

    def entry_cost(self, place: Place) -> int | None:
        """Return the estimated moves to clear a cell before it can be entered; None for a wall."""
        thing = self.world.thing_at(place) if self.world.inside(place) else WALL
        if thing is None:
            return 0
        if thing is WALL or thing.type == "wall":
            return None
        if thing.type == "door":
            return 0 if thing.is_open else LOCK if missing_key(thing, self.carried) else 1
        return None if self.hands_off and thing.type != "box" else THING

    def way(self, start: Pose) -> list[Place]:
        """Return the cells of a shortest path from `start`, in order."""
        pose, cells = start, []
        while self.distances[pose]:
            place, direction = pose
            step = (ahead(place, direction), direction)
            cost = self.entry_cost(step[0])
            if cost is not None and self.distances.get(step) == self.distances[pose] - 1 - cost:
                pose = step
                cells.append(pose[0])
            else:
                turns = [(place, (direction + turn) % 4) for turn in (1, 3)]
                pose = min(turns, key=self.distances.__getitem__)
        return cells


WALL: Any = object()
"""Placeholder for cells outside the grid."""
