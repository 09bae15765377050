"""Chat messages, and the form in which a model reads them."""

from collections.abc import Sequence
from typing import (
    Literal,
    NotRequired,  # pydantic accepts `TypedDict` of `typing` only from 3.12 on
    Self,
)

from typing_extensions import TypedDict


class ReplyLimits(TypedDict, total=False):
    """Limits on one reply, which a request sets beside the run's own: its most tokens, and texts that end it."""

    max_tokens: int
    stop: list[str]


class Message(TypedDict):
    """One chat message.

    `answers` is present where a reply made several function calls: the answer to each, in order, which `content` has
    together. The model reads each as a message of its own, see `expanded`. `limits` is present on the last message
    of an environment's prompt that limits the reply; see `LimitedMessages`.
    """

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    answers: NotRequired[list[str]]
    limits: NotRequired[ReplyLimits]


class LimitedMessages(list[Message]):
    """Visible messages of a reply with limits of its own."""

    limits: ReplyLimits = ReplyLimits()

    @classmethod
    def of(cls, messages: Sequence[Message], limits: ReplyLimits) -> Self:
        """Return the messages with the limits."""
        limited = cls(messages)
        limited.limits = limits
        return limited


def limits_on(messages: Sequence[Message]) -> ReplyLimits:
    """Return the limits that visible messages set on their reply."""
    return messages.limits if isinstance(messages, LimitedMessages) else ReplyLimits()


def expanded(messages: Sequence[Message]) -> list[Message]:
    """Return the messages as a model reads them: each answer to a function call is one of its own."""
    each: list[Message] = []
    for message in messages:
        contents = message.get("answers") or [message["content"]]
        each += [{"role": message["role"], "content": content} for content in contents]
    return each


def with_text(message: Message, end: str) -> Message:
    """Return a message with further text at its end."""
    longer = Message(role=message["role"], content=message["content"] + end)
    if answers := message.get("answers"):
        longer["answers"] = [*answers[:-1], answers[-1] + end]
    return longer
