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
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from verl_agent.envs.program.conversation import NEW_SEGMENTS, first_difference, kept_messages, to_observation
from verl_agent.envs.program.fields import warn_once
from verl_agent.envs.program.requests import CALLS, Answer, Call, Request, Said, call_text, own_id, tool_result
from verl_agent.types import Message, StepResult

NOT_CALLED = "{} was not called: the program takes one call in each reply."
SYSTEM = "<system>\n{}\n</system>"
"""System message within a conversation, as a user message: many chat templates have one system message alone."""
COPY = re.compile(r"^\S{0,20}\s*Calling tools:")
"""Copy of a reply's calls behind its stop text."""
OWN_ID = re.compile(r"(?<![0-9a-f])[0-9a-f]{24}(?![0-9a-f])")
"""Id of a call of this gateway, within other text."""


@dataclass(frozen=True, slots=True)
class Written:
    """Reply of the policy, and the answer that the program got.

    Attributes:
        refused: replies before it that the program could not take, each with its explanation.
        ids: ids of its calls.
    """

    reply: str
    answer: Answer
    refused: Sequence[Message]
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
            written, behind = self._find(place, said, request) if said.role == "assistant" else (None, "")
            text = written.reply if written else _text(said)
            is_result, joins = said.role == "tool", at > 0 and said.role == every[at - 1].role == "tool"
            place = hashlib.sha256(place + json.dumps([said.role, text, behind]).encode()).digest()
            if is_result and not joins:
                text += left_out
            if at == last:
                self._directives[place] = request.directive
            if behind:
                behind += self._directives.get(place, "")
            else:
                text += self._directives.get(place, "")
            messages += written.refused if written else ()
            if joins:
                messages[-1] = {"role": "user", "content": f"{messages[-1]['content']}\n{text}"}
            else:
                messages.append({"role": "assistant" if said.role == "assistant" else "user", "content": text})
            messages += [{"role": "user", "content": behind}] if behind else []
            left_out = self._left_out(text, len(said.calls)) if said.calls else ""
        return messages, place

    def add(self, place: bytes, reply: str, answer: Answer, refused: Sequence[Message] = ()) -> None:
        """Keep a reply, the answer that the program got, and what was said between its request and the reply."""
        key = _key(answer.text, answer.calls)
        written = Written(reply, answer, refused, frozenset(own_id(call.id) for call in answer.calls))
        self._at[place, key].append(written)
        self._anywhere[key].append(written)
        self._with_id |= dict.fromkeys(written.ids, written)

    def _find(self, place: bytes, said: Said, request: Request) -> tuple[Written | None, str]:
        """Return the reply that a message repeats, and the program's own text behind it."""
        ids = {own_id(call.id) for call in said.calls}
        # No reply has text after a stop text; some programs put it back, with more behind it.
        for text in dict.fromkeys((said.text, request.to_stop(said.text)[0])):
            key = _key(text, said.calls)
            here = self._at.get((place, key), [])
            if found := here or self._anywhere.get(key):
                written = next((one for one in reversed(found) if ids & one.ids), None)
                if written is None:  # in another conversation the refused replies before it were never said
                    written = found[-1] if len(here) == 1 else replace(found[-1], refused=())
                return written, _behind(said.text[len(text) :], request)
        return self._by_ids(said, ids), ""

    def _by_ids(self, said: Said, ids: set[str]) -> Written | None:
        """Return the reply whose calls alone came back, or that came back as text with all ids of its calls.

        Some frameworks drop the text beside a call, others write calls into the text.
        """
        mentioned = set(OWN_ID.findall(said.text)) if not said.calls else set[str]()
        for written in (self._with_id[one] for one in ids | mentioned if one in self._with_id):
            answer = written.answer
            same_calls = _key("", said.calls) == _key("", answer.calls) and not said.text.strip()
            if same_calls or (written.ids <= mentioned and said.text.strip().startswith(answer.text)):
                return written
        return None


def _text(said: Said) -> str:
    """Return a message that is no reply of the policy as the model reads it."""
    if said.role == "tool":
        return tool_result(said.text)
    if said.role == "system":
        return SYSTEM.format(said.text)
    return "\n".join(filter(None, [said.text, *map(call_text, said.calls)]))


def _behind(text: str, request: Request) -> str:
    """Return what a program added to a reply; "" for the stop text that it put back, and for a copy of the calls.

    smolagents writes such a copy; CrewAI writes the result of a tool there.
    """
    added = text.strip()
    again = any(added.removeprefix(stop.strip()).strip() == "" for stop in request.limits.get("stop", ()))
    return "" if again or COPY.search(added) else added


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
