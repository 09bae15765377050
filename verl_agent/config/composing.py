"""Composition of a recipe with overrides, as its command does it, without starting a run."""

from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from verl_agent.config.checks import check_keys
from verl_agent.config.explanation import SHARED, explain_failure
from verl_agent.config.keys import add_free_keys, expand_home
from verl_agent.config.search_path import register_config
from verl_agent.errors import ConfigError
from verl_agent.values import read_text

BASE = "agent_base"


def compose_training(recipe: Path, overrides: Sequence[str], resolve: bool = True) -> dict[str, Any]:
    """Return the config of a recipe of reinforcement learning, in plain values.

    Args:
        recipe: file of the recipe.
        overrides: overrides as on the command line.
        resolve: False to keep references to other keys as text.

    Raises:
        ConfigError: see `compose_recipe`.
    """
    plain: dict[str, Any] = OmegaConf.to_container(compose_recipe(recipe, BASE, overrides), resolve=resolve)
    return plain


def resolved(config: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return sections of an unresolved config with the values of the keys that they refer to."""
    whole = OmegaConf.create(dict(config))
    return {name: OmegaConf.to_container(whole[name], resolve=True) for name in names}


def compose_recipe(recipe: Path, base: str, overrides: Sequence[str] = ()) -> DictConfig:
    """Return the checked config of a recipe on a base YAML.

    Raises:
        ConfigError: the recipe or an override does not compose, or a key has no effect.
    """
    register_config()
    arguments = ["--config-dir", str(recipe.parent), "--config-name", recipe.stem, *overrides]
    check_overlays(arguments)
    try:
        with initialize_config_dir(str(recipe.parent), version_base=None):
            config = compose(recipe.stem, [add_free_keys(one) for one in overrides], return_hydra_config=True)
        HydraConfig.instance().set_config(config)
        with open_dict(config):
            del config["hydra"]
        check_keys(config, base)
        expand_home(config)
    except (HydraException, YAMLError, ValueError) as error:
        if (message := explain_failure(error, arguments, base)) is None:
            raise
        raise ConfigError(message) from error
    return config


def check_overlays(arguments: Sequence[str]) -> None:
    """Check that every group of overlays on a command line exists; Hydra takes an unknown group for a new key.

    Raises:
        ConfigError: a group does not exist.
    """
    folders = [SHARED]
    for index, argument in enumerate(arguments):
        name, _, value = argument.partition("=")
        if name in ("--config-dir", "-cd"):
            folders += map(Path, [value] if value else arguments[index + 1 : index + 2])
    groups = {f"overlay/{path.name}" for folder in folders for path in folder.glob("overlay/*") if path.is_dir()}
    for argument in arguments:
        group = argument.removeprefix("+").partition("=")[0].partition("@")[0]
        if argument.startswith("+overlay") and group not in groups:
            raise ConfigError(f"{argument}: there is no group {group!r}. Groups: {', '.join(sorted(groups))}.")


def read_yaml(file: Path, advice: str) -> Any:
    """Return the plain content of a YAML file.

    Args:
        advice: what to do, for the error.

    Raises:
        ConfigError: it cannot be read, is no mapping or list, or a key stands twice.
    """
    try:
        return OmegaConf.to_container(OmegaConf.load(StringIO(read_text(file))))
    except (ConfigError, YAMLError, OmegaConfBaseException) as error:
        said = error if isinstance(error, ConfigError) else f"{file} cannot be read: {error}."
        raise ConfigError(f"{said} {advice}".strip()) from error
