"""An agent with a memory: it repeats all answers below each observation."""

from collections.abc import Sequence
from typing import ClassVar

from typing_extensions import override

from verl_agent.agents.base import ONE_ACTION, Agent
from verl_agent.types import Message, StepResult


class Notebook(Agent):
    """Expects a thought, then the action, and shows the model its notes of all answers.

    A new agent is made for each episode, so it may keep state. It sees messages, never tokens.
    """

    thought_template: ClassVar[str] = "Thought: {thought}\n"

    @override
    def instruction(self) -> str:
        return f"{ONE_ACTION} Always answer in this form:\nThought: what the notes leave\n{self.action_format.template}"

    @override
    def build_prompt(self, messages: Sequence[Message]) -> list[Message]:
        """Start with empty notes."""
        self.notes: list[str] = []
        return super().build_prompt(messages)

    @override
    def observe(self, step: StepResult, action: str | None, turn: int) -> Message:
        """Add the answer to the notes."""
        if not step.info.get("invalid_action"):
            self.notes.append(step.observation)
        notes = f"\nNotes: {' '.join(self.notes)}" if self.notes else ""
        return {"role": "user", "content": f"{step.observation}{notes}"}
