"""OpenAI's Responses API: requests, answers and streams.

A request has the whole input, or the id of an answer and what is new after it; the gateway keeps the answers of an
episode for the second. Source: https://platform.openai.com/docs/api-reference/responses
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
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
from verl_agent.envs.program.requests import Answer, Call, Kind, Request, RequestRefused, Said

CALL_ITEMS = {"function_call": "arguments", "custom_tool_call": "input"}
"""Types of items that are calls, and the name of their arguments."""
PASSED_OVER = {"reasoning", "compaction", "web_search_call"}
"""Types of items that are no part of the conversation."""


def read(body: Any) -> Request:
    """Return a request.

    Raises:
        RequestRefused: the request has a field or an item that is not supported.
    """
    given = body.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else messages_of(body, "input")
    tools, kinds = read_tools(body.get("tools"))
    return Request(
        said=tuple(_joined([one for item in items for one in _said(item)])),
        instructions=body.get("instructions") or "",
        tools=tools,
        kinds=kinds,
        choice=read_choice(body.get("tool_choice"), tools),
        parallel=body.get("parallel_tool_calls") is not False,
        schema=read_schema((body.get("text") or {}).get("format") or {}),
        limits=read_limits(body.get("max_output_tokens"), None),
        previous=str(body.get("previous_response_id") or ""),
    )


def with_items(body: Any, known: Mapping[str, Any]) -> Any:
    """Return the body of a request in which each reference to an item of an earlier answer is that item.

    Args:
        known: items of the answers of the episode by id.

    Raises:
        RequestRefused: there is no such item.
    """
    if not isinstance(body, Mapping) or not isinstance(body.get("input"), list):
        return body
    return {**body, "input": [_referred(item, known) for item in body["input"]]}


def _referred(item: Any, known: Mapping[str, Any]) -> Any:
    if not isinstance(item, Mapping) or item.get("type") != "item_reference":
        return item
    if item["id"] not in known:
        raise RequestRefused(f"the item {item['id']!r:.99} is part of no answer of this episode. Send it whole.")
    return known[item["id"]]


def _said(item: Mapping[str, Any]) -> Iterator[Said]:
    kind = item.get("type") or "message"
    if kind == "message":
        role = read_role(item)
        yield Said(role, read_text(item["content"], role))
    elif kind in CALL_ITEMS:
        given = item[CALL_ITEMS[kind]]
        yield Said(
            "assistant",
            "",
            (Call(item["name"], given if kind == "function_call" else {"input": given}, item["call_id"]),),
        )
    elif kind in ("function_call_output", "custom_tool_call_output"):
        output = item["output"]
        text = read_text(output if isinstance(output, str | list) else json.dumps(output), kind)
        yield Said("tool", text, call_id=str(item.get("call_id") or ""))
    elif kind not in PASSED_OVER:
        raise RequestRefused(
            f"the input has an item of the type {kind!r:.100}, which is not supported. Send messages, "
            "function calls and their outputs."
        )


def _joined(said: Sequence[Said]) -> list[Said]:
    """Return the messages with the items of one reply as one."""
    joined: list[Said] = []
    for one in said:
        if joined and one.role == joined[-1].role == "assistant":
            last = joined.pop()
            one = replace(last, text=last.text + one.text, calls=last.calls + one.calls)
        joined.append(one)
    return joined


def write(answer: Answer) -> dict[str, Any]:
    """Return the whole answer."""
    return _response(answer, _items(answer), "incomplete" if answer.cut else "completed")


def stream(answer: Answer, usage: bool) -> Iterable[str]:
    """Return the answer as events of a stream, each item in one piece; the counts are always part of it."""
    number = count()

    def event(kind: str, **fields: Any) -> str:
        value = {"type": f"response.{kind}", "sequence_number": next(number), **fields}
        return f"event: response.{kind}\ndata: {json.dumps(value)}\n\n"

    whole, begun = write(answer), _response(answer, [], "in_progress")
    yield event("created", response=begun)
    yield event("in_progress", response=begun)
    for index, item in enumerate(whole["output"]):
        yield event("output_item.added", output_index=index, item=_begun(item))
        for kind, fields in _pieces(item):
            yield event(kind, item_id=item["id"], output_index=index, **fields)
        yield event("output_item.done", output_index=index, item=item)
    yield event(whole["status"], response=whole)


def _response(answer: Answer, output: list[dict[str, Any]], status: str) -> dict[str, Any]:
    counts, ended = answer.counts, status != "in_progress"
    usage = {
        "input_tokens": counts.prompt,
        "input_tokens_details": {"cached_tokens": counts.cached, "cache_write_tokens": 0},
        "output_tokens": counts.written,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": counts.prompt + counts.written,
    }
    return {
        "id": f"resp_{answer.id}",
        "object": "response",
        "created_at": answer.created,
        "status": status,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "instructions": None,
        "metadata": {},
        "model": answer.model,
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": usage if ended else None,
    }


def _items(answer: Answer) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if answer.thought:
        summary = [{"type": "summary_text", "text": answer.thought}]
        items.append({"type": "reasoning", "id": f"rs_{answer.id}", "summary": summary})
    if answer.text or not answer.calls:
        content = [{"type": "output_text", "text": answer.text, "annotations": [], "logprobs": []}]
        own = {"type": "message", "id": f"msg_{answer.id}", "role": "assistant", "content": content}
        items.append(own | {"status": "incomplete" if answer.cut else "completed"})
    return [*items, *(_call(answer, call) for call in answer.calls)]


def _call(answer: Answer, call: Call) -> dict[str, Any]:
    kind = answer.kinds.get(call.name, Kind())
    own = {"call_id": call.id, "name": call.name, "status": "completed"}
    own |= {"namespace": kind.namespace} if kind.namespace else {}
    if kind.custom:
        text = call.arguments["input"]
        return {"type": "custom_tool_call", "id": call.id.replace("call_", "ctc_"), **own, "input": text}
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    return {"type": "function_call", "id": call.id.replace("call_", "fc_"), **own, "arguments": arguments}


def _begun(item: Mapping[str, Any]) -> dict[str, Any]:
    empty: Mapping[str, tuple[str, Any]] = {"message": ("content", []), "reasoning": ("summary", [])}
    name, none = empty.get(item["type"]) or (CALL_ITEMS[item["type"]], "")
    return {**item, name: none, **({"status": "in_progress"} if "status" in item else {})}


def _pieces(item: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Return the events between begin and end of an item, without what all of them have."""
    if item["type"] == "message":
        (part,) = item["content"]
        at = {"content_index": 0}
        yield "content_part.added", at | {"part": {**part, "text": ""}}
        if part["text"]:
            yield "output_text.delta", at | {"delta": part["text"], "logprobs": []}
        yield "output_text.done", at | {"text": part["text"], "logprobs": []}
        yield "content_part.done", at | {"part": part}
    elif item["type"] == "reasoning":
        (part,) = item["summary"]
        at = {"summary_index": 0}
        yield "reasoning_summary_part.added", at | {"part": {**part, "text": ""}}
        yield "reasoning_summary_text.delta", at | {"delta": part["text"]}
        yield "reasoning_summary_text.done", at | {"text": part["text"]}
        yield "reasoning_summary_part.done", at | {"part": part}
    else:
        kind = "function_call_arguments" if item["type"] == "function_call" else "custom_tool_call_input"
        name = CALL_ITEMS[item["type"]]
        yield f"{kind}.delta", {"delta": item[name]}
        yield f"{kind}.done", {name: item[name]}
