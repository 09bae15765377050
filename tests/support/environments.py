"""Environments of this repository: the words that tests fuzz them with, and packages that they may lack."""

from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from verl_agent.envs.registry import load_adapter


@dataclass(frozen=True, slots=True)
class Known:
    """An environment for fuzzing.

    Attributes:
        split: split of the task.
        item: index of the task in the split; random words hardly solve it.
        words: words of its grammar.
        wrap: template around half of the fuzzed actions.
    """

    split: str
    item: int
    words: tuple[str, ...]
    wrap: str = "{}"


def words(text: str) -> tuple[str, ...]:
    """Return the parts of a text between commas."""
    return tuple(text.split(", "))


KNOWN: Mapping[str, Known] = {
    "textcraft": Known(
        "test", 0, words("get, get 1, craft, using, inventory, birch log, oak planks, minecraft:stick, 1 stick")
    ),
    "babyai": Known(
        "test", 190, words("go to, go through, toggle, pickup, pick up, drop, turn left, red ball 1, door, check, none")
    ),
    "scienceworld": Known(
        "test",
        600,
        words(
            "look at, focus on, open door, move, use, connect, pour, go to, "
            "mix, wait, reset task, agent, inventory, kitchen, air, help, objects"
        ),
    ),
    "deepsearch": Known(
        "test",
        0,
        words("<search>, </search>, <answer>, </answer>, <think>, </think>, capital, Mali, area, and"),
        "<search>{}</search>",
    ),
}


OPTIONAL = {"openspiel", "reasoning_gym", "textarena", "terminal"}
"""Environments that need what `make setup` does not install."""


def skip_without_packages(env: str) -> None:
    """Skip the test if it needs an environment of `OPTIONAL` that lacks something."""
    if env in OPTIONAL and (lacking := [one for one in load_adapter(env).requirements() if not one.present]):
        pytest.skip(f"{lacking[0].name} is missing: {lacking[0].install} {lacking[0].note}")
