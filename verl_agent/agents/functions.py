"""An agent that calls functions, where the model's chat template has tools."""

import json
import re
from collections.abc import Sequence
from typing import Any

from verl_agent.agents.base import Agent
from verl_agent.agents.context import Context
from verl_agent.envs.action_format import ActionFormat, Parameter, Tool
from verl_agent.envs.parsing import readable
from verl_agent.errors import ConfigError
from verl_agent.types import DemoAction, Message, StepResult

CALL = re.compile(r"<tool_call>\s{0,9}(.*?)(?:</tool_call>|$)", re.DOTALL | re.IGNORECASE)
ACT = Tool("act", "Take one action in the environment.", "{action}", (Parameter("action", description="the action"),))
"""The function of an environment that names none."""


class FunctionCalls(Agent):
    """Each reply calls one function, in the format of Hermes and Qwen.

    That is `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`. The chat template tells the model which
    functions there are; observations come as the tool's answers.
    """

    def __init__(self, action_format: ActionFormat, context: Context | None = None, instructions: bool = True) -> None:
        super().__init__(action_format, context, instructions)
        self._tools = {tool.name.lower(): tool for tool in action_format.tools or (ACT,)}

    @property
    def tools(self) -> list[dict[str, Any]]:
        """See `Agent`."""
        return [tool.schema for tool in self._tools.values()]

    def instruction(self) -> str:
        """See `Agent`."""
        return "Call one function in each reply and wait for the result."

    def parse_reply(self, reply: str) -> str | None:
        """See `Agent`; the first call of the reply that is one of the functions, with all that it needs."""
        for part in readable(reply):
            actions = (self._action(found[1]) for found in CALL.finditer(part))
            if action := next(filter(None, actions), None):
                return action
        return None

    @property
    def format_error(self) -> str:
        """See `Agent`."""
        known = ", ".join(f"{tool.name}({', '.join(p.name for p in tool.parameters)})" for tool in self._tools.values())
        return f"No function call found. Call one of: {known}."

    def observe(self, step: StepResult, action: str | None, turn: int) -> Message:
        """See `Agent`."""
        return {"role": "tool", "content": step.observation}

    def render_reply(self, moves: Sequence[DemoAction], turn: int) -> str:
        """See `Agent`."""
        return f"{moves[turn].thought}\n{self._call(moves[turn].action)}".lstrip("\n")

    def _action(self, text: str) -> str | None:
        try:
            call, _ = json.JSONDecoder().raw_decode(text, text.index("{"))
            arguments = call.get("arguments", call.get("parameters")) or {}
            tool = self._tools[str(call["name"]).lower()]
            return tool.render(json.loads(arguments) if isinstance(arguments, str) else arguments)
        except (ValueError, RecursionError, TypeError, KeyError, AttributeError):
            return None

    def _call(self, action: str) -> str:
        for tool in self._tools.values():
            arguments = tool.parse(action)
            if arguments is not None and tool.render(arguments) == action:
                return f"<tool_call>\n{json.dumps({'name': tool.name, 'arguments': arguments})}\n</tool_call>"
        raise ConfigError(f"agent.name=tools: no function makes the action {action!r}. Add one to the form's tools.")
