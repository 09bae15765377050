"""Settings with which a run plays its episodes: resolved, and written once into its folder.

They are sections of an evaluation recipe, so that questions to a recorded episode are asked as it was played.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from verl_agent.config.plan import RunPlan
from verl_agent.errors import ConfigError
from verl_agent.evaluation.settings import EvaluationConfig
from verl_agent.oversight.rules import Rule
from verl_agent.results.folder import PLAY
from verl_agent.trace.provenance import read_json, write_json_atomically

FILE = PLAY
ROLLOUT = "actor_rollout_ref.rollout"


@dataclass(frozen=True, slots=True)
class RecordedPlay:
    """Settings with which a run plays.

    Attributes:
        envs: sections of an evaluation recipe by label of the environment.
        model: section `model`; that of the first step of a training run.
        tokenizer: folder or hub id of the tokenizer.
        train: section `evaluation` of the training episodes of a training run; None for an evaluation.
        engine: section `engine` of an evaluation.
        approval: rules of the approval policy; empty for none.
    """

    envs: Mapping[str, Mapping[str, Any]]
    model: Mapping[str, Any]
    tokenizer: str
    train: Mapping[str, Any] | None = None
    engine: Mapping[str, Any] | None = None
    approval: Sequence[Mapping[str, Any]] = ()

    def write(self, folder: Path) -> None:
        """Write the settings into the folder of the run."""
        write_json_atomically(folder / FILE, json.loads(json.dumps(asdict(self), default=str)))


def play_of_evaluation(config: EvaluationConfig, model: str, rules: Sequence[Rule]) -> RecordedPlay:
    """Return the settings of an evaluation.

    Args:
        model: model or policy, as it is played.
    """
    run, given = config.run, config.evaluation
    sections = {
        "env": {name: value for name, value in config.plain["env"].items() if name != "hosts"},
        **{name: config.plain[name] for name in ("agent", "episode")},
        "data": asdict(config.data),
        "evaluation": {name: getattr(given, name) for name in ("temperature", "top_p", "seed")}
        | {"perturb": asdict(given.perturb)},
    }
    named = {"path": model} if config.api is None else {"path": None, "api": asdict(config.api)}
    return RecordedPlay(
        {run.label: sections}, named, model, None, asdict(config.engine), [asdict(one) for one in rules]
    )


def play_of_training(plan: RunPlan) -> RecordedPlay:
    """Return the settings of a training run."""
    envs = {}
    for env in plan.envs:
        episode, lengths = env.episode, plan.lengths
        envs[env.label] = {
            "env": {"name": env.env.name, "options": env.env.options},
            "agent": asdict(env.agent),
            "episode": {
                name: getattr(episode, name) for name in ("max_tokens_per_turn", "on_truncated_turn", "seeded_sampling")
            },
            "data": {
                "max_prompt_length": lengths.prompt,
                "max_response_length": episode.max_tokens or lengths.response,
                "overlong_prompt": lengths.overlong,
                "apply_chat_template_kwargs": lengths.template_options or {},
            },
            "evaluation": _sampling(plan, f"{ROLLOUT}.val_kwargs"),
        }
    named = {"path": plan.value(f"{plan.actor.model_key}.path")}
    return RecordedPlay(envs, named, plan.actor.tokenizer_path, _sampling(plan, ROLLOUT))


def _sampling(plan: RunPlan, key: str) -> dict[str, float]:
    values = {name: plan.value(f"{key}.{name}") for name in ("temperature", "top_p")}
    return {name: float(value) for name, value in values.items() if value is not None}


def play_folder(records: Path) -> Path:
    """Return the folder of the run to which a file of records belongs.

    Raises:
        ConfigError: no folder above the file has the settings of a run.
    """
    for folder in records.parents[:2]:
        if (folder / FILE).is_file():
            return folder
    raise ConfigError(
        f"{FILE} does not lie beside {records}, so the settings of its episodes are not known. Give an evaluation "
        "recipe of the same environment, agent and model: --recipe recipes/ENV/eval.yaml model.path=MODEL."
    )


def read_play(folder: Path) -> RecordedPlay:
    """Return the settings in the folder of a run.

    Raises:
        ConfigError: the file is damaged.
    """
    known = [field.name for field in fields(RecordedPlay)]
    values = read_json(folder / FILE, "Restore it, or start the run again, which writes it.", known)
    return RecordedPlay(**{name: values[name] for name in known})
