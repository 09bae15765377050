"""Checks of a composed config: every key exists, has a value of the right type, and has an effect.

Hydra accepts any key of a YAML file and any value.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from pydantic import TypeAdapter, ValidationError

from verl_agent.config.algorithms import ESTIMATOR, read_by
from verl_agent.config.catalogue import (
    SET,
    TRAINING,
    KeyRow,
    condition_text,
    marked_row,
    own_rows,
    own_type,
    recipe_text,
    rows_of,
    sections,
)
from verl_agent.config.keys import FREE, check_kind, leaves, plain_defaults, reference
from verl_agent.config.mixture import ENTRY_SECTIONS
from verl_agent.config.overlays import check_overlay_kinds
from verl_agent.errors import ConfigError, did_you_mean
from verl_agent.sections import allowed_text, field_type

CPU = Path(__file__).with_name("cpu.yaml")
STRATEGY = "actor_rollout_ref.actor.strategy"
SECRETS = ("model.api.", "judge.api.")
"""Sections whose values a message does not show, since one may be a key in the wrong place."""
FIELDS = (
    ".mixed_precision.param_dtype",
    ".mixed_precision.reduce_dtype",
    ".mixed_precision.buffer_dtype",
    ".ppo_infer_max_token_len_per_gpu",
)
"""Fields of verl's dataclasses that its YAML does not list."""
EACH_EPOCH = "after_each_epoch"
"""Value of verl's SFT trainer for `FREQUENCIES`, besides numbers."""
SEVERAL_TYPES = ("algorithm.rollout_correction.rollout_is_threshold",)
"""Keys of verl that accept values of another type than their default's; their reader checks them."""
FREQUENCIES = ("trainer.save_freq", "trainer.test_freq")
OFFLINE = ("agent_sft", "agent_dpo")


def check_keys(config: DictConfig, base: str) -> None:
    """Compare the keys of a config and their values with the base YAML of its recipe and with the catalogue.

    Raises:
        ConfigError: the recipe is for another command, a key is one that neither verl nor this package reads, a value
            has another type than the base's, or a key has no effect.
    """
    plain = OmegaConf.to_container(config)
    check_overlay_kinds(plain)
    check_kind(config, base)
    megatron = OmegaConf.select(config, STRATEGY) == "megatron"
    known = reference(base, *(["model_engine=megatron"] if megatron else []))
    own = own_rows(base)  # their classes check the types
    for key, value in leaves(plain):
        free = next((prefix for prefix in FREE if key.startswith(prefix)), None)
        if free is not None:
            _find(known, free.rstrip("."))
        elif not key.endswith(FIELDS):
            default = _find(known, key)
            if key in own or key in SEVERAL_TYPES or (base in OFFLINE and key in FREQUENCIES and value == EACH_EPOCH):
                continue
            _check_type(key, value, -1 if key in FREQUENCIES else default)
    check_effects(config, base)


def check_effects(config: DictConfig, base: str) -> None:
    """Check that no key is set that has no effect.

    A key counts as set if its value differs from that of the base YAML, and on a CPU from that of cpu.yaml. In a
    mixture it suffices that one environment with the value reads the key.

    Args:
        config: whole config; its interpolations need not be resolved.
    """
    known, shipped, plain = default_values(config, base), _in_overlays(), environments(OmegaConf.to_container(config))
    unlisted = unlisted_defaults(base, known)  # of sections that are null in the base YAML
    known = unlisted | known
    views = {"": config} if "" in plain else {entry: OmegaConf.create(dict(view)) for entry, view in plain.items()}
    found: dict[str, dict[str, str]] = {}
    for entry, view in views.items():
        read = read_by(OmegaConf.select(view, ESTIMATOR))
        for key, value in leaves(OmegaConf.to_container(view)):
            name = next((free[:-1] for free in FREE if key.startswith(free)), key)
            if name not in known or value == known[name] or name.startswith(read):
                continue
            row, *around = rows_of(name, base) or [KeyRow()]
            around = [] if value in shipped.get(key, ()) else around  # set by an overlay for all its users
            reason = next(filter(None, (problem(one, view, unlisted) for one in (row, *around))), "")
            found.setdefault(name, {})[entry] = reason and _message(view, name, reason, known[name], base)
    for messages in found.values():
        if all(messages.values()):
            entry, message = next(iter(messages.items()))
            raise ConfigError(message if len(messages) == len(views) else f"{entry}{message}")


