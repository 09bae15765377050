"""Agent that asks for a plan first, and for a reflection when the episode makes no progress."""

from collections.abc import Sequence
from typing import ClassVar

from typing_extensions import override

from verl_agent.agents.base import ONE_ACTION, Agent
from verl_agent.agents.context import Context
from verl_agent.envs.action_format import ActionFormat
from verl_agent.errors import ConfigError
from verl_agent.types import Action, DemoAction, Message, StepResult

REFLECT = (
    "Before you go on, look back: begin your reply with a line `Reflection: what went wrong and what you change`, "
    "then `Plan: the steps from here`."
)
PLANNED = 8
"""Most actions in the plan of a demonstration."""


class PlanReflect(Agent):
    """Expects a plan in the first reply, and a reflection with a new plan when it asks for one.

    After Plan-and-Solve (arXiv 2305.04091) and Reflexion (arXiv 2303.11366), the latter within one episode. It asks
    for a reflection after an invalid action, after an action that repeats the last one with the same result, and
    every `reflect_every` turns.

    Args:
        action_format: see `Agent`.
        context: see `Agent`.
        instructions: see `Agent`.
        reflect_every: turns between two reflections, >= 1; 0 for no regular reflection.
    """

    thought_template: ClassVar[str] = "Thought: {thought}\n"

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
        self._last: tuple[Action | None, str] | None = None
        self._asked = False

    @override
    def instruction(self) -> str:
        return (
            f"{ONE_ACTION} Begin your first reply with a line\nPlan: the steps that lead to the goal\n"
            "Always end a reply in this form:\nThought: what you know and what you do next\n"
            f"{self.action_format.template}"
        )

    @override
    def observe(self, step: StepResult, action: Action | None, turn: int) -> Message:
        """Add the request for a reflection."""
        stuck = bool(step.info.get("invalid_action")) or (action, step.observation) == self._last
        due = self.reflect_every > 0 and turn % self.reflect_every == 0
        self._last, self._asked = (action, step.observation), (stuck or due) and not step.terminated
        return {"role": "user", "content": f"{step.observation}\n\n{REFLECT}" if self._asked else step.observation}

    @override
    def render_reply(self, actions: Sequence[DemoAction], turn: int) -> str:
        """A plan lists the next actions of the oracle."""
        reply = super().render_reply(actions, turn)
        if turn and not self._asked:
            return reply
        left = actions[turn:]
        plan = "; ".join([str(demo.action) for demo in left[:PLANNED]] + ["…"] * (len(left) > PLANNED))
        reflection = "Reflection: this is the way, I go on.\n" if turn else ""
        return f"{reflection}Plan: {plan}\n{reply}"
