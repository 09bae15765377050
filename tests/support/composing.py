"""Compose recipes as the entry points do, without starting anything."""

from collections.abc import Iterator
from contextlib import chdir
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf, open_dict

import verl_agent.config
from verl_agent.config.search_path import register_config

ROOT = Path(__file__).parents[2]
SHARED = Path(verl_agent.config.__file__).parent
BASES = ("agent_base", "agent_sft", "agent_dpo", "agent_eval", "agent_evolve")
FROM_COMMAND = {"webarena": f"++env.options.access.auth={ROOT}"}
"""What no recipe can know of an environment, and the README sets in its commands: here a folder of logins."""
RECIPES = sorted(ROOT.glob("recipes/*/*.yaml"))


def recipe(path: Path, *overrides: str) -> DictConfig:
    """A recipe as `@hydra.main` hands it over; `${hydra:...}` in it stands for the recipe composed last."""
    whole = deepcopy(_composed(path, overrides))
    HydraConfig.instance().set_config(whole)
    config = deepcopy(whole)
    with open_dict(config):
        del config["hydra"]
    return config


@cache
def _composed(path: Path, overrides: tuple[str, ...]) -> DictConfig:
    register_config()
    own = [FROM_COMMAND[path.parent.name]] if path.parent.name in FROM_COMMAND and kind(path) != "agent_evolve" else []
    with chdir(ROOT), initialize_config_dir(str(path.parent), version_base=None):
        return compose(path.stem, [*own, *overrides], return_hydra_config=True)


def kind(path: Path) -> str:
    """Which of our bases a recipe is built on, told by its defaults."""
    for default in OmegaConf.load(path).get("defaults", []):
        if default in BASES:
            return str(default)
        if path.with_name(f"{default}.yaml").is_file():
            return kind(path.with_name(f"{default}.yaml"))
        if SHARED.joinpath(f"{default}.yaml").is_file() and not default.startswith("cpu"):
            return kind(SHARED / f"{default}.yaml")
    raise AssertionError(f"{path} is built on none of {', '.join(BASES)}")


def leaves(node: Any, prefix: str = "") -> Iterator[str]:
    """Dotted names of all values of nested mappings; an empty mapping is a value."""
    if isinstance(node, dict) and node:
        for key, value in node.items():
            yield from leaves(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix


def written_in(path: Path) -> set[str]:
    """What a YAML file sets by itself, without what it builds on."""
    content = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    assert isinstance(content, dict)
    return set(leaves({key: value for key, value in content.items() if key not in ("defaults", "hydra")}))


def accepted_by_verl(config: DictConfig) -> None:
    """Pass a resolved training config through verl's validation and into its dataclasses.

    The critic is built without the section of its model, which would fetch one.
    """
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    validate_config(config, need_reference_policy(config), False)
    for section in (config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout, config.algorithm):
        omega_conf_to_dataclass(section)
    if need_critic(config):
        critic = omega_conf_to_dataclass(OmegaConf.merge(config.critic, {"model": None}))
        critic.validate(config.trainer.n_gpus_per_node * config.trainer.nnodes, config.data.train_batch_size)
