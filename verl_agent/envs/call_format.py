"""Base of the formats in which families of models write function calls: reading of a reply, and broken calls."""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from verl_agent.envs.call_error import BROKEN_JSON, NO_CALL, CallError
from verl_agent.envs.parsing import THINK, shorten, thought_marks
from verl_agent.envs.strict_json import read_json

OPEN, CLOSE = "<tool_call>", "</tool_call>"
BEGINS = re.compile(rf"{OPEN}\s{{0,9}}(?=[\[{{]|<function=)")
"""Begin of a call that is more than the mention of a mark."""
END_OF_THOUGHT = re.compile(r"<\s{0,3}/\s{0,3}think\s{0,3}>", re.IGNORECASE)
SHOWN = 30
"""Characters before a mistake that an explanation repeats."""
NOTHING_AFTER = " Nothing after it was read."
IN_THOUGHTS = CallError(
    (NO_CALL,), "The call stands inside of the thinking, so it was not carried out. Write it after </think>."
)


@dataclass(frozen=True, slots=True)
class FoundCall:
    """Call as a reply has it.

    Attributes:
        name: name of the function.
        arguments: decoded JSON, usually an object; None without arguments.
        error: reason for which the call could not be read; None if it was.
        last: True if nothing after it is read, since that may be part of its arguments.
    """

    name: str
    arguments: Any = None
    error: CallError | None = None
    last: bool = False


@dataclass(frozen=True)
class CallFormat(ABC):
    """Format of a family of models.

    Attributes:
        listing: instruction with the functions, for a family whose chat template has none; "" for the others.
    """

    listing: str = ""

    opening = re.compile(re.escape(OPEN), re.IGNORECASE)
    """Begin of a call."""

    @property
    @abstractmethod
    def mark(self) -> str:
        """Text that begins every call."""

    @abstractmethod
    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Return the text of a call."""

    @abstractmethod
    def read_at(self, reply: str, start: int, begin: int) -> tuple[list[FoundCall], int]:
        """Return the calls at a begin, and the place after them.

        Args:
            start: place of the begin.
            begin: place after it.
        """

    def read(self, reply: str) -> list[FoundCall]:
        """Return the calls of a reply in order.

        Calls inside of thinking do not count. After a call that is broken nothing more is read, since what follows may
        be part of its arguments.
        """
        return self._scan(reply)[0]

    def marks(self, reply: str) -> list[tuple[int, int]]:
        """Return start and end of the marks around each call, for which a model may have tokens of its own."""
        found: list[tuple[int, int]] = []
        at = max((end for _, end in thought_marks(reply)), default=0)
        while opening := BEGINS.search(reply, at):
            at = opening.start() + len(OPEN)
            found.append((opening.start(), at))
            calls, end = self.read_at(reply, opening.start(), at)
            if calls and calls[-1].error is not None:  # a broken call ends at the first closing tag
                close = reply.find(CLOSE, at)
            else:
                close = end - len(CLOSE) if reply.endswith(CLOSE, at, end) else -1
            if close < 0:
                break
            at = close + len(CLOSE)
            found.append((close, at))
        return found

    def without_calls(self, reply: str) -> str:
        """Return a reply without the text of its calls."""
        _, spans = self._scan(reply)
        kept, at = [], 0
        for start, end in spans:
            kept.append(reply[at:start])
            at = end
        return "".join([*kept, reply[at:]])

    def _scan(self, reply: str) -> tuple[list[FoundCall], list[tuple[int, int]]]:
        """Return the calls of a reply, and the places of their texts."""
        calls: list[FoundCall] = []
        spans: list[tuple[int, int]] = []
        begin, ends_somewhere = len(reply) - len(reply.lstrip()), True
        at, hidden, thought, call = 0, False, THINK.search(reply), self.opening.search(reply)
        while True:  # each search begins where the last one ended, so the time is linear in the text
            if thought and thought.start() < at:
                thought = THINK.search(reply, at)
            if call and call.start() < at:
                call = self.opening.search(reply, at)
            if thought and (call is None or thought.start() < call.start()):
                if thought[1]:  # the prompt opened the block
                    calls, spans, hidden, at = [], [], hidden or bool(calls), thought.end()
                    continue
                ends = END_OF_THOUGHT.search(reply, thought.end()) if ends_somewhere else None
                ends_somewhere = ends is not None
                if ends is None and thought.start() > begin:  # text mentions the mark
                    at = thought.end()
                    continue
                at = ends.end() if ends else len(reply)
                hidden = hidden or self.opening.search(reply, thought.end(), at) is not None
            elif call:
                found, at = self.read_at(reply, call.start(), call.end())
                calls += found
                spans += [(call.start(), at)] if found else []
                if found and found[-1].last:
                    break
            else:
                break
        return [FoundCall("", error=IN_THOUGHTS)] if hidden and not calls else calls, spans


def dump(value: Any) -> str:
    """Return a value as JSON, in which text is written as itself."""
    return json.dumps(value, ensure_ascii=False)


def call_of(value: Any) -> FoundCall:
    """Return the call in a JSON object."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        text = f'The call {shorten(dump(value))} names no function. Write its "name" and "arguments".'
        return FoundCall("", error=CallError((BROKEN_JSON,), text))
    arguments = value.get("arguments", value.get("parameters"))
    if isinstance(arguments, str):  # as in OpenAI's answers
        try:
            arguments = read_json(arguments) if arguments.strip() else None
        except ValueError as error:
            if not str(arguments).lstrip().startswith(("{", "[")):
                return FoundCall(value["name"], arguments)  # the check of the call refuses a text
            text = f"{value['name']} was not called: its arguments are no JSON: {where(error, str(arguments))}."
            return FoundCall(value["name"], error=CallError((BROKEN_JSON,), text, value["name"]))
    return FoundCall(value["name"], arguments)


def broken(reply: str, begin: int, reason: ValueError | str, name: str = "") -> FoundCall:
    """Return a call that cannot be read, after which nothing is read."""
    at_end = isinstance(reason, json.JSONDecodeError) and (
        reason.pos >= len(reply.rstrip()) or reason.msg.startswith("Unterminated string")
    )
    if at_end or not reason:
        text = f"The call is cut off: {shorten(reply[begin:].strip(), 60)!r}. Write the whole call again."
    elif isinstance(reason, ValueError):
        text = f"The call is no JSON: {where(reason, reply, begin)}. Write the whole call again."
    else:
        text = f"The call is not in its format: {reason}. Write the whole call again."
    rest = reply[reason.pos if isinstance(reason, json.JSONDecodeError) else begin :]
    ends = CLOSE if CLOSE in rest or not isinstance(reason, json.JSONDecodeError) else "\n"
    after = rest.partition(ends)[2].strip()
    return FoundCall(name, error=CallError((BROKEN_JSON,), text + (NOTHING_AFTER if after else ""), name), last=True)


def where(error: ValueError, text: str, begin: int = 0) -> str:
    """Return the reason of an error of JSON, and its place in the text that begins at `begin`."""
    if not isinstance(error, json.JSONDecodeError):
        return str(error)
    before = text[max(begin, error.pos - SHOWN) : error.pos]
    rest = text[error.pos :].lstrip()
    reason = error.msg if rest and not rest.startswith(CLOSE) else "it is not complete: its end is missing"
    return f"{reason} at character {error.pos - begin + 1}" + (f", after {before!r}" if before else "")
