"""Reference of the settings: the page of the documentation (docs/build.py) and `--explain`.

Everything comes from the catalogue of settings, and the defaults from the base YAML files.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import MISSING, fields, replace
from fnmatch import fnmatchcase
from typing import Any

from verl_agent.config.catalogue import (
    TRAINING,
    KeyRow,
    all_sections,
    condition_text,
    own_rows,
    rows_of,
    sections,
    verl_rows,
)
from verl_agent.config.keys import KINDS, UNUSED, reference, value_at
from verl_agent.envs.parsing import shorten
from verl_agent.errors import ConfigError, counted, did_you_mean
from verl_agent.sections import Section, describe_type, field_type

HEAD = """# Settings

A recipe sets these keys in its YAML, a command line sets them as `KEY=VALUE` after the recipe. `--cfg job` after the
recipe prints all its keys with their values, those of verl included; `--explain KEY` explains one of them.
[Recipes, overlays and settings](../guides/recipes.md) explains how they combine. "Required" means that every recipe
sets the key. "Needs" names the condition without which a setting has no effect and is refused. "Resume" names the
commands whose resumed run may change it: `train`, `sft`, `dpo`, `evolve`, `eval`; `offline` is `sft`, `dpo` and the
training of `evolve`; `play` is `eval` and the evaluations of `evolve`. Every other setting stays as the run began.
"""
VERL = ((TRAINING, "reinforcement learning"), ("agent_sft", "`verl-agent sft` and `verl-agent dpo`"))
"""Parts of the table of verl's keys: base and heading."""
REQUIRED = ("actor_rollout_ref.model.path", "model.path", "trainer.total_training_steps")
"""Keys of verl whose default is only an example."""
COLUMNS = ("default", "allowed", "meaning", "needs", "resume")
MATCHES, WIDTH, LISTED = 20, 120, 1000
"""Most keys that a part of a name shows, and characters of a line and of a list of names."""
BELOW = "see below"
"""Value of a setting that is a section, which has a table of its own on the page."""


def page() -> str:
    """Return the page of the settings, as Markdown."""
    return "\n".join([HEAD, *_own_sections(), *_verl_keys()]).rstrip("\n") + "\n"


def explain_setting(key: str, base: str) -> str:
    """Return what is known about a setting, one property a line.

    A text that is no key, such as `lora`, gives the keys that contain it, at most a screen of them.

    Raises:
        ConfigError: there is no such key, and none that contains the text.
    """
    own = {f"{one.key}.{field.name}": one for one in sections(base) for field in fields(one.kind)}
    if key in own:
        properties = _of_field(own[key], key.rpartition(".")[2])
    elif _select(base, key) is not MISSING:
        properties = _of_verl(key, base)
    else:
        return _matching(key, base, own)
    nested = [one for one in sections(base) if one.key.removesuffix("[]") == key]
    inner = [f"{one.key}.{field.name}" for one in nested for field in fields(one.kind)]
    properties = [f"section of {', '.join(inner)}" if text == BELOW else text for text in properties]
    named = zip(COLUMNS, properties, strict=True)
    return "\n".join([key, *(f"  {name}: {text}" for name, text in named if text)])


def _matching(text: str, base: str, own: Iterable[str]) -> str:
    """Return the keys that contain a text with their meanings, those that have one first.

    Raises:
        ConfigError: no key contains the text.
    """
    known = [key for key in dict.fromkeys([*own, *_paths(_reference(base))]) if not key.startswith(UNUSED)]
    every = {key for key in known if text.lower() in key.lower()}
    if not every:
        hint = did_you_mean(text, known, most_chars=LISTED)
        raise ConfigError(f"--explain {text!r} is not a setting of {base}. {hint}")
    found = [key for key in known if key in every and not any(key.startswith(f"{other}.") for other in every)]
    meanings = {
        key: next((row.meaning for row in (own_rows(base).get(key), *rows_of(key)) if row and row.meaning), "")
        for key in found
    }
    found.sort(key=lambda key: not meanings[key])
    lines = [f"{text!r} is no setting; these contain it (--explain KEY tells more):"]
    for key in found[:MATCHES]:
        value = _select(base, key)
        inner = _paths(value, f"{key}.")
        shown = f"section with {counted(len(inner), 'key')}" if isinstance(value, dict) and inner else _default(value)
        lines.append(shorten(f"  {key}: {'; '.join(filter(None, (shown, meanings[key])))}", WIDTH))
    more = len(found) - MATCHES
    return "\n".join([*lines, *([f"  and {counted(more, 'other key')}"] if more > 0 else [])])


