"""Agent that calls functions, for models whose chat template has tools."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from typing_extensions import override

from verl_agent.actions import CALLS, Action
from verl_agent.agents.base import Agent
from verl_agent.agents.context import Context
from verl_agent.envs.action_format import ActionFormat, ToolFormat
from verl_agent.envs.call_error import NO_CALL, NOT_DONE, CallError
from verl_agent.envs.call_format import FoundCall
from verl_agent.envs.call_formats import CALL_FORMATS
from verl_agent.envs.schema_samples import example
from verl_agent.envs.schemas import JsonSchema
from verl_agent.envs.tool_check import check_call
from verl_agent.envs.tools import Tool, arguments
from verl_agent.errors import ConfigError, did_you_mean
from verl_agent.types import CallResult, DemoAction, Message, StepResult, ToolCall

ACT = Tool(
    "act",
    "Take one action in the environment.",
    arguments(action={"type": "string", "description": "the action"}),
    "{action}",
)
"""Function of an environment that declares no tools."""
MAX_CALLS = 8
"""Most calls of one reply in an environment whose actions are calls."""


def call_marks(reply: str) -> list[tuple[int, int]]:
    """Return start and end of each `<tool_call>` and `</tool_call>` around a call; those in arguments are text."""
    return CALL_FORMATS["hermes"].marks(reply)


def example_arguments(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments for an example of a function in OpenAI's format: those that are required."""
    parameters = schema["function"].get("parameters", {})
    found = example(JsonSchema({"type": "object", "required": list(parameters.get("properties", {})), **parameters}))
    return dict(found)


