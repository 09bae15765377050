"""Agent that calls functions, for models whose chat template has tools."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from verl_agent.agents.base import Agent
from verl_agent.agents.context import Context
from verl_agent.envs.action_format import ActionFormat, Parameter, Tool
from verl_agent.envs.parsing import readable_parts
from verl_agent.errors import ConfigError, did_you_mean
from verl_agent.types import DemoAction, Message, StepResult

SECTION = re.compile(r"<tool_call>\s{0,9}(.*?)(?:</tool_call>|$)", re.DOTALL | re.IGNORECASE)
MAX_FAILURES = 100
"""Most braces of a reply that begin no JSON."""
CALL_START = re.compile(r'\{\s{0,9}"(name|type)"')
"""Begin of a call outside of marks."""
ACT = Tool("act", "Take one action in the environment.", "{action}", (Parameter("action", description="the action"),))
"""Function of an environment that declares no tools."""
EXAMPLES: Mapping[str, Any] = {"integer": 1, "number": 1.0, "boolean": True}
"""Argument of an example by its type; other arguments are text."""


@dataclass(frozen=True)
class CallFormat:
    """Function calls as a model family writes them.

    Attributes:
        text: a reply with one call, `{call}` in place of its JSON.
        arguments: key of the arguments.
        listing: instruction with the functions, for a family whose chat template has none; "" for the others.
    """

    text: str
    arguments: str = "arguments"
    listing: str = ""

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Return the reply that makes a call."""
        return self.text.replace("{call}", json.dumps({"name": name, self.arguments: arguments}))

    def read(self, reply: str) -> Iterator[Any]:
        """Yield the JSON objects of a reply that may be calls.

        Objects inside of a call that is broken or cut off are its arguments, not other calls.
        """
        decoder, marked, failures = json.JSONDecoder(), "<tool_call>" in self.text, 0
        for text in SECTION.findall(reply) if marked else [reply]:
            end = 0
            for start in (match.start() for match in re.finditer(r"\{", text)):
                if start < end:
                    continue
                try:
                    found, end = decoder.raw_decode(text, start)
                except (ValueError, RecursionError):
                    failures += 1
                    if marked or CALL_START.match(text, start) or failures == MAX_FAILURES:
                        break
                    continue
                yield found


TAGGED = "<tool_call>\n{call}\n</tool_call>"
CALL_FORMATS: Mapping[str, CallFormat] = {
    "hermes": CallFormat(TAGGED),
    "llama3": CallFormat("{call}", arguments="parameters"),
    "smollm2": CallFormat(
        "<tool_call>[\n{call}\n]</tool_call>",
        listing="You have access to the following tools:\n<tools>{tools}</tools>\n\nAnswer in this format:\n{example}",
    ),
}
"""Formats of families: Hermes, Qwen2.5 and Qwen3; Llama 3.1 and 3.2; SmolLM2, as its model card explains it.

Llama may begin a call with `<|python_tag|>`, a special token, which is no part of the text.
"""


def example_arguments(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments that a function in OpenAI's format accepts."""
    properties = schema["function"].get("parameters", {}).get("properties", {})
    return {name: EXAMPLES.get(str(parameter.get("type")), f"<{name}>") for name, parameter in properties.items()}


class FunctionCalls(Agent):
    """Expects one function call in each reply, in the format of the model's family.

    The chat template lists the functions for the model, and observations are messages with the role `tool`. For a
    family whose template has no functions, the prompt lists them, and observations are messages of the user.

    Args:
        calls: format of the calls, a key of `CALL_FORMATS`.
    """

    def __init__(
        self,
        action_format: ActionFormat,
        context: Context | None = None,
        instructions: bool = True,
        calls: str = "hermes",
    ) -> None:
        super().__init__(action_format, context, instructions)
        if calls not in CALL_FORMATS:
            remedy = did_you_mean(str(calls), CALL_FORMATS)
            raise ConfigError(f"agent.options.calls={calls!r} is not a format of function calls. {remedy}")
        self._calls = CALL_FORMATS[calls]
        self._tools = {tool.name.lower(): tool for tool in action_format.tools or (ACT,)}

    @override
    @property
    def tools(self) -> list[dict[str, Any]] | None:
        return None if self._calls.listing else self._schemas

    @override
    def instruction(self) -> str:
        listing = self._calls.listing.replace("{tools}", json.dumps(self._schemas)).replace("{example}", self._example)
        return "Call one function in each reply and wait for the result." + (f"\n\n{listing}" if listing else "")

    @override
    @property
    def action_mark(self) -> str:
        return self._calls.text.partition("{call}")[0].rstrip() or '{"name": '

    @override
    def parse_reply(self, reply: str) -> str | None:
        """Return the action of the first valid function call."""
        for part in readable_parts(reply):
            actions = map(self._action, self._calls.read(part))
            if action := next(filter(None, actions), None):
                return action
        return None

    @override
    @property
    def format_error(self) -> str:
        known = ", ".join(f"{tool.name}({', '.join(p.name for p in tool.parameters)})" for tool in self._tools.values())
        example = f" Answer in this format:\n{self._example}" if self._calls.listing else ""
        return f"No function call found. Call one of: {known}.{example}"

    @override
    def observe(self, step: StepResult, action: str | None, turn: int) -> Message:
        if self._calls.listing:
            return {"role": "user", "content": f"<tool_response>\n{step.observation}\n</tool_response>"}
        return {"role": "tool", "content": step.observation}

    @override
    def render_reply(self, actions: Sequence[DemoAction], turn: int) -> str:
        return f"{actions[turn].thought}\n{self._call(actions[turn].action)}".lstrip("\n")

    @property
    def _schemas(self) -> list[dict[str, Any]]:
        return [tool.schema for tool in self._tools.values()]

    @property
    def _example(self) -> str:
        """Return a call of the first function."""
        schema = self._schemas[0]
        return self._calls.write(schema["function"]["name"], example_arguments(schema))

    def _action(self, call: Any) -> str | None:
        """Return the action of a call, or None if it is not a call of a known function or not Unicode."""
        try:
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
                return self._calls.write(tool.name, arguments)
        raise ConfigError(
            f"agent.name=tools: no function makes the action {action!r}. "
            "Add a Tool for it to the environment's action_format, or choose another agent."
        )
