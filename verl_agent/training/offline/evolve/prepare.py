"""Composition of the recipes that the rounds use, and all checks that can fail before the first round."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from verl_agent.agents.settings import AgentSettings
from verl_agent.config.catalogue import may_change
from verl_agent.config.composing import compose_recipe, resolved
from verl_agent.config.keys import KINDS, leaves, literal
from verl_agent.config.plan import OfflinePlan
from verl_agent.config.plan_parts import Lengths, read_part
from verl_agent.config.settings import read_env
from verl_agent.envs.tasks import check_disjoint
from verl_agent.errors import ConfigError
from verl_agent.models.resolve import parameters
from verl_agent.system.resources import checkpoint_gb, most_checkpoints
from verl_agent.training.offline.evolve.rounds import (
    EvolveFolder,
    EvolveSettings,
    Exploration,
    evolve_settings,
    folder_names,
    phases,
)
from verl_agent.training.offline.play import check_play
from verl_agent.training.offline.selection import NamedTask


@dataclass(frozen=True, slots=True)
class Evolution:
    """Checked rounds.

    Attributes:
        folder: folder of the rounds.
        recipes: settings that identify the rounds: section `evolve` and the recipes that it names.
        needed_gb: estimated GB of all files.
    """

    settings: EvolveSettings
    folder: EvolveFolder
    recipes: Mapping[str, Any]
    needed_gb: float

    def claim(self) -> None:
        """Claim the folder of the rounds.

        Raises:
            ConfigError: it holds other rounds, or is in use.
        """
        changeable = [
            *may_change("evolve"),
            *(f"learn.{pattern}" for pattern in may_change("learn")),
            *(f"explore.*.{pattern}" for pattern in may_change("play")),
        ]
        self.folder.claim(self.recipes, changeable)

    @property
    def is_done(self) -> bool:
        """True if no phase is left."""
        return all(str(phase) in self.folder.done for phase in phases(self.settings))


def prepare_rounds(config: DictConfig) -> Evolution:
    """Compose and check all recipes.

    Raises:
        ConfigError: a later round would fail.
    """
    try:
        plain: Any = OmegaConf.to_container(config.evolve, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise ConfigError(f"the config does not resolve: {error}") from error
    settings = evolve_settings(plain)
    learn = compose_named(settings.learn, "evolve.learn", "agent_sft")
    players = [compose_named(entry.recipe, "evolve.explore.recipe", "agent_eval") for entry in settings.explore]
    learning = OfflinePlan.of(resolved(learn, ("env", "agent", "data", "model", "checkpoint", "trainer", "episodes")))
    explored: set[NamedTask] = set()  # each may be among the episodes of a later round
    for entry, player in zip(settings.explore, players, strict=True):
        explored |= check_player(entry, resolved(player, ("env", "agent", "data", "evaluation")), learning, settings)
    try:
        check_play(learning, explored)
    except ConfigError as error:
        raise ConfigError(f"evolve.learn={settings.learn!r} on the episodes of evolve.explore: {error}") from error
    folder = EvolveFolder(Path(settings.output_dir).resolve(), folder_names([one["env"]["name"] for one in players]))
    recipes = {"evolve": plain, "learn": learn, "explore": dict(zip(folder.names, players, strict=True))}
    return Evolution(settings, folder, recipes, needed_gb(settings, learning))


def compose_named(recipe: str, key: str, base: str) -> dict[str, Any]:
    """Compose another recipe, as its own command would; return its settings, whose interpolations are not resolved."""
    GlobalHydra.instance().clear()  # of this command's own recipe, which is composed
    path = Path(recipe)
    if not path.is_file():
        raise ConfigError(f"{key}={recipe!r} does not exist. Name a recipe's YAML file.")
    if path.suffix != ".yaml":  # the only one that Hydra reads
        raise ConfigError(f"{key}={recipe!r} is no recipe. Allowed: a .yaml file for `verl-agent {KINDS[base][1]}`.")
    try:
        plain: dict[str, Any] = OmegaConf.to_container(compose_recipe(path.resolve(), base))
    except ConfigError as error:
        raise ConfigError(f"{key}={recipe!r}: {error}") from error
    return plain


def check_player(
    entry: Exploration, player: Mapping[str, Any], learn: OfflinePlan, settings: EvolveSettings
) -> set[NamedTask]:
    """Check that the explored tasks exist, are not validated on, and are played as they are trained on; return them."""
    played, learned, lengths = read_env(player), learn.played, read_part(Lengths, player)
    explored = {"evolve.explore.tasks": entry.tasks}
    validated = {f"evaluation.tasks of {entry.recipe}": str(player["evaluation"]["tasks"])}
    tested = {f"env.eval_tasks of {settings.learn}": learned.env.eval_tasks}
    base = {f"env.train_tasks of {settings.learn}": learned.env.train_tasks}  # which every round trains on
    same = learned.env.name == played.env.name
    pairs = [(explored, validated)] if settings.validate else []
    pairs += [(explored, tested)] if same else []
    pairs += [(base, validated)] if same and settings.validate else []
    tasks = played.tasks(entry.tasks)
    for sources in pairs:
        train, held_out = (played.tasks(source) for one in sources for source in one.values())
        check_disjoint(train, held_out, {**sources[0], **sources[1]})
    if played.agent != learned.agent:
        first, second = differing_agents(played.agent, learned.agent)
        raise ConfigError(
            f"{entry.recipe} and {settings.learn} prompt the model differently: the first has {first}, and the second "
            f"{second}. Use the same in both."
        )
    if same and played.env.options != learned.env.options:
        raise ConfigError(
            f"{entry.recipe} plays {played.env.name!r} with env.options={played.env.options}, and {settings.learn} "
            f"trains on its base set with {learned.env.options}. Use the same in both."
        )
    if lengths.episode > int(learn.lengths.row):
        raise ConfigError(
            f"{entry.recipe} plays episodes of up to {lengths.episode} tokens (data.max_prompt_length and "
            f"data.max_response_length), but {settings.learn} has data.max_length={learn.lengths.row}. Raise it."
        )
    return {(item.env, item.id) for item in tasks}


def differing_agents(first: AgentSettings, second: AgentSettings) -> tuple[str, str]:
    """Return the keys of section `agent` that differ between two recipes, with the values of each, in words."""
    left, right = (
        {key: value if isinstance(value, str) else literal(value) for key, value in leaves(asdict(one), "agent")}
        for one in (first, second)
    )
    keys = [key for key in sorted({**left, **right}) if left.get(key) != right.get(key)]
    # A section that is empty on one side has keys on the other, which say more.
    keys = [key for key in keys if "{}" not in (left.get(key), right.get(key))] or keys
    first_said, second_said = (
        ", ".join(f"{key}={values[key]}" if key in values else f"{key} unset" for key in keys)
        for values in (left, right)
    )
    return first_said, second_said


def needed_gb(settings: EvolveSettings, learn: OfflinePlan) -> float:
    """Return the GB of one training's checkpoints and of the weights of every round."""
    saved, count = list(learn.actor.checkpoint["save_contents"]), parameters(learn.located().actor.path)
    if "hf_model" not in saved:
        raise ConfigError(
            f"{settings.learn}: checkpoint.save_contents={saved} lacks 'hf_model', from which the policy of a "
            "round is played. Add it."
        )
    training = checkpoint_gb(count, saved) * most_checkpoints(learn.schedule.keep)
    return training + checkpoint_gb(count, ["hf_model"]) * (settings.rounds + 1)
