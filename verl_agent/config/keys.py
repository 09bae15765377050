"""Keys of the base YAML files, and the checks that a recipe suits its command and has all values."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationToMissingValueError, OmegaConfBaseException

from verl_agent.config.catalogue import all_sections
from verl_agent.errors import ConfigError

FREE = (
    "env.options.",
    "agent.options.",
    "credit.options.",
    "horizon.options.",
    "episodes.explored.",
    "data.apply_chat_template_kwargs.",
    "actor_rollout_ref.model.override_config.",
    "critic.model.override_config.",
    "model.override_config.",
    "model.api.options.",
    "judge.api.options.",
    "actor_rollout_ref.rollout.engine_kwargs.",
    "ray_kwargs.ray_init.",
)
"""Sections of keyword arguments whose receiver checks the keys."""
PLAIN = (str, int, float, bool, type(None))
"""Types of defaults that need no copy."""
UNUSED = "reward."
"""Section of verl for reward models, which this package does not use."""
MODEL_HINT = (
    "model.path=DIR names a run, a checkpoint or a model's folder; or give a hub id, smollm2-135m, oracle, random, or "
    "python:MODULE:NAME. For a model behind an API set model.api.kind and model.api.name instead."
)

KINDS = {
    "agent_base": ("actor_rollout_ref", "train"),
    "agent_sft": ("episodes", "sft"),
    "agent_dpo": ("preference", "dpo"),
    "agent_eval": ("evaluation", "eval"),
    "agent_evolve": ("evolve", "evolve"),
}
"""Section that only recipes of one kind have, and the command that runs them, by base YAML."""


def check_kind(config: DictConfig, base: str) -> None:
    """Check that the recipe is one for this command.

    Raises:
        ConfigError: the recipe is for another command, or is built on no base.
    """
    section, command = KINDS[base]
    if section in config:
        return
    fitting = [other for key, other in KINDS.values() if key in config]
    hint = f"Run it with `verl-agent {fitting[0]}`." if fitting else f"A recipe begins with `defaults: [{base}]`."
    raise ConfigError(f"this is not a recipe for `verl-agent {command}`: it has no section {section!r}. {hint}")


def check_complete(config: DictConfig) -> None:
    """Check that every key has a value.

    Args:
        config: config as Hydra composed it; interpolations need not be resolved.
    """
    try:
        without_value = OmegaConf.missing_keys(config)
    except InterpolationToMissingValueError:  # raised for a list with an interpolation of such a key
        without_value = {key for key, value in leaves(OmegaConf.to_container(config)) if value == "???"}
    missing = sorted(key for key in without_value if not key.startswith(UNUSED))
    if missing:
        hint = f" {MODEL_HINT}" if "model.path" in missing else ""
        raise ConfigError(f"the config lacks a value for {', '.join(missing)}.{hint}")


@cache
def reference(base: str, *choices: str) -> dict[str, Any]:
    """Return all keys of a base YAML with their unresolved values; callers must not change them.

    A field of a settings class that the YAML does not list has the default of the class.

    Args:
        choices: overrides that choose options of config groups.
    """
    from hydra import compose, initialize_config_module  # takes as long to import as all the rest of a run's supervisor
    from hydra.core.global_hydra import GlobalHydra

    from verl_agent.config.search_path import register_config

    register_config()
    if GlobalHydra.instance().is_initialized():
        config = compose(base, list(choices))
    else:
        with initialize_config_module("verl_agent.config", version_base=None):
            config = compose(base, list(choices))
    plain = {str(key): value for key, value in OmegaConf.to_container(config).items()}
    for section in all_sections():
        node: Any = plain
        for part in section.key.split("."):
            node = node.get(part) if isinstance(node, dict) else None
        if section.base == base and isinstance(node, dict):
            for name, default in plain_defaults(section.kind).items():
                node.setdefault(name, default)
    return plain


def plain_defaults(kind: type) -> dict[str, Any]:
    """Return the defaults of the fields of a settings class that are plain values, by name."""
    found = {one.name: getattr(one.default, "default", one.default) for one in fields(kind)}
    return {name: default for name, default in found.items() if isinstance(default, PLAIN)}


def add_free_keys(argument: str) -> str:
    """Let an override set what its recipe does not list: keyword arguments and fields of settings classes.

    Example:
        >>> add_free_keys("env.options.prompt=short")
        '++env.options.prompt=short'
    """
    own = any(argument.startswith(f"{one.key}.{field.name}=") for one in all_sections() for field in fields(one.kind))
    return f"++{argument}" if (argument.startswith(FREE) and "=" in argument) or own else argument


def as_text(value: Any) -> Any:
    """Return plain values whose texts OmegaConf gives back as they are, such as `${oc.env:HOME}` of a record."""
    if isinstance(value, str):
        return re.sub(r"(\\*)\$\{", lambda found: 2 * found[1] + r"\${", value)
    if isinstance(value, Mapping):
        return {key: as_text(inner) for key, inner in value.items()}
    return [as_text(inner) for inner in value] if isinstance(value, list | tuple) else value


def expand_home(config: DictConfig) -> None:
    """Replace `~` at the start of a path by the home folder, as a shell does, in place.

    Keyword arguments of others stay as they are: a path of theirs may be one inside a sandbox. So do the
    paths of models, because a resumed run compares them; `resolve_model` expands them.
    """
    for key, value in leaves(OmegaConf.to_container(config)):
        expanded = _with_home(value)
        is_own = key.startswith("episodes.explored.") or not is_below(key, FREE)
        if expanded != value and is_own and not key.endswith(("model.path", "model_path")):
            OmegaConf.update(config, key, expanded, merge=False)


def _with_home(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: inner if name == "options" else _with_home(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return list(map(_with_home, value))
    return os.path.expanduser(value) if isinstance(value, str) and value.startswith("~/") else value


def resolve(config: DictConfig) -> None:
    """Replace the interpolations of a config by their values, in place.

    Raises:
        ConfigError: one does not resolve, or a resolved text reads like an interpolation, which verl would resolve.
    """
    try:
        OmegaConf.resolve(config)
    except OmegaConfBaseException as error:
        raise ConfigError(f"the config does not resolve: {error}") from error
    for key, value in leaves(OmegaConf.to_container(config)):
        if "${" in str(value):
            raise ConfigError(
                f"{key}={value!r:.200} is not allowed: verl resolves the config a second time, so a text with `${{` "
                "would change. Put the text into a file or a default of the adapter."
            )


def literal(value: object) -> str:
    """Format a value for Hydra's command line, which returns it unchanged."""
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "null"
    if isinstance(value, str):
        quoted = re.sub(r"(\\*)('|\Z)", lambda found: 2 * found[1] + ("\\'" if found[2] else ""), as_text(value))
        return f"'{quoted}'"
    if isinstance(value, Sequence):
        return "[" + ",".join(map(literal, value)) + "]"
    return str(value)


def leaves(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted key and the value of every leaf of nested mappings; an empty mapping is a leaf."""
    if isinstance(node, dict) and node:
        for key, value in node.items():
            yield from leaves(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, node


def value_at(node: Any, key: str, missing: Any = None) -> Any:
    """Return the value of a dotted key in nested mappings; `missing` without one."""
    for part in key.split("."):
        node = node.get(part, missing) if isinstance(node, Mapping) else missing
    return node


def is_below(key: str, sections: Iterable[str]) -> bool:
    """Return True if a dotted key lies in one of the sections, at the top level or inside a nested recipe.

    Args:
        sections: dotted keys of sections, each with a dot at its end.
    """
    return any(f".{section}" in f".{key}" for section in sections)
