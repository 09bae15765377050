"""Grid of minigrid: positions of objects and the effect of moves.

Minigrid is imported when the first grid is built. The import takes a second and loads pygame, which is not used.
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
"""Step forward by direction: east, south, west, north."""


class Move(IntEnum):
    """Primitive moves of the agent, with minigrid's numbers."""

    LEFT = 0
    RIGHT = 1
    FORWARD = 2
    PICKUP = 3
    DROP = 4
    TOGGLE = 5


class LevelGrid:
    """One level with one seed, in its initial state.

    Attributes:
        max_moves: number of moves after which the level ends without success.
    """

    def __init__(self, level: Level, seed: int, version_2: bool = False) -> None:
        """Build the grid; the same level and seed give the same grid on every machine.

        Args:
            version_2: build the grid of minigrid 2.3.1, in which a rejected grid leaves its locked room to the next
                one. Of AgentGym's items, `SynthLoc:3` and `SynthSeq:3` differ by it.
        """
        self.env = silent_level(level.builder, version_2)(**level.arguments)
        self.env.reset(seed=seed)
        self.mission: str = self.env.mission
        self.max_moves: int = self.env.max_steps

    def move(self, move: Move) -> tuple[float, bool]:
        """Make one move.

        Returns:
            Minigrid's reward, `1 - 0.9 * moves / max_moves` if this move completes the mission, else 0; and True if
            the mission has ended, completed or failed.
        """
        half_done = self.half_done()
        reward, over = self.raw_move(move)
        if over and not reward and self.half_done() and not half_done:
            # The move that completes the first part of `open X, then open Y` is also checked against the second
            # part. A strict second part fails when another door opens, so minigrid fails the mission by that move.
            over = False
        return reward, over

    def raw_move(self, move: Move) -> tuple[float, bool]:
        """Make one move and return minigrid's reward and termination unchanged."""
        _, reward, terminated, _, _ = self.env.step(move)
        return float(reward), bool(terminated)

    def half_done(self) -> bool:
        """Return True if the mission has two parts and the earlier one is completed."""
        instructions = self.env.instrs
        first = {"BeforeInstr": "a_done", "AfterInstr": "b_done"}.get(type(instructions).__name__)
        return first is not None and getattr(instructions, first) == "success"

    @property
    def moves(self) -> int:
        return int(self.env.step_count)

    @property
    def place(self) -> Place:
        x, y = self.env.agent_pos
        return int(x), int(y)

    @property
    def direction(self) -> int:
        """Direction of the agent, an index of `AHEAD`."""
        return int(self.env.agent_dir)

    @property
    def front(self) -> Place:
        """Position of the cell in front of the agent."""
        (x, y), (dx, dy) = self.place, AHEAD[self.direction]
        return x + dx, y + dy

    @property
    def carried(self) -> Any:
        """Object that the agent carries, or None."""
        return self.env.carrying

    def thing_at(self, place: Place) -> Any:
        """Return the object at a position, a `WorldObj` of minigrid, or None. The agent does not count."""
        return self.env.grid.grid[place[1] * self.env.grid.width + place[0]]

    def put(self, place: Place, thing: Any) -> None:
        """Set the object at a position; None removes it."""
        self.env.grid.set(*place, thing)

    def inside(self, place: Place) -> bool:
        """Return True if a position is in the grid."""
        return bool(0 <= place[0] < self.env.grid.width and 0 <= place[1] < self.env.grid.height)

    def places(self) -> list[Place]:
        return [(x, y) for y in range(self.env.grid.height) for x in range(self.env.grid.width)]

    def things(self) -> list[tuple[Place, Any]]:
        """Return all objects with their positions."""
        width = self.env.grid.width
        return [((i % width, i // width), thing) for i, thing in enumerate(self.env.grid.grid) if thing is not None]

    def picture(self) -> bytes:
        """Return minigrid's image of the agent's view, to detect whether a move changed it."""
        return bytes(self.env.picture())


def enterable(thing: Any) -> bool:
    """Return True if the agent can enter the cell of `thing`."""
    return thing is None or bool(thing.can_overlap())


def object_name(thing: Any) -> str:
    """Return the name of an object: `red ball`, `grey closed door`."""
    if thing.type != "door":
        return f"{thing.color} {thing.type}"
    return f"{thing.color} {'open' if thing.is_open else 'locked' if thing.is_locked else 'closed'} door"


@cache
def silent_level(builder: str, version_2: bool) -> Any:
    """Return a level class of minigrid that renders no images and prints nothing.

    Raises:
        ConfigError: minigrid is not installed.
    """
    try:
        base: Any = getattr(importlib.import_module("minigrid.envs.babyai"), builder)
        from minigrid.core.roomgrid import RoomGrid
        from minigrid.envs.babyai.core.roomgrid_level import RejectSampling
    except ImportError as error:
        raise ConfigError(f"BabyAI needs the package minigrid: pip install 'verl-agent[babyai]'. {error}") from error

    class SilentLevel(base):
        """Level without images; `_gen_grid` draws until a grid is valid, as minigrid does."""

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

    class OldLevel(SilentLevel):
        """Level that keeps the locked room of a rejected grid; `gen_mission` of later versions forgets it."""

        def __setattr__(self, name: str, value: Any) -> None:
            if name != "locked_room" or value is not None or not hasattr(self, name):
                super().__setattr__(name, value)

    return OldLevel if version_2 else SilentLevel
