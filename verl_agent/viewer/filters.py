"""Filter of episodes: from the parameters of a URL to SQL, and back; and those that a reader saved by name."""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from verl_agent.envs.cache import home
from verl_agent.errors import ConfigError, did_you_mean
from verl_agent.trace import frame
from verl_agent.trace.behaviors import BEHAVIORS
from verl_agent.trace.provenance import write_json_atomically
from verl_agent.viewer.conditions import GROUP
from verl_agent.viewer.tables import COLUMNS, LABEL_OF_EPISODE, ORDER, storable

TEXT = ("purpose", "env", "task", "category", "split", "group", "model", "stop")
"""Columns compared as text; several values are separated by commas."""
NUMBERS = (
    "step",
    "sample",
    "attempt",
    "reward",
    "shaped_return",
    "turns",
    "max_turns",
    "tokens",
    "seconds",
    "thought_length",
    *(behavior.name for behavior in BEHAVIORS),
)
"""Columns compared as numbers: `3`, `3..7`, `3..` or `..7`, bounds included."""
SORT = tuple(name for name, _ in COLUMNS if name not in ("actions", "error"))
"""Columns by which episodes may be sorted; a minus sign before the name reverses the order."""
DIVERGENCE = "divergence_turn"
"""Parameter for episodes of groups by the first turn, from 1, in which the actions of a group differ."""
PARAMETERS = (*TEXT, *NUMBERS, DIVERGENCE, "success", "text", "label", "sort")
"""Names that a filter takes."""
_LEAST = -1e300
"""Place in the order of a value that is missing."""
_NUMBER = r"-?\d+(?:\.\d+)?"
_RANGE = re.compile(rf"(?P<exact>{_NUMBER})|(?P<low>{_NUMBER})?\.\.(?P<high>{_NUMBER})?")


@dataclass(frozen=True, slots=True)
class Filter:
    """Conditions on episodes, all of which must hold.

    Attributes:
        values: value of each parameter as text, as it stands in the URL.
    """

    values: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, parameters: Mapping[str, str]) -> Self:
        """Check the parameters of a URL; empty values are left out.

        Raises:
            ConfigError: a parameter is unknown, or its value is not allowed.
        """
        values = {name: value.strip() for name, value in parameters.items() if value and value.strip()}
        for name in values:
            if name not in PARAMETERS:
                raise ConfigError(f"unknown filter {name!r}. {did_you_mean(name, PARAMETERS)}")
        chosen = cls(values)
        chosen.where()
        chosen.order()
        return chosen

    def where(self) -> tuple[str, list[Any]]:
        """Return the condition in SQL on table `episodes`, and its parameters.

        Raises:
            ConfigError: a value is not allowed.
        """
        parts: list[str] = []
        bound: list[Any] = []
        for name, value in self.values.items():
            if name in TEXT:
                names = [value]  # also as a whole: a name may have a comma
                names += [part.strip() for part in value.split(",")] if name != "task" and "," in value else []
                parts.append(f'"{name}" IN ({", ".join("?" * len(names))})')
                bound += names
            elif name in NUMBERS:
                condition, numbers = _between(name, value)
                parts.append(condition)
                bound += numbers
            elif name == DIVERGENCE:
                condition, numbers = _between(name, value, "divergence")
                parts.append(f"({GROUP}) IN (SELECT {GROUP} FROM groups WHERE {condition})")
                bound += numbers
            elif name == "success":
                parts.append("success = ?")
                bound.append(_yes_or_no(value))
            elif name == "text":
                parts.append("episodes.id IN (SELECT rowid FROM words WHERE words MATCH ?)")
                bound.append(match_phrase(value))
            elif name == "label":
                condition, tags = _labelled(value)
                parts.append(condition)
                bound += tags
        return " AND ".join(parts) or "1", [storable(value) for value in bound]

    def order_by(self) -> tuple[list[str], bool]:
        """Return the columns of the order in SQL, and True if it is descending; by step, task and sample unless chosen.

        No two episodes have the same values in these columns, and none of the values is NULL.

        Raises:
            ConfigError: the column is unknown.
        """
        value = self.values.get("sort", "")
        if not value:
            return [*ORDER, "episodes.id"], False
        name = value.removeprefix("-")
        if name not in SORT:
            raise ConfigError(f"sort={value!r} is not allowed. {did_you_mean(name, SORT)}")
        column = f'ifnull("{name}", {_LEAST})' if name in frame.OPTIONAL else f'"{name}"'
        return [column, "episodes.id"], value.startswith("-")

    def order(self) -> str:
        """Return the order in SQL."""
        columns, descending = self.order_by()
        return ", ".join(f"{column} DESC" if descending else column for column in columns)


