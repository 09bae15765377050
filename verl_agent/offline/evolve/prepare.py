"""Compose the recipes that the rounds will use, and refuse before the first one what would stop a later one."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from verl_agent.config.keys import check_keys, check_kind
from verl_agent.config.settings import agent_settings, env_options
from verl_agent.envs.tasks import check_disjoint, select_tasks
from verl_agent.errors import ConfigError
from verl_agent.models.resolve import parameters, resolve_model
from verl_agent.offline.evolve.rounds import EvolveFolder, EvolveSettings, Exploration, folder_names
from verl_agent.offline.selection import fingerprint
from verl_agent.sections import section
from verl_agent.system.resources import disk_needed, require_disk


@dataclass(frozen=True, slots=True)
class Evolution:
    """All rounds, checked.

    Attributes:
        settings: section `evolve`.
        learn: the composed recipe of supervised training.
        folder: where the rounds lie.
        identity: what the rounds keep from the first to the last.
    """

    settings: EvolveSettings
    learn: DictConfig
    folder: EvolveFolder
    identity: dict[str, Any]


def prepare(config: DictConfig) -> Evolution:
    """Compose and check everything that the rounds will need.

    Raises:
        ConfigError: anything that would stop a later round.
    """
    check_keys(config, "agent_evolve")
    try:
        plain: Any = OmegaConf.to_container(config.evolve, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise ConfigError(f"the config does not resolve: {error}") from error
    explore = [section("evolve.explore", Exploration, entry) for entry in plain["explore"]]
    settings: EvolveSettings = section("evolve", EvolveSettings, {**plain, "explore": explore})
    GlobalHydra.instance().clear()
    learn = composed(settings.learn, "evolve.learn", "agent_sft")
    players = [composed(entry.recipe, "evolve.explore.recipe", "agent_eval") for entry in explore]
    for entry, player in zip(explore, players, strict=True):
        check_player(entry, player, learn, settings)
    root = Path(settings.output_dir).resolve()
    folder = EvolveFolder(root, folder_names([player.env.name for player in players]))
    check_room(settings, learn, root)
    kept = {key: value for key, value in plain.items() if key not in ("rounds", "validate", "output_dir")}
    recipes = {path: fingerprint(OmegaConf.to_container(one)) for path, one in named(settings, learn, players).items()}
    identity = {**kept, **recipes}
    folder.claim(identity)
    return Evolution(settings, learn, folder, identity)


def composed(recipe: str, key: str, base: str) -> DictConfig:
    """Another recipe, as its own command would compose it.

    Raises:
        ConfigError: it does not exist, does not compose, or is one of another kind.
    """
    path = Path(recipe)
    if not path.is_file():
        raise ConfigError(f"{key}={recipe!r} does not exist. Name a recipe's YAML file.")
    try:
        with initialize_config_dir(str(path.resolve().parent), version_base=None):
            config = compose(path.stem)
    except HydraException as error:
        raise ConfigError(f"{key}={recipe!r} does not compose: {error}") from error
    try:
        check_kind(config, base)
        check_keys(config, base)
    except ConfigError as error:
        raise ConfigError(f"{key}={recipe!r}: {error}") from error
    return config


def named(settings: EvolveSettings, learn: DictConfig, players: Sequence[DictConfig]) -> dict[str, DictConfig]:
    """The recipes by their paths."""
    return {
        settings.learn: learn,
        **{one.recipe: config for one, config in zip(settings.explore, players, strict=True)},
    }


def check_player(entry: Exploration, player: DictConfig, learn: DictConfig, settings: EvolveSettings) -> None:
    """What is explored exists, is held out from no validation, and fits into what is learnt.

    Raises:
        ConfigError: it does not.
    """
    env, options = player.env.name, env_options(player)
    select_tasks(env, entry.tasks, options)
    explored, validated = "evolve.explore.tasks", f"evaluation.tasks of {entry.recipe}"
    if settings.validate:
        check_disjoint(env, entry.tasks, player.evaluation.tasks, options, (explored, validated))
    if learn.env.name == env:
        check_disjoint(
            env, entry.tasks, learn.env.eval_tasks, options, (explored, f"env.eval_tasks of {settings.learn}")
        )
    if settings.validate and learn.env.name == env:  # the base set, which every round learns
        base = f"env.train_tasks of {settings.learn}"
        check_disjoint(env, learn.env.train_tasks, player.evaluation.tasks, options, (base, validated))
    sections = [agent_settings(one) for one in (player, learn)]
    if sections[0] != sections[1]:
        raise ConfigError(
            f"{entry.recipe} and {settings.learn} put different words around an episode: the section `agent` is "
            f"{sections[0]} in the one and {sections[1]} in the other. Give both the same."
        )
    if learn.env.name == env and options != (others := env_options(learn)):
        raise ConfigError(
            f"{entry.recipe} plays {env!r} with env.options={options}, and {settings.learn} learns its base set with "
            f"{others}: one policy would meet two wordings. Give both the same."
        )
    longest = int(player.data.max_prompt_length) + int(player.data.max_response_length)
    if longest > int(learn.data.max_length):
        raise ConfigError(
            f"{entry.recipe} plays episodes of up to {longest} tokens (data.max_prompt_length and "
            f"data.max_response_length), {settings.learn} learns at most data.max_length={learn.data.max_length}. "
            "Raise it."
        )


def check_room(settings: EvolveSettings, learn: DictConfig, root: Path) -> None:
    """The disk holds one training's checkpoints and the weights of every round.

    Raises:
        ConfigError: it does not.
    """
    count = parameters(resolve_model(learn.model.path, key="model.path"))
    saved = list(learn.checkpoint.save_contents)
    training = disk_needed(count, saved, learn.trainer.max_ckpt_to_keep)
    weights = disk_needed(count, ["hf_model"], settings.rounds)
    root.mkdir(parents=True, exist_ok=True)
    if "hf_model" not in saved:
        raise ConfigError(
            f"{settings.learn}: checkpoint.save_contents={saved} lacks 'hf_model', which the policy of a round is "
            "played from. Add it."
        )
    require_disk(shutil.disk_usage(root).free, training + weights, root)
