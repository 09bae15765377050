"""GuessNumber: find a hidden number from answers that say higher or lower.

The smallest complete environment. `verl-agent new-env` writes a template for your own.
"""

import re
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from verl_agent.envs.action_format import LineFormat
from verl_agent.envs.action_target import ActionTarget
from verl_agent.envs.base import EnvAdapter
from verl_agent.envs.options import checked_options
from verl_agent.types import DemoAction, Message, StepResult, TaskItem

SYSTEM = "Guess a whole number from 1 to {high}."
TOLERANT = " Answer with one line: Action: <number>"


class GuessNumber(EnvAdapter):
    """Guessing game with reward 1.0 for the right number. It terminates only when the number is found."""

    splits = ("train", "test", "small_train", "small_test")
    action_format = LineFormat(placeholder="<number>")
    ends_failed_tasks = False

    @checked_options
    def __init__(
        self,
        tolerant: bool = False,
        ranges: Annotated[Sequence[Annotated[int, Field(gt=1)]], Field(min_length=1)] | None = None,
    ) -> None:
        """Set the parsing of actions and the ranges.

        Args:
            tolerant: use the first whole number in the action, for agents that pass on whole replies (`raw`).
            ranges: largest numbers of the ranges of `train` and `test`; null for 100, 90, ... 30.
        """
        self.tolerant, self.ranges = tolerant, list(ranges or range(100, 29, -10))

    def tasks(self, split: str) -> Sequence[TaskItem]:
        """Return one task for each number of each range of the option; small splits use 1 to 5, 6, ... 12.

        Every third range is held out as a whole. Holding out single numbers of a training range would be no test:
        such a number is never right in training, so the model learns to avoid it.
        """
        self.check_split(split)
        size, part = split.split("_") if "_" in split else ("full", split)
        ranges = range(5, 13) if size == "small" else self.ranges
        return [
            TaskItem("guess_number", f"{high}:{target}", {"high": high, "target": target}, f"1 to {high}")
            for place, high in enumerate(ranges)
            for target in range(1, high + 1)
            if (place % 3 == 2) == (part == "test")
        ]

    async def reset(self, item: TaskItem) -> list[Message]:
        self.high: int = item.data["high"]
        self.target: int = item.data["target"]
        self.ended = False
        return [
            {"role": "system", "content": SYSTEM.format(high=self.high) + (TOLERANT if self.tolerant else "")},
            {"role": "user", "content": "Your first guess?"},
        ]

    async def step(self, action: str) -> StepResult:
        """Compare one guess with the hidden number."""
        if self.ended:
            return StepResult("You have found it already.", terminated=True)
        guess = self.read_guess(action)
        if guess is None:
            return StepResult("That is no whole number.", info={"invalid_action": 1.0})
        if not 1 <= guess <= self.high:
            return StepResult(f"Out of range: guess from 1 to {self.high}.", info={"invalid_action": 1.0})
        if guess == self.target:
            self.ended = True
            return StepResult("Right.", reward=1.0, terminated=True)
        return StepResult("Higher." if guess < self.target else "Lower.")

    def read_guess(self, action: str) -> int | None:
        """Return the guessed number, or None if the action has none."""
        bare = action.strip("`* ")
        found = re.search(r"-?[0-9]+", bare) if self.tolerant else re.fullmatch(r"(-?[0-9]+)\.?", bare)
        # Twelve characters suffice to see that a number is out of range; int() refuses thousands of digits.
        return int(found[0].rstrip(".")[:12]) if found else None

    def describe_action(self, action: str, observation: str) -> ActionTarget:
        guess = self.read_guess(action)
        return ActionTarget("", None, action.strip() if guess is None else str(guess))

    def oracle_turns(self, item: TaskItem) -> int:
        return len(self.demonstration(item))

    def demonstration(self, item: TaskItem) -> Sequence[DemoAction]:
        """Return the guesses of a binary search."""
        low, high = 1, item.data["high"]
        actions: list[DemoAction] = []
        while True:
            guess = (low + high) // 2
            actions.append(DemoAction(str(guess), f"It is from {low} to {high}."))
            if guess == item.data["target"]:
                return actions
            low, high = (guess + 1, high) if guess < item.data["target"] else (low, guess - 1)
