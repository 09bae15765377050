"""Requests and answers of a program in one form for all dialects, and how the model reads a request.

The model reads text alone. So functions are listed in the first system message, in the words of the chat templates of
Hermes and Qwen, calls are read from `<tool_call>` in the reply, and results of functions are user messages.
"""

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby, takewhile
from typing import Any, Literal, NamedTuple
from uuid import uuid4

from verl_agent.envs.call_error import BROKEN_JSON, NO_CALL, UNKNOWN_FUNCTION, WRONG, CallError
from verl_agent.envs.call_format import IN_THOUGHTS, FoundCall
from verl_agent.envs.call_formats import CALL_FORMATS
from verl_agent.envs.parsing import shorten
from verl_agent.envs.program.conversation import UNKNOWN, Counts
from verl_agent.envs.schemas import JsonSchema
from verl_agent.envs.strict_json import read_json
from verl_agent.errors import EnvError, did_you_mean
from verl_agent.messages import ReplyLimits

CALLS = CALL_FORMATS["hermes"]
ONE_CALL = "\n\nCall at most one function in each reply."
TOOLS = """# Tools

You may call functions. Their signatures are:
<tools>
{signatures}
</tools>

For a call, answer with its name and arguments as JSON:
<tool_call>
{{"name": <name>, "arguments": <arguments>}}
</tool_call>"""
REQUIRED = "\n\nCall a function in this reply."
NAMED = "\n\nCall the function {} in this reply."
NO_CALLS = "\n\nCall no function in this reply."
AS_JSON = "\n\nAnswer with one JSON object and nothing else."
AS_SCHEMA = "\n\nAnswer with JSON of this schema and nothing else:\n{}"


class RequestRefused(EnvError):
    """Request that the gateway cannot answer as asked; the program gets the reason.

    Attributes:
        status: HTTP status of the answer.
        field: field that is not supported; clients that can do without it read its name. "" for another reason.
    """

    def __init__(self, reason: str, status: int = 400, field: str = "") -> None:
        super().__init__(reason)
        self.status, self.field = status, field


@dataclass(frozen=True, slots=True)
class Call:
    """Call of a function in a message of the program.

    Attributes:
        arguments: JSON object, or a text that cannot be read as one.
    """

    name: str
    arguments: Any
    id: str = ""


@dataclass(frozen=True, slots=True)
class Said:
    """One message of a request; a result of a function has the role `tool`, and the id of its call.

    Attributes:
        call_id: "" for all other messages, and where the program sends none.
    """

    role: Literal["system", "user", "assistant", "tool"]
    text: str
    calls: tuple[Call, ...] = ()
    call_id: str = ""


