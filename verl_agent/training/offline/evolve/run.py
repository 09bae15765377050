"""Rounds of exploration and training, each phase a command in a process of its own.

Every phase resumes after an interruption, so the rounds do too.
"""

from omegaconf import DictConfig
from rich.console import Console

from verl_agent.config.keys import check_kind
from verl_agent.errors import ConfigError
from verl_agent.runs.processes import ending_all_children
from verl_agent.runs.subprocess_run import run_command
from verl_agent.training.offline.evolve.prepare import Evolution, prepare_rounds
from verl_agent.training.offline.evolve.report import report_rounds
from verl_agent.training.offline.evolve.rounds import Phase, phases
from verl_agent.training.offline.evolve.subprocesses import arguments
from verl_agent.training.offline.selection import select_episodes, usable_records


def run(config: DictConfig) -> None:
    """Run the phases that have not ended yet, and report the results so far.

    Raises:
        ConfigError: a check before the first round fails, or a phase fails.
    """
    check_kind(config, "agent_evolve")
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
    """Run one phase as a command, whose output goes to the terminal.

    Raises:
        ConfigError: the command fails.
    """
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
    """Print how many of the explored episodes of a round are kept.

    Raises:
        ConfigError: no episode was kept.
    """
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
