"""Navigation in a fully known grid by text commands, for the oracle.

Shortest paths go through the whole grid, visible or not, which the agent does not know. Obstacles are
moved, locked doors are opened with their keys, and boxes are opened to get a key inside.
"""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from env_adapters.babyai.commands import missing_key
from env_adapters.babyai.game import GridGame
from env_adapters.babyai.sight import field_of_view
from env_adapters.babyai.world import AHEAD, LevelGrid, Move, Place

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

    def __init__(self, world: LevelGrid, goals: Iterable[Pose], hands_off: bool = False) -> None:
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


FAR = THING * LOCK
"""Upper bound on the length of any path, in moves."""
MAX_COMMANDS = 150
"""Number of commands after which the oracle gives up."""


@dataclass(frozen=True, slots=True)
class Step:
    """One command of a plan."""

    command: str
    thought: str


class Over(Exception):
    """Signal that the mission has ended or cannot be completed."""


class Walker:
    """Player of one game that records its commands."""

    def __init__(self, game: GridGame) -> None:
        """Start with a game in its initial state."""
        self.game, self.world = game, game.world
        self.steps: list[Step] = []
        self.solved = False
        self.wanted: list[Any] = []  # objects to pick up again after they had to be put down
        self.clearing: list[Any] = []  # objects that are being moved or unlocked
        self.hands_off = False  # picking up an object that the goal does not name fails the mission

    def say(self, command: str, thought: str) -> None:
        """Execute one command."""
        if len(self.steps) == MAX_COMMANDS:
            raise Over
        result = self.game.play(command)
        self.steps.append(Step(command, thought))
        self.solved = result.reward > 0
        if result.terminated:
            raise Over

    def walk_to(self, things: Sequence[Any], finish: str = "go to") -> None:
        """Execute the command `finish` for one of the objects, or walk in front of it."""
        self.walk(self.before(things), called(things), finish, things)

    def walk(self, goals: Sequence[Pose], aim: str, finish: str = "", things: Sequence[Any] = ()) -> None:
        """Walk to one of the poses, or execute `finish` for one of the objects as soon as it is available."""
        while True:
            for seen in self.game.sight.things:
                command = f"{finish} {seen.label}"
                if any(seen.thing is thing for thing in things) and self.game.offer.moves.get(command):
                    return self.say(command, f"I see the {seen.name} and can reach it.")
            known = self.map(goals)
            if not known.distances[self.pose]:
                return None
            way = known.way(self.pose)
            blocked = next((place for place in way if (known.entry_cost(place) or 0) >= THING), None)
            if blocked is not None:
                self.clear(self.world.thing_at(blocked), way)
            else:
                command = self.best_command(known)
                self.say(command, f"I {'look around' if command.startswith('turn') else 'make my way'} for {aim}.")

    def best_command(self, known: Map) -> str:
        """Return the command that, with the best command after it, ends nearest to the goals of the map."""

        def value(command: str) -> tuple[int, int, int]:
            moves = self.game.offer.moves[command]
            pose = after(self.pose, moves)
            first = known.distances.get(pose, FAR)
            if first == 0:
                return -1, 0, len(moves)
            if first == FAR or Move.TOGGLE in moves:
                return first, first, len(moves)
            following = self.game.grammar.offer(field_of_view(self.world, *pose)).moves.values()
            return min(known.distances.get(after(pose, more), FAR) for more in following), first, len(moves)

        return min(self.game.offer.moves, key=value)

    def pick_up(self, things: Sequence[Any]) -> None:
        """Pick up one of the objects; put down a carried one first."""
        if (carried := self.world.carried) is not None:
            way = self.map(self.before([thing for thing in things if thing is not carried])).way(self.pose)
            self.put_down(f"I need my hands, so I put the {color_and_type(carried)} down.", way)
        self.walk_to(things, "pickup")

    def put_down(self, thought: str, way: Sequence[Place] = ()) -> None:
        """Drop the carried object: off the path and away from doors if possible, else anywhere."""
        doors = [place for place, thing in self.world.things() if thing.type == "door"]
        doorsteps = {ahead(door, direction) for door in doors for direction in range(4)}
        needed = {*way, self.world.place}
        free = {place for place in self.world.places() if self.empty(place)}
        for choice in (free - needed - doorsteps, free - needed, free):
            poses = [pose for place in choice for pose in facing(place)]
            if Map(self.world, poses).distances.get(self.pose, THING) < THING:
                self.walk(poses, "a free place")
                return self.say("drop", thought)
        raise Over

    def clear(self, thing: Any, way: Sequence[Place]) -> None:
        """Remove the obstacle `thing`, and pick up again what was carried before if it is still needed."""
        held = self.world.carried
        with self.busy_with(self.clearing, thing):
            if thing.type == "door":
                self.unlock(thing)
            elif self.hands_off:
                self.walk_to([thing])
                self.say("toggle", f"I must not take the {color_and_type(thing)}, so I open it to make way.")
            else:
                if held is not None:
                    self.put_down(f"The {color_and_type(thing)} is in my way, so I need my hands.", way)
                self.walk_to([thing], "pickup")
                self.put_down(f"I put the {color_and_type(thing)} out of the way.", way)
        if held is not self.world.carried and any(held is wanted for wanted in self.wanted):
            self.pick_up([held])

    def unlock(self, door: Any) -> None:
        """Fetch the key of a locked door, from a box if necessary, and open the door."""
        keys = [thing for _, thing in self.world.things() if is_key_to(thing, door)]
        if not keys:
            boxes = [thing for _, thing in self.world.things() if is_key_to(thing.contains, door)]
            keys = [box.contains for box in boxes]
            self.walk_to(boxes)
            self.say("toggle", f"The {color_and_type(door)} needs a key that I do not see, so I look into the box.")
        self.pick_up(keys)
        with self.busy_with(self.wanted, self.world.carried):
            self.walk_to([door], "toggle and go through")

    @contextmanager
    def busy_with(self, things: list[Any], thing: Any) -> Iterator[None]:
        """Keep `thing` on a list while the block runs.

        Raises:
            Over: it is on the list already, so the task depends on itself.
        """
        if any(thing is other for other in things):
            raise Over
        things.append(thing)
        yield
        things.pop()

    @property
    def pose(self) -> Pose:
        """Position and direction of the agent."""
        return self.world.place, self.world.direction

    def before(self, things: Sequence[Any]) -> list[Pose]:
        """Return the poses that face one of the objects."""
        places = [place for place, thing in self.world.things() if any(thing is one for one in things)]
        return [pose for place in places for pose in facing(place)]

    def empty(self, place: Place) -> bool:
        """Return True if an object can be dropped at a position."""
        return self.world.inside(place) and self.world.thing_at(place) is None

    def map(self, goals: Sequence[Pose]) -> Map:
        """Return the distances to the goals.

        Raises:
            Over: no path exists, even if objects are moved.
        """
        known = Map(self.world, goals, self.hands_off)
        if self.pose not in known.distances:
            raise Over
        return known


def after(pose: Pose, moves: Sequence[Move]) -> Pose:
    """Return the pose after moves that turn, step and open doors; picking up or dropping leads off the map."""
    place, direction = pose
    for move in moves:
        match move:
            case Move.LEFT:
                direction = (direction + 3) % 4
            case Move.RIGHT:
                direction = (direction + 1) % 4
            case Move.FORWARD:
                place = ahead(place, direction)
            case Move.PICKUP | Move.DROP:
                return (-1, -1), 0
    return place, direction


def is_key_to(thing: Any, door: Any) -> bool:
    """Return True if an object is the key to a door."""
    return thing is not None and thing.type == "key" and bool(thing.color == door.color)


def color_and_type(thing: Any) -> str:
    """Return the name of an object without its state."""
    return f"{thing.color} {thing.type}"


def called(things: Sequence[Any]) -> str:
    """Return a common name for several objects of which one suffices."""
    names = {color_and_type(thing) for thing in things}
    return f"the {names.pop()}" if len(names) == 1 else "what the goal names"