def check_needs(key: str, values: Any) -> None:
    """Check that no setting of a settings class outside recipes has another value than its default without an effect.

    Args:
        key: key of the section, with which the markers `Needs` begin.
        values: its object.

    Raises:
        ConfigError: one has no effect.
    """
    config = OmegaConf.create({key: asdict(values)})
    for name, value, default, markers in _marked(key, values):
        if value != default and (reason := problem(marked_row(markers), config)):
            raise ConfigError(f"{name}={value} has no effect: {reason} Leave it out.")


def _marked(key: str, values: Any, around: Sequence[Any] = ()) -> Iterator[tuple[str, Any, Any, Sequence[Any]]]:
    """Yield key, value, default and markers of each setting, also of those in sections."""
    for field in fields(values):
        name, value, markers = (
            f"{key}.{field.name}",
            getattr(values, field.name),
            field_type(type(values), field.name)[1],
        )
        if is_dataclass(value):
            yield from _marked(name, value, [*around, *markers])
        else:
            yield name, value, field.default, [*around, *markers]


def _message(config: DictConfig, key: str, reason: str, default: Any, base: str) -> str:
    """Return the message for a key without effect; empty if it is null or has its default value."""
    present, neutral = OmegaConf.select(config, key), _neutral(config, key, default)
    if present is None or present == neutral:  # null turns something off
        return ""
    if key.startswith(SECRETS):
        value = ""
    elif wrong := _wrong_value(key, present, base):
        return wrong
    else:
        value = f"={recipe_text(present)}"
    return f"{key}{value} has no effect: {reason} Leave it at {recipe_text(neutral)}."


def _wrong_value(key: str, value: Any, base: str) -> str:
    """Return the message for a value that the settings class does not allow; empty if it does, or has no such key."""
    hint = own_type(key, base)
    if hint is None:
        return ""
    plain = OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
    try:
        TypeAdapter(hint).validate_python(plain, strict=True)
    except ValidationError:
        return f"{key}={recipe_text(value)} is not allowed. {allowed_text(plain, hint)}"
    return ""


def environments(plain: Any) -> Mapping[str, Mapping[str, Any]]:
    """Return the settings of each environment of a run: sections with the overrides of its entry in a mixture.

    The keys begin messages about one entry, as those of `verl_agent.config.mixture`; the only one is empty without a
    mixture.
    """
    entries = (plain.get("env") or {}).get("mixture")
    if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
        return {"": plain}
    views = {}
    for index, entry in enumerate(entries):
        own = {
            key: {**(plain.get(key) or {}), **entry[key]} for key in ENTRY_SECTIONS if isinstance(entry.get(key), dict)
        }
        shared = {key: value for key, value in entry.items() if key in plain["env"]}
        view = {**plain, **own, "env": {**plain["env"], **shared, "mixture": None}}
        views[f"env.mixture[{index}] ({entry.get('label', entry.get('name'))}): "] = view
    return views or {"": plain}


