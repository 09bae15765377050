"""Composition of the recipes that the rounds use, and all checks that can fail before the first round."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from verl_agent.config.catalogue import may_change
from verl_agent.config.checks import check_keys
from verl_agent.config.composing import compose_recipe
from verl_agent.config.settings import read_env
from verl_agent.envs.tasks import check_disjoint
from verl_agent.errors import ConfigError
from verl_agent.models.resolve import parameters, resolve_model
from verl_agent.system.resources import checkpoint_gb, most_checkpoints, require_disk
from verl_agent.training.offline.evolve.rounds import (
    EvolveFolder,
    EvolveSettings,
    Exploration,
    evolve_settings,
    folder_names,
)


@dataclass(frozen=True, slots=True)
class Evolution:
    """Checked rounds.

    Attributes:
        base: recorded episodes of the base set: files and folders of them.
        folder: folder of the rounds.
    """

    settings: EvolveSettings
    base: Sequence[str]
    folder: EvolveFolder


def prepare_rounds(config: DictConfig) -> Evolution:
    """Compose and check all recipes, and claim the folder of the rounds.

    Raises:
        ConfigError: a later round would fail, or the folder holds other rounds.
    """
    check_keys(config, "agent_evolve")
    try:
        plain: Any = OmegaConf.to_container(config.evolve, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise ConfigError(f"the config does not resolve: {error}") from error
    settings = evolve_settings(plain)
    GlobalHydra.instance().clear()
    learn = compose_named(settings.learn, "evolve.learn", "agent_sft")
    players = [compose_named(entry.recipe, "evolve.explore.recipe", "agent_eval") for entry in settings.explore]
    for entry, player in zip(settings.explore, players, strict=True):
        check_player(entry, player, learn, settings)
    root = Path(settings.output_dir).resolve()
    folder = EvolveFolder(root, folder_names([player.env.name for player in players]))
    check_space(settings, learn, root)
    recipes = {
        "learn": OmegaConf.to_container(learn),
        "explore": {name: OmegaConf.to_container(player) for name, player in zip(folder.names, players, strict=True)},
    }
    changeable = [
        *may_change("evolve"),
        *(f"learn.{pattern}" for pattern in may_change("learn")),
        *(f"explore.*.{pattern}" for pattern in may_change("play")),
    ]
    folder.claim({"evolve": plain, **recipes}, changeable)
    records = learn.episodes.records
    return Evolution(settings, [records] if isinstance(records, str) else list(records), folder)


def compose_named(recipe: str, key: str, base: str) -> DictConfig:
    """Compose another recipe, as its own command would."""
    path = Path(recipe)
    if not path.is_file():
        raise ConfigError(f"{key}={recipe!r} does not exist. Name a recipe's YAML file.")
    try:
        return compose_recipe(path.resolve(), base)
    except ConfigError as error:
        raise ConfigError(f"{key}={recipe!r}: {error}") from error


def check_player(entry: Exploration, player: DictConfig, learn: DictConfig, settings: EvolveSettings) -> None:
    """Check that the explored tasks exist, are not validated on, and are played as they are trained on."""
    played, learned = (
        read_env({name: OmegaConf.to_container(one[name], resolve=True) for name in ("env", "agent")})
        for one in (player, learn)
    )
    explored = {"evolve.explore.tasks": entry.tasks}
    validated = {f"evaluation.tasks of {entry.recipe}": str(player.evaluation.tasks)}
    tested = {f"env.eval_tasks of {settings.learn}": learned.env.eval_tasks}
    base = {f"env.train_tasks of {settings.learn}": learned.env.train_tasks}  # which every round trains on
    same = learned.env.name == played.env.name
    pairs = [(explored, validated)] if settings.validate else []
    pairs += [(explored, tested)] if same else []
    pairs += [(base, validated)] if same and settings.validate else []
    played.tasks(entry.tasks)
    for sources in pairs:
        train, held_out = (played.tasks(source) for one in sources for source in one.values())
        check_disjoint(train, held_out, {**sources[0], **sources[1]})
    if played.agent != learned.agent:
        raise ConfigError(
            f"{entry.recipe} and {settings.learn} prompt the model differently: section `agent` is {played.agent} "
            f"in the first and {learned.agent} in the second. Use the same in both."
        )
    if same and played.env.options != learned.env.options:
        raise ConfigError(
            f"{entry.recipe} plays {played.env.name!r} with env.options={played.env.options}, and {settings.learn} "
            f"trains on its base set with {learned.env.options}. Use the same in both."
        )
    longest = int(player.data.max_prompt_length) + int(player.data.max_response_length)
    if longest > int(learn.data.max_length):
        raise ConfigError(
            f"{entry.recipe} plays episodes of up to {longest} tokens (data.max_prompt_length and "
            f"data.max_response_length), but {settings.learn} has data.max_length={learn.data.max_length}. Raise it."
        )


def check_space(settings: EvolveSettings, learn: DictConfig, root: Path) -> None:
    """Check that the disk holds one training's checkpoints and the weights of every round."""
    count = parameters(resolve_model(learn.model.path, key="model.path"))
    saved = list(learn.checkpoint.save_contents)
    training = checkpoint_gb(count, saved) * most_checkpoints(learn.trainer.max_ckpt_to_keep)
    weights = checkpoint_gb(count, ["hf_model"]) * (settings.rounds + 1)
    root.mkdir(parents=True, exist_ok=True)
    if "hf_model" not in saved:
        raise ConfigError(
            f"{settings.learn}: checkpoint.save_contents={saved} lacks 'hf_model', from which the policy of a "
            "round is played. Add it."
        )
    require_disk(shutil.disk_usage(root).free, training + weights, root)
