"""Rounds of exploration and training, each phase a command in a process of its own.

Every phase resumes after an interruption, so the rounds do too.
"""

import sys
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from rich.console import Console

from verl_agent.config.keys import literal
from verl_agent.errors import ConfigError
from verl_agent.runs.processes import ending_all_children
from verl_agent.runs.subprocess_run import run_command
from verl_agent.training.offline.evolve.prepare import Evolution, prepare_rounds
from verl_agent.training.offline.evolve.report import report_rounds
from verl_agent.training.offline.evolve.rounds import Phase, phases
from verl_agent.training.offline.selection import select_episodes, usable_records


def run(config: DictConfig) -> None:
    """Run the phases that have not ended yet, and report the results so far."""
    evolution, console = prepare_rounds(config), Console()
    folder = evolution.folder
    try:
        with ending_all_children():
            for phase in phases(evolution.settings):
                if str(phase) not in folder.done:
                    run_phase(phase, evolution, console)
                if phase.name == "explore" and phase.entry == len(folder.names) - 1:
                    check_kept(phase.round, evolution, console)
    except KeyboardInterrupt:
        console.print("\nStopped. Run the same command again to resume.")
        raise
    finally:
        report_rounds(evolution, console)


def run_phase(phase: Phase, evolution: Evolution, console: Console) -> None:
    """Run one phase as a command, whose output goes to the terminal."""
    command = arguments(phase, evolution)
    console.rule(f"round {phase.round} of {evolution.settings.rounds}: {phase.name}", align="left")
    code = run_command(command)
    if code:
        raise ConfigError(
            f"round {phase.round}, {phase.name}, ended with status {code}. Fix the error above and run the same "
            "command again."
        )
    evolution.folder.finish(phase)


def check_kept(number: int, evolution: Evolution, console: Console) -> None:
    """Print how many of the explored episodes of a round are kept."""
    settings = evolution.settings
    source = settings.source(evolution.folder.explored(number, settings.pool))
    records = usable_records(source.records, f"round {number}: explored episodes", labels=source.labels)
    kept = [episode.record for episode in select_episodes(records, source)]
    kept_tasks = {(record["env"], record["task"]) for record in kept}
    tasks = {(record["env"], record["task"]) for record in records}
    if not kept:
        raise ConfigError(
            f"round {number} kept none of {len(records)} episodes: no task was solved, or none reached "
            "evolve.min_reward. Explore easier tasks or more samples, lower evolve.min_reward, or start from a larger "
            "base set."
        )
    console.print(
        f"kept {len(kept)} different ones of {len(records)} episodes, of {len(kept_tasks)} of {len(tasks)} tasks",
        highlight=False,
    )


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