class FunctionCalls(Agent):
    """Expects function calls in each reply, in the format of the model's family.

    The chat template lists the functions for the model, and observations are messages with the role `tool`. For a
    family whose template has no functions, the prompt lists them, and observations are messages of the user.

    The calls of a reply are carried out in order, within one turn, and each gets its answer.

    Args:
        calls: format of the calls, a key of `CALL_FORMATS`.
        max_calls: most calls of a reply that are carried out, >= 1; the others are answered as not done. None for
            `MAX_CALLS` in an environment whose actions are calls, and 1 where they are texts.
    """

    calls_functions = True

    def __init__(
        self,
        action_format: ActionFormat,
        context: Context | None = None,
        instructions: bool = True,
        calls: str = "hermes",
        max_calls: int | None = None,
    ) -> None:
        super().__init__(action_format, context, instructions)
        if calls not in CALL_FORMATS:
            remedy = did_you_mean(str(calls), CALL_FORMATS)
            raise ConfigError(f"agent.options.calls={calls!r} is not a format of function calls. {remedy}")
        if max_calls is not None and (not isinstance(max_calls, int) or isinstance(max_calls, bool) or max_calls < 1):
            raise ConfigError(f"agent.options.max_calls={max_calls!r} is not allowed. Allowed: a whole number >= 1.")
        self._calls = CALL_FORMATS[calls]
        self.max_calls = max_calls or (MAX_CALLS if isinstance(action_format, ToolFormat) else 1)
        self._tools = action_format.tools or (ACT,)

    @override
    @property
    def tools(self) -> list[dict[str, Any]] | None:
        return None if self._calls.listing else self._schemas

    @override
    @property
    def parallel(self) -> bool:
        return self.max_calls > 1

    @override
    def instruction(self) -> str:
        schemas = json.dumps(self._schemas, ensure_ascii=False)
        listing = self._calls.listing.replace("{tools}", schemas).replace("{example}", self._example)
        one = "Call one function in each reply and wait for the result."
        several = f"Call one or several functions, at most {self.max_calls}, in each reply and wait for the results."
        return (several if self.parallel else one) + (f"\n\n{listing}" if listing else "")

    @override
    @property
    def action_mark(self) -> str:
        return self._calls.mark

    @override
    def parse_reply(self, reply: str) -> Action | None:
        """Return the action of the first valid function call."""
        actions = (one.action for one in self.read_reply(reply))
        return next((action for action in actions if action is not None), None)

    @override
    def read_reply(self, reply: str) -> list[CallResult]:
        """Return the calls in order; the first `max_calls` valid ones have an action."""
        found = self._calls.read(reply)
        if not found:
            return [self._refused(CallError((NO_CALL,), self.format_error))]
        read: list[CallResult] = []
        valid = 0
        for one in found:
            read.append(self._read(one) if valid < self.max_calls else self._refused(self._not_done(one)))
            valid += read[-1].action is not None
        return read

    def _read(self, found: FoundCall) -> CallResult:
        if found.error is not None:
            return self._refused(found.error)
        checked = check_call(self._tools, found.name, found.arguments)
        if isinstance(checked, CallError):
            return self._refused(checked)
        action = checked.action()
        return (
            self._refused(action)
            if isinstance(action, CallError)
            else CallResult(action, info={CALLS: 1.0, **checked.info}, name=checked.tool.name)
        )

    def _not_done(self, found: FoundCall) -> CallError:
        limit = "one call is" if self.max_calls == 1 else f"{self.max_calls} calls are"
        text = f"{found.name or 'This call'} was not carried out: only {limit} carried out in each reply."
        return CallError((NOT_DONE,), text, found.name)

    def _refused(self, error: CallError) -> CallResult:
        step = error.step
        return CallResult(None, replace(step, info={CALLS: 1.0, **step.info}), error.kinds, name=error.name)

    @override
    def marks(self, reply: str) -> list[tuple[int, int]]:
        return self._calls.marks(reply)

    @override
    @property
    def format_error(self) -> str:
        known = ", ".join(f"{tool.name}({', '.join(tool.parameters.get('properties', {}))})" for tool in self._tools)
        example = f" Answer in this format:\n{self._example}" if self._calls.listing else ""
        return f"No function call found. Call one of: {known}.{example}"

    @override
    def observe(self, step: StepResult, action: Action | None, turn: int) -> Message:
        if self._calls.listing:
            return {"role": "user", "content": f"<tool_response>\n{step.observation}\n</tool_response>"}
        return {"role": "tool", "content": step.observation}

    @override
    def observe_calls(self, results: Sequence[CallResult], step: StepResult, turn: int) -> Message:
        """Answer each call; a reply without a call gets a message of the user."""
        if results[0].errors == (NO_CALL,):
            return {"role": "user", "content": step.observation}
        answers = [one.step.observation for one in results if one.step is not None]
        if len(answers) == 1:
            return self.observe(step, results[0].action, turn)
        if self._calls.listing:
            texts = [f"<tool_response>\n{answer}\n</tool_response>" for answer in answers]
            return {"role": "user", "content": "\n".join(texts)}
        return {"role": "tool", "content": step.observation, "answers": answers}

    @override
    def render_reply(self, actions: Sequence[DemoAction], turn: int) -> str:
        return f"{actions[turn].thought}\n{self._write(actions[turn].action)}".lstrip("\n")

    @property
    def _schemas(self) -> list[dict[str, Any]]:
        return [tool.schema for tool in self._tools]

    @property
    def _example(self) -> str:
        """Return a call of the first function."""
        schema = self._schemas[0]
        return self._calls.write(schema["function"]["name"], example_arguments(schema))

    def _write(self, action: Action) -> str:
        """Return the call that makes `action`."""
        for call in [action] if isinstance(action, ToolCall) else self._calls_of(action):
            text = self._calls.write(call.name, call.arguments)
            if self.parse_reply(text) == action:
                return text
        raise ConfigError(
            f"agent.name=tools: no function makes the action {str(action)!r:.300} in this format. Add a Tool for it to "
            "the environment's action_format, or choose another agent or agent.options.calls."
        )

    def _calls_of(self, action: str) -> list[ToolCall]:
        """Return the calls whose line is an action."""
        parsed = ((tool.name, tool.parse(action)) for tool in self._tools)
        return [ToolCall(name, values) for name, values in parsed if values is not None]
