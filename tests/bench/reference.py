"""Reference server that works as AgentGym's do: `python -m tests.bench.reference textcraft test`.

Written anew after AgentGym's servers (github.com/WooooDyy/AgentGym, `agentenv-*/`). It has one process. Handlers are
plain functions, so FastAPI runs them in its thread pool. uvicorn has its defaults: the asyncio loop, h11, and a log
line for each request, which is discarded here. Sessions are in a dict and are never closed.

* TextCraft: one recipe tree; each reset seeds the global random generator.
* BabyAI: the grid is built when the environment is created and again at each reset. Each object in view has its own
  search over numpy vectors, which checks all objects at every cell. Texts and rules are those of `strict=true`.
  AgentGym's server is slower: it searches again for each command.
* ScienceWorld: a JVM for each session, and `env.step`, which lists all valid actions.
"""

import itertools
import os
import random
import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import uvicorn
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

from env_adapters.babyai.levels import LEVEL_BY_NAME
from env_adapters.babyai.paths import STEPS
from env_adapters.babyai.sight import DEPTH, SIDE, Cell, FieldOfView
from env_adapters.babyai.strict import StrictGame, StrictGrammar
from env_adapters.babyai.texts import Style
from env_adapters.babyai.world import Grid, Move
from env_adapters.textcraft.game import Game
from env_adapters.textcraft.recipes import recipe_book, words
from verl_agent.envs.http.run_server import bind, url_of
from verl_agent.envs.registry import make_env
from verl_agent.types import TaskItem

VECTORS = [np.array(step) for step in STEPS]


class ReferenceEnv(Protocol):
    """Environment of one session."""

    def reset(self, item: TaskItem) -> str:
        """Begin a task."""
        ...

    def step(self, action: str) -> tuple[str, float, bool]:
        """Return observation, reward and end."""
        ...


class TextCraft:
    """TextCraft whose sessions share the recipes and the random generator of the process."""

    def reset(self, item: TaskItem) -> str:
        book, goal = recipe_book(), item.data["goal"]
        random.seed(42)
        recipes = book.needed(goal)
        related = {other.line for recipe in recipes for name in recipe.ingredients for other in book.uses[name]}
        lines = [recipe.line for recipe in recipes]
        others = sorted(related - set(lines))
        lines += random.sample(others, min(len(others), 10))
        random.shuffle(lines)
        self.game = Game(book, goal)
        return "Crafting commands:\n" + "\n".join(lines) + f"\n\nGoal: craft {words(goal)}."

    def step(self, action: str) -> tuple[str, float, bool]:
        result = self.game.play(action)
        return result.observation, result.reward, result.terminated


class SearchPerObject:
    """Paths to objects, by a separate search over numpy vectors for each of them.

    Args:
        blocked: cells of the objects in view that cannot be entered.
        board: cells that can be entered unless they are blocked.
    """

    def __init__(self, blocked: Sequence[Cell], board: set[Cell]) -> None:
        self.blocked = [tuple(np.array(cell)) for cell in blocked]
        self.rows = range(min(cell[0] for cell in board), max(cell[0] for cell in board) + 1)
        self.columns = range(min(cell[1] for cell in board), max(cell[1] for cell in board) + 1)

    def facing(self, goal: Cell) -> list[Move] | None:
        return self.search(lambda cell, step: goal[0] - cell[0] == step[0] and goal[1] - cell[1] == step[1])

    def onto(self, goal: Cell) -> list[Move] | None:
        return self.search(lambda cell, step: cell[0] == goal[0] and cell[1] == goal[1])

    def search(self, is_goal: Callable[[Any, Any], bool]) -> list[Move] | None:
        """Search breadth first; a pose is queued once for each path to it."""
        here = start = (tuple(np.array((0, 0))), 0)
        queue, seen, before = [start], set(), {}
        while queue:
            here = cell, turns = queue.pop(0)
            seen.add(here)
            if is_goal(cell, VECTORS[turns]):
                moves = []
                while here != start:
                    here, move = before[here]
                    moves.append(move)
                return moves[::-1]
            for move in (Move.FORWARD, Move.LEFT, Move.RIGHT):
                after = self.after(cell, turns, move)
                if self.enters(after, seen):
                    queue.append(after)
                    before[after] = (here, move)
        return None

    def after(self, cell: Any, turns: int, move: Move) -> tuple[Any, int]:
        """Return the pose after a move."""
        if move is Move.FORWARD:
            return tuple(cell + VECTORS[turns]), turns
        return cell, (turns + (1 if move is Move.RIGHT else -1)) % 4

    def enters(self, pose: tuple[Any, int], seen: set[tuple[Any, int]]) -> bool:
        """Return True if a pose is on the board, new and free; all conditions are checked again for each object."""
        for thing in self.blocked:
            if pose[0][0] not in self.rows or pose[0][1] not in self.columns or pose in seen or thing == pose[0]:
                return False
        return True


