"""Composition of recipes as the commands do it, without starting a run."""

import pickle
from collections.abc import Iterator
from contextlib import chdir
from functools import cache
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir, initialize_config_module
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf, open_dict

import verl_agent.config
from tests import ROOT
from verl_agent.config.checks import check_keys
from verl_agent.config.search_path import register_config
from verl_agent.training.preflight.condition_table import CONDITIONS
from verl_agent.training.preflight.conditions import check_conditions

SHARED = Path(verl_agent.config.__file__).parent
BASES = ("agent_base", "agent_sft", "agent_dpo", "agent_eval", "agent_evolve")
FROM_COMMAND = {"webarena": f"++env.options.access.auth={ROOT}"}
"""Overrides that a recipe cannot contain and the README puts into its commands, such as a folder of logins."""
OVERLAYS = SHARED / "overlay"
NEEDED = ["env.name=guess_number", "trainer.experiment_name=test", "data.train_batch_size=4"]
COMMON = sorted([*ROOT.glob("recipes/*/env*.yaml"), *ROOT.glob("recipes/*/limits*.yaml")])
"""Files that the recipes of one folder share; not recipes themselves."""
STUDIES = [path for path in sorted(ROOT.glob("recipes/studies/*.yaml")) if "\nquestion:" in path.read_text("utf-8")]
"""Files of `verl-agent study`, which are no recipes."""
RECIPES = [path for path in sorted(ROOT.glob("recipes/*/*.yaml")) if path not in (*COMMON, *STUDIES)]


def recipe(path: Path, *overrides: str) -> DictConfig:
    """Return a recipe as `@hydra.main` passes it on; `${hydra:...}` refers to the recipe composed last."""
    whole, config = map(pickle.loads, _composed(path, overrides))
    HydraConfig.instance().set_config(whole)
    assert isinstance(config, DictConfig)
    return config


def merged(path: Path, *changes: str) -> DictConfig:
    """Return a recipe with overlays and `key=value` changes; merging them is much quicker than composing."""
    config = recipe(path)
    OmegaConf.set_struct(config, False)
    for change in changes:
        overlay = change.removeprefix("+overlay/")
        read = OmegaConf.load(OVERLAYS / f"{overlay.replace('=', '/')}.yaml") if overlay != change else None
        config.merge_with(OmegaConf.from_dotlist([change]) if read is None else read)
    return config


def check_settings(path: Path, *changes: str) -> None:
    """Run the checks of a training run's settings that precede those of environments and models."""
    config = merged(path, *changes)
    check_keys(config, "agent_base")
    check_conditions(OmegaConf.to_container(config, resolve=True), CONDITIONS)


@cache
def _composed(path: Path, overrides: tuple[str, ...]) -> tuple[bytes, bytes]:
    """Return a composed config with and without Hydra's section; a copy of a pickled config takes a tenth."""
    register_config()
    own = [FROM_COMMAND[path.parent.name]] if path.parent.name in FROM_COMMAND and kind(path) != "agent_evolve" else []
    with chdir(ROOT), initialize_config_dir(str(path.parent), version_base=None):
        config = compose(path.stem, [*own, *overrides], return_hydra_config=True)
    whole = pickle.dumps(config)
    with open_dict(config):
        del config["hydra"]
    return whole, pickle.dumps(config)


@cache
def grpo_base() -> DictConfig:
    """Return the composed base of a training command, without a recipe."""
    register_config()
    with initialize_config_module("verl_agent.config", version_base=None):
        return compose("agent_grpo", NEEDED)


def kind(path: Path) -> str:
    """Return the base config on which a recipe is built, according to its `defaults`."""
    for default in defaults(path):
        if default in BASES:
            return default
        if path.with_name(f"{default}.yaml").is_file():
            return kind(path.with_name(f"{default}.yaml"))
        if SHARED.joinpath(f"{default}.yaml").is_file() and not default.startswith("cpu"):
            return kind(SHARED / f"{default}.yaml")
    raise AssertionError(f"{path} is built on none of {', '.join(BASES)}")


@cache
def defaults(path: Path) -> list[str]:
    """Return the entries of a recipe's `defaults`."""
    return [str(entry) for entry in OmegaConf.load(path).get("defaults", [])]


def leaves(node: Any, prefix: str = "") -> Iterator[str]:
    """Yield the dotted names of all values of nested mappings; an empty mapping counts as a value."""
    if isinstance(node, dict) and node:
        for key, value in node.items():
            yield from leaves(value, f"{prefix}.{key}" if prefix else str(key))
    elif prefix:
        yield prefix


def written_in(path: Path) -> set[str]:
    """Return the dotted names of the values that a YAML file sets itself, without those of its `defaults`."""
    content = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    assert isinstance(content, dict)
    return set(leaves({key: value for key, value in content.items() if key not in ("defaults", "hydra")}))


def accepted_by_verl(config: DictConfig) -> None:
    """Pass a resolved training config through verl's validation and into its dataclasses.

    The critic is built without the section of its model, which would download one.
    """
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    validate_config(config, need_reference_policy(config), False)
    for section in (config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout, config.algorithm):
        omega_conf_to_dataclass(section)
    if need_critic(config):
        critic = omega_conf_to_dataclass(OmegaConf.merge(config.critic, {"model": None}))
        critic.validate(config.trainer.n_gpus_per_node * config.trainer.nnodes, config.data.train_batch_size)
