"""Check of a call before it is carried out: its function, its arguments, and errors that say which one is wrong."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from verl_agent.actions import ARGUMENTS_READ, Action, ToolCall
from verl_agent.envs.argument_problems import Problem, validated
from verl_agent.envs.call_error import BROKEN_JSON, NO_CALL, UNKNOWN_FUNCTION, WRONG, CallError
from verl_agent.envs.call_format import where
from verl_agent.envs.parsing import shorten
from verl_agent.envs.strict_json import read_json
from verl_agent.envs.tools import Tool
from verl_agent.errors import did_you_mean

MAX_BYTES = 2**21 - 1000
"""Most bytes of the arguments of one call; servers take a little more."""
MOST_PROBLEMS = 10
"""Most problems that one answer explains."""


@dataclass(frozen=True, slots=True)
class CheckedCall:
    """Call that may be carried out.

    Attributes:
        call: the call with its arguments as JSON.
        values: the arguments as the function takes them, such as dates; None for a tool without a function.
        read: number of arguments that were read from text.
    """

    call: ToolCall
    tool: Tool
    values: Mapping[str, Any] | None = None
    read: int = 0

    @property
    def info(self) -> dict[str, float]:
        """Measurements of the call."""
        return {ARGUMENTS_READ: float(self.read)} if self.read else {}

    def action(self) -> "Action | CallError":
        """Return the action of the environment: the call, or its line where actions are lines."""
        if not self.tool.line:
            return self.call
        line = self.tool.render(self.call.arguments)
        if line is not None:
            return line
        return CallError(
            (WRONG,),
            f"{self.call.name} was not called: its arguments cannot be told apart in the line "
            f"{shorten(self.tool.line)!r}. Leave the words between the arguments out of their values.",
            self.call.name,
        )


def find_tool(tools: Sequence[Tool], name: str) -> "Tool | CallError":
    """Return the tool of a name; one that differs only in case is meant, since no two do."""
    for tool in tools:
        if tool.name.lower() == name.lower():
            return tool
    known = [tool.name for tool in tools]
    hint = did_you_mean(name, known, 400)
    return CallError((UNKNOWN_FUNCTION,), f"There is no function {shorten(repr(name))}. {hint}", name)


def check_call(tools: Sequence[Tool], name: str, arguments: Any) -> "CheckedCall | CallError":
    """Check a call.

    Args:
        tools: functions that may be called.
        arguments: decoded JSON; None means no arguments.
    """
    tool = find_tool(tools, name)
    if isinstance(tool, CallError):
        return tool
    arguments = {} if arguments is None else arguments
    if not isinstance(arguments, Mapping):
        shown = shorten(json.dumps(arguments, ensure_ascii=False))
        kind = "the text " if isinstance(arguments, str) else ""
        text = f"{tool.name} was not called: its arguments are {kind}{shown}. Allowed: a JSON object."
        return CallError((WRONG,), text, tool.name)
    try:
        size = len(json.dumps(arguments, ensure_ascii=False).encode())
    except ValueError as error:
        return CallError((WRONG,), f"{tool.name} was not called: its arguments are no Unicode: {error}.", tool.name)
    if size > MAX_BYTES:
        text = f"{tool.name} was not called: its arguments have {size:,} bytes. Allowed: at most {MAX_BYTES:,}."
        return CallError((WRONG,), text, tool.name)
    found, read = tool.schema_of_arguments.read(dict(arguments))
    values, problems = validated(tool, found)
    if problems:
        return _explained(tool, problems)
    return CheckedCall(ToolCall(tool.name, found), tool, values, read)


def check_action(tools: Sequence[Tool], action: Action) -> "CheckedCall | CallError":
    """Check an action of an environment whose actions are calls; a text may hold the JSON of one."""
    if isinstance(action, ToolCall):
        return check_call(tools, action.name, action.arguments)
    try:
        value = read_json(action)
    except ValueError as error:
        form = '{"name": ..., "arguments": {...}}'
        kind = BROKEN_JSON if action.lstrip().startswith("{") else NO_CALL
        return CallError((kind,), f"This is no call: {shorten(where(error, action), 200)}. Write a call as {form}.")
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        known = ", ".join(one.name for one in tools)
        return CallError((NO_CALL,), f"This is no call: it names no function. Functions: {shorten(known, 400)}.")
    return check_call(tools, value["name"], value.get("arguments"))


def _explained(tool: Tool, problems: Sequence[Problem]) -> CallError:
    kinds = tuple(dict.fromkeys(one.kind for one in problems))
    lines = [f"- {one.text}" for one in problems[:MOST_PROBLEMS]]
    if len(problems) > MOST_PROBLEMS:
        lines.append(f"- and {len(problems) - MOST_PROBLEMS} more.")
    if len(problems) == 1:
        return CallError(kinds, f"{tool.name} was not called: {problems[0].text}", tool.name)
    return CallError(kinds, f"{tool.name} was not called:\n" + "\n".join(lines), tool.name)
