"""Message as another program recorded it, in any of the formats that are imported."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import (
    AliasChoices,
    AliasPath,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
)

from verl_agent.envs.strict_json import read_json
from verl_agent.evaluation.imports.values import RefusedError, shown
from verl_agent.types import Author, ToolCall

ROLES: Mapping[str, str] = {"developer": "system", "agent": "assistant"}
"""Roles that formats name otherwise."""
TEXT_PARTS = ("text", "input_text", "output_text")
ALLOWED: Mapping[str, str] = {
    "role": "Allowed: system, developer, user, assistant, agent, tool",
    "content": "Allowed: text, a list of parts, or null",
    "tool_calls": "Allowed: a list of calls with a name and arguments",
    "name": "Allowed: the name of a function",
    "arguments": "Allowed: an object, or its JSON as text",
    "type": "Allowed: function",
    "parse_error": "Allowed: null, since a call that its source could not read has no arguments",
    "weight": "Allowed: 1, since training uses each reply. Remove the conversation",
    "function_call": "Allowed: null. Write the call as tool_calls, and its answer with the role tool",
    "audio": "Allowed: null, since a record holds text",
    "author": "Allowed: policy, person, oracle, overseer",
}
"""What a field of a message may hold, for messages."""


class SourceCall(BaseModel):
    """Function call, in the form of OpenAI, ATIF, verifiers or Inspect."""

    model_config = ConfigDict(extra="allow", strict=True)
    name: str = Field(validation_alias=AliasChoices("name", "function_name", AliasPath("function", "name"), "function"))
    arguments: dict[str, Any] | str | None = Field(
        None, validation_alias=AliasChoices("arguments", AliasPath("function", "arguments"))
    )
    id: str = Field("", validation_alias=AliasChoices("id", "tool_call_id"))
    type: Literal["function"] = "function"
    parse_error: None = None

    def call(self) -> ToolCall:
        """Return the call; raise RefusedError if its arguments are no JSON object."""
        value: Any = {} if self.arguments in (None, "") else self.arguments
        try:
            value = read_json(value) if isinstance(value, str) else value
        except ValueError as error:
            raise RefusedError("arguments of a call that are no JSON", f"{self.name}: {error}") from error
        if not isinstance(value, dict):
            raise RefusedError("arguments of a call that are no JSON object", f"{self.name}: {shown(value)}")
        return ToolCall(self.name, value)


class SourceMessage(BaseModel):
    """Message, in the form of OpenAI, ATIF, verifiers or Inspect.

    Attributes:
        sampled: False for a message of the role `assistant` that no model wrote, such as an example in the prompt.
    """

    model_config = ConfigDict(extra="allow", strict=True)
    role: Annotated[
        Literal["system", "user", "assistant", "tool"], BeforeValidator(lambda one: ROLES.get(one, one))
    ] = Field(validation_alias=AliasChoices("role", "source"))
    content: str | list[Any] | None = Field(None, validation_alias=AliasChoices("content", "message"))
    reasoning: str | None = Field(None, validation_alias=AliasChoices("reasoning_content", "reasoning"))
    tool_calls: list[SourceCall] | None = None
    tool_call_id: str | None = None
    sampled: bool = True
    author: Author = "policy"
    tokens: Annotated[int, Field(ge=0)] = 0
    weight: Literal[1] | None = None
    function_call: None = None
    audio: None = None

    def texts(self) -> tuple[str, str]:
        """Return content and reasoning; raise RefusedError for images and other content that is no text."""
        if self.content is None and (self.model_extra or {}).get("refusal"):
            raise RefusedError("content of the type 'refusal'", "a record holds text")
        content: list[str] = []
        thoughts = [self.reasoning or ""]
        for part in [self.content or ""] if not isinstance(self.content, list) else self.content:
            value: Any = {"type": "text", "text": part} if isinstance(part, str) else part
            kind = str(value.get("type")) if isinstance(value, dict) else type(value).__name__
            text = value.get("text", value.get("reasoning")) if isinstance(value, dict) else None
            if kind not in (*TEXT_PARTS, "reasoning") or not isinstance(text, str):
                raise RefusedError(f"content of the type {kind.replace('image_url', 'image')!r}", "a record holds text")
            (thoughts if kind == "reasoning" else content).append(text)
        return "\n".join(content), "\n".join(filter(None, thoughts))


MESSAGES = TypeAdapter(list[SourceMessage])


def messages_of(values: Sequence[Any]) -> list[SourceMessage]:
    """Return the messages of a conversation.

    Raises:
        RefusedError: a value is no message, or a field of one is missing or not allowed.
    """
    try:
        return MESSAGES.validate_python(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        number, *path = first["loc"]
        name = next((part for part in reversed(path) if part in ALLOWED), "")
        where = f"message {int(number) + 1}"
        if not name:
            kind = f"{path[0]} of a message that is not allowed" if path else "a message that is no object"
            raise RefusedError(kind, f"{where} has {shown(first['input'])}") from error
        if first["type"] == "missing":
            kind = f"a {'call' if 'tool_calls' in path else 'message'} without {name}"
            raise RefusedError(kind, f"{where}. {ALLOWED[str(name)]}") from error
        field_path = "tool_calls." * ("tool_calls" in path[:-1]) + str(name)
        detail = f"{where} has {shown(first['input'])}. {ALLOWED[str(name)]}"
        raise RefusedError(f"{field_path} that is not allowed", detail) from error
