"""Chat completions, the protocol of OpenAI that most servers speak.

Source: https://platform.openai.com/docs/api-reference/chat/create
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from typing_extensions import override

from verl_agent.evaluation.api.chat import (
    ApiDialect,
    ApiReply,
    ChatMessage,
    ChatRequest,
    call_id,
    call_text,
    count,
    with_call,
)
from verl_agent.types import Usage


class OpenAiDialect(ApiDialect):
    """Requests and responses of OpenAI's chat completions."""

    path = "/chat/completions"
    unsupported: frozenset[str] = frozenset()

    @override
    def headers(self, key: str | None) -> dict[str, str]:
        return {"Authorization": f"Bearer {key}"} if key else {}

    @override
    def body(self, name: str, request: ChatRequest, refused: Collection[str]) -> dict[str, Any]:
        """The limit is called `max_tokens`; OpenAI's reasoning models refuse it and get `max_completion_tokens`."""
        limit = "max_completion_tokens" if "max_tokens" in refused else "max_tokens"
        body: dict[str, Any] = {"model": name, "messages": _messages(request.messages), limit: request.max_tokens}
        body |= {key: value for key, value in request.sampling.items() if key not in refused}
        if request.tools:
            body["tools"] = list(request.tools)
            if "parallel_tool_calls" not in refused:
                body["parallel_tool_calls"] = False
        return body | dict(request.options or {})

    @override
    def answer(self, value: Any) -> ApiReply:
        """Of several function calls the first one is kept: agents take one action in a reply."""
        choice = value["choices"][0]
        message = choice["message"]
        text = _text(message.get("content")) or _text(message.get("refusal"))
        original: dict[str, Any] = {"role": "assistant", "content": text}
        call = ""
        if calls := message.get("tool_calls"):
            function = calls[0]["function"]
            name, arguments = str(function["name"]), function.get("arguments") or "{}"
            original["tool_calls"] = [{"type": "function", "function": {"name": name, "arguments": arguments}}]
            call = call_text(name, arguments)
        finish = str(choice.get("finish_reason") or "")
        if finish == "stop" and message.get("refusal"):
            finish = "refusal"
        usage = replace(_usage(value.get("usage"), value.get("model")), finish=finish)
        return ApiReply(with_call(text, call), original, finish == "length", usage)


def _messages(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Return the messages of a body; the message after a function call is its result."""
    rendered: list[dict[str, Any]] = []
    called: str | None = None
    for index, message in enumerate(messages):
        if message.original is not None:
            own = dict(message.original)
            called = call_id(index) if "tool_calls" in own else None
            if called is not None:
                own["tool_calls"] = [{**call, "id": called} for call in own["tool_calls"]]
            rendered.append(own)
        elif called is not None and message.role != "assistant":
            rendered.append({"role": "tool", "tool_call_id": called, "content": message.content})
            called = None
        else:
            role = "user" if message.role == "tool" else message.role
            rendered.append({"role": role, "content": message.content})
    return rendered


def _text(content: Any) -> str:
    """Return the text of a message, whose content is a text or a list of parts; "" for anything else."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(str(part.get("text") or "") for part in parts if isinstance(part, Mapping))


def _usage(usage: Any, model: Any) -> Usage:
    values: Mapping[str, Any] = usage if isinstance(usage, Mapping) else {}
    read, written = (values.get(f"{name}_tokens_details") or {} for name in ("prompt", "completion"))
    return Usage(
        model=model if isinstance(model, str) else "",
        input_tokens=count(values.get("prompt_tokens")),
        cached_tokens=count(read.get("cached_tokens")) if isinstance(read, Mapping) else None,
        output_tokens=count(values.get("completion_tokens")),
        reasoning_tokens=count(written.get("reasoning_tokens")) if isinstance(written, Mapping) else None,
    )
