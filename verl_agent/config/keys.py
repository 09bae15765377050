"""Refuse settings that nothing reads: to Hydra a misspelt key in a YAML file is simply a new key."""

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


def check_keys(config: DictConfig, base: str) -> None:
    """Compare the keys of a config with those of the base that its recipe is built on.

    Args:
        config: as Hydra composed it.
        base: one of `KINDS`.

    Raises:
        ConfigError: a key that neither verl nor this package reads.
    """
    strategy = OmegaConf.select(config, "actor_rollout_ref.actor.strategy")
    known = reference(base, *(["model_engine=megatron"] if strategy == "megatron" else []))
    for key in leaves(OmegaConf.to_container(config)):
        if not key.startswith(FREE) and not key.endswith(FIELDS):
            _find(known, key)


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


def leaves(node: Any, prefix: str = "") -> Iterator[str]:
    """Dotted names of all values of nested mappings; an empty mapping is a value."""
    if isinstance(node, dict) and node:
        for key, value in node.items():
            yield from leaves(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix


def _find(known: dict[str, Any], key: str) -> None:
    node: Any = known
    walked: list[str] = []
    for part in key.split("."):
        if not isinstance(node, dict):
            return  # the base has a plain value or null there, below which all names are free
        if part not in node:
            where = ".".join(walked) or "the top level"
            raise ConfigError(f"{key} is not a setting: {where} has no {part!r}. {did_you_mean(part, map(str, node))}")
        node = node[part]
        walked.append(part)
