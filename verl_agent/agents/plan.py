"""An agent that plans first, and looks back when it gets stuck."""

from collections.abc import Sequence
from typing import ClassVar

from verl_agent.agents.base import ONE_ACTION, Agent
from verl_agent.agents.context import Context
from verl_agent.envs.action_format import ActionFormat
from verl_agent.errors import ConfigError
from verl_agent.types import DemoAction, Message, StepResult

REFLECT = (
    "Before you go on, look back: begin your reply with a line `Reflection: what went wrong and what you change`, "
    "then `Plan: the steps from here`."
)
PLANNED = 8
"""Actions that the plan of a demonstration names at most."""


class PlanReflect(Agent):
    """A plan in the first reply; a reflection and a new plan where it is stuck, or time went by.

    After Plan-and-Solve (arXiv 2305.04091) and Reflexion (arXiv 2303.11366), the latter inside one episode.

    Args:
        action_format: see `Agent`.
        context: see `Agent`.
        instructions: see `Agent`.
        reflect_every: turns after which it looks back in any case, >= 1; 0 for never.
    """

    prefix: ClassVar[str] = "Thought: {thought}\n"

    def __init__(
        self,
        action_format: ActionFormat,
        context: Context | None = None,
        instructions: bool = True,
        reflect_every: int = 0,
    ) -> None:
        super().__init__(action_format, context, instructions)
        if not isinstance(reflect_every, int) or isinstance(reflect_every, bool) or reflect_every < 0:
            raise ConfigError(
                f"agent.options.reflect_every={reflect_every!r} is not allowed. Allowed: a whole number >= 0."
            )
        self.reflect_every = reflect_every
        self._last: tuple[str | None, str] | None = None
        self._asked = False

    def instruction(self) -> str:
        """See `Agent`."""
        return (
            f"{ONE_ACTION} Begin your first reply with a line\nPlan: the steps that lead to the goal\n"
            f"Always end a reply in this action_format:\nThought: what you know and what you do next\n{self.action_format.template}"
        )

    def observe(self, step: StepResult, action: str | None, turn: int) -> Message:
        """See `Agent`; asks for a reflection after an invalid action, the same action with the same result, or long."""
        stuck = bool(step.info.get("invalid_action")) or (action, step.observation) == self._last
        due = self.reflect_every > 0 and turn % self.reflect_every == 0
        self._last, self._asked = (action, step.observation), (stuck or due) and not step.terminated
        return {"role": "user", "content": f"{step.observation}\n\n{REFLECT}" if self._asked else step.observation}

    def render_reply(self, moves: Sequence[DemoAction], turn: int) -> str:
        """See `Agent`; a plan names the next actions of the oracle."""
        said = super().render_reply(moves, turn)
        if turn and not self._asked:
            return said
        left = moves[turn:]
        plan = "; ".join([move.action for move in left[:PLANNED]] + ["…"] * (len(left) > PLANNED))
        looked_back = "Reflection: this is the way, I go on.\n" if turn else ""
        return f"{looked_back}Plan: {plan}\n{said}"
