"""OpenAI's chat completions: requests as messages, and replies as answers.

The model reads text alone. So functions are listed in the first system message, in the words of the chat templates of
Hermes and Qwen, calls are read from `<tool_call>` in the reply, and results of functions are user messages.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import uuid4

from verl_agent.errors import EnvError
from verl_agent.types import Message

CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)
UNSUPPORTED = {
    "n": (None, 1),
    "stop": (None, []),
    "logprobs": (None, False),
    "response_format": (None, {"type": "text"}),
    "tool_choice": (None, "auto", "none"),
    "functions": (None,),
}
"""Fields of a request that would change the reply, and the values that leave it as it is."""
TOOLS = """# Tools

You may call functions. Their signatures are:
<tools>
{signatures}
</tools>

For a call, answer with its name and arguments as JSON:
<tool_call>
{{"name": <name>, "arguments": <arguments>}}
</tool_call>"""


class RequestRefused(EnvError):
    """Request that the gateway cannot answer as asked; the program gets the reason with status 400."""


def read_request(body: Any, written: Mapping[str, str]) -> list[Message]:
    """Return the messages of a request as the model reads them.

    Args:
        written: text of each reply so far, by `reply_key` of its answer, so that a reply with calls
            is again the text that the model wrote.

    Raises:
        RequestRefused: the request has a field or a message that is not supported.
    """
    if not isinstance(body, Mapping) or not isinstance(body.get("messages"), list) or not body["messages"]:
        raise RequestRefused("messages must be a list of at least one message.")
    for name, allowed in UNSUPPORTED.items():
        if body.get(name) not in allowed:
            choice = " or ".join(json.dumps(value) for value in allowed if value is not None) or "no value"
            raise RequestRefused(f"{name}={json.dumps(body[name])} is not supported. Leave it out ({choice}).")
    messages: list[Message] = []
    after_result = False
    for message in body["messages"]:
        role, text = _read_message(message, written)
        if message["role"] == "tool" and after_result:
            messages[-1] = {"role": "user", "content": f"{messages[-1]['content']}\n{text}"}
        else:
            messages.append({"role": role, "content": text})
        after_result = message["role"] == "tool"
    if messages[-1]["role"] != "user":
        raise RequestRefused(f"the last message has the role {messages[-1]['role']!r}. End with a user message.")
    if body.get("tools") and body.get("tool_choice") != "none":
        messages = _with_tools(messages, body["tools"])
    return messages


def _read_message(message: Any, written: Mapping[str, str]) -> tuple[Any, str]:
    if not isinstance(message, Mapping) or message.get("role") not in (
        "system",
        "developer",
        "user",
        "assistant",
        "tool",
    ):
        raise RequestRefused(f"the message {json.dumps(message)[:200]} has no known role.")
    role, text = message["role"], _text(message.get("content"))
    if role == "tool":
        return "user", f"<tool_response>\n{text}\n</tool_response>"
    if role == "assistant":
        calls = message.get("tool_calls") or []
        return role, written.get(reply_key(text, calls)) or "\n".join(filter(None, [text, *map(_call_text, calls)]))
    return "system" if role == "developer" else role, text


def _text(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list) and all(isinstance(part, Mapping) and part.get("type") == "text" for part in content):
        return "".join(part["text"] for part in content)
    raise RequestRefused("the content of a message must be text; images and sound are not supported.")


def _call_text(call: Mapping[str, Any]) -> str:
    function = call["function"]
    content = {"name": function["name"], "arguments": json.loads(function["arguments"] or "{}")}
    return f"<tool_call>\n{json.dumps(content, ensure_ascii=False)}\n</tool_call>"


def _with_tools(messages: list[Message], tools: Iterable[Any]) -> list[Message]:
    listed = TOOLS.format(signatures="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
    first, *others = messages
    if first["role"] == "system":
        return [{"role": "system", "content": f"{first['content']}\n\n{listed}"}, *others]
    return [{"role": "system", "content": listed}, *messages]


def reply_key(text: str | None, calls: Sequence[Mapping[str, Any]]) -> str:
    """Return what identifies an answer in a later request of the program."""
    return json.dumps([text or "", [[call["function"]["name"], call["function"]["arguments"]] for call in calls]])


def answer_message(reply: str, has_tools: bool) -> dict[str, Any]:
    """Return the message of the answer to a request."""
    calls = []
    for match in CALL.finditer(reply) if has_tools else ():
        try:
            call = json.loads(match[1])
            arguments = call.get("arguments")
            if not isinstance(arguments, dict | None):
                raise TypeError("no object")
            function = {"name": str(call["name"]), "arguments": json.dumps(arguments or {})}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return {"role": "assistant", "content": reply}
        calls.append({"id": f"call_{uuid4().hex[:24]}", "type": "function", "function": function})
    if not calls:
        return {"role": "assistant", "content": reply}
    return {"role": "assistant", "content": CALL.sub("", reply).strip() or None, "tool_calls": calls}


def completion(message: Mapping[str, Any], model: str) -> dict[str, Any]:
    """Return the whole answer to a request."""
    finish = "tool_calls" if "tool_calls" in message else "stop"
    return _frame(model, "chat.completion", {"message": message, "finish_reason": finish})


def chunks(message: Mapping[str, Any], model: str) -> Iterable[str]:
    """Return the answer as events of a stream: the message in one piece, then the end."""
    delta = dict(message)
    if "tool_calls" in delta:
        delta["tool_calls"] = [{"index": index, **call} for index, call in enumerate(delta["tool_calls"])]
    finish = "tool_calls" if "tool_calls" in message else "stop"
    for choice in ({"delta": delta, "finish_reason": None}, {"delta": {}, "finish_reason": finish}):
        yield f"data: {json.dumps(_frame(model, 'chat.completion.chunk', choice))}\n\n"
    yield "data: [DONE]\n\n"


def _frame(model: str, kind: str, choice: Mapping[str, Any]) -> dict[str, Any]:
    choices = [{"index": 0, "logprobs": None, **choice}]
    return {"id": f"chatcmpl-{uuid4().hex}", "object": kind, "created": 0, "model": model, "choices": choices}
