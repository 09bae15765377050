"""A server that plays the reference's way, to measure ours against: `python -m tests.bench.reference textcraft test`.

What AgentGym's servers do (github.com/WooooDyy/AgentGym, `agentenv-*/`), in our own words: one process; FastAPI with
handlers that are plain functions and so run in its thread pool; uvicorn as it comes, which is asyncio's loop, h11 and
a line in the log for each request (thrown away here); sessions in a dict, nothing ever closed.

* TextCraft: one recipe tree, the global random generator seeded at each reset.
* BabyAI: the world built when the environment is made and again when it is reset, the image drawn after every move,
  and a search of its own for each thing in view, over numpy's vectors and with all things gone through at every step.
  Texts and rules are those of `strict=true`. Kinder than the reference, which searches again for each command.
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


class Played(Protocol):
    """An environment of one session."""

    def reset(self, item: TaskItem) -> str:
        """Begin a task."""
        ...

    def step(self, action: str) -> tuple[str, float, bool]:
        """Observation, reward, end."""
        ...


class TextCraft:
    """All sessions share the recipes and the random generator of the process."""

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


class SearchForEach:
    """Ways to things, by a search for each of them over numpy's vectors.

    Args:
        blocked: cells of the things in view that cannot be entered.
        board: cells that can be walked through unless they are blocked.
    """

    def __init__(self, blocked: Sequence[Cell], board: set[Cell]) -> None:
        self.blocked = [tuple(np.array(cell)) for cell in blocked]
        self.rows = range(min(cell[0] for cell in board), max(cell[0] for cell in board) + 1)
        self.columns = range(min(cell[1] for cell in board), max(cell[1] for cell in board) + 1)

    def facing(self, goal: Cell) -> list[Move] | None:
        return self.search(lambda cell, step: goal[0] - cell[0] == step[0] and goal[1] - cell[1] == step[1])

    def onto(self, goal: Cell) -> list[Move] | None:
        return self.search(lambda cell, step: cell[0] == goal[0] and cell[1] == goal[1])

    def search(self, found: Callable[[Any, Any], bool]) -> list[Move] | None:
        """Breadth first; a pose is queued once for each way to it."""
        here = start = (tuple(np.array((0, 0))), 0)
        queue, seen, before = [start], set(), {}
        while queue:
            here = cell, turns = queue.pop(0)
            seen.add(here)
            if found(cell, VECTORS[turns]):
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
        """The pose after a move."""
        if move is Move.FORWARD:
            return tuple(cell + VECTORS[turns]), turns
        return cell, (turns + (1 if move is Move.RIGHT else -1)) % 4

    def enters(self, pose: tuple[Any, int], seen: set[tuple[Any, int]]) -> bool:
        """Whether a pose is on the board, new, and in the way of nothing: asked anew for each thing."""
        for thing in self.blocked:
            if pose[0][0] not in self.rows or pose[0][1] not in self.columns or pose in seen or thing == pose[0]:
                return False
        return True


class SlowGrammar(StrictGrammar):
    """The commands of `strict`, found by a search for each thing."""

    def paths(self, sight: FieldOfView) -> Any:
        behind = -1 if sight.direction in (0, 1) else 0
        right = SIDE + 1 if sight.direction in (1, 2) else SIDE
        board = {(ahead, side) for ahead in range(behind, DEPTH) for side in range(-SIDE, right + 1)}
        blocked = [cell for cell, thing in sight.cells.items() if thing is not None and thing.type != "door"]
        return SearchForEach(blocked, board)


class SlowGame(StrictGame):
    grammar = SlowGrammar()


class BabyAI:
    """A fresh environment for each task."""

    def reset(self, item: TaskItem) -> str:
        level, seed = LEVEL_BY_NAME[item.data["level"]], item.data["seed"]
        SlowGame(Grid(level, seed), Style())
        self.game = SlowGame(Grid(level, seed), Style())
        return self.game.opening()

    def step(self, action: str) -> tuple[str, float, bool]:
        result = self.game.play(action)
        return result.observation, result.reward, result.terminated


class ScienceWorld:
    """A JVM of its own."""

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


KINDS: dict[str, Callable[[], Played]] = {"textcraft": TextCraft, "babyai": BabyAI, "scienceworld": ScienceWorld}


class ResetBody(BaseModel):
    """What `/reset` takes."""

    id: int
    data_idx: int


class StepBody(BaseModel):
    """What `/step` takes."""

    id: int
    action: str


def create_app(env: str, split: str) -> FastAPI:
    """The server of one environment."""
    items = make_env(env).tasks(split)
    sessions: dict[int, Played] = {}
    numbers = itertools.count()
    app = FastAPI()

    def find(number: int) -> Played:
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
    """Say where, and serve until told to stop."""
    env, split = sys.argv[1:3]
    listener = bind("127.0.0.1", 0)
    sys.stdout.write(f"{env} at {url_of(listener)}\n")
    sys.stdout.flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    uvicorn.Server(uvicorn.Config(create_app(env, split), log_level="info", loop="asyncio", http="h11")).run([listener])


if __name__ == "__main__":
    main()
