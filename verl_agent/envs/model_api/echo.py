"""Fields of a server's message that go back to it unchanged: all those that the protocol's own messages do not have.

Thinking models need them with the next request: `reasoning_content` (DeepSeek, Qwen, vLLM), `reasoning_details`
(OpenRouter), `extra_content` of a call (Gemini), `thinking` and `redacted_thinking` blocks (Anthropic). Other servers
refuse unknown fields, which are then left out.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

KNOWN = frozenset({"role", "content", "tool_calls", "id", "type", "function", "name", "arguments", "text", "input"})
"""Fields of a message, of its parts and of its calls that every server of a protocol has."""
PLAIN = frozenset({"text", "tool_use"})
"""Types of parts that every server has."""
PREFIX = "messages."
"""Beginning of the name of such a field among the refused fields of a request."""


def extra_fields(message: Mapping[str, Any]) -> set[str]:
    """Return the names of the fields and of the types of parts that a server may refuse in a message."""
    names = {name for level in _levels(message) for name in level if name not in KNOWN}
    return names | {str(part["type"]) for part in _parts(message) if part.get("type", "text") not in PLAIN}


def has_call(message: Mapping[str, Any]) -> bool:
    """Return True if a message calls a function."""
    return bool(message.get("tool_calls")) or any(part.get("type") == "tool_use" for part in _parts(message))


def without_fields(message: Mapping[str, Any], refused: Collection[str]) -> dict[str, Any]:
    """Return a message without refused fields, given with `PREFIX`, and without parts of a refused type."""
    names = {name.removeprefix(PREFIX) for name in refused if name.startswith(PREFIX)}

    def kept(level: Any) -> Any:
        return {name: value for name, value in level.items() if name not in names} if _is_object(level) else level

    own = kept(message)
    if isinstance(content := own.get("content"), list):
        own["content"] = [kept(part) for part in content if not (_is_object(part) and part.get("type") in names)]
    if calls := own.get("tool_calls"):
        own["tool_calls"] = [{**kept(call), "function": kept(call["function"])} for call in calls]
    return dict(own)


def _levels(message: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield a message, its parts, and its calls with their functions."""
    yield message
    yield from _parts(message)
    for call in message.get("tool_calls") or ():
        yield from (level for level in (call, call.get("function")) if _is_object(level))


def _parts(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    content = message.get("content")
    return [part for part in content if _is_object(part)] if isinstance(content, list) else []


def _is_object(value: Any) -> bool:
    return isinstance(value, Mapping)
