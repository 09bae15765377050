"""The 544 goals of TextCraft and their splits, the same on every machine.

`train` and `test` together have all goals. `easy_train` and `easy_test` together have the goals with few turns and a
short prompt, independent of the first pair. The pairs overlap and must not be mixed.
"""

import hashlib
from collections.abc import Mapping
from functools import cache

from env_adapters.textcraft.oracle import turns_needed
from env_adapters.textcraft.recipes import recipe_book
from verl_agent.types import TaskItem

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


def stable_hash(text: str) -> str:
    """Return a hash that is the same in every process, machine and version of Python."""
    return hashlib.sha256(text.encode()).hexdigest()


def task_item(goal: str) -> TaskItem:
    """Return the task item for `goal`."""
    depth = recipe_book().depths[goal]
    data = {"goal": goal, "depth": depth, "turns": turns_needed(goal)}
    return TaskItem("textcraft", goal, data, f"depth {depth}")
