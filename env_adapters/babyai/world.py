"""A world of minigrid: what stands where, and what a move does.

Minigrid is imported when the first world is built: it takes a second and brings pygame, which nothing here uses.
"""

import importlib
from enum import IntEnum
from functools import cache
from typing import Any

from env_adapters.babyai.levels import Level
from verl_agent.errors import ConfigError

Place = tuple[int, int]
"""Column and row, counted from the top left corner."""

AHEAD: tuple[Place, ...] = ((1, 0), (0, 1), (-1, 0), (0, -1))
"""The step that leads ahead, by direction: east, south, west, north."""


class Move(IntEnum):
    """What the body of the agent can do, with minigrid's numbers."""

    LEFT = 0
    RIGHT = 1
    FORWARD = 2
    PICKUP = 3
    DROP = 4
    TOGGLE = 5


class Grid:
    """One level with one seed, begun anew.

    Attributes:
        mission: what to do, in BabyAI's words.
        max_moves: moves after which the level ends without success.
    """

    def __init__(self, level: Level, seed: int) -> None:
        """Build the world; the same level and seed give the same one everywhere."""
        self.env = quiet(level.builder)(**level.arguments)
        self.env.reset(seed=seed)
        self.mission: str = self.env.mission
        self.max_moves: int = self.env.max_steps

    def move(self, move: Move) -> tuple[float, bool]:
        """Make one move.

        Returns:
            Minigrid's reward, `1 - 0.9 * moves / max_moves` if this move completes the mission, else 0; and whether
            the mission has ended, completed or failed.
        """
        half_done = self.half_done()
        reward, over = self.raw_move(move)
        if over and not reward and self.half_done() and not half_done:
            # Minigrid judges the second part of `open X, then open Y` by the move that completes the first, and a
            # strict part fails when another door is opened: by the very move that it asks for.
            over = False
        return reward, over

    def raw_move(self, move: Move) -> tuple[float, bool]:
        """Make one move and take minigrid's word for what comes of it."""
        _, reward, terminated, _, _ = self.env.step(move)
        return float(reward), bool(terminated)

    def half_done(self) -> bool:
        """Whether the first of two parts of the mission, in time, is completed."""
        instructions = self.env.instrs
        first = {"BeforeInstr": "a_done", "AfterInstr": "b_done"}.get(type(instructions).__name__)
        return first is not None and getattr(instructions, first) == "success"

    @property
    def moves(self) -> int:
        """Moves made so far."""
        return int(self.env.step_count)

    @property
    def place(self) -> Place:
        """Where the agent stands."""
        x, y = self.env.agent_pos
        return int(x), int(y)

    @property
    def direction(self) -> int:
        """Where the agent looks, an index of `AHEAD`."""
        return int(self.env.agent_dir)

    @property
    def front(self) -> Place:
        """The cell before the agent."""
        (x, y), (dx, dy) = self.place, AHEAD[self.direction]
        return x + dx, y + dy

    @property
    def carried(self) -> Any:
        """The thing in the agent's hands, or None."""
        return self.env.carrying

    def thing_at(self, place: Place) -> Any:
        """What stands there: a `WorldObj` of minigrid, or None. The agent itself is no thing."""
        return self.env.grid.grid[place[1] * self.env.grid.width + place[0]]

    def inside(self, place: Place) -> bool:
        """Whether a place is in the grid."""
        return bool(0 <= place[0] < self.env.grid.width and 0 <= place[1] < self.env.grid.height)

    def places(self) -> list[Place]:
        """Every cell."""
        return [(x, y) for y in range(self.env.grid.height) for x in range(self.env.grid.width)]

    def things(self) -> list[tuple[Place, Any]]:
        """Everything in the grid with its place."""
        width = self.env.grid.width
        return [((i % width, i // width), thing) for i, thing in enumerate(self.env.grid.grid) if thing is not None]

    def picture(self) -> bytes:
        """Minigrid's own image of what the agent sees, to tell whether a move changed it."""
        return bytes(self.env.picture())


def enterable(thing: Any) -> bool:
    """Whether the agent can stand in the cell of `thing`."""
    return thing is None or bool(thing.can_overlap())


def name_of(thing: Any) -> str:
    """What a text calls a thing: `red ball`, `grey closed door`."""
    if thing.type != "door":
        return f"{thing.color} {thing.type}"
    return f"{thing.color} {'open' if thing.is_open else 'locked' if thing.is_locked else 'closed'} door"


@cache
def quiet(builder: str) -> Any:
    """A level class of minigrid without what costs time and prints: texts need neither its images nor its notes.

    Raises:
        ConfigError: minigrid is not installed.
    """
    try:
        base: Any = getattr(importlib.import_module("minigrid.envs.babyai"), builder)
        from minigrid.core.roomgrid import RoomGrid
        from minigrid.envs.babyai.core.roomgrid_level import RejectSampling
    except ImportError as error:
        raise ConfigError(f"BabyAI needs the package minigrid: pip install 'verl-agent[babyai]'. {error}") from error

    class Quiet(base):
        """`gen_obs` is called after each move; `_gen_grid` draws until a world fits, as minigrid does."""

        def gen_obs(self) -> dict[str, Any]:
            return {}

        def picture(self) -> Any:
            return super().gen_obs()["image"].tobytes()

        def _gen_grid(self, width: int, height: int) -> None:
            while True:
                try:
                    RoomGrid._gen_grid(self, width, height)
                    self.gen_mission()
                    self.validate_instrs(self.instrs)
                    break
                except (RecursionError, RejectSampling):
                    continue
            self.mission = self.surface = self.instrs.surface(self)

    return Quiet
