"""Find one of 120 things by questions that are answered with yes or no."""

import hashlib
from collections.abc import Sequence

from questions.things import THINGS, TRAITS, best_question, has, remaining, traits_in
from verl_agent.envs.action_format import TagFormat
from verl_agent.envs.base import EnvAdapter
from verl_agent.envs.tools import Tool, arguments
from verl_agent.errors import ConfigError
from verl_agent.types import DemoAction, Message, StepResult, TaskItem

RULES = (
    "I think of one thing. It has a size, a colour, a material and a kind, one of each:\n{traits}\n"
    "Ask about one trait at a time, I answer yes or no. When you know the thing, name all four, "
    "such as: {example}. You may guess once."
)
TEXT = {"type": "string"}
ASK = Tool("ask", "Ask whether the thing has a trait.", arguments(trait=TEXT), "<ask>{trait}</ask>")
GUESS = Tool("guess", "Name the thing.", arguments(thing=TEXT), "<guess>{thing}</guess>")
FORMAT = TagFormat((ASK, GUESS), (("ask", "a trait"), ("guess", "the thing")))
MAX_ACTION = 200
"""Characters of an action that are read."""
MAX_COSTS = 8
"""Number of questions that cost something."""


class Questions(EnvAdapter):
    """Reward 1.0 for the right thing, less `cost` for each question, 0.0 for a wrong one. A guess terminates."""

    success_reward = 0.2  # least reward of a right guess, at the highest cost
    action_format = FORMAT

    def __init__(self, cost: float = 0.02) -> None:
        """Check and store the options.

        Args:
            cost: reward that each of the first eight questions costs, 0 to 0.1.
        """
        if isinstance(cost, bool) or not isinstance(cost, int | float) or not 0 <= cost <= 0.1:
            raise ConfigError(f"env.options.cost={cost!r} is not allowed. Allowed: 0 to 0.1.")
        self.cost = cost

    def tasks(self, split: str) -> Sequence[TaskItem]:
        """Return the things of `split`; a hash selects about a quarter of them for testing."""
        return [
            TaskItem("questions", thing.replace(" ", "-"), {"thing": thing}, thing.split()[-1])
            for thing in THINGS
            if (hashlib.sha256(thing.encode()).digest()[0] % 4 == 0) == (split == "test")
        ]

    async def reset(self, item: TaskItem) -> list[Message]:
        """Begin with the thing of `item`; return the rules and the first observation."""
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
        tag, text = FORMAT.split(action[:MAX_ACTION]) or ("", "")
        traits = traits_in(text)
        if tag == "guess" and len(traits) == len(TRAITS):
            return self.judge(traits)
        if tag != "ask" or len(traits) != 1:
            return StepResult("Ask about one trait, or guess all four.", info={"invalid_action": 1.0})
        self.asked += 1
        return StepResult(f"Yes, it is {traits[0]}." if has(self.thing, traits[0]) else f"No, it is not {traits[0]}.")

    def judge(self, traits: list[str]) -> StepResult:
        """End the episode with the reward of a guess."""
        self.ended = True
        if set(traits) != set(self.thing.split()):
            return StepResult(f"No, it was the {self.thing}.", terminated=True)
        reward = 1.0 - self.cost * min(self.asked, MAX_COSTS)
        return StepResult(f"Yes, the {self.thing}.", reward, terminated=True, info={"questions": float(self.asked)})

    def demonstration(self, item: TaskItem) -> Sequence[DemoAction]:
        """Ask the question that divides the remaining things most evenly, then guess."""
        things, demos = list(THINGS), []
        while len(things) > 1:
            trait = best_question(things)
            demos.append(DemoAction(f"<ask>{trait}</ask>", f"{len(things)} things are left; {trait} halves them best."))
            things = remaining(things, trait, has(item.data["thing"], trait))
        return [*demos, DemoAction(f"<guess>{things[0]}</guess>", "One thing is left.")]
