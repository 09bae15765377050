"""Catalogue of all settings: the fields of the registered settings classes, and verl_keys.yaml for the keys of verl.

The checks of a config (`verl_agent.config.checks`), the settings that a resumed run may change and the reference page
follow from it. verl_keys.yaml has a row for each key of verl, for a section (its name ends with a dot), or for a
pattern with `*`. Its columns, which for own settings are markers and docstrings of fields:

* `when`: another key with the values with which code reads this one (`set`: true, a number above 0, or a text or list
  that is not empty). Of several keys one suffices. Without it the key is read in every run.
* `unread`: true if no code reads the key.
* `untraced`: place that reads the key in a way that a search of the source does not follow.
* `effect`: another key with the values with which the key, though read, has an effect, or a list of such conditions;
  `none` if it has none.
* `instead`: what to do instead of setting a key that has no effect.
* `resume`: commands whose resumed run may change the key, see `verl_agent.sections.OnResume`.
* `meaning`: meaning and unit, for the reference page.

Rows are written by hand. After a change of verl's version, tests/unit/project/test_settings_act.py names the keys
without a row, rows without a key, and keys that are marked `unread` although verl's source reads them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import yaml
from omegaconf import ListConfig

from verl_agent.sections import SECTIONS, Needs, OnResume, Section, field_meaning, field_type

TABLE = Path(__file__).with_name("verl_keys.yaml")
OWNERS = (
    "verl_agent.config.mixture",
    "verl_agent.evaluation.settings",
    "verl_agent.training.offline.preferences",
    "verl_agent.training.offline.play",
    "verl_agent.training.offline.evolve.rounds",
)
"""Modules that register all sections, by themselves or by what they import."""
TRAINING = "agent_base"
"""Base of reinforcement learning, whose keys of verl the table has."""
SET = "set"
"""Value of `when` and `effect` that stands for true, a number above 0, and a text or list that is not empty."""
COMMANDS = {
    "train": ("train",),
    "sft": ("sft", "offline"),
    "dpo": ("dpo", "offline"),
    "learn": ("offline",),
    "eval": ("eval", "play"),
    "play": ("play",),
    "evolve": ("evolve",),
}
"""Names in `resume` and in `OnResume` that stand for each command, and for the recipes of an evolution."""
SET_NAMES = {
    type(None): "a value",
    bool: "true",
    int: "a number above 0",
    float: "a number above 0",
    list: "a list",
    ListConfig: "a list",
}
"""Meanings of `SET` by the type of the present value."""
Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class KeyRow:
    """Row of the table; the module explains the columns."""

    when: Values = field(default_factory=dict)
    unread: bool = False
    untraced: str = ""
    effect: Values | Sequence[Values] | str = field(default_factory=dict)
    instead: str = ""
    resume: Sequence[str] = ()
    meaning: str = ""

    @property
    def conditions(self) -> Iterator[Values]:
        """Conditions that must all hold for the key to have an effect."""
        effects = [self.effect] if isinstance(self.effect, Mapping | str) else self.effect
        yield from (one for one in (self.when, *effects) if isinstance(one, Mapping) and one)


@cache
def verl_rows() -> Mapping[str, KeyRow]:
    """Return the rows of verl's keys by key, by section with a dot at its end, or by pattern."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return {key: KeyRow(**row) for key, row in yaml.load(TABLE.read_text(encoding="utf-8"), loader).items()}


def all_sections() -> list[Section]:
    """Return all sections, whichever modules a command has imported."""
    for owner in OWNERS:
        import_module(owner)
    return SECTIONS


def sections(base: str) -> list[Section]:
    """Return the sections of a base YAML, those that it shares with training first."""
    return [one for owner in dict.fromkeys((TRAINING, base)) for one in all_sections() if one.base == owner]


@cache
def own_rows(base: str) -> Mapping[str, KeyRow]:
    """Return the rows of the settings classes of a base YAML, by key and by section with a dot at its end."""
    found: dict[str, KeyRow] = {}
    for section in sections(base):
        found[f"{section.key}."] = marked_row(section.markers)
        for name in (each.name for each in fields(section.kind)):
            found[f"{section.key}.{name}"] = marked_row(
                field_type(section.kind, name)[1], field_meaning(section.kind, name)
            )
    return found


def fields_of(key: str) -> list[str]:
    """Return the fields of the settings classes of a section, also those that no YAML lists."""
    return [field.name for one in all_sections() if one.key == key for field in fields(one.kind)]


def own_type(key: str, base: str) -> Any:
    """Return the type of a field of a settings class with its constraints; None if there is no such field."""
    section, _, name = key.rpartition(".")
    for known in sections(base):
        if known.key == section and name in (each.name for each in fields(known.kind)):
            hint, bounds = field_type(known.kind, name)
            return Annotated[hint, *bounds] if bounds else hint
    return None


def marked_row(markers: Sequence[Any], meaning: str = "") -> KeyRow:
    """Return the row of a setting with markers."""
    needs = [marker for marker in markers if isinstance(marker, Needs)]
    resume = [command for marker in markers if isinstance(marker, OnResume) for command in marker.commands]
    effect = [{marker.key: list(marker.values) or SET} for marker in needs]
    return KeyRow(effect=effect, instead=" ".join(one.instead for one in needs), resume=resume, meaning=meaning)


def condition_text(condition: Values, get: Callable[[str], Any]) -> str:
    """Return a condition as text, such as `env.hosts.where='ray' or 'auto'`.

    Args:
        get: returns the present or the default value of a key, whose type tells what `set` means.
    """
    texts = []
    for key, allowed in condition.items():
        choices = [SET_NAMES.get(type(get(key)), "a text")] if allowed == SET else map(recipe_text, allowed)
        texts.append(f"{key}={' or '.join(choices)}")
    return " or ".join(texts)


def recipe_text(value: object) -> str:
    """Return a value as a recipe has it, with quotes around a text."""
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else repr(value)


def may_change(command: str) -> list[str]:
    """Return the settings that a resumed run may change, as patterns of `verl_agent.runs.identity.claim`."""
    tables = [verl_rows(), *(own_rows(base) for base in dict.fromkeys(one.base for one in all_sections()))]
    found = (key for table in tables for key, row in table.items() if set(row.resume) & set(COMMANDS[command]))
    return [key.removesuffix(".") for key in dict.fromkeys(found)]


def rows_of(key: str, base: str = TRAINING) -> list[KeyRow]:
    """Return the row of a key, then those of the sections around it, the innermost first."""
    table = {**verl_rows(), **own_rows(base)} if base == TRAINING else own_rows(base)
    names = [key, *(f"{key.rsplit('.', depth)[0]}." for depth in range(1, key.count(".") + 1))]
    return [table[name] for name in names if name in table]
