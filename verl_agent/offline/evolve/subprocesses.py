"""The command of each phase, as a person could give it."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from verl_agent.offline.evolve.prepare import Evolution
from verl_agent.offline.evolve.rounds import Phase

MODULES = {
    "explore": "verl_agent.commands.evaluate",
    "validate": "verl_agent.commands.evaluate",
    "learn": "verl_agent.commands.sft",
}


def arguments(phase: Phase, evolution: Evolution) -> list[str]:
    """The command of a phase."""
    settings, folder = evolution.settings, evolution.folder
    where = str(folder.of(phase))
    if phase.name == "learn":
        recipe = settings.learn
        values = learning(phase, evolution) | {"trainer.default_local_dir": where}
    else:
        entry = settings.explore[phase.place]
        recipe = entry.recipe
        exploring = phase.name == "explore"
        values = {
            "model.path": str(folder.policy(phase.round - 1 if exploring else phase.round)),
            "evaluation.output_dir": where,
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
    place = ["--config-dir", str(path.parent), "--config-name", path.stem]
    overrides = [f"{key}={literal(value)}" for key, value in values.items()]
    return [sys.executable, "-m", MODULES[phase.name], *place, *overrides]


def learning(phase: Phase, evolution: Evolution) -> dict[str, Any]:
    """What a round changes in the recipe of supervised training."""
    settings, folder = evolution.settings, evolution.folder
    if not phase.round:
        return {}
    base = OmegaConf.to_container(evolution.learn.episodes)["records"]
    base = [base] if isinstance(base, str) else base
    values: dict[str, Any] = {
        "episodes.records": [*base, *folder.explored(phase.round, settings.pool)],
        "episodes.min_reward": settings.min_reward,
        "episodes.per_task": settings.per_task,
        "episodes.weight": settings.weight,
    }
    if settings.start == "previous":
        values["model.path"] = str(folder.policy(phase.round - 1))
    return values


def literal(value: object) -> str:
    """A value as Hydra's command line reads it."""
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "null"
    if isinstance(value, str):
        return "'" + value.replace("'", "\\'") + "'"
    if isinstance(value, Sequence):
        return "[" + ",".join(map(literal, value)) + "]"
    return str(value)