class Kind(NamedTuple):
    """Form of a function: a custom tool has one text as its input; a namespace is a group of the program's tools."""

    custom: bool = False
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class Request:
    """Request of a program.

    Attributes:
        said: messages, at least one.
        instructions: text of the system before the messages, for this request alone.
        tools: functions in OpenAI's format by name.
        kinds: their forms by name.
        choice: `auto`, `required`, `none`, or the name of the function that the reply must call.
        parallel: the program takes several calls of a reply.
        thoughts: the program takes the thought of a reply.
        schema: JSON Schema of the reply; `{}` for any JSON object; None for any text.
        limits: limits on the reply.
        previous: id of the answer that the request continues; "" without one.
    """

    said: tuple[Said, ...]
    instructions: str = ""
    tools: Mapping[str, Any] = field(default_factory=dict)
    kinds: Mapping[str, Kind] = field(default_factory=dict)
    choice: str = "auto"
    parallel: bool = True
    thoughts: bool = True
    schema: Mapping[str, Any] | None = None
    limits: ReplyLimits = field(default_factory=ReplyLimits)
    model: str = ""
    stream: bool = False
    stream_usage: bool = False
    previous: str = ""

    def split(self) -> tuple[str, tuple[Said, ...]]:
        """Return the first system message, with the functions, and the messages after those of the system."""
        first = [Said("system", self.instructions), *takewhile(lambda one: one.role == "system", self.said)]
        others = _in_order(self.said[len(first) - 1 :]) or (Said("user", first.pop().text),)
        system = "\n\n".join(one.text for one in first if one.text)
        if not self.tools:
            return system, others
        signatures = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in self.tools.values())
        listed = TOOLS.format(signatures=signatures) + ("" if self.parallel else ONE_CALL)
        return f"{system}\n\n{listed}" if system else listed, others

    @property
    def directive(self) -> str:
        """Demands on this reply alone, at the end of the last message."""
        if self.must_call:
            return REQUIRED if self.choice == "required" else NAMED.format(self.choice)
        forbidden = NO_CALLS if self.choice == "none" else ""
        if self.schema is None:
            return forbidden
        form = AS_SCHEMA.format(json.dumps(self.schema, ensure_ascii=False)) if self.schema else AS_JSON
        return f"{forbidden}{form}"

    @property
    def must_call(self) -> bool:
        """True if the reply must call a function."""
        return self.choice not in ("auto", "none")

    def calls_of(self, reply: str) -> list[FoundCall]:
        """Return the calls of a reply, which are text where the request has no functions or forbids calls."""
        return CALLS.read(reply) if self.tools and self.choice != "none" else []

    def to_stop(self, reply: str) -> tuple[str, str | None]:
        """Return a reply up to its first stop text, and that text; None without one."""
        ends = [(at, stop) for stop in self.limits.get("stop", ()) if (at := reply.find(stop)) >= 0]
        at, stop = min(ends, default=(len(reply), None))
        return reply[:at], stop

    def refused(self, reply: str) -> CallError | None:
        """Return the answer to a reply that the program cannot take; None if it can."""
        reply, _ = self.to_stop(reply)
        found = self.calls_of(reply)
        thought = any(call.error is IN_THOUGHTS for call in found)
        error = None if thought else next(filter(None, map(self.refused_call, found)), None)
        if error is not None:
            return error
        if self.must_call and (thought or not self._has_choice(found)):
            return CallError((NO_CALL,), f"The reply calls no function that it must call.{self.directive}")
        if self.schema is not None and (thought or not found):
            return self._refused_text(split_thought(reply)[1])
        return None

    def refused_call(self, call: FoundCall) -> CallError | None:
        """Return the answer to a call that the program cannot take; None if it can."""
        if call.error is not None:
            return call.error
        if call.name not in self.tools:
            text = f"There is no function {shorten(repr(call.name))}. {did_you_mean(call.name, [*self.tools], 400)}"
            return CallError((UNKNOWN_FUNCTION,), text, call.name)
        if not isinstance(call.arguments, Mapping | None):
            return CallError((WRONG,), f"{call.name} was not called: its arguments are no JSON object.", call.name)
        if self.kinds.get(call.name, Kind()).custom and not is_custom(call.arguments):
            text = f'{call.name} was not called: its arguments must be {{"input": <text>}} and nothing else.'
            return CallError((WRONG,), text, call.name)
        return None

    def _has_choice(self, found: list[FoundCall]) -> bool:
        return any(self.choice in ("required", call.name) for call in found)

    def _refused_text(self, text: str) -> CallError | None:
        """Return the answer to a text that does not have the schema of the request."""
        assert self.schema is not None  # of the caller
        try:
            value = read_json(text)
        except ValueError as error:
            return CallError((BROKEN_JSON,), f"The reply is no JSON: {error}.{self.directive}")
        try:
            wrong = next(JsonSchema(self.schema or {"type": "object"}).errors(value), None)
        except RecursionError as error:  # the schema is nested too deeply
            return CallError((WRONG,), f"The reply cannot be checked by its schema: {error!r:.200}.{self.directive}")
        return wrong and CallError(
            (WRONG,), f"The reply does not have its schema: {wrong.message:.300}.{self.directive}"
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """Reply of the policy as a program reads it.

    Attributes:
        text: reply without thought and calls, up to a stop text.
        thought: text of the `<think>` block.
        calls: calls that are passed on.
        stopped: stop text that ended the reply; None for another end.
        counts: the policy's own counts.
        kinds: see `Request.kinds`.
    """

    text: str
    thought: str = ""
    calls: tuple[Call, ...] = ()
    stopped: str | None = None
    counts: Counts = UNKNOWN
    model: str = ""
    kinds: Mapping[str, Kind] = field(default_factory=dict)
    id: str = field(default_factory=lambda: uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def cut(self) -> bool:
        """True if a token limit ended the reply."""
        return self.counts.cut and not self.calls and self.stopped is None


def own_id(given: str) -> str:
    """Return the part of a call's id that all dialects have."""
    return given.rpartition("_")[2]


def _in_order(said: Sequence[Said]) -> tuple[Said, ...]:
    """Return the messages with the results of each reply in the order of its calls, in which the model reads them.

    Programs send results by id, some in the order in which their functions ended.
    """
    ordered: list[Said] = []
    places: dict[str, int] = {}
    for is_result, group in groupby(said, lambda one: one.role == "tool"):
        messages = list(group)
        if is_result and all(own_id(one.call_id) in places for one in messages):
            messages.sort(key=lambda one: places[own_id(one.call_id)])
        places = {own_id(call.id): at for at, call in enumerate(messages[-1].calls)}
        ordered += messages
    return tuple(ordered)


def split_thought(reply: str) -> tuple[str, str]:
    """Return the thought that begins a reply, and the rest; the prompt may have opened the block."""
    head, closed, rest = reply.partition("</think>")
    opened, thought = head.lstrip().startswith("<think>"), head.replace("<think>", "", 1).strip()
    if closed and (opened or "<think>" not in head):
        return thought, rest.lstrip()
    return (thought, "") if opened else ("", reply)


def to_answer(request: Request, reply: str, counts: Counts) -> Answer:
    """Return the answer to a request; of several calls the first one, if the program takes no more."""
    reply, stopped = request.to_stop(reply)
    found = request.calls_of(reply)
    if any(map(request.refused_call, found)):
        found = []
    passed = found if request.parallel else found[:1]
    calls = tuple(Call(call.name, dict(call.arguments or {}), f"call_{uuid4().hex[:24]}") for call in passed)
    thought, text = split_thought(CALLS.without_calls(reply) if calls else reply)
    thought = thought if request.thoughts else ""
    return Answer(text.strip() if calls else text, thought, calls, stopped, counts, request.model, request.kinds)


def is_custom(arguments: Any) -> bool:
    """Return True for the arguments of a custom tool, which takes one text."""
    return isinstance(arguments, Mapping) and [*arguments] == ["input"] and isinstance(arguments["input"], str)


def call_text(call: Call) -> str:
    """Return the text of a call that another author wrote."""
    arguments = call.arguments or {}
    if isinstance(arguments, str):
        with suppress(ValueError, RecursionError):
            arguments = json.loads(arguments)
    content = {"name": call.name, "arguments": arguments}
    return f"<tool_call>\n{json.dumps(content, ensure_ascii=False)}\n</tool_call>"


def tool_result(text: str) -> str:
    """Return the result of a function as the model reads it."""
    return f"<tool_response>\n{text}\n</tool_response>"
