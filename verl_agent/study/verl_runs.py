"""Runs of a study by `verl-agent train`, and their validations as points."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from verl_agent.errors import ConfigError
from verl_agent.runs.processes import end_with_parent
from verl_agent.study.runs import Point
from verl_agent.study.settings import DONE, POINTS
from verl_agent.trace.metrics_log import read_metrics, validation_scores
from verl_agent.trace.record_files import read_records


def train_with_verl(recipe: Path, overrides: Sequence[str], folder: Path, budget: int) -> None:
    """Run or resume `verl-agent train`, and write the points of its validations.

    Raises:
        ConfigError: the run failed, or ended before its turns were spent.
    """
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "verl_agent.commands.train", "--config-dir", str(recipe.parent)]
    command += ["--config-name", recipe.stem, *overrides, f"trainer.default_local_dir={folder / 'train'}"]
    with (folder / "output.txt").open("a", encoding="utf-8") as output:
        run = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False, preexec_fn=end_with_parent)
    if run.returncode:
        raise ConfigError(
            f"the run in {folder} failed with code {run.returncode}. Read {output.name}; the next start resumes it."
        )
    points = validations(folder / "train")
    spent = points[-1]["turns"] if points else 0
    if spent < budget:
        raise ConfigError(
            f"the run in {folder} ended after {spent:,} of {budget:,} environment turns, so the budgets of the arms "
            "would differ. Raise trainer.total_training_steps of its arm, or lower study.budget_turns for all."
        )
    (folder / POINTS).write_text("".join(f"{json.dumps(point)}\n" for point in points), encoding="utf-8")
    (folder / DONE).write_text("{}\n", encoding="utf-8")


def validations(root: Path) -> list[Point]:
    """Return the validations of a training run, with the environment turns and seconds of training until then."""
    turns: dict[int, int] = {}
    for start in sorted((root / "episodes").glob("*.jsonl")):  # a resumed run plays steps again that were not saved
        played: Counter[int] = Counter()
        for record in read_records(start):
            if record["purpose"] == "train":
                played[record["step"]] += len(record["turns"])
        turns |= played
    points: list[Point] = []
    spent, seconds = 0, 0.0
    for step, values in read_metrics(sorted((root / "metrics").glob("*.jsonl"))).items():
        spent, seconds = spent + turns.get(step, 0), seconds + values.get("timing_s/step", 0.0)
        for score in validation_scores(values):
            if score.measure == "success":
                points.append({"step": step, "turns": spent, "seconds": seconds, "success": score.value})
    return points
