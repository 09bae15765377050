"""Conditions on the settings of a training run, beyond the type and the effect of one key.

A row of `verl_agent.training.preflight.condition_table` names a key, what is allowed, and why or what to do. Its
message has the key, the value and these.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from verl_agent.config.catalogue import recipe_text
from verl_agent.config.checks import environments, is_met
from verl_agent.config.keys import value_at
from verl_agent.errors import ConfigError
from verl_agent.sections import allowed_text

Get = Callable[[str], Any]
"""Returns the value of a dotted key; None if there is no such key."""


@dataclass(frozen=True, slots=True)
class Where:
    """Values that are allowed by a function, for comparisons with other keys.

    Attributes:
        text: description for the message, in which `{KEY}` stands for the value of another key; or a function that
            makes it from the value.
        holds: returns True for an allowed value.
    """

    text: str | Callable[[Any, Get], str]
    holds: Callable[[Any, Get], bool]


@dataclass(frozen=True, slots=True)
class Condition:
    """Row of the table.

    Attributes:
        key: dotted key.
        allowed: type of its value, with `Literal` and `Field` for choices and ranges, a collection of names, or a
            `Where`.
        remedy: sentences with the reason and the next step.
        when: other keys, each with the values with which the condition applies (`set` as in verl_keys.yaml).
    """

    key: str
    allowed: Any
    remedy: str = ""
    when: Mapping[str, Collection[Any] | str] = field(default_factory=dict)

    def message(self, get: Get) -> str:
        """Return what is wrong with a config; empty if the condition holds or does not apply."""
        value = get(self.key)
        if not all(is_met(get(key), values) for key, values in self.when.items()) or self._holds(value, get):
            return ""
        given = " and ".join(f"{key}={recipe_text(get(key))}" for key in self.when)
        if isinstance(self.allowed, Where):
            text = self.allowed.text if isinstance(self.allowed.text, str) else self.allowed.text(value, get)
            allowed = f"Allowed: {re.sub(r'{([^}]+)}', lambda key: recipe_text(get(key[1])), text)}."
        else:
            names = isinstance(self.allowed, Collection)
            allowed = allowed_text(value, Literal[tuple(self.allowed)] if names else self.allowed)
        found = f"{self.key}={recipe_text(value)} is not allowed{given and f' with {given}'}."
        return f"{found} {allowed} {self.remedy}".rstrip()

    def _holds(self, value: Any, get: Get) -> bool:
        if isinstance(self.allowed, Where):
            return self.allowed.holds(value, get)
        if isinstance(self.allowed, Collection):
            return value in self.allowed
        try:
            TypeAdapter(self.allowed).validate_python(value, strict=True)
        except ValidationError:
            return False
        return True


def check_conditions(values: Mapping[str, Any], conditions: Sequence[Condition]) -> None:
    """Check conditions on resolved settings, for each environment of the run; the first that fails is reported.

    The message names the entry of a mixture unless it is the same for all.
    """
    views = environments(values)
    for condition in conditions:
        found = {entry: condition.message(partial(value_at, view)) for entry, view in views.items()}
        if any(found.values()):
            entry, message = next(item for item in found.items() if item[1])
            raise ConfigError(message if len(set(found.values())) == 1 else f"{entry}{message}")


def equal_to(key: str) -> Where:
    """Allow the value of another key only."""
    return Where(f"{{{key}}}, the value of {key}", lambda value, get: value == get(key))


def at_most(key: str) -> Where:
    """Allow numbers up to the value of another key, and null."""
    return Where(f"at most {{{key}}}, the value of {key}", lambda value, get: value is None or value <= get(key))
