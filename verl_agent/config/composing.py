"""Composition of a recipe with overrides, as its command does it, without starting a run."""

import re
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from yaml import MarkedYAMLError

from verl_agent.config.checks import check_keys
from verl_agent.config.explanation import SHARED, explain_failure
from verl_agent.config.keys import add_free_keys
from verl_agent.config.search_path import register_config
from verl_agent.errors import ConfigError

BASE = "agent_base"
VALUE = re.compile(r"[\w-]+(\.[\w-]+)+")
"""Key of a value in a section. A group, which chooses a file, has no dot or also a slash."""


def compose_training(recipe: Path, overrides: Sequence[str], resolve: bool = True) -> dict[str, Any]:
    """Return the config of a recipe of reinforcement learning, see `RecipeComposer.plain`."""
    return RecipeComposer(recipe, BASE).plain(overrides, resolve)


def compose_recipe(recipe: Path, base: str, overrides: Sequence[str] = ()) -> DictConfig:
    """Return the checked config of a recipe on a base YAML, see `RecipeComposer.compose`."""
    return RecipeComposer(recipe, base).compose(overrides)


class RecipeComposer:
    """Composes a recipe on a base YAML with several lists of overrides.

    Lists that differ only in the values at their end are composed once, because that takes most of the time.
    """

    def __init__(self, recipe: Path, base: str = BASE) -> None:
        self._recipe, self._base = recipe, base
        self._composed: dict[tuple[str, ...], DictConfig] = {}

    def plain(self, overrides: Sequence[str], resolve: bool = True) -> dict[str, Any]:
        """Return the config in plain values.

        Args:
            overrides: overrides as on the command line.
            resolve: False to keep references to other keys as text.

        Raises:
            ConfigError: see `compose`.
        """
        plain: dict[str, Any] = OmegaConf.to_container(self.compose(overrides), resolve=resolve)
        return plain

    def compose(self, overrides: Sequence[str] = ()) -> DictConfig:
        """Return the checked config.

        Raises:
            ConfigError: the recipe or an override does not compose, or a key has no effect.
        """
        register_config()
        arguments = ["--config-dir", str(self._recipe.parent), "--config-name", self._recipe.stem, *overrides]
        check_overlays(arguments)
        try:
            config = self._with_overrides([add_free_keys(one) for one in overrides])
            HydraConfig.instance().set_config(config)
            with open_dict(config):
                del config["hydra"]
            check_keys(config, self._base)
        except (HydraException, MarkedYAMLError, ValueError) as error:
            if (message := explain_failure(error, arguments, self._base)) is None:
                raise
            raise ConfigError(message) from error
        return config

    def _with_overrides(self, overrides: Sequence[str]) -> DictConfig:
        """Let Hydra compose, but for the last overrides that set values, which are then applied as Hydra does it."""
        parsed = OverridesParser.create().parse_overrides(list(overrides))
        values: list[Override] = []
        while parsed and VALUE.fullmatch(parsed[-1].key_or_group) and not parsed[-1].is_sweep_override():
            values.insert(0, parsed.pop())
        others = tuple(overrides[: len(parsed)])
        if others not in self._composed:
            with initialize_config_dir(str(self._recipe.parent), version_base=None):
                self._composed[others] = compose(self._recipe.stem, list(others), return_hydra_config=True)
        config = deepcopy(self._composed[others])
        ConfigLoaderImpl._apply_overrides_to_config(values, config)
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
