"""Comparison of a training run here with the same one on TRL.

`make bench-peers`, or
python -m tests.bench.peers [--rounds 2] [--steps 4] [--tasks 16] [--samples 4] [--json PATH] [--markdown PATH]

Both sides train the same model on the same tasks: GRPO on TextCraft, with groups, learning rate, loss and limits of
`recipes/textcraft/grpo_cpu.yaml`. The sides run in turn, each in a process of its own. The first step of a run warms
up and is left out of the seconds.
"""

import argparse
import json
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from importlib.metadata import distributions
from pathlib import Path
from statistics import median

from rich.console import Console

from tests.bench.peers.sides import ROOT, TRL_PYTHON, Run, Shape, Side, Trl, VerlAgent, code_lines
from verl_agent.errors import ConfigError
from verl_agent.models.resolve import resolve_model
from verl_agent.trace.provenance import Provenance

MODEL = "runs/textcraft_sft_cpu"
LIMITS = """\
* TRL plays all episodes of a step turn by turn and waits for the slowest reply of each turn; this project does not.
* TRL passes only the prompt to `rollout_func`, not the task's other columns. It computes the update of groups whose
  rewards are all equal, which `skip_uniform` leaves out here.
* On a CPU, vLLM inside of TRL ignores new weights unless they are packed again, as `pack_after_transfer` does.
* This project needs several processes (Ray, engine, agent loop); TRL has one, and one set of imports."""


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the arguments; None stands for those of the process."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.peers", description="Compare with TRL.")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each side (default 2)")
    parser.add_argument("--steps", type=int, default=4, help="updates of each run, at least 2 (default 4)")
    parser.add_argument("--tasks", type=int, default=16, help="tasks of a step (default 16)")
    parser.add_argument("--samples", type=int, default=4, help="episodes of each task (default 4)")
    parser.add_argument("--model", default=MODEL, help=f"model that both begin with (default {MODEL})")
    parser.add_argument("--json", type=Path, metavar="PATH", help="file for the numbers and their provenance")
    parser.add_argument("--markdown", type=Path, metavar="PATH", help="file for the table")
    options = parser.parse_args(arguments)
    if min(options.rounds, options.tasks) < 1 or options.steps < 2 or options.samples < 2:
        parser.error("--rounds and --tasks must be >= 1, --steps and --samples >= 2.")
    if options.tasks * options.samples % 4:
        parser.error("--tasks times --samples must be a multiple of 4, the rows of a micro-batch.")
    return options


def spread(values: Iterable[float]) -> str:
    """Return median and range."""
    ordered = sorted(values)
    return f"{median(ordered):.1f} ({ordered[0]:.1f} to {ordered[-1]:.1f})"


def markdown(runs: Sequence[Run], sides: Sequence[Side], versions: dict[str, str]) -> str:
    """Return the table of all runs and the facts that belong to it."""
    columns = []
    until_s = min(run.wall_s for run in runs)
    for side in sides:
        mine = [run for run in runs if run.side == side.name]
        warm = [step for run in mine for step in run.steps[1:]]
        reached = [run.at(until_s) for run in mine]
        solved, played = sum(step.solved for step in reached), sum(step.episodes for step in reached)
        columns.append(
            {
                "seconds a step": spread(step.step_s for step in warm),
                "- rollout": spread(step.rollout_s for step in warm),
                "- update": spread(step.update_s for step in warm),
                "- transfer of weights": spread(step.weights_s for step in warm),
                "episodes a second": f"{sum(step.episodes for step in warm) / sum(step.step_s for step in warm):.2f}",
                "start and end, seconds": spread(run.start_s for run in mine),
                "memory at the peak, GB": f"{max(run.peak_gb for run in mine):.1f}",
                f"success in the last step within {until_s:.0f} s": f"{solved / played:.1%} of {played} episodes",
                "lines of user code": str(sum(code_lines(file) for file in side.user_files)),
            }
        )
    names = [side.name for side in sides]
    lines = [f"| | {' | '.join(names)} |", f"|---|{'---|' * len(names)}"]
    lines += [f"| {row} | {' | '.join(column[row] for column in columns)} |" for row in columns[0]]
    files = "; ".join(
        f"{side.name}: {', '.join(str(one.relative_to(ROOT)) for one in side.user_files)}" for side in sides
    )
    facts = ", ".join(f"{name} {number}" for name, number in versions.items())
    return "\n".join([*lines, "", f"User code: {files}.", f"Versions: {facts}.", "", LIMITS])


def trl_version() -> str:
    """Return the version of TRL in its environment."""
    found = distributions(name="trl", path=list(map(str, TRL_PYTHON.parents[1].glob("lib/python*/site-packages"))))
    return next((one.version for one in found), "not installed")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run both sides in turn, print the table after each round, and write the files that are asked for.

    Raises:
        ConfigError: TRL's environment or the model is missing.
    """
    options, console = parse(arguments), Console()
    if not TRL_PYTHON.exists():
        raise ConfigError(f"{TRL_PYTHON} does not exist. Run `make bench-peers`, which installs TRL there.")
    shape = Shape(resolve_model(options.model, "--model"), options.tasks, options.samples, options.steps)
    sides, provenance = (VerlAgent(), Trl()), Provenance.collect()
    versions = provenance.versions | {"trl": trl_version()}
    runs: list[Run] = []
    with tempfile.TemporaryDirectory(prefix="peers-") as folder:
        for number in range(options.rounds):
            for side in sides[:: 1 if number % 2 == 0 else -1]:
                runs.append(side.run(shape, Path(folder) / f"{side.name}_{number}"))
                console.print(f"round {number + 1}: {side.name} took {runs[-1].wall_s:.0f} s", highlight=False)
            table = markdown(runs, sides, versions)
            console.print(table, markup=False, highlight=False, soft_wrap=True)
    if options.markdown:
        options.markdown.write_text(table + "\n", encoding="utf-8")
    if options.json:
        numbers = {"provenance": asdict(provenance), "versions": versions, "runs": [asdict(run) for run in runs]}
        options.json.write_text(json.dumps(numbers, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
