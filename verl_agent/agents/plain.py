"""Agents that act at once, or think in a line or a block before they do."""

from collections.abc import Sequence
from typing import ClassVar

from verl_agent.agents.base import ONE_ACTION, Agent
from verl_agent.types import DemoAction


class Act(Agent):
    """The action alone."""

    def instruction(self) -> str:
        """See `Agent`."""
        return f"{ONE_ACTION} Answer with one line: {self.action_format.template}"


class ReAct(Agent):
    """A thought, then the action (arXiv 2210.03629), in the words that AgentGym uses for it."""

    prefix: ClassVar[str] = "Thought: {thought}\n"

    def instruction(self) -> str:
        """See `Agent`."""
        form = f"Thought: what you know and what you do next\n{self.action_format.template}"
        return f"{ONE_ACTION} Always answer in this form:\n{form}"


class Think(Agent):
    """A thought in a `<think>` block, then the action, as Search-R1 has it (arXiv 2503.09516)."""

    prefix: ClassVar[str] = "<think>{thought}</think>\n"

    def instruction(self) -> str:
        """See `Agent`."""
        form = f"<think>what you know and what you do next</think>\n{self.action_format.template}"
        return f"{ONE_ACTION} Always answer in this form:\n{form}"


class Raw(Agent):
    """The whole reply is the action and nothing is added: for environments that read replies themselves."""

    def instruction(self) -> str:
        """See `Agent`."""
        return ""

    def parse_reply(self, reply: str) -> str:
        """See `Agent`."""
        return reply

    def render_reply(self, moves: Sequence[DemoAction], turn: int) -> str:
        """See `Agent`."""
        return moves[turn].action
