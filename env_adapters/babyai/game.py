"""Game of one mission: the effect and the observation of each command, and the end of the mission."""

import re
from collections.abc import Sequence

from env_adapters.babyai.commands import CHECK, Grammar
from env_adapters.babyai.sight import field_of_view
from env_adapters.babyai.texts import Style
from env_adapters.babyai.world import LevelGrid, Move
from verl_agent.types import StepResult

MAX_COMMAND = 100
"""Maximum length of a command in characters; valid commands have at most about 50."""


class GridGame:
    """One grid and the commands that are available in it.

    Attributes:
        ended: True if the mission is over, completed or not.
    """

    grammar = Grammar()

    def __init__(self, world: LevelGrid, style: Style) -> None:
        """Start in a grid in its initial state."""
        self.world, self.style = world, style
        self.ended = False
        self.update_view()

    def update_view(self) -> None:
        """Update the field of view and the available commands."""
        self.sight = field_of_view(self.world, self.world.place, self.world.direction)
        self.offer = self.grammar.offer(self.sight)

    def opening(self) -> str:
        """Return the mission and the first observation."""
        return self.style.goal(self.world.mission) + self.observation()

    def observation(self) -> str:
        """Return the field of view and the available actions as text."""
        return self.style.describe(self.sight) + self.style.actions(self.offer)

    def play(self, action: str) -> StepResult:
        """Execute one command. Completing the mission earns reward 1 and ends the episode."""
        command = self.parse(action)
        if command == CHECK:
            return self.answer("You can take the following actions: " + ", ".join(self.offer.moves))
        if self.offer.moves.get(command):
            return self.execute(self.offer.moves[command])
        if command in self.offer.moves:
            return self.answer("No change in state.", "failed_action")
        if command in self.offer.refusals:
            return self.answer(self.offer.refusals[command], "failed_action")
        return self.answer("The action is not recognized. Please check valid actions.", "invalid_action")

    @staticmethod
    def parse(action: str) -> str:
        """Return the normalised command: lower case, single spaces, no quotes or period, `pickup` for `pick up`."""
        if len(action) > MAX_COMMAND:
            return ""
        command = " ".join(action.lower().split()).strip("\"'`*. ")
        return re.sub(r"^pick up ", "pickup ", command)

    def answer(self, text: str, measure: str = "") -> StepResult:
        """Return the result of a command that makes no move."""
        return StepResult(text + self.style.actions(self.offer), info={measure: 1.0} if measure else {})

    def execute(self, moves: Sequence[Move]) -> StepResult:
        """Make the moves until all are made or the mission ends."""
        for move in moves:
            reward, over = self.world.move(move)
            if over or self.world.moves >= self.world.max_moves:
                break
        self.update_view()
        if over and reward > 0:
            return self.end("The task is completed.", reward=1.0)
        if over:
            return self.end("The task has failed: that was not what the goal asks for.", "failed_task")
        if self.world.moves >= self.world.max_moves:
            return self.end(f"The task has failed: all {self.world.max_moves} moves are used up.", "out_of_moves")
        return StepResult(self.observation())

    def end(self, text: str, measure: str = "", reward: float = 0.0) -> StepResult:
        """End the mission and return the last result."""
        self.ended = True
        info = {measure: 1.0} if measure else {}
        return StepResult(f"{self.style.describe(self.sight)}\n {text}", reward, terminated=True, info=info)