class SlowGrammar(StrictGrammar):
    """Grammar of `strict` with a search for each object."""

    def paths(self, sight: FieldOfView) -> Any:
        behind = -1 if sight.direction in (0, 1) else 0
        right = SIDE + 1 if sight.direction in (1, 2) else SIDE
        board = {(ahead, side) for ahead in range(behind, DEPTH) for side in range(-SIDE, right + 1)}
        blocked = [cell for cell, thing in sight.cells.items() if thing is not None and thing.type != "door"]
        return SearchPerObject(blocked, board)


class SlowGame(StrictGame):
    grammar = SlowGrammar()


class BabyAI:
    """BabyAI with a new environment for each task."""

    def reset(self, item: TaskItem) -> str:
        level, seed = LEVEL_BY_NAME[item.data["level"]], item.data["seed"]
        SlowGame(Grid(level, seed), Style())
        self.game = SlowGame(Grid(level, seed), Style())
        return self.game.opening()

    def step(self, action: str) -> tuple[str, float, bool]:
        result = self.game.play(action)
        return result.observation, result.reward, result.terminated


class ScienceWorld:
    """ScienceWorld with a JVM for each session."""

    def __init__(self) -> None:
        from scienceworld import ScienceWorldEnv

        self.env = ScienceWorldEnv()

    def reset(self, item: TaskItem) -> str:
        self.env.load(item.data["task"], item.data["variation"])
        observation, *_ = self.env.step("look around")
        return str(observation)

    def step(self, action: str) -> tuple[str, float, bool]:
        observation, reward, done, _ = self.env.step(action)
        return str(observation), float(reward), bool(done)


KINDS: dict[str, Callable[[], ReferenceEnv]] = {"textcraft": TextCraft, "babyai": BabyAI, "scienceworld": ScienceWorld}


class ResetBody(BaseModel):
    """Body of `/reset`."""

    id: int
    data_idx: int


class StepBody(BaseModel):
    """Body of `/step`."""

    id: int
    action: str


def create_app(env: str, split: str) -> FastAPI:
    """Return the app that serves one environment."""
    items = make_env(env).tasks(split)
    sessions: dict[int, ReferenceEnv] = {}
    numbers = itertools.count()
    app = FastAPI()

    def find(number: int) -> ReferenceEnv:
        if number not in sessions:
            raise HTTPException(404, f"no session {number}")
        return sessions[number]

    @app.post("/create")
    def create() -> dict[str, Any]:
        number = next(numbers)
        sessions[number] = KINDS[env]()
        return {"id": number}

    @app.post("/reset")
    def reset(body: ResetBody) -> dict[str, Any]:
        observation = find(body.id).reset(items[body.data_idx])
        return {"id": body.id, "observation": observation, "reward": 0, "done": False}

    @app.post("/step")
    def step(body: StepBody) -> dict[str, Any]:
        observation, reward, done = find(body.id).step(body.action)
        return {"observation": observation, "reward": reward, "done": done}

    return app


def main() -> None:
    """Print the URL and serve until the process is stopped."""
    env, split = sys.argv[1:3]
    listener = bind("127.0.0.1", 0)
    sys.stdout.write(f"{env} at {url_of(listener)}\n")
    sys.stdout.flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    uvicorn.Server(uvicorn.Config(create_app(env, split), log_level="info", loop="asyncio", http="h11")).run([listener])


if __name__ == "__main__":
    main()
