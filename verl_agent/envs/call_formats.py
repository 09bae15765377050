"""Function calls as families of models write them, and how they are read."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from verl_agent.envs.call_format import CLOSE, OPEN, CallFormat, FoundCall, broken, call_of, dump
from verl_agent.envs.strict_json import read_json_at

BETWEEN = re.compile(r"(?:\s|,|;|`{3}(?:json)?)*")
"""Text before the first call of a mark, and between two."""
SPECIAL = re.compile(r"\[(?:TOOL_CALLS|CALL_ID|ARGS)\]")
"""Marks of Mistral's calls."""
JSON_START = re.compile(r"\{|\[\s*[{\]]")
TAG = re.compile(f"{OPEN}|{CLOSE}", re.IGNORECASE)
MAX_FAILURES = 100
"""Most braces of a reply that begin no JSON."""


@dataclass(frozen=True)
class TaggedJson(CallFormat):
    """JSON objects, or a list of them, between `<tool_call>` and `</tool_call>`.

    Attributes:
        text: a call, with `{call}` in place of its JSON.
    """

    text: str = f"{OPEN}\n{{call}}\n{CLOSE}"

    @override
    @property
    def mark(self) -> str:
        return self.text.partition("{call}")[0].rstrip()

    @override
    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        return self.text.replace("{call}", dump({"name": name, "arguments": arguments}))

    @override
    def read_at(self, reply: str, start: int, begin: int) -> tuple[list[FoundCall], int]:
        calls: list[FoundCall] = []
        at = _after(BETWEEN, reply, begin)
        if reply[at : at + 1] not in ("{", "["):
            close = _next_close(reply, at)
            if close is None:  # the mark is only mentioned
                return ([broken(reply, begin, "")], len(reply)) if at == len(reply) else ([], begin)
            return [broken(reply, begin, "its text is no JSON object")], close
        while reply[at : at + 1] in ("{", "["):
            try:
                value, at = read_json_at(reply, at)
            except ValueError as error:
                return [*calls, broken(reply, begin, error)], len(reply)
            calls += map(call_of, value if isinstance(value, list) else [value])
            at = _after(BETWEEN, reply, at)
        close = _next_close(reply, at)
        return calls, at if close is None else close + len(CLOSE)


@dataclass(frozen=True)
class BareJson(CallFormat):
    """JSON objects without a mark, whose arguments are called `parameters`, as Llama 3.1 and 3.2 write them.

    Llama may begin a call with `<|python_tag|>`, a special token, which is no part of the text.
    """

    opening = re.compile(r"\{")
    starts = re.compile(r'\{\s{0,9}"(name|type)"')

    @override
    @property
    def mark(self) -> str:
        return '{"name": '

    @override
    def marks(self, reply: str) -> list[tuple[int, int]]:
        return []

    @override
    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        return dump({"name": name, "parameters": arguments})

    @override
    def read_at(self, reply: str, start: int, begin: int) -> tuple[list[FoundCall], int]:
        try:
            value, end = read_json_at(reply, start)
        except ValueError as error:
            if self.starts.match(reply, start):
                return [broken(reply, start, error)], len(reply)
            return [], begin if reply.count("{", 0, begin) < MAX_FAILURES else len(reply)
        is_call = isinstance(value, dict) and isinstance(value.get("name"), str)
        return ([call_of(value)] if is_call else []), end


@dataclass(frozen=True)
class QwenXml(CallFormat):
    """Arguments as text between tags, as Qwen3-Coder writes them."""

    opening = re.compile(r"<tool_call>|<function=", re.IGNORECASE)
    function = re.compile(r"\s*<function=([^>\n]{1,200})>\s*")
    parameter = re.compile(r"<parameter=([^>\n]{1,200})>\n?")
    value_end = re.compile(r"\n?</parameter>\s*(?=<parameter=|</function>)")
    end = re.compile(r"</function>\s*(?:</tool_call>)?")

    @override
    @property
    def mark(self) -> str:
        return f"{OPEN}\n<function="

    @override
    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        texts = ((key, dump(one) if isinstance(one, dict | list) else str(one)) for key, one in arguments.items())
        inside = "".join(f"<parameter={key}>\n{text}\n</parameter>\n" for key, text in texts)
        return f"{OPEN}\n<function={name}>\n{inside}</function>\n{CLOSE}"

    @override
    def read_at(self, reply: str, start: int, begin: int) -> tuple[list[FoundCall], int]:
        marked = reply[start : start + len(OPEN)].lower() == OPEN
        header = self.function.match(reply, begin if marked else start)
        if header is None:
            return TaggedJson().read_at(reply, start, begin) if marked else ([], begin)
        name = header[1]
        arguments: dict[str, str] = {}
        at = header.end()
        while opened := self.parameter.match(reply, at):
            ends = self.value_end.search(reply, opened.end())
            if ends is None:
                return [broken(reply, start, f"the parameter {opened[1]} is not closed", name)], len(reply)
            if opened[1] in arguments:
                return [broken(reply, start, f"the parameter {opened[1]} occurs twice", name)], len(reply)
            arguments[opened[1]], at = reply[opened.end() : ends.start()], ends.end()
        ends = self.end.match(reply, at)
        if ends is None:
            return [broken(reply, start, "</function> is missing after the parameters", name)], len(reply)
        return [FoundCall(name, arguments)], ends.end()


