"""Actions of a reply: a text, or one call of a function with JSON arguments."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self, TypeAlias

CALLS = "calls"
"""Measurement: function calls of a reply, faulty ones and a missing one included."""
CALL_ERROR = "call_error"
"""Measurement: faulty calls of a reply, also of a reply without one; `call_error_<kind>` counts each kind."""
ARGUMENTS_READ = "arguments_read"
"""Measurement: arguments that the model wrote as text, or as `3.0`, and that were read without loss."""


@dataclass(frozen=True, slots=True, eq=False)
class ToolCall:
    """Call of a function: the same JSON object from the reply to the environment and in the record.

    Two calls are equal if their JSON is: the order of keys has no meaning, and `true` is not `1`.

    Attributes:
        name: name of the function.
        arguments: JSON values by the names of the parameters.
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ToolCall):
            return NotImplemented
        return self.name == other.name and same_json(self.arguments, other.arguments)

    def __hash__(self) -> int:
        return hash((self.name, frozenset(self.arguments)))

    def __str__(self) -> str:
        """Return the call as JSON in one line, the form in which people and rules read it."""
        return json.dumps(self.to_json(), ensure_ascii=False)

    def to_json(self) -> dict[str, Any]:
        """Return the call as a JSON object."""
        return {"name": self.name, "arguments": dict(self.arguments)}

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Return the call in a JSON object with exactly `name` and `arguments`.

        Raises:
            ValueError: the value is no such object.
        """
        if not isinstance(value, Mapping) or set(value) != {"name", "arguments"}:
            raise ValueError('a call is an object with the keys "name" and "arguments".')
        if not isinstance(value["name"], str) or not isinstance(value["arguments"], Mapping):
            raise ValueError('"name" is a text, and "arguments" is an object.')
        return cls(value["name"], dict(value["arguments"]))


Action: TypeAlias = str | ToolCall
"""Action as an environment takes it. `str(action)` is its text for people, rules and logs."""


def action_to_json(action: Action | None) -> Any:
    """Return an action as JSON: a text, an object with `name` and `arguments`, or null."""
    return action.to_json() if isinstance(action, ToolCall) else action


def action_from_json(value: Any) -> Action | None:
    """Return the action that `action_to_json` wrote.

    Raises:
        ValueError: the value is no action.
    """
    return value if isinstance(value, str | None) else ToolCall.from_json(value)


def same_json(first: Any, second: Any) -> bool:
    """Return True if two values are the same JSON value; unlike in Python, `True` is not `1`."""
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return first.keys() == second.keys() and all(same_json(first[key], second[key]) for key in first)
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        return len(first) == len(second) and all(map(same_json, first, second))
    if isinstance(first, bool) or isinstance(second, bool):
        return first is second
    return bool(first == second)


def action_text(value: Any) -> str | None:
    """Return the text of an action in a record, which is a text, the JSON of a call, or null."""
    return value if isinstance(value, str | None) else str(ToolCall(value["name"], value["arguments"]))
