"""Settings with which a recorded episode is played again: those that its run recorded, as an evaluation config."""

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

import verl_agent.config
from verl_agent.config.keys import as_text, reference
from verl_agent.config.mixture import run_envs
from verl_agent.config.search_path import register_config
from verl_agent.errors import ConfigError
from verl_agent.evaluation.settings import BASE, EvaluationConfig, read_evaluation
from verl_agent.evaluation.what_if.recorded import RecordedEpisode
from verl_agent.models.checkpoints import checkpoints
from verl_agent.oversight.rules import Rule
from verl_agent.platform.detect import use_cpu_device
from verl_agent.results.folder import REPORT
from verl_agent.results.folder import SETTINGS as EVALUATION_SETTINGS
from verl_agent.runs.identity import SETTINGS_FILE, read_settings
from verl_agent.sections import section
from verl_agent.trace.provenance import read_json
from verl_agent.trace.record import EpisodeRecord, env_label

SECTIONS = ("env", "agent", "horizon", "episode", "data", "evaluation")
"""Sections of an evaluation's settings that are taken from its record."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of new samples.

    Attributes:
        folder: folder whose settings were taken; None if a recipe was given.
        rules: rules of the approval policy under which the episode was played; empty for none.
    """

    config: EvaluationConfig
    folder: Path | None
    rules: Sequence[Rule] = ()

    def checksum(self) -> str:
        """Return a short checksum of the settings on which samples depend, beside model, sampling and turn limit."""
        run, data = self.config.run, self.config.data
        parts = [asdict(one) for one in (run.agent, run.episode, data)]
        rules = [asdict(rule) for rule in self.rules]
        text = json.dumps([run.env.name, run.env.options, *parts, *rules], sort_keys=True, default=str)
        return f"{zlib.crc32(text.encode()):08x}"


def settings_of(recorded: RecordedEpisode, overrides: Sequence[str], recipe: Path | None = None) -> Settings:
    """Return the settings of the run that recorded an episode, with overrides.

    A training run is played with the weights that wrote the episode and with the sampling and the limits of its
    purpose; an evaluation with its own settings. Engine settings are those of an evaluation recipe on this machine,
    or those that the evaluation recorded. The turn limit is that of the episode.

    Args:
        overrides: `KEY=VALUE` with keys of an evaluation recipe.
        recipe: evaluation recipe in place of the recorded settings; None for these.

    Raises:
        ConfigError: no settings are recorded beside the file, the weights of the episode's step are not kept, or a
            key or a value is not allowed.
    """
    register_config()
    folder = None if recipe else settings_folder(recorded)
    given = _parse_overrides(overrides)
    if recipe:
        config = _compose(recipe)
    else:
        assert folder is not None
        has_model = OmegaConf.select(given, "model.path") is not None
        config = OmegaConf.merge(evaluation_base(), as_text(_recorded_values(folder, recorded, has_model)))
    config = OmegaConf.merge(config, {"horizon": {"eval_max_turns": recorded.record["max_turns"]}})
    try:
        config = OmegaConf.merge(config, given)
    except OmegaConfBaseException as error:
        raise ConfigError(f"the settings do not resolve: {error}") from error
    sections = read_evaluation(config)
    if sections.run.env.name != recorded.record["env"]:
        raise ConfigError(
            f"env.name={sections.run.env.name!r}, but {recorded.name} was played in {recorded.record['env']!r}. Give "
            "the recipe of that environment."
        )
    rules = [] if folder is None else read_settings(folder, EVALUATION_SETTINGS).get("approval") or []
    return Settings(sections, folder, [section("approval", Rule, values) for values in rules])


def settings_folder(recorded: RecordedEpisode) -> Path:
    """Return the folder of the run or evaluation that a file of records belongs to."""
    for folder in recorded.file.parents[:2]:
        if any((folder / name).is_file() for name in (SETTINGS_FILE, EVALUATION_SETTINGS)):
            return folder
    raise ConfigError(
        f"neither {EVALUATION_SETTINGS} nor {SETTINGS_FILE} lies beside {recorded.file}, so the settings of its "
        "episodes are not known. Give an evaluation recipe of the same environment, agent and model: "
        "--recipe recipes/ENV/eval.yaml model.path=MODEL."
    )


def evaluation_base() -> DictConfig:
    """Return the defaults of an evaluation on this machine."""
    config = OmegaConf.create(reference(BASE))
    if use_cpu_device():
        config = OmegaConf.merge(config, OmegaConf.load(Path(verl_agent.config.__file__).with_name("cpu_eval.yaml")))
    OmegaConf.set_struct(config, False)
    assert isinstance(config, DictConfig)
    return config


