"""Runs of a study with `runner: train`: `verl-agent train` in a process, and the points of its validations."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from verl_agent.config.keys import literal
from verl_agent.envs.machine.processes import end_with_parent
from verl_agent.errors import ConfigError
from verl_agent.study.runs import Point
from verl_agent.study.settings import DONE, POINTS
from verl_agent.trace.metrics_log import ENTROPY, read_metrics, validation_scores
from verl_agent.trace.record_files import read_records

LOGGED = {
    "uniform": ("episode/uniform_groups",),
    "limited": ("stop/turn_limit",),
    "turns_mean": ("episode/turns_mean",),
    "grad_norm": ("actor/grad_norm",),
    "invalid": ("action/invalid_action",),
    "entropy": ENTROPY,
}
"""Measurements of training in a point of `runner: train`, and the metrics that hold them: the first that is logged."""

PLAYED = "timing_s/step"
"""Metric of a step that was trained."""
LOOK_S = 5.0
"""Seconds between two looks at whether a run has spent its turns."""


def train_with_verl(recipe: Path, overrides: Sequence[str], folder: Path, budget: int) -> None:
    """Run or resume `verl-agent train` until a validation after the last turn of the budget, and write the points.

    Raises:
        ConfigError: the run failed, or ended before its turns were spent.
    """
    folder.mkdir(parents=True, exist_ok=True)
    root = folder / "train"
    command = train_command(recipe, overrides, root)
    with (
        (folder / "output.txt").open("a", encoding="utf-8") as output,
        subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, preexec_fn=end_with_parent) as run,
    ):
        end_when_spent(run, root, budget)
    points = validations(root)
    spent = spent_turns(points)
    if spent < budget and run.returncode:
        raise ConfigError(
            f"the run in {folder} failed with code {run.returncode}. Read {output.name}; the next start resumes it."
        )
    if spent < budget:
        raise ConfigError(
            f"the run in {folder} ended after {spent:,} of {budget:,} environment turns, so the budgets of the arms "
            "would differ. Write a new file with more trainer.total_training_steps for this arm, or a lower "
            "study.budget_turns, and give its own --out."
        )
    (folder / POINTS).write_text("".join(f"{json.dumps(point)}\n" for point in points), encoding="utf-8")
    (folder / DONE).write_text("{}\n", encoding="utf-8")


def end_when_spent(run: subprocess.Popen[bytes], root: Path, budget: int) -> None:
    """Wait for a training run, and end it once a validation follows the last turn of the budget, or at an error.

    Its `trainer.total_training_steps` is thus an upper bound: how many steps a budget has depends on how long the
    episodes become.
    """
    seen: int | None = None
    try:
        while run.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                run.wait(LOOK_S)
            validated = [step for step, values in logged_steps(root).items() if success_of(values) is not None]
            if validated and validated[-1] != seen:  # records of episodes are read only then
                seen = validated[-1]
                if spent_turns(validations(root)) >= budget:
                    break
    finally:
        run.terminate()  # without effect where it has ended
        run.wait()


def spent_turns(points: Sequence[Point]) -> float:
    """Return the environment turns until the last point; 0 without one."""
    return points[-1]["turns"] if points else 0


def train_command(recipe: Path, overrides: Sequence[str], root: Path) -> list[str]:
    """Return the command of a training run with an evaluation before its first step, which gain and area need."""
    command = [sys.executable, "-m", "verl_agent.commands.train", "--config-dir", str(recipe.parent)]
    command += ["--config-name", recipe.stem, *overrides]
    return [*command, "trainer.val_before_train=true", f"trainer.default_local_dir={literal(str(root))}"]


def validations(root: Path) -> list[Point]:
    """Return the validations of a training run, each with the environment turns and seconds of training until then.

    `LOGGED` names the means of training since the validation before.
    """
    points, spent, seconds, turns = list[Point](), 0, 0.0, turns_by_step(root)
    since: dict[str, list[float]] = {name: [] for name in LOGGED}
    for step, values in logged_steps(root).items():
        spent, seconds = spent + turns.get(step, 0), seconds + values.get(PLAYED, 0.0)
        for name, metrics in LOGGED.items():
            since[name] += [values[metric] for metric in metrics if metric in values][:1]
        if (success := success_of(values)) is not None:
            means = {name: sum(found) / len(found) for name, found in since.items() if found}
            points.append({"step": step, "turns": spent, "seconds": seconds, "success": success, **means})
            since = {name: [] for name in LOGGED}
    return points


def logged_steps(root: Path) -> dict[int, dict[str, float]]:
    """Return the metrics of a run by step.

    A start that resumed the run replaces all steps of earlier ones from the first that it trained: they led to weights
    that are lost.
    """
    steps: dict[int, dict[str, float]] = {}
    for log in sorted((root / "metrics").glob("*.jsonl")):
        found = read_metrics(log)
        first = min((step for step, values in found.items() if PLAYED in values), default=None)
        for step in [step for step in steps if first is not None and step >= first]:
            del steps[step]
        for step, values in found.items():
            steps.setdefault(step, {}).update(values)
    return dict(sorted(steps.items()))


def success_of(values: Mapping[str, float]) -> float | None:
    """Return the success of the validation in the metrics of a step; None without one."""
    return next((score.value for score in validation_scores(values) if score.measure == "success"), None)


def turns_by_step(root: Path) -> dict[int, int]:
    """Return the environment turns of each training step of a run; the last start that played a step counts.

    The records of a start lie in a file of each worker process. Names begin with the time.
    """
    starts = sorted(log.stem for log in (root / "metrics").glob("*.jsonl"))
    played: dict[str, Counter[int]] = {start: Counter() for start in starts}
    for records in (root / "episodes").glob("*.jsonl"):
        before = [one for one in starts if one <= records.stem]
        for record in read_records(records) if before else ():  # a start that logged no step is played again
            if record["purpose"] == "train":
                played[before[-1]][record["step"]] += len(record["turns"])
    turns: dict[int, int] = {}
    for start in starts:  # a resumed run plays steps again that were not saved
        turns |= played[start]
    return turns
