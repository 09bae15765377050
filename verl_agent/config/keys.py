"""Validation of config keys: Hydra accepts any key of a YAML file and any value."""

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationToMissingValueError

from verl_agent.config.search_path import register_config
from verl_agent.errors import ConfigError, did_you_mean

FREE = (
    "env.options.",
    "agent.options.",
    "data.apply_chat_template_kwargs.",
    "actor_rollout_ref.model.override_config.",
    "critic.model.override_config.",
    "model.override_config.",
    "model.api.options.",
    "actor_rollout_ref.rollout.engine_kwargs.",
    "ray_kwargs.ray_init.",
)
"""Sections of keyword arguments whose receiver checks the keys."""
FIELDS = (
    ".enable_sleep_mode",
    ".mixed_precision.param_dtype",
    ".mixed_precision.reduce_dtype",
    ".mixed_precision.buffer_dtype",
    ".ppo_infer_max_token_len_per_gpu",
)
"""Fields of verl's dataclasses that its YAML does not list."""
UNUSED = "reward."
"""Section of verl for reward models, which this package does not use."""
MODEL_HINT = (
    "model.path=DIR names a run, a checkpoint or a model's folder; or give a hub id, smollm2-135m, oracle, random, or "
    "python:MODULE:NAME. For a model behind an API set model.api.kind and model.api.name instead."
)
EACH_EPOCH = "after_each_epoch"
"""Value of verl's SFT trainer for `FREQUENCIES`, besides numbers."""
SEVERAL_TYPES = ("horizon.steps_per_stage", "algorithm.rollout_correction.rollout_is_threshold")
"""Keys that accept values of another type than their default's; their reader checks them."""
FREQUENCIES = ("trainer.save_freq", "trainer.test_freq")
OFFLINE = ("agent_sft", "agent_dpo")


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

    Args:
        config: config as Hydra composed it.
        base: base YAML of the command, a key of `KINDS`.

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

    Raises:
        ConfigError: keys without a value (`???`).
    """
    try:
        without_value = OmegaConf.missing_keys(config)
    except InterpolationToMissingValueError:  # raised for a list with an interpolation of such a key
        without_value = {key for key, value in leaves(OmegaConf.to_container(config)) if value == "???"}
    missing = sorted(key for key in without_value if not key.startswith(UNUSED))
    if missing:
        hint = f" {MODEL_HINT}" if "model.path" in missing else ""
        raise ConfigError(f"the config lacks a value for {', '.join(missing)}.{hint}")


def check_keys(config: DictConfig, base: str) -> None:
    """Compare the keys of a config and the types of their values with the base YAML of its recipe.

    Args:
        config: config as Hydra composed it.
        base: base YAML of the recipe, a key of `KINDS`.

    Raises:
        ConfigError: a key that neither verl nor this package reads, or a value of another type than the base's.
    """
    plain = OmegaConf.to_container(config)
    megatron = OmegaConf.select(config, "actor_rollout_ref.actor.strategy") == "megatron"
    known = reference(base, *(["model_engine=megatron"] if megatron else []))
    for key, value in leaves(plain):
        free = next((prefix for prefix in FREE if key.startswith(prefix)), None)
        if free is not None:
            _find(known, free.rstrip("."))
        elif not key.endswith(FIELDS):
            default = _find(known, key)
            if key in SEVERAL_TYPES or (base in OFFLINE and key in FREQUENCIES and value == EACH_EPOCH):
                continue
            _check_type(key, value, -1 if key in FREQUENCIES else default)


@cache
def reference(base: str, *choices: str) -> dict[str, Any]:
    """Return all keys of a base YAML with their unresolved values; callers must not change them.

    Args:
        base: name of the base YAML.
        choices: overrides that choose options of config groups.
    """
    register_config()
    if GlobalHydra.instance().is_initialized():
        config = compose(base, list(choices))
    else:
        with initialize_config_module("verl_agent.config", version_base=None):
            config = compose(base, list(choices))
    return {str(key): value for key, value in OmegaConf.to_container(config).items()}


def add_free_keys(argument: str) -> str:
    """Let an override set keyword arguments that its recipe does not list; their receiver checks them.

    Example:
        >>> add_free_keys("env.options.prompt=short")
        '++env.options.prompt=short'
    """
    return f"++{argument}" if argument.startswith(FREE) and "=" in argument else argument


def leaves(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted key and the value of every leaf of nested mappings; an empty mapping is a leaf."""
    if isinstance(node, dict) and node:
        for key, value in node.items():
            yield from leaves(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, node


def is_below(key: str, sections: Iterable[str]) -> bool:
    """Return True if a dotted key lies in one of the sections, at the top level or inside a nested recipe.

    Args:
        key: dotted key.
        sections: dotted keys of sections, each with a dot at its end.
    """
    return any(f".{section}" in f".{key}" for section in sections)


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