def _compose(recipe: Path) -> DictConfig:
    if not recipe.is_file():
        raise ConfigError(f"--recipe {str(recipe)!r} does not exist. Give the YAML file of an evaluation recipe.")
    try:
        with initialize_config_dir(str(recipe.resolve().parent), version_base=None):
            config = compose(recipe.resolve().stem)
    except Exception as error:  # boundary: Hydra and the YAML parser raise many kinds
        raise ConfigError(f"--recipe {str(recipe)!r} does not compose: {error}") from error
    OmegaConf.set_struct(config, False)
    return config


def _parse_overrides(overrides: Sequence[str]) -> DictConfig:
    for override in overrides:
        if "=" not in override or override.startswith(("-", "+", "~", "=")):
            raise ConfigError(f"{override!r} is not allowed. Allowed: KEY=VALUE, such as evaluation.temperature=0.7.")
    try:
        return OmegaConf.from_dotlist(list(overrides))
    except (OmegaConfBaseException, YAMLError, ValueError) as error:
        raise ConfigError(f"the settings {' '.join(overrides)} cannot be read: {error}") from error


def _recorded_values(folder: Path, recorded: RecordedEpisode, has_model: bool) -> dict[str, Any]:
    if (folder / EVALUATION_SETTINGS).is_file():
        return _evaluation_values(folder, has_model)
    return _training_values(folder, recorded, has_model)


def _evaluation_values(folder: Path, has_model: bool) -> dict[str, Any]:
    recorded = read_settings(folder, EVALUATION_SETTINGS)
    values = {name: dict(recorded[name]) for name in SECTIONS if isinstance(recorded.get(name), Mapping)}
    values.get("horizon", {}).pop("max_turns", None)
    values.get("evaluation", {}).pop("samples", None)
    api = recorded.get("model.api")
    values["model"] = {"path": recorded["model"]} if has_model or not api else {"path": None, "api": dict(api)}
    engine = _report_engine(folder)
    if engine.get("device") == ("cpu" if use_cpu_device() else "cuda"):
        values["engine"] = engine
    return values


def _report_engine(folder: Path) -> dict[str, Any]:
    """Return section `engine` of an evaluation; only its report has it, which may be missing."""
    try:
        report = read_json(folder / REPORT, "Restore it, or delete it to ask with the default engine.")
        return dict(report["config"]["engine"])
    except (FileNotFoundError, KeyError, TypeError):
        return {}


def _training_values(folder: Path, recorded: RecordedEpisode, has_model: bool) -> dict[str, Any]:
    settings, record = read_settings(folder), recorded.record
    if settings.get("command") != "train":
        raise ConfigError(
            f"{folder / SETTINGS_FILE} is not of a run of `verl-agent train`. Give an evaluation recipe: --recipe."
        )
    envs = [one for one in run_envs(settings) if one.label == env_label(record)]
    if len(envs) != 1:
        raise ConfigError(
            f"{folder / SETTINGS_FILE} has {len(envs)} environments {env_label(record)!r}, so the settings of the "
            "episode are not known. Give an evaluation recipe: --recipe."
        )
    run, data = envs[0], settings["data"]
    values = {
        "env": {"name": run.env.name, "options": dict(run.env.options)},
        "agent": asdict(run.agent),
        "episode": {
            "max_tokens_per_turn": run.episode.max_tokens_per_turn,
            "on_truncated_turn": run.episode.on_truncated_turn,
            "seeded_sampling": run.episode.seeded_sampling,
        },
        "data": {
            "max_prompt_length": data["max_prompt_length"],
            "max_response_length": run.episode.max_tokens or data["max_response_length"],
            "apply_chat_template_kwargs": data.get("apply_chat_template_kwargs") or {},
        },
        "evaluation": _training_sampling(settings, record),
    }
    return values if has_model else {**values, "model": {"path": _model_of(folder, settings, record)}}


def _training_sampling(settings: Mapping[str, Any], record: EpisodeRecord) -> dict[str, Any]:
    """Return temperature and top-p; a run does not record those of its validation, whose defaults are 1."""
    if record["purpose"] != "train":
        return {}
    rollout = settings["actor_rollout_ref"]["rollout"]
    return {name: float(rollout[name]) for name in ("temperature", "top_p") if rollout.get(name) is not None}


def _model_of(run: Path, settings: Mapping[str, Any], record: EpisodeRecord) -> str:
    """Return the model that wrote an episode: step n is played with the weights of n - 1 updates, validation with n."""
    updates = record["step"] - (record["purpose"] == "train")
    if updates <= 0:
        return str(settings["actor_rollout_ref"]["model"]["path"])
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
