"""Settings with which a recorded episode is played again: those that its run recorded, as an evaluation config."""

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from verl_agent.config.composing import compose_recipe
from verl_agent.config.keys import as_text
from verl_agent.config.search_path import register_config
from verl_agent.errors import ConfigError
from verl_agent.evaluation.recorded_play import RecordedPlay, play_folder, read_play
from verl_agent.evaluation.settings import BASE, EvaluationConfig, evaluation_base, read_evaluation
from verl_agent.evaluation.what_if.recorded import RecordedEpisode
from verl_agent.models.checkpoints import checkpoints
from verl_agent.oversight.rules import Rule
from verl_agent.platform.detect import use_cpu_device
from verl_agent.sections import section
from verl_agent.trace.record import EpisodeRecord, env_label


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of new samples.

    Attributes:
        rules: rules of the approval policy under which the episode was played; empty for none.
    """

    config: EvaluationConfig
    rules: Sequence[Rule] = ()

    def checksum(self) -> str:
        """Return a short checksum of the settings on which samples depend, beside model, sampling and turn limit."""
        run, data, api = self.config.run, self.config.data, self.config.api
        parts: list[Any] = [asdict(part) for part in (run.agent, run.episode, data)]
        if api is not None:
            parts += [api.source, api.max_output_tokens, api.options]
        rules = [asdict(rule) for rule in self.rules]
        text = json.dumps([run.env.name, run.env.options, *parts, *rules], sort_keys=True, default=str)
        return f"{zlib.crc32(text.encode()):08x}"


def settings_of(recorded: RecordedEpisode, overrides: Sequence[str], recipe: Path | None = None) -> Settings:
    """Return the settings of the run that recorded an episode, with overrides.

    A training run is played with the weights that wrote the episode and with the sampling of its purpose; an
    evaluation with its own settings, and with its engine if that is for the device of this machine. The turn limit is
    that of the episode.

    Args:
        overrides: `KEY=VALUE` with keys of an evaluation recipe.
        recipe: evaluation recipe in place of the recorded settings; None for these.

    Raises:
        ConfigError: no settings are recorded beside the file, the weights of the episode's step are not kept, or a
            key or a value is not allowed.
    """
    register_config()
    given = _parse_overrides(overrides)
    rules: Sequence[Mapping[str, Any]] = ()
    if recipe is not None:
        if not recipe.is_file():
            raise ConfigError(f"--recipe {str(recipe)!r} does not exist. Give the YAML file of an evaluation recipe.")
        config = compose_recipe(recipe.resolve(), BASE)
        OmegaConf.set_struct(config, False)
    else:
        folder = play_folder(recorded.file)
        play = read_play(folder)
        values = _recorded_values(play, recorded)
        if OmegaConf.select(given, "model.path") is None:
            values["model"] = play.model if play.train is None else {"path": _weights(folder, play, recorded.record)}
        config, rules = OmegaConf.merge(evaluation_base(), as_text(values)), play.approval
    try:
        config = OmegaConf.merge(config, {"horizon": {"eval_max_turns": recorded.record["max_turns"]}}, given)
    except OmegaConfBaseException as error:
        raise ConfigError(f"the settings do not resolve: {error}") from error
    sections = read_evaluation(config)
    if sections.run.env.name != recorded.record["env"]:
        raise ConfigError(
            f"env.name={sections.run.env.name!r}, but {recorded.name} was played in {recorded.record['env']!r}. Give "
            "the recipe of that environment."
        )
    return Settings(sections, [section("approval", Rule, rule) for rule in rules])


def _parse_overrides(overrides: Sequence[str]) -> DictConfig:
    for override in overrides:
        if "=" not in override or override.startswith(("-", "+", "~", "=")):
            raise ConfigError(f"{override!r} is not allowed. Allowed: KEY=VALUE, such as evaluation.temperature=0.7.")
    try:
        return OmegaConf.from_dotlist(list(overrides))
    except (OmegaConfBaseException, YAMLError, ValueError) as error:
        raise ConfigError(f"the settings {' '.join(overrides)} cannot be read: {error}") from error


def _recorded_values(play: RecordedPlay, recorded: RecordedEpisode) -> dict[str, Any]:
    """Return the sections with which an episode was played."""
    label, record = env_label(recorded.record), recorded.record
    if label not in play.envs:
        raise ConfigError(
            f"the run of {recorded.name} records no environment {label!r}, so the settings of the episode are not "
            "known. Give an evaluation recipe: --recipe."
        )
    values = dict(play.envs[label])
    if play.train is not None and record["purpose"] == "train":
        values["evaluation"] = play.train
    if play.engine and play.engine["device"] == ("cpu" if use_cpu_device() else "cuda"):
        values["engine"] = play.engine
    return values


def _weights(run: Path, play: RecordedPlay, record: EpisodeRecord) -> str:
    """Return the model that wrote an episode: step n is played with the weights of n - 1 updates, validation with n."""
    updates = record["step"] - (record["purpose"] == "train")
    if updates <= 0:
        return str(play.model["path"])
    kept = checkpoints(run)
    if updates in kept:
        return str(kept[updates])
    nearest = min(kept, key=lambda step: abs(step - updates), default=None)
    remedy = (
        "Choose a model with model.path=MODEL"
        if nearest is None
        else f"Kept: {', '.join(map(str, kept))}. To ask the nearest one: model.path={kept[nearest]}"
    )
    raise ConfigError(
        f"the weights that played step {record['step']} ({record['purpose']}) are those of global_step_{updates}, "
        f"which {run} does not keep. {remedy}."
    )
