"""Requests and answers of an API, in a form that both protocols share."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Protocol, Self

from verl_agent.types import Usage

MARKS = re.compile(r"<(?:tool_call|function=|\s{0,3}/?\s{0,3}think\s{0,3}>)", re.IGNORECASE)
"""Marks of calls and of thoughts."""


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a request.

    Attributes:
        role: `system`, `user`, `assistant` or `tool`.
        original: message as the server sent it, for replies of this episode: it holds function calls, reasoning and
            other fields that the text does not (`echo`); None for all other messages.
        answers: answer to each function call of the reply before, if it made several.
    """

    role: str
    content: str
    original: Mapping[str, Any] | None = None
    answers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """Request for one reply.

    Attributes:
        sampling: temperature, top_p and seed, as far as they are set.
        tools: functions in OpenAI's format, or None.
        parallel: a reply may call several functions.
    """

    messages: Sequence[ChatMessage]
    max_tokens: int
    sampling: Mapping[str, float]
    tools: Sequence[Mapping[str, Any]] | None = None
    options: Mapping[str, Any] | None = None
    parallel: bool = False


@dataclass(frozen=True, slots=True)
class ApiReply:
    """Reply of a server.

    Attributes:
        text: text of the reply, with each function call as `<tool_call>{...}</tool_call>`.
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
            refused: fields that the server has refused, which are left out; those of messages have `echo.PREFIX`.
        """
        ...

    def error(self, value: Any) -> Any:
        """Return the error in the decoded body of an answer with status 200; None or another empty value without one.

        Raises:
            KeyError, IndexError, TypeError, AttributeError: the body has another form.
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
    called = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{called.encode(errors='backslashreplace').decode()}\n</tool_call>"


def call_id(index: int, number: int = 0) -> str:
    """Return an id for a call that the server gave none; nine letters and digits, as the strictest servers want it."""
    return f"c{number:03d}{index:05d}" if number else f"call{index:05d}"


def call_answers(message: ChatMessage, calls: int) -> list[str]:
    """Return the answer to each of several calls; one that the message lacks refers to the others."""
    answers = list(message.answers or [message.content])[:calls]
    return answers + ["(see the answer to the first call)"] * (calls - len(answers))


def with_calls(text: str, calls: Sequence[str]) -> str:
    """Return the text of a reply with its function calls.

    Agents read calls from the text. Where the server has read them, a mark that the text itself mentions is no call,
    and no thought hides them.
    """
    if calls:
        text = MARKS.sub(lambda mark: f"&lt;{mark[0][1:]}", text)
    return "\n".join([*([text] if text else []), *calls])


def count(value: Any) -> int | None:
    """Return a number of tokens as a server gave it; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
