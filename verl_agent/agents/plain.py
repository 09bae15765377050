"""Agents that act at once, or think in a line or a block before they do."""

from typing import ClassVar

from verl_agent.agents.base import ONE_ACTION, Agent


class Act(Agent):
    """The action alone."""

    def instruction(self) -> str:
        """See `Agent`."""
        return f"{ONE_ACTION} Answer with one line: {self.form.template}" if self.form.template else ""


class ReAct(Agent):
    """A thought, then the action (arXiv 2210.03629), in the words that AgentGym uses for it."""

    prefix: ClassVar[str] = "Thought: {thought}\n"

    def instruction(self) -> str:
        """See `Agent`."""
        action = self.form.template or "your answer"
        return f"{ONE_ACTION} Always answer in this form:\nThought: what you know and what you do next\n{action}"


class Think(Agent):
    """A thought in a `<think>` block, then the action, as Search-R1 has it (arXiv 2503.09516)."""

    prefix: ClassVar[str] = "<think>{thought}</think>\n"

    def instruction(self) -> str:
        """See `Agent`."""
        action = self.form.template or "your answer"
        return f"{ONE_ACTION} Always answer in this form:\n<think>what you know and what you do next</think>\n{action}"
