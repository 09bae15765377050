"""Anthropic's messages: requests as chat completions of `openai_chat`, and answers back.

Facts from the API of version 2023-06-01: `system` stands beside the messages, a result of a tool is a block of a user
message, and a stream names its events.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import uuid4

from verl_agent.envs.program.openai_chat import RequestRefused

UNSUPPORTED = {"stop_sequences": (None, []), "tool_choice": (None, {"type": "auto"}), "thinking": (None,)}
"""Fields that would change the reply, and the values that leave it as it is."""


def to_chat(body: Any) -> dict[str, Any]:
    """Return a request as one of chat completions.

    Raises:
        RequestRefused: the request has a field or a block that is not supported.
    """
    if not isinstance(body, Mapping) or not isinstance(body.get("messages"), list):
        raise RequestRefused("messages must be a list of at least one message.")
    for name, allowed in UNSUPPORTED.items():
        if body.get(name) not in allowed:
            raise RequestRefused(f"{name}={json.dumps(body[name])} is not supported. Leave it out.")
    system = [{"role": "system", "content": _text(body["system"])}] if body.get("system") else []
    said = [one for message in body["messages"] for one in _messages(message)]
    tools = [
        {
            "type": "function",
            "function": {
                "name": tool["name"],
                "description": tool.get("description", ""),
                "parameters": tool["input_schema"],
            },
        }
        for tool in body.get("tools") or ()
    ]
    return {"messages": system + said, "stream": body.get("stream", False), **({"tools": tools} if tools else {})}


def _messages(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the chat messages of one message: each result of a tool is one of its own."""
    content = message["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    results = [
        {"role": "tool", "content": _text(block.get("content") or "")}
        for block in blocks
        if block["type"] == "tool_result"
    ]
    calls = [
        {"function": {"name": block["name"], "arguments": json.dumps(block["input"])}}
        for block in blocks
        if block["type"] == "tool_use"
    ]
    text = _text([block for block in blocks if block["type"] not in ("tool_result", "tool_use")])
    own = {"role": message["role"], "content": text, **({"tool_calls": calls} if calls else {})}
    return [*results, *([own] if text or calls or not results else [])]


def _text(content: str | Sequence[Mapping[str, Any]]) -> str:
    if isinstance(content, str):
        return content
    if any(block["type"] != "text" for block in content):
        raise RequestRefused("the content of a message must be text; images, documents and thoughts are not supported.")
    return "".join(block["text"] for block in content)


def to_anthropic(message: Mapping[str, Any], model: str) -> dict[str, Any]:
    """Return the answer with the message of a chat completion."""
    text = [{"type": "text", "text": message["content"]}] if message["content"] else []
    calls = [
        {
            "type": "tool_use",
            "id": call["id"],
            "name": call["function"]["name"],
            "input": json.loads(call["function"]["arguments"]),
        }
        for call in message.get("tool_calls", ())
    ]
    return {
        "id": f"msg_{uuid4().hex}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": text + calls,
        "stop_reason": "tool_use" if calls else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 0, "output_tokens": 0},
    }


def events(message: Mapping[str, Any], model: str) -> Iterable[str]:
    """Return the answer as events of a stream, each block in one piece."""
    whole = to_anthropic(message, model)
    end = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    yield _event("message_start", message={**whole, "content": [], "stop_reason": None})
    for index, block in enumerate(whole["content"]):
        if block["type"] == "text":
            empty, delta = {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
        else:
            empty = {**block, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        yield _event("content_block_start", index=index, content_block=empty)
        yield _event("content_block_delta", index=index, delta=delta)
        yield _event("content_block_stop", index=index)
    yield _event("message_delta", delta=end, usage={"output_tokens": 0})
    yield _event("message_stop")


def _event(kind: str, **fields: Any) -> str:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n"
