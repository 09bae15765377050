"""A mission played by commands: what each of them does, what it answers, and when the mission ends."""

import re
from collections.abc import Sequence

from env_adapters.babyai.commands import CHECK, Grammar
from env_adapters.babyai.sight import look
from env_adapters.babyai.texts import Style
from env_adapters.babyai.world import Grid, Move
from verl_agent.types import StepResult

MAX_COMMAND = 100
"""Characters of the longest command that is read; the longest that can be meant has about 50."""


class Game:
    """One world and the commands that are open in it.

    Attributes:
        sight: what the agent sees now.
        offer: what can be commanded now.
        ended: whether the mission is over, completed or not.
    """

    grammar = Grammar()

    def __init__(self, world: Grid, style: Style) -> None:
        """Begin in a fresh world."""
        self.world, self.style = world, style
        self.ended = False
        self.look()

    def look(self) -> None:
        """See what there is, and what can be done."""
        self.sight = look(self.world, self.world.place, self.world.direction)
        self.offer = self.grammar.offer(self.sight)

    def opening(self) -> str:
        """The mission and the first look."""
        return self.style.goal(self.world.mission) + self.observation()

    def observation(self) -> str:
        """What the agent sees, and what it can do."""
        return self.style.describe(self.sight) + self.style.actions(self.offer)

    def play(self, action: str) -> StepResult:
        """Carry out one command. Reward 1 and the end when it completes the mission."""
        command = self.read(action)
        if command == CHECK:
            return self.answer("You can take the following actions: " + ", ".join(self.offer.moves))
        if self.offer.moves.get(command):
            return self.carry_out(self.offer.moves[command])
        if command in self.offer.moves:
            return self.answer("No change in state.", "failed_action")
        if command in self.offer.refusals:
            return self.answer(self.offer.refusals[command], "failed_action")
        return self.answer("The action is not recognized. Please check valid actions.", "invalid_action")

    def read(self, action: str) -> str:
        """The command that `action` means: case, spaces, quotes and a period do not matter, nor does `pick up`."""
        if len(action) > MAX_COMMAND:
            return ""
        command = " ".join(action.lower().split()).strip("\"'`*. ")
        return re.sub(r"^pick up ", "pickup ", command)

    def answer(self, text: str, measure: str = "") -> StepResult:
        """Answer a command that moves nothing."""
        return StepResult(text + self.style.actions(self.offer), info={measure: 1.0} if measure else {})

    def carry_out(self, moves: Sequence[Move]) -> StepResult:
        """Move until all is done or the mission ends."""
        for move in moves:
            reward, over = self.world.move(move)
            if over or self.world.moves >= self.world.max_moves:
                break
        self.look()
        if over and reward > 0:
            return self.end("The task is completed.", reward=1.0)
        if over:
            return self.end("The task has failed: that was not what the goal asks for.", "failed_task")
        if self.world.moves >= self.world.max_moves:
            return self.end(f"The task has failed: all {self.world.max_moves} moves are used up.", "out_of_moves")
        return StepResult(self.observation())

    def end(self, text: str, measure: str = "", reward: float = 0.0) -> StepResult:
        """End the mission."""
        self.ended = True
        info = {measure: 1.0} if measure else {}
        return StepResult(f"{self.style.describe(self.sight)}\n {text}", reward, terminated=True, info=info)
