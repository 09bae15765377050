"""Rounds of exploration and training, each phase a command in a process of its own.

Every phase resumes after an interruption, so the rounds do too.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from typing_extensions import override

from verl_agent.errors import ConfigError
from verl_agent.runs.processes import ending_all_children
from verl_agent.runs.subprocess_run import recipe_command, run_command
from verl_agent.system.resources import require_disk
from verl_agent.terminal import Console, say
from verl_agent.trace.record import task_key
from verl_agent.training.job import Job
from verl_agent.training.offline.evolve.prepare import Evolution, prepare_rounds
from verl_agent.training.offline.evolve.report import report_rounds
from verl_agent.training.offline.evolve.rounds import Phase, phases
from verl_agent.training.offline.selection import EpisodeSource, select_episodes, usable_records


class Evolving(Job):
    """Rounds of AgentEvol.

    Args:
        config: composed recipe.
    """

    evolution: Evolution

    def __init__(self, config: DictConfig) -> None:
        self._config, self.console = config, Console()

    @override
    def check(self) -> None:
        self.evolution = prepare_rounds(self._config)

    @override
    def claim(self) -> bool:
        self.evolution.claim()
        return self.evolution.is_done

    @override
    def require_room(self) -> None:
        root = self.evolution.folder.root
        require_disk(shutil.disk_usage(root).free, self.evolution.needed_gb, root)

    @override
    @contextmanager
    def explaining(self) -> Iterator[None]:
        try:
            yield
        except KeyboardInterrupt:
            say(self.console, "\nStopped. Run the same command again to resume.")
            raise

    @override
    def work(self) -> None:
        """Run the phases that have not ended yet."""
        evolution, folder = self.evolution, self.evolution.folder
        with ending_all_children():
            for phase in phases(evolution.settings):
                if str(phase) not in folder.done:
                    run_phase(phase, evolution, self.console)
                if phase.name == "explore" and phase.entry == len(folder.names) - 1:
                    check_kept(phase.round, evolution, self.console)

    @override
    def report(self, ended: bool) -> None:
        report_rounds(self.evolution, self.console)


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
    source = EpisodeSource(False, **settings.selection(evolution.folder.explored(number, settings.pool)))
    records = usable_records(source.records, f"round {number}: explored episodes", labels=source.labels)
    kept = [episode.record for episode in select_episodes(records, source, "evolve")]
    kept_tasks = {task_key(record) for record in kept}
    tasks = {task_key(record) for record in records}
    if not kept:
        raise ConfigError(
            f"round {number} kept none of {len(records)} episodes: no task was solved, or none reached "
            "evolve.min_reward. Explore easier tasks or more samples, lower evolve.min_reward, or start from a larger "
            "base set."
        )
    say(
        console,
        f"kept {len(kept)} different ones of {len(records)} episodes, of {len(kept_tasks)} of {len(tasks)} tasks",
    )


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
    return recipe_command("sft" if phase.name == "learn" else "evaluate", Path(recipe), values=values)


def training_overrides(phase: Phase, evolution: Evolution) -> dict[str, Any]:
    """Return the overrides of a round for the recipe of supervised training; none in round 0."""
    settings, folder = evolution.settings, evolution.folder
    if not phase.round:
        return {}
    selection = settings.selection(folder.explored(phase.round, settings.pool))
    values: dict[str, Any] = {f"episodes.explored.{name}": value for name, value in selection.items()}
    if settings.start == "previous":
        values["model.path"] = str(folder.policy(phase.round - 1))
    return values
