"""Chat completions, the protocol of OpenAI that most servers speak.

Source: https://platform.openai.com/docs/api-reference/chat/create
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
        body: dict[str, Any] = {
            "model": name,
            "messages": _messages(request.messages, refused),
            limit: request.max_tokens,
        }
        body |= {key: value for key, value in request.sampling.items() if key not in refused}
        if request.tools:
            body["tools"] = list(request.tools)
            if "parallel_tool_calls" not in refused:
                body["parallel_tool_calls"] = request.parallel
        return body | dict(request.options or {})

    @override
    def error(self, value: Any) -> Any:
        """A router has the error of the server behind it in the choice, if that one failed after it had begun."""
        return value.get("error") or value["choices"][0].get("error")

    @override
    def answer(self, value: Any) -> ApiReply:
        """The message goes back as it is, but for fields that are null, which requests may not have."""
        choice = value["choices"][0]
        message = choice["message"]
        text = _text(message.get("content")) or _text(message.get("refusal"))
        original = {name: field for name, field in message.items() if field is not None and name != "tool_calls"}
        original |= {"role": "assistant", "content": message.get("content", "")}
        calls = []
        if made := message.get("tool_calls"):
            functions = [{**call["function"], "arguments": call["function"].get("arguments") or "{}"} for call in made]
            calls = [call_text(str(function["name"]), function["arguments"]) for function in functions]
            original["tool_calls"] = [
                {"type": "function", **call, "function": function}
                for call, function in zip(made, functions, strict=True)
            ]
        elif original["content"] is None:
            original["content"] = text
        finish = str(choice.get("finish_reason") or "")
        if finish == "stop" and message.get("refusal"):
            finish = "refusal"
        usage = replace(_usage(value.get("usage"), value.get("model")), finish=finish)
        return ApiReply(with_calls(text, calls), original, finish == "length", usage)


def _messages(messages: Sequence[ChatMessage], refused: Collection[str]) -> list[dict[str, Any]]:
    """Return the messages of a body; the message after function calls has their results."""
    rendered: list[dict[str, Any]] = []
    called: list[str] = []
    for index, message in enumerate(messages):
        if message.original is not None:
            own = without_fields(message.original, refused)
            made = own.get("tool_calls") or ()
            called = [call.get("id") or call_id(index, number) for number, call in enumerate(made)]
            if called:
                own["tool_calls"] = [{**call, "id": id_} for call, id_ in zip(made, called, strict=True)]
            rendered.append(own)
        elif called and message.role != "assistant":
            answers = call_answers(message, len(called))
            rendered += [
                {"role": "tool", "tool_call_id": id_, "content": answer}
                for id_, answer in zip(called, answers, strict=True)
            ]
            called = []
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
