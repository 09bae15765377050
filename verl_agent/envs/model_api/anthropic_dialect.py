"""Messages, the protocol of Anthropic.

Sources: https://docs.anthropic.com/en/api/messages, and the vendor's package `anthropic` 2.11, which names the version
and the header of the key. The vendor's server has no `temperature` and no `top_p` in this version; it refuses them, and
they are then dropped. Other servers of this protocol have both.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from typing_extensions import override

from verl_agent.envs.model_api.chat import (
    ApiDialect,
    ApiReply,
    ChatMessage,
    ChatRequest,
    call_answers,
    call_id,
    call_text,
    count,
    with_calls,
)
from verl_agent.envs.model_api.echo import without_fields
from verl_agent.types import Usage

VERSION = "2026-10-21"
"""Version of the protocol, which every request names."""
EMPTY = "(empty)"
"""Text in place of an empty one, which the protocol does not allow."""
THINKING = ("thinking", "redacted_thinking")
"""Types of blocks that a message must not end with."""


class AnthropicDialect(ApiDialect):
    """Requests and responses of Anthropic's messages."""

    path = "/v1/messages"
    unsupported = frozenset({"seed"})

    @override
    def headers(self, key: str | None) -> dict[str, str]:
        return {"anthropic-version": VERSION} | ({"Authorization": f"Bearer {key}"} if key else {})

    @override
    def body(self, name: str, request: ChatRequest, refused: Collection[str]) -> dict[str, Any]:
        """`top_p` of 1 has no effect and is left out: some models refuse it beside `temperature`."""
        system, messages = _split(request.messages)
        body: dict[str, Any] = {
            "model": name,
            "messages": _messages(messages, refused),
            "max_tokens": request.max_tokens,
        }
        if system:
            body["system"] = system
        body |= {
            key: value
            for key, value in request.sampling.items()
            if key not in self.unsupported and key not in refused and (key, value) != ("top_p", 1.0)
        }
        if request.tools:
            body["tools"] = [_tool(tool["function"]) for tool in request.tools]
            body["tool_choice"] = {"type": "auto", "disable_parallel_tool_use": not request.parallel}
        return body | dict(request.options or {})

    @override
    def error(self, value: Any) -> Any:
        return value.get("error")

    @override
    def answer(self, value: Any) -> ApiReply:
        """The blocks go back as they are and in order, but for empty texts, which requests may not have."""
        blocks: list[Mapping[str, Any]] = []
        text = ""
        calls: list[str] = []
        for block in value["content"]:
            if block["type"] == "tool_use":
                calls.append(call_text(str(block["name"]), block["input"]))
            elif block["type"] == "text":
                if not block["text"].strip():
                    continue
                text += block["text"]
            blocks.append(block)
        finish = str(value.get("stop_reason") or "")
        truncated = finish in ("max_tokens", "model_context_window_exceeded")
        original = {"role": "assistant", "content": blocks}
        usage = replace(_usage(value.get("usage"), value.get("model")), finish=finish)
        return ApiReply(with_calls(text, calls), original, truncated, usage)


def _split(messages: Sequence[ChatMessage]) -> tuple[str, Sequence[ChatMessage]]:
    """Return the text of the system messages at the beginning, and the other messages, which must not be empty."""
    number = next((index for index, one in enumerate(messages) if one.role != "system"), len(messages))
    if number == len(messages):
        number -= 1
    return "\n\n".join(one.content for one in messages[:number]), messages[number:]


def _messages(messages: Sequence[ChatMessage], refused: Collection[str]) -> list[dict[str, Any]]:
    """Return the messages of a body; the message after function calls has their results."""
    rendered: list[dict[str, Any]] = []
    called: list[str] = []
    for index, message in enumerate(messages):
        if message.original is not None:
            blocks, called = without_fields(message.original, refused)["content"], []
            for block in blocks:
                if block["type"] == "tool_use":
                    block["id"] = block.get("id") or call_id(index, len(called))
                    called.append(block["id"])
            if blocks and blocks[-1]["type"] in THINKING:
                blocks.append({"type": "text", "text": EMPTY})
            rendered.append({"role": "assistant", "content": blocks or EMPTY})
        elif called and message.role != "assistant":
            answers = zip(called, call_answers(message, len(called)), strict=True)
            results = [{"type": "tool_result", "tool_use_id": id_, "content": answer} for id_, answer in answers]
            rendered.append({"role": "user", "content": results})
            called = []
        else:
            role = "assistant" if message.role == "assistant" else "user"
            rendered.append({"role": role, "content": message.content if message.content.strip() else EMPTY})
    return rendered


def _tool(function: Mapping[str, Any]) -> dict[str, Any]:
    """Return a function in the form of this protocol."""
    return {
        "name": function["name"],
        "description": function.get("description", ""),
        "input_schema": function["parameters"],
    }


def _usage(usage: Any, model: Any) -> Usage:
    """Return the usage; the server counts cached tokens apart from `input_tokens`."""
    values: Mapping[str, Any] = usage if isinstance(usage, Mapping) else {}
    read, written = (count(values.get(f"cache_{name}_input_tokens")) for name in ("read", "creation"))
    fresh, details = count(values.get("input_tokens")), values.get("output_tokens_details")
    return Usage(
        model=model if isinstance(model, str) else "",
        input_tokens=None if fresh is None else fresh + (read or 0) + (written or 0),
        cached_tokens=read,
        cache_write_tokens=written,
        output_tokens=count(values.get("output_tokens")),
        reasoning_tokens=count(details.get("thinking_tokens")) if isinstance(details, Mapping) else None,
    )
