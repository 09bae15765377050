"""Agent that calls functions, for models whose chat template has tools."""

import json
import re
from collections.abc import Sequence
from typing import Any

from typing_extensions import override

from verl_agent.agents.base import Agent
from verl_agent.agents.context import Context
from verl_agent.envs.action_format import ActionFormat, Parameter, Tool
from verl_agent.envs.parsing import readable
from verl_agent.errors import ConfigError
from verl_agent.types import DemoAction, Message, StepResult

CALL = re.compile(r"<tool_call>\s{0,9}(.*?)(?:</tool_call>|$)", re.DOTALL | re.IGNORECASE)
ACT = Tool("act", "Take one action in the environment.", "{action}", (Parameter("action", description="the action"),))
"""Function of an environment that declares no tools."""


class FunctionCalls(Agent):
    """Expects one function call in each reply, in the format of Hermes and Qwen.

    That is `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`. The chat template lists the functions for the
    model, and observations are messages with the role `tool`.
    """

    def __init__(self, action_format: ActionFormat, context: Context | None = None, instructions: bool = True) -> None:
        super().__init__(action_format, context, instructions)
        self._tools = {tool.name.lower(): tool for tool in action_format.tools or (ACT,)}

    @override
    @property
    def tools(self) -> list[dict[str, Any]]:
        return [tool.schema for tool in self._tools.values()]

    @override
    def instruction(self) -> str:
        return "Call one function in each reply and wait for the result."

    @override
    @property
    def action_mark(self) -> str:
        return "<tool_call>"

    @override
    def parse_reply(self, reply: str) -> str | None:
        """Return the action of the first valid function call."""
        for part in readable(reply):
            actions = (self._action(call[1]) for call in CALL.finditer(part))
            if action := next(filter(None, actions), None):
                return action
        return None

    @override
    @property
    def format_error(self) -> str:
        known = ", ".join(f"{tool.name}({', '.join(p.name for p in tool.parameters)})" for tool in self._tools.values())
        return f"No function call found. Call one of: {known}."

    @override
    def observe(self, step: StepResult, action: str | None, turn: int) -> Message:
        return {"role": "tool", "content": step.observation}

    @override
    def render_reply(self, actions: Sequence[DemoAction], turn: int) -> str:
        return f"{actions[turn].thought}\n{self._call(actions[turn].action)}".lstrip("\n")

    def _action(self, text: str) -> str | None:
        """Return the action of a call, or None if the call is not valid JSON, not a known function or not Unicode."""
        try:
            call, _ = json.JSONDecoder().raw_decode(text, text.index("{"))
            arguments = call.get("arguments", call.get("parameters")) or {}
            tool = self._tools[str(call["name"]).lower()]
            action = tool.render(json.loads(arguments) if isinstance(arguments, str) else arguments)
            (action or "").encode()  # JSON can escape half a character, which no tokenizer encodes
            return action
        except (ValueError, RecursionError, TypeError, KeyError, AttributeError):
            return None

    def _call(self, action: str) -> str:
        """Return the call that makes `action`."""
        for tool in self._tools.values():
            arguments = tool.parse(action)
            if arguments is not None and tool.render(arguments) == action:
                return f"<tool_call>\n{json.dumps({'name': tool.name, 'arguments': arguments})}\n</tool_call>"
        raise ConfigError(
            f"agent.name=tools: no function makes the action {action!r}. "
            "Add a Tool for it to the environment's action_format, or choose another agent."
        )