def problem(row: KeyRow, config: DictConfig, unlisted: Mapping[str, Any] | None = None) -> str:
    """Return the reason why a key has no effect in a run, and what to do; empty if it has one.

    Args:
        unlisted: defaults of keys that the config need not list.
    """
    if row.unread:
        return f"nothing reads it. {row.instead}".strip()
    if row.effect == "none":
        return row.instead
    defaults = unlisted or {}
    for condition in row.conditions:
        values = {key: OmegaConf.select(config, key) for key in condition}
        for key in condition.keys() & defaults.keys():
            if values[key] is None and OmegaConf.select(config, key.rpartition(".")[0]) is not None:
                values[key] = defaults[key]
        if not any(is_met(values[key], allowed) for key, allowed in condition.items()):
            present = f", not {recipe_text(*values.values())}" if len(values) == 1 else ""
            return f"it is read only with {condition_text(condition, values.get)}{present}. {row.instead}".strip()
    return ""


def default_values(config: DictConfig, base: str = TRAINING) -> dict[str, Any]:
    """Return the unresolved values that the keys of a recipe have if nobody sets them."""
    if base != TRAINING:
        return dict(leaves(reference(base)))
    engine = ["model_engine=megatron"] if OmegaConf.select(config, STRATEGY) == "megatron" else []
    if OmegaConf.select(config, "trainer.device") != "cpu":
        return dict(leaves(reference(base, *engine)))
    values = dict(leaves(reference(base, "agent_device=cpu", *engine)))
    return values | dict(leaves(OmegaConf.to_container(OmegaConf.load(CPU))))


def unlisted_defaults(base: str, listed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults of the fields of sections that are null in a base YAML, by key."""
    null = [one for one in sections(base) if one.key in listed and listed[one.key] is None]
    return {f"{one.key}.{name}": default for one in null for name, default in plain_defaults(one.kind).items()}


@cache
def _in_overlays() -> Mapping[str, list[Any]]:
    """Return the values that overlays set, by key."""
    found: dict[str, list[Any]] = {}
    for path in CPU.parent.glob("overlay/*/*.yaml"):
        for key, value in leaves(OmegaConf.to_container(OmegaConf.load(path))):
            found.setdefault(key, []).append(value)
    return found


def changed_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the dotted keys of an unresolved config of reinforcement learning that somebody set, with their values."""
    known = default_values(OmegaConf.create(dict(config)))
    return {key: value for key, value in leaves(config) if value != known.get(key)}


def is_met(value: Any, allowed: Any) -> bool:
    """Return True if a value is one of those in a condition."""
    if allowed == SET:
        return bool(value) and (isinstance(value, bool) or not isinstance(value, int | float) or value > 0)
    return value in allowed


def _neutral(config: DictConfig, key: str, default: Any) -> Any:
    """Return the value that a key has if nobody sets it; an interpolation takes the present value of its target."""
    if not isinstance(default, str) or "${" not in default:
        return default
    copy = config.copy()
    OmegaConf.set_struct(copy, False)
    OmegaConf.update(copy, key, default)
    return OmegaConf.select(copy, key)


def _find(known: dict[str, Any], key: str) -> Any:
    """Return the base's value of a key; None below a plain value or null, where all names are free."""
    node: Any = known
    walked: list[str] = []
    for part in key.split("."):
        if not isinstance(node, dict):
            return None
        if part not in node:
            parent = ".".join(walked) or "the top level"
            raise ConfigError(f"{key} is not a setting: {parent} has no {part!r}. {did_you_mean(part, map(str, node))}")
        node = node[part]
        walked.append(part)
    return node


def _check_type(key: str, value: Any, default: Any) -> None:
    """Check that a value has its default's type; null and interpolations pass."""
    if value is None or (isinstance(value, str) and "${" in value):
        return
    if isinstance(default, bool):
        fits, allowed = isinstance(value, bool), "true or false"
    elif isinstance(default, int | float):
        fits, allowed = isinstance(value, int | float) and not isinstance(value, bool), f"a number, such as {default}"
    elif isinstance(default, dict):
        keys = ", ".join(map(str, default))
        fits, allowed = isinstance(value, dict), f"a section with the keys {keys}" if keys else "a section such as {}"
    else:
        return
    if not fits:
        raise ConfigError(f"{key}={value!r} is not allowed. Allowed: {allowed}.")
