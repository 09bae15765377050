"""Actions of a server, by their JSON schema: explanation for the model, and texts as actions."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from env_adapters.seeded import PROBES
from verl_agent.errors import ConfigError, did_you_mean

NUMBERS: Mapping[str, type] = {"integer": int, "number": float}
SAMPLES = {"integer": 1, "number": 1.0, "boolean": True, "array": [], "object": {}}


@dataclass(frozen=True, slots=True)
class ActionForm:
    """Fields of an action that a text sets.

    Attributes:
        fields: schema of each field.
    """

    fields: Mapping[str, Mapping[str, Any]]

    @classmethod
    def of(cls, schema: Mapping[str, Any], chosen: str | None) -> "ActionForm":
        """Return the form of a schema: all fields but `metadata`, or the chosen one.

        Raises:
            ConfigError: the schema has no such field.
        """
        known = {key: _with_type(value) for key, value in schema["properties"].items() if key != "metadata"}
        if chosen is None:
            return cls(known)
        if chosen not in known:
            hint = did_you_mean(chosen, known)
            raise ConfigError(f"env.options.action={chosen!r} is no field of the server's actions. {hint}")
        return cls({chosen: known[chosen]})

    @property
    def only(self) -> str | None:
        """Name of the field if there is one."""
        return next(iter(self.fields)) if len(self.fields) == 1 else None

    def described(self) -> str:
        """Return the form of an action, for the model."""
        if self.only is not None:
            return f"An action is the {self.only}: {_described(self.fields[self.only])}."
        listed = "; ".join(f"{key}: {_described(kind)}" for key, kind in self.fields.items())
        return f"An action is a JSON object with the keys {listed}."

    def read(self, text: str) -> dict[str, Any] | None:
        """Return the server's action for a text, or None."""
        text = text.encode(errors="replace").decode()  # JSON has no lone surrogates
        kind = str(self.fields[self.only].get("type")) if self.only is not None else ""
        if self.only is not None and kind == "string":
            return {self.only: text}
        try:
            if self.only is not None and kind in NUMBERS:
                return {self.only: NUMBERS[kind](text.strip()[:20])}
            value = json.loads(text)
        except (ValueError, RecursionError):  # a field without a type, such as an enumeration, may take any text
            return {self.only: text} if self.only is not None and kind == "None" else None
        if self.only is not None and not (isinstance(value, dict) and value.keys() == self.fields.keys()):
            return {self.only: value}
        return value if isinstance(value, dict) else None

    def samples(self) -> Sequence[str]:
        """Return texts of which some are valid actions."""
        values = {
            key: kind["enum"][0] if kind.get("enum") else SAMPLES.get(str(kind.get("type")), "1")
            for key, kind in self.fields.items()
        }
        return [str(values[self.only]) if self.only is not None else json.dumps(values), *PROBES]


def _with_type(kind: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema of a field with the type of an optional one, whose alternatives are this type and null."""
    types = [one.get("type") for one in kind.get("anyOf", ()) if one.get("type") != "null"]
    return {"type": types[0], **kind} if len(types) == 1 and types[0] else kind


def _described(kind: Mapping[str, Any]) -> str:
    allowed = f", one of {', '.join(map(str, kind['enum']))}" if kind.get("enum") else ""
    note = f" ({kind['description']})" if kind.get("description") else ""
    return f"{kind.get('type', 'value')}{allowed}{note}"
