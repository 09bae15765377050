"""BabyAI: follow an instruction in a grid of rooms by text commands."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, Literal

from env_adapters.babyai.game import GridGame
from env_adapters.babyai.levels import LEVEL_BY_NAME, split_items
from env_adapters.babyai.oracle import plan_steps
from env_adapters.babyai.strict import StrictGame
from env_adapters.babyai.texts import Brief, Style
from env_adapters.babyai.world import LevelGrid, object_name
from verl_agent.envs.action_format import LineFormat
from verl_agent.envs.action_target import ActionTarget
from verl_agent.envs.base import EnvAdapter, Hosting, Requirement
from verl_agent.envs.drawing import Cell, Drawing, Grid
from verl_agent.envs.options import checked_options
from verl_agent.errors import EnvError, did_you_mean
from verl_agent.types import DemoAction, Episode, Message, StepResult, TaskItem

STYLES = {"full": Style, "short": Brief}


class BabyAI(EnvAdapter):
    """Grid world with reward 1.0 for a completed mission. It terminates on success, failure or the last move."""

    splits = ("train", "test", "paper_train", "paper_test", "easy_train", "easy_test")
    action_format = LineFormat(placeholder="one action, on one line")
    success_reward = 0.05  # with `strict` a success earns at least 0.1, everything else 0
    hosting = Hosting(threads=0, sessions=256, busy=4)  # a step takes 0.2 ms, a reset 2 ms

    @checked_options
    def __init__(self, prompt: Literal["full", "short"] = "full", strict: bool = False) -> None:
        """Set the prompt and the rules.

        Args:
            prompt: `full` explains the game and lists the actions after each observation; `short` has one sentence and
                short observations, for small models.
            strict: True for the rules of AgentGym's server, including its faults.
        """
        self.prompt = prompt
        self.strict = strict
        self.rules = StrictGame if strict else GridGame

    @classmethod
    def requirements(cls) -> Sequence[Requirement]:
        return [Requirement.package("minigrid", "pip install 'verl-agent[babyai]'", "generator of the levels")]

    def tasks(self, split: str) -> Sequence[TaskItem]:
        self.check_split(split)
        return split_items(split)

    async def reset(self, item: TaskItem) -> list[Message]:
        self.game = self.rules(build_grid(item, self.strict), STYLES[self.prompt]())
        system = Path(__file__).with_name("prompts").joinpath(f"{self.prompt}.txt").read_text().strip()
        return [{"role": "system", "content": system}, {"role": "user", "content": self.game.opening()}]

    async def step(self, action: str) -> StepResult:
        if self.game.ended:
            return StepResult("The task has ended.", terminated=True)
        return self.game.play(action)

    def describe_action(self, action: str, observation: str) -> ActionTarget:
        return ActionTarget("", None, self.rules.parse(action))

    @classmethod
    def draw(cls, episode: Episode) -> Sequence[Sequence[Drawing]]:
        for kind, style in product((GridGame, StrictGame), STYLES.values()):  # the record does not tell the options
            game = kind(build_grid(episode.item, kind is StrictGame), style())
            if game.opening() in episode.messages[episode.prompt_length - 1]["content"]:
                return draw_game(game, episode)
        return ()

    def oracle_turns(self, item: TaskItem) -> int | None:
        steps = None if self.strict else plan_steps(build_grid(item))
        return None if steps is None else len(steps)

    def demonstration(self, item: TaskItem) -> Sequence[DemoAction]:
        if self.strict:
            raise NotImplementedError("BabyAI has no oracle for AgentGym's rules (env.options.strict=true).")
        steps = plan_steps(build_grid(item))
        if steps is None:
            raise NotImplementedError(f"the oracle of BabyAI does not solve {item.id!r}.")
        return [DemoAction(step.command, step.thought) for step in steps]


def build_grid(item: TaskItem, strict: bool = False) -> LevelGrid:
    """Return the grid of an item; `strict` builds that of AgentGym's version of minigrid.

    Raises:
        EnvError: the level or the seed does not exist.
    """
    name, seed = item.data["level"], item.data["seed"]
    if name not in LEVEL_BY_NAME:
        raise EnvError(f"BabyAI has no level {name!r}. {did_you_mean(name, LEVEL_BY_NAME)}")
    if not isinstance(seed, int) or seed < 0:
        raise EnvError(f"seed {seed!r} of level {name} is not allowed. Allowed: a whole number >= 0.")
    return LevelGrid(LEVEL_BY_NAME[name], seed, version_2=strict)


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
        if any(
            not game.ended and game.play(str(action)).observation != step.observation for action, step in turn.played
        ):
            break
        states.append([draw_world(game.world)])
    return states


def draw_world(world: LevelGrid) -> Grid:
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
