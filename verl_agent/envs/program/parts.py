"""Readers of the parts of requests that the dialects share: roles, texts, functions, and demands on the reply."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from verl_agent.envs.program.fields import warn_once
from verl_agent.envs.program.requests import Kind, RequestRefused
from verl_agent.envs.schemas import JsonSchema
from verl_agent.errors import ConfigError
from verl_agent.messages import ReplyLimits

ROLES: Mapping[str, Literal["system", "user", "assistant", "tool"]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
"""Roles of messages, and what they are to the model."""
TEXTS = {"text", "input_text", "output_text", "refusal", "summary_text"}
"""Types of content that are text."""
ON_THE_CLIENT = ("apply_patch", "bash", "computer", "local_shell", "memory", "shell", "text_editor")
"""Begins of the types of a vendor's tools that the program itself runs, whose parameters it does not send."""
INPUT = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
"""Parameters of a custom tool."""


def messages_of(body: Mapping[str, Any], name: str) -> Sequence[Any]:
    """Return the messages of a body."""
    found = body.get(name)
    if not isinstance(found, list) or not found:
        raise RequestRefused(f"{name} must be a list of at least one message.")
    return found


def read_tools(tools: Any, namespace: str = "") -> tuple[dict[str, Any], dict[str, Kind]]:
    """Return functions and their forms by name. Tools that a vendor's server runs are left out with a warning.

    Raises:
        RequestRefused: two have the same name, or one has parameters that only a vendor's model knows.
    """
    found: dict[str, Any] = {}
    kinds: dict[str, Kind] = {}
    for tool in tools or ():
        kind = tool.get("type") or "function"
        if kind == "namespace":
            more, more_kinds = read_tools(tool["tools"], tool["name"])
        elif kind in ("function", "custom"):
            name, parameters = str(tool["name"]), INPUT if kind == "custom" else tool.get("parameters") or {}
            function = {"name": name, "description": _description(tool), "parameters": parameters}
            listed = {key: value for key, value in function.items() if value is not None}
            more, more_kinds = (
                {name: {"type": "function", "function": listed}},
                {name: Kind(kind == "custom", namespace)},
            )
        elif kind.startswith(ON_THE_CLIENT):
            raise RequestRefused(
                f"the tool {kind!r:.100} has parameters that the request does not list, so the policy cannot call it. "
                "Give the policy a function with a schema for it."
            )
        else:
            warn_once(f"the tool {kind!r:.100} is run by the vendor's server; it is not offered to the policy.")
            continue
        if twice := found.keys() & more:
            raise RequestRefused(f"two tools have the name {min(twice)!r:.100}. Give each a name of its own.")
        found |= more
        kinds |= more_kinds
    return found, kinds


def _description(tool: Mapping[str, Any]) -> str | None:
    """Return the description of a tool, and the grammar of the input of a custom one."""
    form = tool.get("format") or {}
    grammar = form.get("grammar") or form  # chat completions keep it in an object of its own
    if form.get("type") != "grammar":
        return tool.get("description")
    text = f"The input has this grammar ({grammar.get('syntax')}):\n{grammar.get('definition')}"
    return f"{description}\n\n{text}" if (description := tool.get("description")) else text


def read_choice(choice: Any, tools: Mapping[str, Any]) -> str:
    """Return `auto`, `required`, `none` or the name of a function.

    Raises:
        RequestRefused: the choice has another form, or names no function of the request.
    """
    if choice in (None, "auto") or not tools:
        return "auto"
    if choice == "none":
        return "none"
    if choice in ("required", "any"):
        return "required"
    chosen = choice.get("name") if isinstance(choice, Mapping) else None
    if chosen not in tools:
        raise RequestRefused(
            f"tool_choice={json.dumps(choice):.200} is not supported. Use auto, none, required or the "
            "name of a function of the request."
        )
    return str(chosen)


def read_schema(form: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the JSON Schema of a reply, `{}` for any object, or None for text.

    Raises:
        RequestRefused: the format is not known, or its schema is not valid.
    """
    kind = form.get("type", "text")
    if kind not in ("text", "json_object", "json_schema"):
        raise RequestRefused(
            f"the format {kind!r:.100} of the reply is not supported. Use text, json_object or json_schema."
        )
    schema = form.get("schema") if kind == "json_schema" else None
    if schema is None:
        return None if kind == "text" else {}
    return _checked(schema)


def _checked(schema: Any) -> Mapping[str, Any]:
    """Return a JSON Schema whose references can be followed; the reply may have any type."""
    from verl_agent.envs.schema_validator import check_draft

    try:
        check_draft(schema, "the schema of the reply")
        JsonSchema({**schema, "type": "object"}).check("the schema of the reply")
    except ConfigError as error:
        raise RequestRefused(str(error)) from error
    return dict(schema)


def read_limits(max_tokens: Any, stop: Any) -> ReplyLimits:
    """Return the limits on the reply."""
    limits = ReplyLimits()
    if max_tokens is not None:
        if not isinstance(max_tokens, int) or isinstance(max_tokens, bool) or max_tokens < 1:
            raise RequestRefused(
                f"max_tokens={json.dumps(max_tokens):.100} is not allowed. Allowed: a whole number >= 1."
            )
        limits["max_tokens"] = max_tokens
    texts = [stop] if isinstance(stop, str) else stop or []
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise RequestRefused(f"stop={json.dumps(stop):.100} is not allowed. Allowed: a text or a list of texts.")
    if texts := [text for text in texts if text]:
        limits["stop"] = texts
    return limits


def read_text(content: Any, where: str) -> str:
    """Return the text of a message's content, whose parts are joined.

    Raises:
        RequestRefused: a part is an image, sound or a file.
    """
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise RequestRefused(f"the content of a message of {where} must be text or a list of parts.")
    texts: list[str] = []
    for part in content:
        kind = part if isinstance(part, str) else part.get("type")
        if isinstance(part, str):
            texts.append(part)
        elif kind in TEXTS:
            texts.append(part.get("refusal" if kind == "refusal" else "text") or "")
        elif kind not in ("thinking", "redacted_thinking", "reasoning"):
            raise RequestRefused(
                f"a message of {where} has the content {kind!r:.100}. Images, sound and files are not supported: the "
                "policy reads text alone. Send a description in their place."
            )
    return "".join(texts)


def read_role(message: Any) -> Literal["system", "user", "assistant", "tool"]:
    """Return the role of a message.

    Raises:
        RequestRefused: the message has no known role.
    """
    role = ROLES.get(str(message.get("role"))) if isinstance(message, Mapping) else None
    if role is None:
        raise RequestRefused(f"the message {json.dumps(message)[:200]} has no known role. Allowed: {', '.join(ROLES)}.")
    return role
