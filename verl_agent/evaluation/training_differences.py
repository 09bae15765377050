"""Comparison of an evaluation's settings with those of the run that trained the model."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from verl_agent.config.keys import value_at
from verl_agent.evaluation.report import plain_table
from verl_agent.evaluation.settings import EvaluationConfig
from verl_agent.horizon import Horizon
from verl_agent.runs.identity import SETTINGS_FILE, read_settings
from verl_agent.sections import section
from verl_agent.terminal import styled

FREE = ("env.options", "agent.options", "data.apply_chat_template_kwargs")
"""Keyword arguments, where a missing key differs from a given one."""


@dataclass(frozen=True, slots=True)
class TrainingDifference:
    """A setting in which an evaluation differs from the run that trained its model.

    Attributes:
        trained: value in training; None if it was not set.
        evaluated: value in the evaluation; None if it is not set.
    """

    key: str
    trained: Any
    evaluated: Any


def run_of_model(model: str) -> Path | None:
    """Return the folder of the run that a checkpoint lies in; None for a hub id or a folder outside a run."""
    folder = Path(model)
    if not folder.is_dir():
        return None
    return next((one for one in (folder, *folder.resolve().parents[:4]) if (one / SETTINGS_FILE).is_file()), None)


def training_differences(run: Path, config: EvaluationConfig) -> list[TrainingDifference]:
    """Compare the settings of an evaluation with those recorded in the folder of a run.

    Settings that the run did not record are not compared, and for a mixture neither are those of its environments.
    """
    evaluated = compared_settings(config)
    recorded = read_settings(run)
    trained = {key: value_at(recorded, key) for key in evaluated}
    if horizon := value_at(recorded, "horizon"):
        trained["horizon.eval_max_turns"] = section("horizon", Horizon, horizon).turns_for_evaluation()
    compared = list(evaluated)
    if value_at(recorded, "env.mixture"):
        compared = [key for key in compared if key.startswith("data.")]
    elif trained["env.name"] not in (None, evaluated["env.name"]):
        compared.remove("env.options")  # options of another environment
    return [
        difference
        for key in compared
        if trained[key] is not None
        for difference in _differences(key, trained[key], evaluated[key])
    ]


def compared_settings(config: EvaluationConfig) -> dict[str, Any]:
    """Return the settings that affect prompts, parsing of replies and limits of episodes, by dotted name."""
    run, data = config.run, config.data
    return {
        "env.name": run.env.name,
        "env.options": run.env.options,
        "agent.name": run.agent.name,
        "agent.options": run.agent.options,
        "agent.context": run.agent.context,
        "horizon.eval_max_turns": run.horizon.turns_for_evaluation(),
        "episode.max_tokens_per_turn": run.episode.max_tokens_per_turn,
        "episode.on_truncated_turn": run.episode.on_truncated_turn,
        "data.max_prompt_length": data.max_prompt_length,
        "data.max_response_length": data.max_response_length,
        "data.overlong_prompt": data.overlong_prompt,
        "data.apply_chat_template_kwargs": data.apply_chat_template_kwargs,
    }


def differences_table(differences: Sequence[TrainingDifference], run: Path) -> Table:
    """Return a table with one row per difference."""
    file = run / SETTINGS_FILE
    title = f" the model was trained with other settings ({file})"
    table = plain_table(styled(("Warning:", "bold yellow"), (title, "table.title")))
    table.caption = "Success may be lower than in training. Set these keys as in training if that is not intended."
    for heading in ("setting", "trained with", "evaluated with"):
        table.add_column(heading, overflow="fold")
    for difference in differences:
        table.add_row(styled(difference.key), styled(repr(difference.trained)), styled(repr(difference.evaluated)))
    return table


def _differences(key: str, trained: Any, evaluated: Any) -> Iterator[TrainingDifference]:
    if not isinstance(trained, Mapping):
        if trained != evaluated:
            yield TrainingDifference(key, trained, evaluated)
        return
    names = trained.keys() | evaluated.keys() if key in FREE else trained.keys() & evaluated.keys()
    for name in sorted(names):
        if trained.get(name) != evaluated.get(name):
            yield TrainingDifference(f"{key}.{name}", trained.get(name), evaluated.get(name))
