"""OpenAI's chat completions: requests, answers and streams.

Source: https://platform.openai.com/docs/api-reference/chat
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from verl_agent.envs.program.parts import (
    messages_of,
    read_choice,
    read_limits,
    read_role,
    read_schema,
    read_text,
    read_tools,
)
from verl_agent.envs.program.requests import Answer, Call, Kind, Request, Said


def read(body: Any) -> Request:
    """Return a request.

    Raises:
        RequestRefused: the request has a field or a message that is not supported.
    """
    tools, kinds = read_tools([_flat(tool) for tool in body.get("tools") or ()])
    return Request(
        said=tuple(_said(message) for message in messages_of(body, "messages")),
        tools=tools,
        kinds=kinds,
        choice=read_choice(_flat(body.get("tool_choice")), tools),
        parallel=body.get("parallel_tool_calls") is not False,
        schema=read_schema(_flat(body.get("response_format") or {})),
        limits=read_limits(body.get("max_completion_tokens") or body.get("max_tokens"), body.get("stop")),
        stream_usage=bool((body.get("stream_options") or {}).get("include_usage")),
    )


def _flat(value: Any) -> Any:
    """Return an object with what the other dialects do not keep in an object of its own, named by its type."""
    return {**(value.get(value.get("type")) or {}), **value} if isinstance(value, Mapping) else value


def _said(message: Any) -> Said:
    role = read_role(message)
    calls = tuple(_call(call) for call in message.get("tool_calls") or () if role == "assistant")
    text = read_text(message.get("content") or message.get("refusal"), role)
    if role == "tool":
        return Said(role, text, call_id=str(message.get("tool_call_id") or ""))
    if role != "assistant" and (name := message.get("name") or "user") != "user":
        text = f"{name}: {text}"  # one of several speakers, or of an example
    return Said(role, text, calls)


def _call(call: Mapping[str, Any]) -> Call:
    if call.get("type") == "custom":
        return Call(call["custom"]["name"], {"input": call["custom"]["input"]}, call.get("id") or "")
    return Call(call["function"]["name"], call["function"].get("arguments"), call.get("id") or "")


def write(answer: Answer) -> dict[str, Any]:
    """Return the whole answer."""
    message: dict[str, Any] = {
        "role": "assistant",
        "content": answer.text or (None if answer.calls else ""),
        "refusal": None,
    }
    if answer.thought:
        message["reasoning_content"] = answer.thought
    if answer.calls:
        message["tool_calls"] = [_call_of(answer, call) for call in answer.calls]
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish(answer)}
    return {**_frame(answer, "chat.completion", [choice]), "usage": _usage(answer)}


def stream(answer: Answer, usage: bool) -> Iterable[str]:
    """Return the answer as events of a stream.

    Args:
        usage: end with the counts.
    """
    for delta, finish in _deltas(answer):
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        yield _event(_frame(answer, "chat.completion.chunk", [choice]) | ({"usage": None} if usage else {}))
    if usage:
        yield _event(_frame(answer, "chat.completion.chunk", []) | {"usage": _usage(answer)})
    yield "data: [DONE]\n\n"


def _deltas(answer: Answer) -> Iterator[tuple[dict[str, Any], str | None]]:
    yield {"role": "assistant", "content": None if answer.calls and not answer.text else ""}, None
    if answer.thought:
        yield {"reasoning_content": answer.thought}, None
    if answer.text:
        yield {"content": answer.text}, None
    for index, call in enumerate(answer.calls):
        whole = _call_of(answer, call)
        kind, part = ("custom", "input") if "custom" in whole else ("function", "arguments")
        begun = {**whole, kind: {**whole[kind], part: ""}}
        yield {"tool_calls": [{"index": index, **begun}]}, None
        yield {"tool_calls": [{"index": index, kind: {part: whole[kind][part]}}]}, None
    yield {}, _finish(answer)


def _call_of(answer: Answer, call: Call) -> dict[str, Any]:
    if answer.kinds.get(call.name, Kind()).custom:
        return {"id": call.id, "type": "custom", "custom": {"name": call.name, "input": call.arguments["input"]}}
    function = {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)}
    return {"id": call.id, "type": "function", "function": function}


def _finish(answer: Answer) -> str:
    return "tool_calls" if answer.calls else "length" if answer.cut else "stop"


def _usage(answer: Answer) -> dict[str, Any]:
    counts = answer.counts
    return {
        "prompt_tokens": counts.prompt,
        "completion_tokens": counts.written,
        "total_tokens": counts.prompt + counts.written,
        "prompt_tokens_details": {"cached_tokens": counts.cached},
    }


def _frame(answer: Answer, kind: str, choices: list[Any]) -> dict[str, Any]:
    own = {"id": f"chatcmpl-{answer.id}", "object": kind, "created": answer.created, "model": answer.model}
    return {**own, "choices": choices}


def _event(value: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(value)}\n\n"