def _own_sections() -> Iterator[str]:
    for base in KINDS:
        places = _paths(reference(base))
        own = [one for one in all_sections() if one.base == base]
        for one in sorted(own, key=lambda one: places.index(one.key.removesuffix("[]"))):
            yield f"## `{one.key}`\n{one.kind.__doc__}\n\n{TABLE}"
            for field in fields(one.kind):
                yield _row(f"{one.key}.{field.name}", *_of_field(one, field.name))
            yield ""


def _verl_keys() -> Iterator[str]:
    shown = set[str]()
    for base, title in VERL:
        yield f"## Keys of verl, {title}\n\n{TABLE}"
        for key, row in verl_rows().items():
            if row.meaning and key not in shown and _select(base, key) is not MISSING:
                shown.add(key)
                yield _row(key, *_of_verl(key, base))
        yield ""


def _of_field(one: Section, name: str) -> list[str]:
    """Return the columns of a field of a settings class."""
    key, table = f"{one.key}.{name}", own_rows(one.base)
    default, (hint, bounds) = _select(one.base, key), field_type(one.kind, name)
    if default is MISSING:
        (own,) = (field.default for field in fields(one.kind) if field.name == name)
        default = getattr(own, "default", own)  # pydantic's Field has a default of its own
    nested = any(other.key.removesuffix("[]") == key for other in all_sections())
    shown = BELOW if nested and isinstance(default, dict) else _default(default)
    found = [table[other] for other in (key, f"{one.key}.", one.key) if other in table]
    return [shown, BELOW if nested else describe_type(hint, bounds), found[0].meaning, *_rules(found, one.base)]


def _of_verl(key: str, base: str) -> list[str]:
    """Return the columns of a key of verl; only reinforcement learning has conditions."""
    found = rows_of(key) or [KeyRow()]
    if base != TRAINING:
        found = [replace(row, when={}, effect={}) for row in found]
    default = "required" if key in REQUIRED else _default(_select(base, key))
    patterns = [row for name, row in verl_rows().items() if "*" in name and fnmatchcase(key, name)]
    return [default, "", found[0].meaning, *_rules([*found, *patterns], base)]


def _rules(found: Sequence[KeyRow], base: str) -> tuple[str, str]:
    """Return the conditions of a key and the commands whose resumed runs may change it."""
    needs = [condition_text(condition, lambda key: _select(base, key)) for row in found for condition in row.conditions]
    return "; ".join(needs), ", ".join(dict.fromkeys(command for row in found for command in row.resume))


def _paths(node: Any, prefix: str = "") -> list[str]:
    """Return the dotted names of all sections and values, in order."""
    inner = ((f"{prefix}{key}", value) for key, value in node.items()) if isinstance(node, dict) else ()
    return [path for key, value in inner for path in (key, *_paths(value, f"{key}."))]


def _select(base: str, key: str) -> Any:
    """Return the value of a dotted key in a base YAML; `MISSING` if the base has no such key."""
    return value_at(_reference(base), key, MISSING)


def _reference(base: str) -> dict[str, Any]:
    return reference("agent_grpo" if base == TRAINING else base)


def _default(value: Any) -> str:
    if value is MISSING or value == "???":
        return "required"
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


TABLE = "| key and default | meaning |\n|---|---|"


def _row(key: str, default: str, *others: str) -> str:
    """Return a row of two cells: the key above its default, and its meaning above its other properties."""
    named = dict(zip(COLUMNS[1:], others, strict=True))
    meaning = named.pop("meaning").rstrip(".")
    meaning = meaning[:1].upper() + meaning[1:]
    rest = [f"{name.capitalize()}: {text}." for name, text in named.items() if text and text != BELOW]
    cells = [f"`{key}`<br>{default}", "<br>".join(filter(None, [f"{meaning}." if meaning else "", " ".join(rest)]))]
    return f"| {' | '.join(text.replace('|', chr(92) + '|') for text in cells)} |"
