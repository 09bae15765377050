"""Settings that have no effect: the table of verl's keys, and the check that a run sets none of them.

verl_keys.yaml has a row for each key of verl's YAML, or for a section (its name ends with a dot), and for keys of this
package that are read only together with another key. The columns of a row:

* `when`: another key with the values with which code reads this one (`set`: true, or a number above 0). Of several keys
  one suffices. Without it the key is read in every run.
* `unread`: true if no code reads the key.
* `untraced`: place that reads the key beyond the traced runs, such as an engine that needs a GPU.
* `effect`: another key with the values with which the key, though read, has an effect; `none` if it has none.
* `instead`: what to do instead of setting a key that has no effect.

`make trace-settings` writes `when`, `unread` and `untraced` from the reads of real runs, and keeps the others.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from verl_agent.config.keys import FREE, leaves, reference
from verl_agent.errors import ConfigError

TABLE = Path(__file__).with_name("verl_keys.yaml")
CPU = Path(__file__).with_name("cpu.yaml")
STRATEGY = "actor_rollout_ref.actor.strategy"
SET = "set"
"""Value of `when` and `effect` that stands for true, and for every number above 0 and every text."""
Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Row:
    """Row of the table; the module explains the columns."""

    when: Values = field(default_factory=dict)
    unread: bool = False
    untraced: str = ""
    effect: Values | str = field(default_factory=dict)
    instead: str = ""

    @property
    def conditions(self) -> Iterator[Values]:
        """Conditions that must all hold for the key to have an effect."""
        yield from (one for one in (self.when, self.effect) if isinstance(one, Mapping) and one)


@cache
def rows() -> Mapping[str, Row]:
    """Return the rows of the table by key, or by section with a dot at its end."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return {key: Row(**row) for key, row in yaml.load(TABLE.read_text(encoding="utf-8"), loader).items()}


def rows_of(key: str) -> list[Row]:
    """Return the row of a key, then those of the sections around it, the innermost first."""
    names = [key, *(f"{key.rsplit('.', depth)[0]}." for depth in range(1, key.count(".") + 1))]
    return [rows()[name] for name in names if name in rows()]


def check_unread(config: DictConfig) -> None:
    """Check that no key is set that has no effect.

    A key counts as set if its value differs from that of the base YAML, and on a CPU from that of cpu.yaml.

    Args:
        config: whole config; its interpolations need not be resolved.

    Raises:
        ConfigError: a key is set that has no effect.
    """
    known, shipped = defaults(config), _in_overlays()
    for key, value in leaves(OmegaConf.to_container(config)):
        if key not in known or key.startswith(FREE) or value == known[key]:
            continue
        row, *around = rows_of(key) or [Row()]
        around = [] if value in shipped.get(key, ()) else around  # an overlay sets it for whoever uses the section
        reason = next(filter(None, (problem(one, config) for one in (row, *around))), "")
        if not reason:
            continue
        present, neutral = OmegaConf.select(config, key), _neutral(config, key, known[key])
        if present != neutral:
            raise ConfigError(f"{key}={_written(present)} has no effect: {reason} Leave it at {_written(neutral)}.")


def problem(row: Row, config: DictConfig) -> str:
    """Return the reason why a key has no effect in a run, and what to do; empty if it has one."""
    if row.unread:
        return f"nothing reads it. {row.instead}".strip()
    if row.effect == "none":
        return row.instead
    for condition in row.conditions:
        if not any(_fits(value, allowed) for key, allowed in condition.items() for value in _values(config, key)):
            chosen = {key: _choice(allowed, OmegaConf.select(config, key)) for key, allowed in condition.items()}
            choices = " or ".join(f"{key}={choice}" for key, choice in chosen.items())
            return f"it is read only with {choices}. {row.instead}".strip()
    return ""


def defaults(config: DictConfig) -> dict[str, Any]:
    """Return the unresolved values that the keys of a recipe have if nobody sets them."""
    engine = ["model_engine=megatron"] if OmegaConf.select(config, STRATEGY) == "megatron" else []
    if OmegaConf.select(config, "trainer.device") != "cpu":
        return dict(leaves(reference("agent_base", *engine)))
    base = dict(leaves(reference("agent_base", "agent_device=cpu", *engine)))
    return base | dict(leaves(OmegaConf.to_container(OmegaConf.load(CPU))))


@cache
def _in_overlays() -> Mapping[str, list[Any]]:
    """Return the values that overlays set, by key."""
    found: dict[str, list[Any]] = {}
    for path in CPU.parent.glob("overlay/*/*.yaml"):
        for key, value in leaves(OmegaConf.to_container(OmegaConf.load(path))):
            found.setdefault(key, []).append(value)
    return found


def _fits(value: Any, allowed: Any) -> bool:
    if allowed == SET:
        return bool(value) and (isinstance(value, bool | str) or not isinstance(value, int | float) or value > 0)
    return value in allowed


def _choice(allowed: Any, value: Any) -> str:
    if allowed == SET:
        return "true" if isinstance(value, bool) else "a number above 0" if isinstance(value, int | float) else "a text"
    return " or ".join(_written(one) for one in allowed)


def _values(config: DictConfig, key: str) -> list[Any]:
    """Return the values of a key in the run and in the entries of its mixture, which may change sections."""
    entries = OmegaConf.select(config, "env.mixture") or ()
    own = key.removeprefix("env.")
    return [OmegaConf.select(config, key), *(OmegaConf.select(OmegaConf.create(entry), own) for entry in entries)]


def _neutral(config: DictConfig, key: str, default: Any) -> Any:
    """Return the value that a key has if nobody sets it; an interpolation takes the present value of its target."""
    if not isinstance(default, str) or "${" not in default:
        return default
    copy = config.copy()
    OmegaConf.set_struct(copy, False)
    OmegaConf.update(copy, key, default)
    return OmegaConf.select(copy, key)


def _written(value: object) -> str:
    """Return a value as a recipe has it, with quotes around a text."""
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else repr(value)
