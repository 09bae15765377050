"""Find which of 120 things is meant, by questions that are answered with yes or no."""

import hashlib
from collections.abc import Sequence
from typing import ClassVar

from questions.things import THINGS, TRAITS, best_question, fits, left_over, words_in
from verl_agent.envs.action_format import ActionFormat, Parameter, TagFormat, Tool
from verl_agent.envs.base import EnvAdapter
from verl_agent.errors import ConfigError
from verl_agent.types import DemoAction, Message, StepResult, TaskItem

RULES = (
    "I think of one thing. It has a size, a colour, a material and a kind, one of each:\n{traits}\n"
    "Ask about one trait at a time, I answer yes or no. When you know the thing, name all four, "
    "such as: {example}. You may guess once."
)
ASK = Tool("ask", "Ask whether the thing has a trait.", "<ask>{trait}</ask>", (Parameter("trait"),))
GUESS = Tool("guess", "Name the thing.", "<guess>{thing}</guess>", (Parameter("thing"),))
LONGEST = 200
"""Characters of a question; a longer one is not read."""


class Questions(EnvAdapter):
    """Reward 1.0 for the right thing, less `cost` for each question, 0.0 for a wrong one. A guess terminates."""

    success_reward: ClassVar[float] = 0.2  # what the right guess earns at least
    action_format: ClassVar[ActionFormat] = TagFormat((ASK, GUESS), (("ask", "a trait"), ("guess", "the thing")))

    def __init__(self, cost: float = 0.02) -> None:
        """Take what a recipe sets in `env.options`.

        Args:
            cost: what each of the first eight questions costs of the reward, 0 to 0.1.
        """
        if isinstance(cost, bool) or not isinstance(cost, int | float) or not 0 <= cost <= 0.1:
            raise ConfigError(f"env.options.cost={cost!r} is not allowed. Allowed: 0 to 0.1.")
        self.cost = cost

    def tasks(self, split: str) -> Sequence[TaskItem]:
        """The things; a quarter of them, chosen by a hash, is for testing."""
        return [
            TaskItem("questions", thing.replace(" ", "-"), {"thing": thing}, thing.split()[-1])
            for thing in THINGS
            if (hashlib.sha256(thing.encode()).digest()[0] % 4 == 0) == (split == "test")
        ]

    async def reset(self, item: TaskItem) -> list[Message]:
        """Think of a thing."""
        self.thing: str = item.data["thing"]
        self.asked, self.ended = 0, False
        traits = "\n".join(f"{name}: {', '.join(words)}" for name, words in TRAITS.items())
        return [
            {"role": "system", "content": RULES.format(traits=traits, example=THINGS[0])},
            {"role": "user", "content": "What do you ask first?"},
        ]

    async def step(self, action: str) -> StepResult:
        """Answer a question or judge a guess."""
        if self.ended:
            return StepResult("You have guessed already.", terminated=True)
        tag, text = self.action_format.split(action[:LONGEST]) or ("", "")  # type: ignore[attr-defined]
        words = words_in(text)
        if tag == "guess" and len(words) == len(TRAITS):
            return self.judge(words)
        if tag != "ask" or len(words) != 1:
            return StepResult("Ask about one trait, or guess all four.", info={"invalid_action": 1.0})
        self.asked += 1
        return StepResult(f"Yes, it is {words[0]}." if fits(self.thing, words[0]) else f"No, it is not {words[0]}.")

    def judge(self, words: list[str]) -> StepResult:
        """The end: right or wrong."""
        self.ended = True
        if set(words) != set(self.thing.split()):
            return StepResult(f"No, it was the {self.thing}.", terminated=True)
        reward = 1.0 - self.cost * min(self.asked, 8)
        return StepResult(f"Yes, the {self.thing}.", reward, terminated=True, info={"questions": float(self.asked)})

    def demonstration(self, item: TaskItem) -> Sequence[DemoAction]:
        """The question that halves what is left, until one thing is left."""
        left, moves = list(THINGS), []
        while len(left) > 1:
            word = best_question(left)
            moves.append(DemoAction(f"<ask>{word}</ask>", f"{len(left)} things are left; {word} halves them best."))
            left = left_over(left, word, fits(item.data["thing"], word))
        return [*moves, DemoAction(f"<guess>{left[0]}</guess>", "One thing is left.")]
