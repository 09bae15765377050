"""The 544 goals of TextCraft and how they are split, the same on every machine.

`train` and `test` share out all goals. `easy_train` and `easy_test` share out the goals that take few
turns and a short prompt, whatever their part in the first pair: the pairs overlap and must not be mixed.
"""

import hashlib
from collections.abc import Mapping
from functools import cache

from env_adapters.textcraft.oracle import turns_needed
from env_adapters.textcraft.recipes import recipe_book
from verl_agent.types import TaskItem

TEST_GOALS = 100
EASY_TURNS = 6
"""Most turns of the oracle for a goal of the easy splits."""
EASY_COMMANDS = 5
"""Most crafting commands that a goal of the easy splits needs to be shown."""


@cache
def split_goals() -> Mapping[str, list[str]]:
    """The goals of each split, sorted by name."""
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
    """Pick `count` goals so that each stratum gives its share, to within one.

    Args:
        strata: the stratum of each goal.
        count: goals to pick, 0 to `len(strata)`.
    """
    ordered = sorted(strata, key=lambda goal: (strata[goal], stable_hash(goal)))
    return {goal for i, goal in enumerate(ordered) if (i + 1) * count // len(ordered) > i * count // len(ordered)}


def stable_hash(text: str) -> str:
    """A hash that does not depend on process, machine or version of Python."""
    return hashlib.sha256(text.encode()).hexdigest()


def task_item(goal: str) -> TaskItem:
    """The task of crafting `goal`."""
    depth = recipe_book().depths[goal]
    data = {"goal": goal, "depth": depth, "turns": turns_needed(goal)}
    return TaskItem("textcraft", goal, data, f"depth {depth}")
