"""Replies of an episode, found again in later requests of its program.

Clients send a reply back in other forms: arguments serialised again, other white space, split parts, call ids of their
own, without its thought. A reply that means the same is again the text that the model wrote, so that the episode
continues with the sampled tokens.
"""

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

from verl_agent.envs.program.conversation import NEW_SEGMENTS, first_difference, kept_messages, to_observation
from verl_agent.envs.program.fields import warn_once
from verl_agent.envs.program.requests import CALLS, Answer, Call, Request, Said, call_text, tool_result
from verl_agent.types import Message, StepResult

NOT_CALLED = "{} was not called: the program takes one call in each reply."
SYSTEM = "<system>\n{}\n</system>"
"""System message within a conversation, as a user message: many chat templates have one system message alone."""
OWN_ID = re.compile(r"(?<![0-9a-f])[0-9a-f]{24}(?![0-9a-f])")
"""Id of a call of this gateway, within other text."""


@dataclass(frozen=True, slots=True)
class Written:
    """Reply of the policy, the answer that the program got, and the ids of its calls."""

    reply: str
    answer: Answer
    ids: frozenset[str]


class History:
    """Replies by their place in a conversation and by their meaning.

    The place is a digest of the messages before the reply, as the model reads them. Two replies of the same meaning are
    told apart by place, then by the ids of their calls; the later one counts if neither decides.
    """

    def __init__(self) -> None:
        self._at: defaultdict[tuple[bytes, str], list[Written]] = defaultdict(list)
        self._anywhere: defaultdict[str, list[Written]] = defaultdict(list)
        self._with_id: dict[str, Written] = {}
        self._directives: dict[bytes, str] = {}
        self._left_out = cache(_left_out)  # a request repeats all replies before it

    def read(self, request: Request) -> tuple[list[Message], bytes]:
        """Return a request as the model reads it, and its place."""
        system, every = request.split()
        messages: list[Message] = [{"role": "system", "content": system}] if system else []
        place, last, left_out = b"", len(every) - 1, ""
        for at, said in enumerate(every):
            text = self._text(place, said, request)
            is_result, joins = said.role == "tool", at > 0 and said.role == every[at - 1].role == "tool"
            place = hashlib.sha256(place + json.dumps([said.role, text]).encode()).digest()
            if is_result and not joins:
                text += left_out
            if at == last:
                self._directives[place] = request.directive
            text += self._directives.get(place, "")
            if joins:
                messages[-1] = {"role": "user", "content": f"{messages[-1]['content']}\n{text}"}
            else:
                messages.append({"role": "assistant" if said.role == "assistant" else "user", "content": text})
            left_out = self._left_out(text, len(said.calls)) if said.calls else ""
        return messages, place

    def add(self, place: bytes, reply: str, answer: Answer) -> None:
        """Keep a reply, and the answer that the program got."""
        key = _key(answer.text, answer.calls)
        written = Written(reply, answer, frozenset(_own_id(call.id) for call in answer.calls))
        self._at[place, key].append(written)
        self._anywhere[key].append(written)
        self._with_id |= dict.fromkeys(written.ids, written)

    def _text(self, place: bytes, said: Said, request: Request) -> str:
        if said.role == "tool":
            return tool_result(said.text)
        if said.role == "system":
            return SYSTEM.format(said.text)
        if said.role == "user":
            return said.text
        ids = {_own_id(call.id) for call in said.calls}
        # No reply has text after a stop text; some programs put it back, with more behind it.
        for text in dict.fromkeys((said.text, request.to_stop(said.text)[0])):
            key = _key(text, said.calls)
            if found := self._at.get((place, key)) or self._anywhere.get(key):
                return next((one for one in reversed(found) if ids & one.ids), found[-1]).reply
        if reply := self._by_ids(said, ids):
            return reply
        return "\n".join(filter(None, [said.text, *map(call_text, said.calls)]))

    def _by_ids(self, said: Said, ids: set[str]) -> str | None:
        """Return the reply whose calls alone came back, or that came back as text with all ids of its calls.

        Some frameworks drop the text beside a call, others write calls into the text.
        """
        mentioned = set(OWN_ID.findall(said.text)) if not said.calls else set[str]()
        for written in (self._with_id[one] for one in ids | mentioned if one in self._with_id):
            answer = written.answer
            same_calls = _key("", said.calls) == _key("", answer.calls) and not said.text.strip()
            if same_calls or (written.ids <= mentioned and said.text.strip().startswith(answer.text)):
                return written.reply
        return None


def _own_id(given: str) -> str:
    """Return the part of a call's id that all dialects have."""
    return given.rpartition("_")[2]


def _key(text: str, calls: Sequence[Call]) -> str:
    """Return the meaning of a reply: its text without white space, and its calls."""
    return json.dumps(["".join(text.split()), [[call.name, _plain(call.arguments)] for call in calls]], sort_keys=True)


def _plain(arguments: Any) -> Any:
    """Return arguments in one form for all clients: JavaScript writes 1.0 as 1."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    with suppress(ValueError, RecursionError):
        return json.loads(text or "{}", parse_float=_number)
    return arguments


def _number(text: str) -> float:
    number = float(text)
    return int(number) if number.is_integer() else number


def _left_out(reply: str, made: int) -> str:
    """Return the answers to the calls of a reply that the program did not get."""
    names = [call.name for call in CALLS.read(reply)[made:] if call.error is None]
    return "".join(f"\n{tool_result(NOT_CALLED.format(name))}" for name in names)


def observe(before: Sequence[Message], after: Sequence[Message]) -> StepResult:
    """Return the answer to a reply after which the program sent the conversation `after`.

    A conversation that does not continue the last one begins a new segment. It is counted, and named once a run.
    """
    kept, observation = kept_messages(before, after), to_observation(before, after)
    if kept == len(before):
        return StepResult(observation, info={NEW_SEGMENTS: 0.0})
    differs = first_difference(before, after, kept)
    warn_once(
        "a program changed its conversation or began another one, so its episode has several segments, which some "
        f"estimators refuse. The first difference is in message {kept} ({differs['role']}): "
        f"{differs['was']!r} became {differs['is']!r}."
    )
    return StepResult(observation, info={NEW_SEGMENTS: 1.0})
