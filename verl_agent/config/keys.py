"""Refuse settings that nothing reads, and words for numbers: Hydra takes any key of a YAML file, and any value."""

from collections.abc import Iterator
from functools import cache
from typing import Any

from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf

from verl_agent.config.search_path import register_config
from verl_agent.errors import ConfigError, did_you_mean

FREE = (
    "env.options.",
    "agent.options.",
    "data.apply_chat_template_kwargs.",
    "actor_rollout_ref.model.override_config.",
    "critic.model.override_config.",
    "model.override_config.",
    "actor_rollout_ref.rollout.engine_kwargs.",
    "ray_kwargs.ray_init.",
)
"""Keyword arguments that others define and check themselves."""
FIELDS = (
    ".enable_sleep_mode",
    ".mixed_precision.param_dtype",
    ".mixed_precision.reduce_dtype",
    ".mixed_precision.buffer_dtype",
)
"""Fields of verl's dataclasses that its YAML does not list."""
UNUSED = "reward."
"""verl's section for reward models, which take no part."""
MODEL_HINT = "model.path=DIR names a run, a checkpoint or a model's folder; or give a hub id, smollm2-135m, or oracle."
EACH_EPOCH = "after_each_epoch"
"""What verl's SFT trainer takes for `FREQUENCIES`, beside numbers."""
SEVERAL_KINDS = ("horizon.steps_per_stage", "algorithm.rollout_correction.rollout_is_threshold")
"""Settings that take other kinds of values than their default is of, and are checked by who reads them."""
FREQUENCIES = ("trainer.save_freq", "trainer.test_freq")
OFFLINE = ("agent_sft", "agent_dpo")


KINDS = {
    "agent_base": ("actor_rollout_ref", "train"),
    "agent_sft": ("episodes", "sft"),
    "agent_dpo": ("preference", "dpo"),
    "agent_eval": ("evaluation", "eval"),
    "agent_evolve": ("evolve", "evolve"),
}
"""The section that only one kind of recipe has at its top, and the command for it, by base."""


def check_kind(config: DictConfig, base: str) -> None:
    """The recipe is one for this command.

    Args:
        config: as Hydra composed it.
        base: see `check_keys`.

    Raises:
        ConfigError: it is for another command.
    """
    section, command = KINDS[base]
    if section in config:
        return
    fitting = [other for key, other in KINDS.values() if key in config]
    hint = f"It is one for `verl-agent {fitting[0]}`." if fitting else f"A recipe begins with `defaults: [{base}]`."
    raise ConfigError(f"this is no recipe for `verl-agent {command}`: it has no section {section!r}. {hint}")


def check_complete(config: DictConfig) -> None:
    """Every setting has a value.

    Args:
        config: as Hydra composed it; interpolations need not be resolved.

    Raises:
        ConfigError: some have none.
    """
    missing = sorted(key for key in OmegaConf.missing_keys(config) if not key.startswith(UNUSED))
    if missing:
        hint = f" {MODEL_HINT}" if "model.path" in missing else ""
        raise ConfigError(f"the config lacks a value for {', '.join(missing)}.{hint}")


def check_keys(config: DictConfig, base: str) -> None:
    """Compare the keys of a config, and the kinds of their values, with the base that its recipe is built on.

    Args:
        config: as Hydra composed it.
        base: one of `KINDS`.

    Raises:
        ConfigError: a key that neither verl nor this package reads, or a value of another kind than the base's.
    """
    strategy = OmegaConf.select(config, "actor_rollout_ref.actor.strategy")
    known = reference(base, *(["model_engine=megatron"] if strategy == "megatron" else []))
    for key, value in leaves(OmegaConf.to_container(config)):
        if not key.startswith(FREE) and not key.endswith(FIELDS):
            default = _find(known, key)
            if key in SEVERAL_KINDS or (base in OFFLINE and key in FREQUENCIES and value == EACH_EPOCH):
                continue
            _check_kind_of(key, value, -1 if key in FREQUENCIES else default)


@cache
def reference(base: str, *choices: str) -> dict[str, Any]:
    """All keys of a base with other choices of config groups, its values unresolved; not to be changed."""
    register_config()
    if GlobalHydra.instance().is_initialized():
        config = compose(base, list(choices))
    else:
        with initialize_config_module("verl_agent.config", version_base=None):
            config = compose(base, list(choices))
    return {str(key): value for key, value in OmegaConf.to_container(config).items()}


def leaves(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names of all values of nested mappings, and the values; an empty mapping is a value."""
    if isinstance(node, dict) and node:
        for key, value in node.items():
            yield from leaves(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, node


def _find(known: dict[str, Any], key: str) -> Any:
    """What the base has at a key; None where it leaves free what stands there."""
    node: Any = known
    walked: list[str] = []
    for part in key.split("."):
        if not isinstance(node, dict):
            return None  # the base has a plain value or null there, below which all names are free
        if part not in node:
            where = ".".join(walked) or "the top level"
            raise ConfigError(f"{key} is not a setting: {where} has no {part!r}. {did_you_mean(part, map(str, node))}")
        node = node[part]
        walked.append(part)
    return node


def _check_kind_of(key: str, value: Any, default: Any) -> None:
    """A value is of its default's kind, as far as that tells: null and what is interpolated may be anything."""
    if value is None or (isinstance(value, str) and "${" in value):
        return
    if isinstance(default, bool):
        fits, allowed = isinstance(value, bool), "true or false"
    elif isinstance(default, int | float):
        fits, allowed = isinstance(value, int | float) and not isinstance(value, bool), f"a number, such as {default}"
    elif isinstance(default, dict):
        fits, allowed = isinstance(value, dict), f"a section with the keys {', '.join(map(str, default)) or 'you need'}"
    else:
        return
    if not fits:
        raise ConfigError(f"{key}={value!r} is not allowed. Allowed: {allowed}.")