@dataclass(frozen=True)
class Mistral(CallFormat):
    """A list of objects after `[TOOL_CALLS]`, or name and arguments, as Mistral's tokenizers of version 11 write them.

    The marks are special tokens, which engines leave out of the text, so that calls are read without them, too.

    Attributes:
        names_first: write the form of version 11.
    """

    names_first: bool = False

    opening = re.compile(
        r'\[TOOL_CALLS\]|^[ \t]*(?=\[\s*\{\s*")|^[ \t]*(?=[\w-]{1,64}(?:\[CALL_ID\]\w+)?(?:\[ARGS\])?\{)', re.M
    )
    named = re.compile(r"\s*(?:\[TOOL_CALLS\])?([\w-]{1,64})(?:\[CALL_ID\]\w+)?(?:\[ARGS\])?\s*(?=\{)")

    @override
    @property
    def mark(self) -> str:
        return "[TOOL_CALLS]"

    @override
    def marks(self, reply: str) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        for start, end in self._scan(reply)[1]:
            at = start
            while at < end and (json := JSON_START.search(reply, at, end)):
                found += [mark.span() for mark in SPECIAL.finditer(reply, at, json.start())]
                try:
                    _, at = read_json_at(reply, json.start())
                except ValueError:
                    break
        return found

    @override
    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        if self.names_first:
            return f"{self.mark}{name}[ARGS]{dump(arguments)}"
        return f"{self.mark}[{dump({'name': name, 'arguments': arguments})}]"

    @override
    def read_at(self, reply: str, start: int, begin: int) -> tuple[list[FoundCall], int]:
        calls: list[FoundCall] = []
        at = _after(BETWEEN, reply, begin)
        try:
            if reply[at : at + 1] in ("[", "{"):
                value, at = read_json_at(reply, at)
                calls += map(call_of, value if isinstance(value, list) else [value])
                return calls, at
            while named := self.named.match(reply, at):
                value, at = read_json_at(reply, named.end())
                calls.append(FoundCall(named[1], value))
        except ValueError as error:
            return [*calls, broken(reply, begin, error)], len(reply)
        if not calls and reply[start:begin] == self.mark:
            return [broken(reply, begin, "" if not reply[at:] else "its text is no JSON")], len(reply)
        return calls, max(at, begin) if calls else begin + (begin == start)


@dataclass(frozen=True)
class ActionJson(TaggedJson):
    """A JSON object after `Action:`, for agents that do not call functions."""

    text: str = "Action: {call}"
    opening = re.compile(r"(?<![^\W_])action[\s*_]{0,9}:[\s*_`]{0,9}", re.IGNORECASE)

    @override
    def read_at(self, reply: str, start: int, begin: int) -> tuple[list[FoundCall], int]:
        if reply[begin : begin + 1] != "{":
            return [], begin
        try:
            value, at = read_json_at(reply, begin)
        except ValueError as error:
            return [broken(reply, begin, error)], len(reply)
        return [call_of(value)], at


CALL_FORMATS: Mapping[str, CallFormat] = {
    "hermes": TaggedJson(),
    "llama3": BareJson(),
    "smollm2": TaggedJson(
        listing="You have access to the following tools:\n<tools>{tools}</tools>\n\nAnswer in this format:\n{example}",
        text=f"{OPEN}[\n{{call}}\n]{CLOSE}",
    ),
    "qwen3_coder": QwenXml(),
    "mistral": Mistral(),
    "mistral11": Mistral(names_first=True),
}
"""Formats of families: Hermes, Qwen2.5 and Qwen3; Llama 3.1 and 3.2; SmolLM2, as its model card explains it;
Qwen3-Coder; Mistral up to version 7 of its tokenizer, and from version 11 on."""


def _after(pattern: re.Pattern[str], text: str, start: int) -> int:
    """Return the place after a pattern that matches everywhere."""
    match = pattern.match(text, start)
    return match.end() if match else start


def _next_close(reply: str, at: int) -> int | None:
    """Return the place of the next closing tag; None if another call begins before it, or without one."""
    tag = TAG.search(reply, at)  # of either kind, so that the search ends at the next call
    return tag.start() if tag and len(tag[0]) == len(CLOSE) else None
