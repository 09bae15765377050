"""Command line of each phase; each one can be run by hand."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from verl_agent.training.offline.evolve.prepare import Evolution
from verl_agent.training.offline.evolve.rounds import Phase

MODULES = {
    "explore": "verl_agent.commands.evaluate",
    "validate": "verl_agent.commands.evaluate",
    "learn": "verl_agent.commands.sft",
}


def arguments(phase: Phase, evolution: Evolution) -> list[str]:
    """Return the command line of a phase."""
    settings, folder = evolution.settings, evolution.folder
    output = str(folder.of(phase))
    if phase.name == "learn":
        recipe = settings.learn
        values = training_overrides(phase, evolution) | {"trainer.default_local_dir": output}
    else:
        entry = settings.explore[phase.entry]
        recipe = entry.recipe
        exploring = phase.name == "explore"
        values = {
            "model.path": str(folder.policy(phase.round - 1 if exploring else phase.round)),
            "evaluation.output_dir": output,
        }
        if exploring:
            values |= {
                "evaluation.tasks": entry.tasks,
                "evaluation.max_tasks": entry.max_tasks,
                "evaluation.samples": entry.samples,
                "evaluation.seed": settings.seed + phase.round,
                "evaluation.purpose": "collection",
            }
    path = Path(recipe).resolve()
    config = ["--config-dir", str(path.parent), "--config-name", path.stem]
    overrides = [f"{key}={literal(value)}" for key, value in values.items()]
    return [sys.executable, "-m", MODULES[phase.name], *config, *overrides]


def training_overrides(phase: Phase, evolution: Evolution) -> dict[str, Any]:
    """Return the overrides of a round for the recipe of supervised training; none in round 0."""
    settings, folder = evolution.settings, evolution.folder
    if not phase.round:
        return {}
    values: dict[str, Any] = {
        "episodes.records": [*evolution.base, *folder.explored(phase.round, settings.pool)],
        "episodes.min_reward": settings.min_reward,
        "episodes.per_task": settings.per_task,
        "episodes.weight": settings.weight,
        "episodes.labels": list(settings.labels),
    }
    if settings.start == "previous":
        values["model.path"] = str(folder.policy(phase.round - 1))
    return values


def literal(value: object) -> str:
    """Format a value for Hydra's command line."""
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "null"
    if isinstance(value, str):
        return "'" + value.replace("'", "\\'") + "'"
    if isinstance(value, Sequence):
        return "[" + ",".join(map(literal, value)) + "]"
    return str(value)
