"""Agents whose replies hold the action alone, or a thought before it."""

from collections.abc import Sequence
from typing import ClassVar

from typing_extensions import override

from verl_agent.agents.base import ONE_ACTION, Agent
from verl_agent.envs.action_format import LineFormat
from verl_agent.types import DemoAction


class Act(Agent):
    """Expects the action alone."""

    @override
    def instruction(self) -> str:
        form = "one line" if isinstance(self.action_format, LineFormat) else "the action alone"
        return f"{ONE_ACTION} Answer with {form}: {self.action_format.template}"


class ReAct(Agent):
    """Expects a thought, then the action (arXiv 2210.03629), in AgentGym's wording."""

    thought_template: ClassVar[str] = "Thought: {thought}\n"

    @override
    def instruction(self) -> str:
        form = f"Thought: what you know and what you do next\n{self.action_format.template}"
        return f"{ONE_ACTION} Always answer in this form:\n{form}"


class Think(Agent):
    """Expects a thought in a `<think>` block, then the action, as Search-R1 does (arXiv 2503.09516)."""

    thought_template: ClassVar[str] = "<think>{thought}</think>\n"

    @override
    def instruction(self) -> str:
        form = f"<think>what you know and what you do next</think>\n{self.action_format.template}"
        return f"{ONE_ACTION} Always answer in this form:\n{form}"


class Raw(Agent):
    """Passes the whole reply as the action and adds nothing, for environments that parse replies themselves."""

    @override
    def instruction(self) -> str:
        return ""

    @override
    @property
    def action_mark(self) -> str:
        return ""

    @override
    def parse_reply(self, reply: str) -> str:
        return reply

    @override
    def render_reply(self, actions: Sequence[DemoAction], turn: int) -> str:
        return str(actions[turn].action)