def match_phrase(text: str) -> str:
    """Return the full-text query for the words of `text` in this order.

    Everything is quoted, so that no character of the text is an operator of the query language. NUL, which would end
    the query, separates words like a space.
    """
    return '"' + text.replace('"', '""').replace("\0", " ") + '"'


def _between(name: str, value: str, column: str = "") -> tuple[str, list[float]]:
    column = column or name
    found = _RANGE.fullmatch(value.replace(" ", ""))
    if found is None or value.strip() == "..":
        raise ConfigError(f"{name}={value!r} is not a number or a range. Allowed: 3, 3..7, 3.. and ..7.")
    if found["exact"] is not None:
        return f'"{column}" = ?', [float(found["exact"])]
    bounds = [(sign, float(found[side])) for sign, side in ((">=", "low"), ("<=", "high")) if found[side] is not None]
    return " AND ".join(f'"{column}" {sign} ?' for sign, _ in bounds), [number for _, number in bounds]


def _labelled(value: str) -> tuple[str, list[str]]:
    """Return the condition for `good,-bad` (one of the tags, and none after a minus sign) or `*` (any label)."""
    with_tag = (
        f"episodes.id IN (SELECT episodes.id FROM labels CROSS JOIN episodes ON {LABEL_OF_EPISODE} "
        "WHERE instr(labels.tags, ?))"
    )
    tags = [part.strip() for part in value.split(",") if part.strip(" -")]
    if not tags:
        raise ConfigError(f"label={value!r} names no tag. Allowed: good,-bad, or * for any label.")
    wanted = [tag for tag in tags if not tag.startswith("-")]
    excluded = [tag.removeprefix("-") for tag in tags if tag.startswith("-")]
    parts = [f"NOT {with_tag}"] * len(excluded)
    if wanted:
        parts.append(f"({' OR '.join([with_tag] * len(wanted))})")
    return " AND ".join(parts), [" " if tag == "*" else f" {tag} " for tag in (*excluded, *wanted)]


def _yes_or_no(value: str) -> int:
    """Return 1 or 0, the values of the column, for them or for `yes` and `no`."""
    if value not in ("yes", "no", "1", "0"):
        raise ConfigError(f"success={value!r} is not allowed. Allowed: yes, no.")
    return int(value in ("yes", "1"))


class SavedFilters:
    """Saved filters of a user.

    Args:
        path: path of the file; `verl-agent/filters.json` in the folder of configurations unless given.
    """

    def __init__(self, path: Path | None = None) -> None:
        chosen = os.environ.get("XDG_CONFIG_HOME")
        root = path or (Path(chosen) if chosen else home("XDG_CONFIG_HOME") / ".config")
        self.path = path or root / "verl-agent" / "filters.json"

    def read(self) -> dict[str, Filter]:
        """Return the filters by name, in alphabetical order; those that this version does not allow are left out.

        Raises:
            ConfigError: the file is not readable.
        """
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
            pairs = [(str(name), {str(key): str(value) for key, value in one.items()}) for name, one in content.items()]
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, AttributeError) as error:
            raise ConfigError(f"{self.path} is not readable ({error}). Repair or delete it.") from error
        found = {}
        for name, values in sorted(pairs):
            try:
                found[name] = Filter.parse(values)
            except ConfigError:
                continue
        return found

    def change(self, name: str, values: Mapping[str, str] | None) -> None:
        """Save a filter; None as `values` removes it.

        Raises:
            ConfigError: the name is empty, or the file cannot be written.
        """
        if not name.strip():
            raise ConfigError("a saved filter needs a name.")
        filters = {other: dict(chosen.values) for other, chosen in self.read().items()}
        filters.pop(name.strip(), None)
        if values is not None:
            filters[name.strip()] = dict(values)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_json_atomically(self.path, filters)
        except OSError as error:
            raise ConfigError(f"the filter is not saved: {self.path} cannot be written ({error}).") from error
