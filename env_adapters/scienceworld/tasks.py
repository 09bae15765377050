"""Tasks of ScienceWorld and their official splits, read from a table, so that listing them needs no Java.

`python -m env_adapters.scienceworld.tabulate` generates the table from the simulator.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from verl_agent.envs.tasks import stable_hash
from verl_agent.types import TaskItem

TABLE = Path(__file__).with_name("variations.json")

EXCLUDED = ("5-1", "5-2", "9-1", "9-2", "9-3", "10-1", "10-2")
"""Numbers of the tasks that AgentGym excludes: growing plants, inclined planes, genetics."""

CATEGORIES = {
    "1-1": "Change-State",
    "1-2": "Change-State",
    "1-3": "Change-State",
    "1-4": "Change-State",
    "2-1": "Measure",
    "2-2": "Measure",
    "2-3": "Measure",
    "3-1": "Circuit",
    "3-2": "Circuit",
    "3-3": "Test-Cond",
    "3-4": "Test-Cond",
    "4-1": "Find",
    "4-2": "Find",
    "4-3": "Find",
    "4-4": "Find",
    "6-1": "Chem-Mix",
    "6-2": "Chem-Mix",
    "6-3": "Chem-Mix",
    "7-1": "Lifespan",
    "7-2": "Lifespan",
    "7-3": "Lifespan",
    "8-1": "Life-Stage",
    "8-2": "Life-Stage",
}
"""Group of each task by its number; the paper reports Measure, Test-Cond, Find, Chem-Mix and Lifespan."""

PAPER_TEST = {"Measure": 53, "Test-Cond": 83, "Find": 44, "Chem-Mix": 5, "Lifespan": 15}
"""Number of items in the paper's test set, by category."""

COUNTED = ("4-2", "7-1", "7-2", "7-3")
"""Numbers of the tasks with the shortest demonstrations, whose lengths are in the table for the easy splits."""

EASY_TURNS = 7
"""Maximum number of turns of a demonstration in the easy splits."""


@dataclass(frozen=True, slots=True)
class SimulatorTask:
    """One task of the simulator.

    Attributes:
        number: official number, such as `2-1`.
        name: name in the simulator, such as `use-thermometer`.
        parts: first and past-the-end variation of `train`, `dev` and `test`.
        turns: number of turns of each variation's demonstration; empty if not counted.
    """

    number: str
    name: str
    parts: Mapping[str, list[int]]
    turns: list[int]

    def item(self, variation: int) -> TaskItem:
        data = {"task": self.name, "variation": variation}
        if self.turns:
            data["turns"] = self.turns[variation]
        return TaskItem("scienceworld", f"{self.name}:{variation}", data, CATEGORIES[self.number])

    def items(self, part: str) -> list[TaskItem]:
        """Return the items of `train`, `dev` or `test`."""
        return [self.item(variation) for variation in range(*self.parts[part])]


@cache
def all_tasks() -> Mapping[str, SimulatorTask]:
    """Return the tasks without the excluded ones, by name, in the order of their numbers."""
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    return {name: SimulatorTask(name=name, **entry) for name, entry in table.items() if entry["number"] not in EXCLUDED}


def official(part: str) -> list[TaskItem]:
    """Return the items of `train`, `dev` or `test` of all tasks."""
    return [item for task in all_tasks().values() for item in task.items(part)]


def easy(part: str) -> list[TaskItem]:
    """Return the items of `train` or `test` with a short demonstration."""
    return [item for item in official(part) if item.data.get("turns", EASY_TURNS + 1) <= EASY_TURNS]


def paper_test() -> list[TaskItem]:
    """Return as many test items of each category as the paper uses, chosen by a hash of their ids."""
    chosen: set[str] = set()
    for category, count in PAPER_TEST.items():
        ids = [item.id for item in official("test") if item.category == category]
        chosen |= set(sorted(ids, key=stable_hash)[:count])
    return [item for item in official("test") if item.id in chosen]


SPLITS: Mapping[str, Callable[[], list[TaskItem]]] = {
    "train": lambda: official("train"),
    "dev": lambda: official("dev"),
    "test": lambda: official("test"),
    "paper_test": paper_test,
    "easy_train": lambda: easy("train"),
    "easy_test": lambda: easy("test"),
}
"""Function that lists the items of each split."""
