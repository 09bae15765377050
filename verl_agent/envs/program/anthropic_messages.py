"""Anthropic's messages: requests, answers and streams.

Facts from the API of version 2023-06-01: `system` stands beside the messages, a result of a tool is a block of a user
message, and a stream names its events.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from verl_agent.envs.program.requests import Answer, Call, Request, Said


def read(body: Any) -> Request:
    """Return a request.

    Raises:
        RequestRefused: the request has a field or a block that is not supported.
    """
    tools, kinds = read_tools([_function(tool) for tool in body.get("tools") or ()])
    choice = body.get("tool_choice") or {"type": "auto"}
    form = (body.get("output_config") or {}).get("format") or body.get("output_format") or {}
    return Request(
        said=tuple(one for each in messages_of(body, "messages") for one in _said(each)),
        instructions="\n\n".join(_texts(body.get("system") or [], "system")),
        tools=tools,
        kinds=kinds,
        choice=read_choice(choice if choice["type"] == "tool" else choice["type"], tools),
        parallel=not choice.get("disable_parallel_tool_use"),
        thoughts=(body.get("thinking") or {}).get("type", "disabled") != "disabled",
        schema=read_schema(form),
        limits=read_limits(body.get("max_tokens"), body.get("stop_sequences")),
    )


def _function(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool in OpenAI's form; one without a schema is the vendor's."""
    if tool.get("type") not in (None, "custom") or "input_schema" not in tool:
        return {"type": tool.get("type") or "without input_schema"}
    return {"name": tool["name"], "description": tool.get("description"), "parameters": tool["input_schema"]}


def _said(message: Mapping[str, Any]) -> Iterator[Said]:
    """Return the messages of one message: each result of a tool is one of its own."""
    role, content = read_role(message), message["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    results = [block for block in blocks if block["type"] == "tool_result"]
    calls = [block for block in blocks if block["type"] == "tool_use"]
    others = [block for block in blocks if block["type"] not in ("tool_result", "tool_use")]
    for block in results:
        text = read_text(block.get("content"), "tool_result")
        if block.get("is_error") and not text.lower().startswith("error"):
            text = f"Error: {text}" if text else "Error"
        yield Said("tool", text, call_id=str(block.get("tool_use_id") or ""))
    if others or calls or not results:
        text = "".join(_texts(others, role))
        yield Said(role, text, tuple(Call(call["name"], call["input"], call.get("id") or "") for call in calls))


def _texts(content: Any, where: str) -> list[str]:
    return [content] if isinstance(content, str) else [read_text([part], where) for part in content]


def write(answer: Answer) -> dict[str, Any]:
    """Return the whole answer."""
    return {
        "id": f"msg_{answer.id}",
        "type": "message",
        "role": "assistant",
        "model": answer.model,
        "content": _blocks(answer),
        "stop_reason": _stop_reason(answer),
        "stop_sequence": answer.stopped,
        "usage": _usage(answer),
    }


def stream(answer: Answer, usage: bool) -> Iterable[str]:
    """Return the answer as events of a stream, each block in one piece; the counts are always part of it."""
    whole = write(answer)
    begun = {**whole, "content": [], "stop_reason": None, "stop_sequence": None}
    begun["usage"] = {**whole["usage"], "output_tokens": 0}
    yield _event("message_start", message=begun)
    for index, block in enumerate(whole["content"]):
        empty, deltas = _pieces(block)
        yield _event("content_block_start", index=index, content_block=empty)
        for delta in deltas:
            yield _event("content_block_delta", index=index, delta=delta)
        yield _event("content_block_stop", index=index)
    end = {"stop_reason": whole["stop_reason"], "stop_sequence": whole["stop_sequence"]}
    yield _event("message_delta", delta=end, usage=whole["usage"])
    yield _event("message_stop")


def _blocks(answer: Answer) -> list[dict[str, Any]]:
    thought = [{"type": "thinking", "thinking": answer.thought, "signature": "none"}] if answer.thought else []
    text = [{"type": "text", "text": answer.text}] if answer.text else []
    calls = [
        {"type": "tool_use", "id": call.id.replace("call_", "toolu_"), "name": call.name, "input": call.arguments}
        for call in answer.calls
    ]
    return [*thought, *text, *calls]


def _pieces(block: Mapping[str, Any]) -> tuple[dict[str, Any], Sequence[dict[str, Any]]]:
    """Return the begin of a block, and what follows."""
    if block["type"] == "text":
        return {**block, "text": ""}, [{"type": "text_delta", "text": block["text"]}]
    if block["type"] == "thinking":
        thought = {"type": "thinking_delta", "thinking": block["thinking"]}
        return {**block, "thinking": "", "signature": ""}, [
            thought,
            {"type": "signature_delta", "signature": block["signature"]},
        ]
    return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": json.dumps(block["input"])}]


def _stop_reason(answer: Answer) -> str:
    if answer.calls:
        return "tool_use"
    return "stop_sequence" if answer.stopped is not None else "max_tokens" if answer.cut else "end_turn"


def _usage(answer: Answer) -> dict[str, Any]:
    """Return the counts; cached tokens are not part of `input_tokens`."""
    counts = answer.counts
    return {
        "input_tokens": counts.prompt - counts.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": counts.cached,
        "output_tokens": counts.written,
    }


def _event(kind: str, **fields: Any) -> str:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n"
