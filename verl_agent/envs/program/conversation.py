"""Conversation of a program as texts of an episode: each request of the program is an observation, and back.

An episode alternates replies and observations. A program may send anything: it may add several messages to its
conversation, change what was said, or begin another conversation. An observation therefore says how the next
conversation follows from the last one. The usual case, one new user message, is that message as it is; any other is
`MARK` and JSON: the number of messages that stay, the new ones after them, limits on the reply if they change, and
the first text that differs where messages of before do not stay.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from verl_agent.messages import ReplyLimits
from verl_agent.types import Message

MARK = "[conversation] "
"""Text that begins an observation which is not a single new user message."""
NEW_SEGMENTS = "new_segments"
"""Measurement: requests that do not continue the conversation of the one before."""
SHOWN = 80
"""Most characters of a text that differs, from the first difference on, and of the text before it."""


@dataclass(frozen=True, slots=True)
class Counts:
    """The policy's own counts of a reply.

    Attributes:
        prompt: tokens that the model read; 0 if unknown.
        cached: tokens of the prompt that continue the model's last reply or what it had read before it.
        written: tokens of the reply; 0 if unknown.
        cut: a token limit ended the reply.
    """

    prompt: int = 0
    cached: int = 0
    written: int = 0
    cut: bool = False


UNKNOWN = Counts()
"""Counts of a reply that a person or a script wrote."""


class CountedReply(str):
    """Text of a reply that the policy's counts travel with, from the agent to the gateway."""

    counts: Counts

    def __new__(cls, text: str, counts: Counts) -> "CountedReply":
        """Return the text with its counts."""
        reply = super().__new__(cls, text)
        reply.counts = counts
        return reply

    def __reduce__(self) -> tuple[Any, ...]:
        """Arrive in another process with the counts."""
        return CountedReply, (str(self), self.counts)


def to_observation(before: Sequence[Message], after: Sequence[Message]) -> str:
    """Return the text from which `conversation_at` makes `after`.

    Args:
        before: conversation of the last request, with its reply.
        after: conversation of the next request; it ends with a user message, which may have limits on the reply.
    """
    limits, plain = limits_of(after), without_limits(after)
    kept = kept_messages(before, plain)
    new, changes = plain[kept:], limits != limits_of(before)
    if kept == len(before) and len(new) == 1 and not new[0]["content"].startswith(MARK) and not changes:
        return new[0]["content"]
    change: dict[str, Any] = {"keep": kept, "messages": new}
    if changes:
        change["limits"] = limits
    if kept < len(before):
        change["differs"] = first_difference(before, plain, kept)
    return MARK + json.dumps(change, ensure_ascii=False)


def conversation_at(messages: Sequence[Message], prompt_length: int) -> list[Message]:
    """Return the conversation that the program sent last; limits on a reply stay until a request changes them.

    It takes time linear in the length of the episode, so an observation changes one list in place.

    Args:
        messages: messages of the episode, which do not end with a reply.
        prompt_length: number of messages before the first reply.
    """
    limits, conversation = limits_of(messages[:prompt_length]), without_limits(messages[:prompt_length])
    for reply, observation in zip(messages[prompt_length::2], messages[prompt_length + 1 :: 2], strict=True):
        conversation += without_limits([reply])
        text = observation["content"]
        if text.startswith(MARK):
            change = json.loads(text.removeprefix(MARK))
            del conversation[change["keep"] :]
            conversation += change["messages"]
            limits = change.get("limits", limits)
        else:
            conversation.append({"role": "user", "content": text})
    return with_limits(conversation, limits)


def limits_of(messages: Sequence[Message]) -> ReplyLimits:
    """Return the limits on the last reply to a conversation, or on the next one."""
    return next((limits for message in reversed(messages) if (limits := message.get("limits"))), ReplyLimits())


def with_limits(messages: Sequence[Message], limits: ReplyLimits) -> list[Message]:
    """Return a conversation whose last message has the limits on its reply."""
    *others, last = messages
    return [*others, {**last, "limits": limits}] if limits else [*others, last]


def kept_messages(before: Sequence[Message], after: Sequence[Message]) -> int:
    """Return the number of messages that are the same at the beginning of two conversations."""
    pairs = enumerate(zip(before, after, strict=False))
    shorter = min(len(before), len(after))
    return next((at for at, (one, other) in pairs if _said(one) != _said(other)), shorter)


def first_difference(before: Sequence[Message], after: Sequence[Message], at: int) -> dict[str, Any]:
    """Return number, role and text of the first message that differs, before and after, around the difference."""
    was, now = ((one[at]["content"] if at < len(one) else "") for one in (before, after))
    same = next((at for at, (one, other) in enumerate(zip(was, now, strict=False)) if one != other), None)
    start = max(0, (min(len(was), len(now)) if same is None else same) - SHOWN)
    role = (before if at < len(before) else after)[at]["role"]
    return {"message": at, "role": role, "was": was[start : start + 2 * SHOWN], "is": now[start : start + 2 * SHOWN]}


def _said(message: Message) -> tuple[str, str]:
    return message["role"], message["content"]


def without_limits(messages: Sequence[Message]) -> list[Message]:
    """Return the messages alone."""
    return [Message(role=message["role"], content=message["content"]) for message in messages]
