"""Explore, keep, learn, repeat: `python -m verl_agent.commands.evolve --config-dir DIR --config-name RECIPE`.

Every phase is a command that a person could give: an evaluation that plays, or a supervised training. Each goes on
where it was stopped, so that the whole does too.
"""

import ctypes
import json
import signal
import subprocess
import sys
from dataclasses import asdict

import hydra
from omegaconf import DictConfig
from rich.console import Console

from verl_agent.commands.hydra_main import launch
from verl_agent.config.keys import check_kind
from verl_agent.errors import ConfigError
from verl_agent.evaluation.job import RECORDS
from verl_agent.evaluation.results import CategoryResult, Comparison, compare, summarize
from verl_agent.offline.evolve.prepare import Evolution, prepare
from verl_agent.offline.evolve.report import RoundResult, rounds_table
from verl_agent.offline.evolve.rounds import REPORT, Phase, phases
from verl_agent.offline.evolve.subprocesses import arguments
from verl_agent.offline.selection import select_episodes, usable_records
from verl_agent.runs.best_checkpoint import Best, store_best
from verl_agent.runs.console import exit_with
from verl_agent.runs.processes import ending_all_children
from verl_agent.trace.provenance import Provenance
from verl_agent.trace.record import EpisodeRecord
from verl_agent.trace.record_files import read_records

GRACE_S = 10
"""Seconds that a phase has to end by itself after Ctrl-C."""
PR_SET_PDEATHSIG = 1
"""Linux, sys/prctl.h: the signal that a child gets when its parent is killed."""


def run(config: DictConfig) -> None:
    """Do the phases that are still to be done, and report after each round.

    Raises:
        ConfigError: the config does not allow it, or a phase was refused.
    """
    check_kind(config, "agent_evolve")
    evolution, console = prepare(config), Console()
    folder = evolution.folder
    try:
        with ending_all_children():
            for phase in phases(evolution.settings):
                if str(phase) not in folder.done:
                    do(phase, evolution, console)
                if phase.name == "explore" and phase.place == len(folder.names) - 1:
                    check_kept(phase.round, evolution, console)
    except KeyboardInterrupt:
        console.print("\nStopped. Run the same command again to go on.")
        raise
    finally:
        report(evolution, console)


def do(phase: Phase, evolution: Evolution, console: Console) -> None:
    """Run one phase as a command of its own.

    Raises:
        ConfigError: it was refused or failed; what it said is on the screen.
    """
    command = arguments(phase, evolution)
    console.rule(f"round {phase.round} of {evolution.settings.rounds}: {phase.name}", align="left")
    with subprocess.Popen(command, preexec_fn=_end_with_parent) as child:
        try:
            code = child.wait()
        except KeyboardInterrupt:  # the child has got the same Ctrl-C, but not a signal to this process alone
            try:
                child.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                child.terminate()
                child.wait()
            raise
    if code == 130:
        raise KeyboardInterrupt
    if code:
        raise ConfigError(f"round {phase.round}, {phase.name}, ended with status {code}. Mend it and run again.")
    evolution.folder.finish(phase, evolution.identity)


def check_kept(number: int, evolution: Evolution, console: Console) -> None:
    """Say how much of what was explored is kept.

    Raises:
        ConfigError: nothing.
    """
    settings = evolution.settings
    source = settings.source(evolution.folder.explored(number, settings.pool))
    records = usable_records(source.records, f"round {number}: explored episodes")
    kept = [episode.record for episode in select_episodes(records, source)]
    tasks = {(record["env"], record["task"]) for record in kept}
    of_tasks = {(record["env"], record["task"]) for record in records}
    if not kept:
        raise ConfigError(
            f"round {number} kept none of {len(records)} episodes: no task was solved, or none reached "
            "evolve.min_reward. Explore easier tasks or more samples, lower evolve.min_reward, or begin with a "
            "larger base set."
        )
    console.print(
        f"kept {len(kept)} different ones of {len(records)} episodes, of {len(tasks)} of {len(of_tasks)} tasks",
        highlight=False,
    )


def report(evolution: Evolution, console: Console) -> None:
    """Show and write what the rounds measured so far, and keep the best policy in `best/`."""
    folder = evolution.folder
    found = [
        measured(Phase(number, "validate", place), evolution)
        for number in range(evolution.settings.rounds + 1)
        for place in range(len(folder.names))
        if str(Phase(number, "validate", place)) in folder.done
    ]
    if not found:
        return
    best: Best | None = None
    for number in sorted({one.round for one in found}):
        rates = [one.result.success.mean for one in found if one.round == number and one.result.success]
        this = Best(number, "success", sum(rates) / len(rates)) if len(rates) == len(folder.names) else None
        if this is not None and this.better_than(best):
            best = this
    console.print(rounds_table(found))
    if best is not None:
        weights = folder.policy(best.step)
        store_best(weights.parent, best, folder.root)
        console.print(f"best: round {best.step}: {folder.root / 'best'}", soft_wrap=True)
    facts = {"provenance": asdict(Provenance.collect()), "settings": evolution.identity}
    text = json.dumps({"version": 1, **facts, "rounds": [asdict(one) for one in found]}, indent=1)
    (folder.root / REPORT).write_text(text + "\n", encoding="utf-8")
    console.print(f"rounds: {folder.root / REPORT}", soft_wrap=True)


def measured(phase: Phase, evolution: Evolution) -> RoundResult:
    """What a round's policy gave on the held-out tasks of one environment, and what it gained on round 0."""
    overall: CategoryResult = summarize(validated(phase, evolution))[-1]
    first = Phase(0, "validate", phase.place)
    gain: Comparison | None = None
    if phase.round and str(first) in evolution.folder.done:
        gain = compare(validated(first, evolution), validated(phase, evolution))[-1]
    return RoundResult(phase.round, evolution.folder.names[phase.place], overall, gain)


def validated(phase: Phase, evolution: Evolution) -> list[EpisodeRecord]:
    """Episodes of a validation."""
    return list(read_records(evolution.folder.of(phase) / RECORDS))


def _end_with_parent() -> None:
    """In a child before it starts: end when this process is killed, so that no second run meets it in its folder."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


@hydra.main(version_base=None, config_path=None, config_name=None)
def main(config: DictConfig) -> None:
    """Entry point of `python -m verl_agent.commands.evolve`."""
    exit_with(run, config)


if __name__ == "__main__":
    launch(main, "agent_evolve")
