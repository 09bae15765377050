"""Guess a number; the reply says higher or lower. Needs no server.

The smallest real environment; `verl-agent new-env` writes one to begin your own with.
"""

import re
from collections.abc import Sequence

from verl_agent.envs.action_format import LineFormat
from verl_agent.envs.base import EnvAdapter
from verl_agent.errors import ConfigError
from verl_agent.types import DemoAction, Message, StepResult, TaskItem

SYSTEM = "Guess a whole number from 1 to {high}."
TOLERANT = " Answer with one line: Action: <number>"


class GuessNumber(EnvAdapter):
    """Reward 1.0 for the right number, else 0.0. Terminates only when it is found."""

    splits = ("train", "test", "small_train", "small_test")
    action_format = LineFormat(placeholder="<number>")

    def __init__(self, tolerant: bool = False) -> None:
        """Choose how replies are read.

        Args:
            tolerant: take the first whole number in the action, for agents that hand on whole replies (`raw`).
        """
        if not isinstance(tolerant, bool):
            raise ConfigError(f"env.options.tolerant={tolerant!r} is not allowed. Allowed: true, false.")
        self.tolerant = tolerant

    def tasks(self, split: str) -> Sequence[TaskItem]:
        """All numbers of ranges from 1: up to 100, 90, ... 30, in the small splits up to 5, 6, ... 12.

        Every third range is for testing. A held-out number in a range that is trained on would be no test: it is never
        right there, so what is learnt is to avoid it.
        """
        size, part = split.split("_") if "_" in split else ("full", split)
        ranges = range(5, 13) if size == "small" else range(100, 29, -10)
        return [
            TaskItem("guess_number", f"{high}:{target}", {"high": high, "target": target}, f"1 to {high}")
            for place, high in enumerate(ranges)
            for target in range(1, high + 1)
            if (place % 3 == 2) == (part == "test")
        ]

    async def reset(self, item: TaskItem) -> list[Message]:
        """Begin with a number that nobody has guessed at."""
        self.high: int = item.data["high"]
        self.target: int = item.data["target"]
        self.ended = False
        return [
            {"role": "system", "content": SYSTEM.format(high=self.high) + (TOLERANT if self.tolerant else "")},
            {"role": "user", "content": "Your first guess?"},
        ]

    async def step(self, action: str) -> StepResult:
        """Compare one guess with the number."""
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
        """The number that is guessed, or None if there is none."""
        bare = action.strip("`* ")
        found = re.search(r"-?[0-9]+", bare) if self.tolerant else re.fullmatch(r"(-?[0-9]+)\.?", bare)
        # Twelve characters tell that a number is out of range; Python refuses to read thousands.
        return int(found[0].rstrip(".")[:12]) if found else None

    def demonstration(self, item: TaskItem) -> Sequence[DemoAction]:
        """Binary search."""
        low, high = 1, item.data["high"]
        moves: list[DemoAction] = []
        while True:
            guess = (low + high) // 2
            moves.append(DemoAction(str(guess), f"It is from {low} to {high}."))
            if guess == item.data["target"]:
                return moves
            low, high = (guess + 1, high) if guess < item.data["target"] else (low, guess - 1)
