"""Requests and answers of an API, in a form that both protocols share."""

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Protocol, Self

from verl_agent.types import Usage


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a request.

    Attributes:
        role: `system`, `user`, `assistant` or `tool`.
        original: message as the server sent it, for replies of this episode: it holds function calls and reasoning
            that the text does not; None for all other messages.
    """

    role: str
    content: str
    original: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """Request for one reply.

    Attributes:
        sampling: temperature, top_p and seed, as far as they are set.
        tools: functions in OpenAI's format, or None.
    """

    messages: Sequence[ChatMessage]
    max_tokens: int
    sampling: Mapping[str, float]
    tools: Sequence[Mapping[str, Any]] | None = None
    options: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ApiReply:
    """Reply of a server.

    Attributes:
        text: text of the reply, with a function call as `<tool_call>{...}</tool_call>`.
        original: message of the reply in the server's form, see `ChatMessage.original`.
        truncated: True if the token limit ended the reply.
    """

    text: str
    original: Mapping[str, Any]
    truncated: bool
    usage: Usage

    def to_json(self) -> dict[str, Any]:
        """Return the answer as JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Return the answer that `to_json` wrote."""
        usage = {**value["usage"], "dropped": tuple(value["usage"]["dropped"])}
        return cls(value["text"], value["original"], value["truncated"], Usage(**usage))


class ApiDialect(Protocol):
    """Protocol of a server: rendering of requests and reading of answers."""

    path: str
    """Path of a request below the base URL."""
    unsupported: frozenset[str]
    """Settings of `ChatRequest.sampling` that the protocol does not have."""

    def headers(self, key: str | None) -> dict[str, str]:
        """Return the headers that authenticate a request."""
        ...

    def body(self, name: str, request: ChatRequest, refused: Collection[str]) -> dict[str, Any]:
        """Return the body of a request.

        Args:
            refused: fields that the server has refused, which are left out.
        """
        ...

    def answer(self, value: Any) -> ApiReply:
        """Return the reply in the decoded body of an answer, with a usage that has neither cost nor `dropped`.

        Raises:
            KeyError, IndexError, TypeError, AttributeError: the body has another form.
        """
        ...


def call_text(name: str, arguments: Any) -> str:
    """Return a function call as the text that agents with functions parse.

    Args:
        arguments: arguments as an object, or as JSON; text that is not JSON stays as it is.
    """
    if isinstance(arguments, str):
        with suppress(ValueError, RecursionError):
            arguments = json.loads(arguments or "{}")
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def call_id(index: int) -> str:
    """Return the id of the function call in a message; nine letters and digits, as the strictest servers want it."""
    return f"call{index:05d}"


def with_call(text: str, call: str) -> str:
    """Return the text of a reply with its function call."""
    return f"{text}\n{call}" if text and call else text or call


def count(value: Any) -> int | None:
    """Return a number of tokens as a server gave it; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
