"""Actions of a server, by their JSON schema: explanation for the model, and texts as actions."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from env_adapters.seeded import PROBES
from verl_agent.envs.schema_samples import example
from verl_agent.envs.schemas import JsonSchema
from verl_agent.envs.tools import Tool
from verl_agent.errors import ConfigError, did_you_mean
from verl_agent.types import Action, ToolCall

MCP = frozenset(("tool_name", "arguments"))
"""Fields of an action that calls a function of MCP."""
MOST_NESTED = 4
"""Levels of nested fields that an explanation follows."""
BOUNDS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}


def is_mcp(schema: Mapping[str, Any]) -> bool:
    """Return True for actions that call functions of MCP: those of OpenEnv, and its base class without fields."""
    fields = set(schema["properties"]) - {"metadata", "type"}
    return fields == MCP or not fields


@dataclass(frozen=True)
class ActionForm:
    """Fields of an action that a text sets, or functions that it calls.

    Attributes:
        schema: schema of the whole action.
        fields: names of the fields; none where an action calls a function.
        tools: functions of an MCP server, which an action calls.
    """

    schema: JsonSchema
    fields: Sequence[str] = ()
    tools: tuple[Tool, ...] = ()

    @classmethod
    def of(cls, schema: Mapping[str, Any], chosen: str | None) -> "ActionForm":
        """Return the form of a schema: all fields but `metadata`, or the chosen one.

        Raises:
            ConfigError: the schema has no such field.
        """
        known = [key for key in schema["properties"] if key != "metadata"]
        if chosen is not None and chosen not in known:
            hint = did_you_mean(chosen, known)
            raise ConfigError(f"env.options.action={chosen!r} is no field of the server's actions. {hint}")
        return cls(JsonSchema(schema), known if chosen is None else [chosen])

    @cached_property
    def only(self) -> str | None:
        """Name of the field if there is one."""
        return self.fields[0] if len(self.fields) == 1 else None

    def described(self) -> str:
        """Return the form of an action, for the model; the agent describes functions itself."""
        if self.tools:
            return ""
        if self.only is not None:
            return f"An action is the {self.only}: {self._described((self.only,))}."
        return f"An action is a JSON object with the keys {self._keys((), self.fields, self.schema.schema)}."

    def read(self, action: Action) -> dict[str, Any] | None:
        """Return the server's action for a text or the call of a function, or None."""
        if self.tools:
            if not isinstance(action, ToolCall):
                return None
            return {"type": "call_tool", "tool_name": action.name, "arguments": dict(action.arguments)}
        text = str(action)
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = None
        whole = isinstance(value, dict) and value.keys() <= set(self.fields)
        if self.only is not None and not (whole and self.only in value):
            value = {self.only: text}
        if not isinstance(value, dict):
            return None
        read: dict[str, Any] = self.schema.read(value)[0]
        return read

    def samples(self) -> Sequence[str]:
        """Return texts of which some are valid actions."""
        if self.tools:
            return [str(ToolCall(tool.name, example(tool.schema_of_arguments))) for tool in self.tools]
        value = example(self.schema)
        value = value.get(self.only, "1") if self.only is not None else value
        return [value if isinstance(value, str) else json.dumps(value), *PROBES]

    def _keys(self, path: tuple[int | str, ...], keys: Sequence[str], part: Mapping[str, Any]) -> str:
        """Return the description of an object's keys, in the schema at `path`, which is `part`."""
        required = part.get("required", ())
        texts = [f"{key}{'' if key in required else ' (optional)'}: {self._described((*path, key))}" for key in keys]
        return "; ".join(texts)

    def _described(self, path: tuple[int | str, ...]) -> str:
        """Return the description of the value at a path, whose alternatives are listed."""
        parts = self.schema.along(path)
        texts = dict.fromkeys(self._kind(path, part) for part in parts if part.get("type") != "null")
        text = " or ".join(texts) or "value"
        notes = [one for one in self.schema.along(path[:-1]) if isinstance(one.get("properties"), Mapping)]
        own = next((one["properties"].get(path[-1], {}).get("description") for one in notes), None)
        note = own or next((part["description"] for part in parts if part.get("description")), None)
        return f"{text} ({note})" if note else text

    def _kind(self, path: tuple[int | str, ...], part: Mapping[str, Any]) -> str:
        kind = str(part.get("type", "value"))
        if "const" in part:
            return json.dumps(part["const"])
        if part.get("enum"):
            return f"{kind}, one of {', '.join(map(str, part['enum']))}"
        if len(path) <= MOST_NESTED and kind == "array" and ("items" in part or "prefixItems" in part):
            return f"list of {self._described((*path, 0))}"
        if len(path) <= MOST_NESTED and part.get("properties"):
            return f"object with the keys [{self._keys(path, list(part['properties']), part)}]"
        bounds = [f"{sign} {part[key]}" for key, sign in BOUNDS.items() if key in part]
        return " ".join([kind, *bounds])
