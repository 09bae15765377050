"""Generated tasks: 200 of four kinds in three sizes, each made from its number.

Held-out tasks have templates of their own, so that no text of a training solution solves one: other functions and
programs, other orders and other sums, and other words.
"""

import random
from collections.abc import Callable, Mapping

from env_adapters.terminal.grading import TerminalTask
from env_adapters.terminal.tasks import data, logs, repair, tool

KINDS: Mapping[str, Callable[[str, int, bool, random.Random], TerminalTask]] = {
    "repair": repair.make,
    "data": data.make,
    "logs": logs.make,
    "tool": tool.make,
}
COUNTS: Mapping[str, int] = {"small": 20, "medium": 15, "large": 15}
"""Number of tasks of each kind and size."""
HELD_OUT = 5
"""Every fifth task is held out."""


def names(size: str = "") -> list[str]:
    """Return the ids of the tasks of one size, or of all."""
    return [
        f"{kind}-{one}-{number:02}"
        for one in COUNTS
        if size in ("", one)
        for kind in KINDS
        for number in range(COUNTS[one])
    ]


def held_out(name: str) -> bool:
    """Return True if the task with this id is held out."""
    return int(name[-2:]) % HELD_OUT == HELD_OUT - 1


def generate(name: str) -> TerminalTask:
    """Return the task with this id, the same on every machine."""
    kind, size, number = name.split("-")
    return KINDS[kind](size, int(number), held_out(name), random.Random(f"terminal {name}"))
