"""Measures the reports of a large evaluation: CPU seconds of each command, and how they grow with the episodes.

A random policy plays each held-out goal of TextCraft ten times. The records are then repeated as further samples.
"""

import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from tests import ROOT

COMMANDS = ("leaderboard", "failures")
SAMPLES = 10
"""Episodes of each task that are played; the others are copies."""


def run(*arguments: str) -> float:
    """Run a command of verl-agent and return its CPU seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    program = [sys.executable, "-c", "from verl_agent.commands.cli import app; app()"]
    ended = subprocess.run([*program, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def play(folder: Path, turns: int) -> None:
    """Play the evaluation whose records are repeated."""
    options = ["model.path=random", f"evaluation.samples={SAMPLES}", f"horizon.eval_max_turns={turns}"]
    run("eval", "recipes/textcraft/eval.yaml", *options, f"evaluation.output_dir={folder}")


def widen(played: Path, folder: Path, episodes: int) -> int:
    """Write an evaluation with at least that many episodes, and return their number."""
    lines = [json.loads(line) for line in (played / "episodes.jsonl").read_text().splitlines()]
    times = -(-episodes // len(lines))
    folder.mkdir()
    with (folder / "episodes.jsonl").open("w") as file:
        for copy in range(times):
            for line in lines:
                file.write(json.dumps(line | {"sample": line["sample"] + SAMPLES * copy}) + "\n")
    report = json.loads((played / "evaluation.json").read_text())
    report["config"]["evaluation"]["samples"] = SAMPLES * times
    report |= {key: report[key] * times for key in ("planned", "played")}
    (folder / "evaluation.json").write_text(json.dumps(report))
    return len(lines) * times


def main(
    episodes: Annotated[int, typer.Option(help="Number of episodes.", min=10_000)] = 100_000,
    turns: Annotated[int, typer.Option(help="Turn limit.", min=1)] = 4,
) -> None:
    """Print the CPU seconds of each report with a tenth of the episodes and with all of them."""
    with tempfile.TemporaryDirectory() as parent:
        root, sizes = Path(parent), (episodes // 10, episodes)
        play(root / "played", turns)
        counts = [widen(root / "played", root / str(size), size) for size in sizes]
        few, many = (f"{count:,}" for count in counts)
        heads = ("command", f"{few} episodes", f"{many} episodes", "growth by episode, without the start")
        typer.echo(f"| {' | '.join(heads)} |\n{'|---' * len(heads)}|")
        start = run("failures", "--help")
        for command in COMMANDS:
            into = ["--into", str(root / "boards")] if command == "leaderboard" else []
            spent = [run(command, str(root / str(size)), *into) for size in sizes]
            ratio = (spent[1] - start) / counts[1] / ((spent[0] - start) / counts[0])
            typer.echo(f"| `{command}` | {spent[0]:.1f} s | {spent[1]:.1f} s | {ratio:.2f} |")


if __name__ == "__main__":
    typer.run(main)
