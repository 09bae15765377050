"""Drawings of BabyAI's states for the viewer: the grid with the agent."""

from typing import Any

from env_adapters.babyai.game import GridGame
from env_adapters.babyai.world import LevelGrid as World
from env_adapters.babyai.world import object_name
from verl_agent.envs.drawing import Cell, Drawing, Grid
from verl_agent.types import Episode

AGENT = "▶▼◀▲"
"""Character of the agent by direction: east, south, west, north."""
CHARACTERS = {"ball": "●", "box": "■", "key": "⚷"}
DOORS = ("▯", "▮", "▣")
"""Characters of an open, a closed and a locked door."""


def draw_game(game: GridGame, episode: Episode) -> list[list[Drawing]]:
    """Return the grid at the start and after each turn, by playing the actions again.

    The drawings end where an observation differs from the recorded one.
    """
    states: list[list[Drawing]] = [[draw_world(game.world)]]
    for turn in episode.turns:
        if turn.step is None or turn.action is None or not turn.carried_out or game.ended:
            pass
        elif game.play(turn.action).observation != turn.step.observation:
            break
        states.append([draw_world(game.world)])
    return states


def draw_world(world: World) -> Grid:
    """Return the grid with all objects and the agent."""
    width = max(x for x, _ in world.places()) + 1
    cells = [Cell("", fill="white") if thing is None else _cell(thing) for thing in map(world.thing_at, world.places())]
    x, y = world.place
    cells[y * width + x] = Cell(AGENT[world.direction], "red", "yellow")
    carried = f"; carries: {object_name(world.carried)}" if world.carried else ""
    rows = [cells[start : start + width] for start in range(0, len(cells), width)]
    return Grid(f"{world.mission} (move {world.moves} of {world.max_moves}){carried}", rows)


def _cell(thing: Any) -> Cell:
    if thing.type == "wall":
        return Cell("", fill="grey")
    if thing.type == "door":
        return Cell(DOORS[0 if thing.is_open else 2 if thing.is_locked else 1], thing.color)
    return Cell(CHARACTERS.get(thing.type, "?"), thing.color)
