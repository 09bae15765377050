"""Measures the reports of a large evaluation and the attack on a reward: CPU seconds, and how they grow.

A random policy plays each held-out goal of TextCraft ten times. The records are then repeated, once as further samples
of the same tasks, and once as further tasks. The attack plays GuessNumber with growing numbers of tasks.
"""

import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from tests import ROOT

COMMANDS = ("leaderboard", "failures")
SAMPLES = 10
"""Episodes of each task that are played; the others are copies."""
ATTACKED = (4, 16, 64)
"""Tasks of each split that are attacked."""
RANGES = {"ranges": [200, 190, 180]}
"""Options of GuessNumber with enough tasks in each split."""


def run(*arguments: str, allowed: Sequence[int] = (0,)) -> float:
    """Run a command of verl-agent and return its CPU seconds.

    Args:
        allowed: exit codes of success.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    program = [sys.executable, "-c", "from verl_agent.commands.cli import app; app()"]
    ended = subprocess.run([*program, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode in allowed, ended.stderr[-2000:]
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def play(folder: Path, turns: int) -> None:
    """Play the evaluation whose records are repeated."""
    options = ["model.path=random", f"evaluation.samples={SAMPLES}", f"horizon.eval_max_turns={turns}"]
    run("eval", "recipes/textcraft/eval.yaml", *options, f"evaluation.output_dir={folder}")


def widen(played: Path, folder: Path, times: int, new_tasks: bool) -> int:
    """Write an evaluation that repeats the episodes of another one, and return their number.

    Args:
        new_tasks: copies are episodes of further tasks; False makes them further samples of the same tasks.
    """
    lines = [json.loads(line) for line in (played / "episodes.jsonl").read_text().splitlines()]
    report = json.loads((played / "evaluation.json").read_text())
    folder.mkdir()
    with (folder / "episodes.jsonl").open("w") as file:
        for copy in range(times):
            for line in lines:
                other = {"task": f"{line['task']} {copy}"} if new_tasks else {"sample": line["sample"] + SAMPLES * copy}
                file.write(json.dumps(line | other) + "\n")
    if new_tasks:
        report["planned_tasks"] = [f"{task} {copy}" for copy in range(times) for task in report["planned_tasks"]]
    else:
        report["config"]["evaluation"]["samples"] = SAMPLES * times
    report |= {key: report[key] * times for key in ("planned", "played")}
    (folder / "evaluation.json").write_text(json.dumps(report))
    return len(lines) * times


def growth(counts: Sequence[int], seconds: Sequence[float]) -> float:
    """Return the seconds that each item adds between the first and the last size, over those of the second size.

    The difference to the first size leaves out the start of the command. 1 is a linear command.
    """
    second, last = (
        (spent - seconds[0]) / (count - counts[0]) for count, spent in zip(counts[1:], seconds[1:], strict=True)
    )
    return last / second


def row(name: str, unit: str, counts: Sequence[int], seconds: Sequence[float]) -> str:
    """Return a row of the table."""
    cells = [f"{count:,} {unit}: {spent:.1f} s" for count, spent in zip(counts, seconds, strict=True)]
    return f"| {name} | {' | '.join(cells)} | {growth(counts, seconds):.2f} |"


def main(
    episodes: Annotated[int, typer.Option(help="Number of episodes.", min=20_000)] = 100_000,
    turns: Annotated[int, typer.Option(help="Turn limit.", min=1)] = 4,
    attacked: Annotated[bool, typer.Option(help="Measure the attack, too.")] = True,
) -> None:
    """Print the CPU seconds of each command at three sizes, and the growth by item from the second to the third."""
    heads = ("command", "small", "middle", "large", "growth by item, without the start")
    typer.echo(f"| {' | '.join(heads)} |\n{'|---' * len(heads)}|")
    with tempfile.TemporaryDirectory() as parent:
        root = Path(parent)
        play(root / "played", turns)
        found = len((root / "played" / "episodes.jsonl").read_text().splitlines())
        times = (1, -(-episodes // (4 * found)), -(-episodes // found))
        for new_tasks, kind in ((False, "samples"), (True, "tasks")):
            folders = [root / f"{kind}_{size}" for size in times]
            sizes = list(zip(folders, times, strict=True))
            counts = [widen(root / "played", folder, size, new_tasks) for folder, size in sizes]
            for command in COMMANDS:
                into = ["--into", str(root / "boards")] if command == "leaderboard" else []
                spent = [run(command, str(folder), *into) for folder in folders]
                typer.echo(row(f"`{command}`, more {kind}", "episodes", counts, spent))
    if attacked:
        options = ["--options", json.dumps(RANGES), "--turns", "4", "--seconds", "600"]
        attack = ["check-env", "guess_number", "--attack", *options]
        spent = [run(*attack, "--items", str(items), allowed=(0, 1)) for items in ATTACKED]
        typer.echo(row("`check-env guess_number --attack`", "tasks of a split", ATTACKED, spent))


if __name__ == "__main__":
    typer.run(main)
