"""Progress of a run of reinforcement learning on the terminal, from its log and metrics files."""

import logging
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from verl_agent.config.keys import literal
from verl_agent.envs.settings import EnvSettings
from verl_agent.errors import ConfigError
from verl_agent.platform.detect import use_cpu_device
from verl_agent.results.comparison import validation_gain
from verl_agent.results.findings import find_problems
from verl_agent.results.findings_history import RecordFollower, condensed_history
from verl_agent.results.results import summarize
from verl_agent.runs.best_checkpoint import BestKeeper, keep_best, read_best
from verl_agent.runs.console import poll_in_background
from verl_agent.runs.folder import RunFolder
from verl_agent.runs.identity import write_plan
from verl_agent.terminal import Console, say
from verl_agent.trace.abandoned import read_abandoned, start_times, without_replaced
from verl_agent.trace.curves import plot_curves
from verl_agent.trace.metrics_log import read_log
from verl_agent.trace.progress import ProgressView
from verl_agent.trace.record import EpisodeRecord, Purpose
from verl_agent.trace.record_files import read_latest, read_records
from verl_agent.training.splits import validates_on_test

PHASES = (
    ("Started a local Ray instance", "starting Ray"),
    ("create worker group", "loading the model into the trainer"),
    ("actor and ref model engine initialized", "starting the rollout engine"),
    ("all initialize finished", "sending the weights to the rollout engine"),
    ("Creating file logger", "playing the first episodes"),
)
"""Texts in the log of Ray and verl, and the phase of start-up that each begins."""
POLL_S = 1.0
VALIDATION_BYTES = 32 * 2**20
"""Bytes at the end of each file of records in which the latest validation is searched."""


@contextmanager
def follow_run(folder: RunFolder, steps: int, keep: int | None, console: Console) -> Iterator[None]:
    """Show the phases of start-up, then one line a step, while the block runs. Record the number of steps.

    At each checkpoint, older ones are removed and the curves are plotted.
    """
    write_plan(folder.root, steps)
    shown, position, saved = -1, 0, folder.last_step
    records = RecordFollower(folder.root)
    keeper = BestKeeper(folder)
    with ProgressView(folder.metrics, steps, console, lambda: describe_validation(folder, records)) as view:
        view.phase("loading verl, Ray and torch")

        def poll() -> None:
            nonlocal shown, position, saved
            if shown < len(PHASES) - 1:
                with folder.log.open(errors="replace") as log:
                    log.seek(position)
                    text = log.read()
                    position = log.tell()
                reached = [i for i, (line, _) in enumerate(PHASES) if line in text and i > shown]
                if reached:
                    shown = reached[-1]
                    view.phase(PHASES[shown][1])
            view.update()
            keeper.poll()
            if folder.last_step > saved:
                saved = folder.last_step
                folder.prune(keep, running=True)
                plot_run(folder)

        with poll_in_background(poll, POLL_S):
            yield


def finish(folder: RunFolder, envs: Sequence[EnvSettings], console: Console) -> None:
    """Plot the curves and print the results of a run and their paths, if the run has logged any step."""
    if any(path.stat().st_size for path in folder.all_metrics):
        say(console, f"curves: {folder.curves}" if plot_run(folder) else "no curves are written")
        tests = show_success(folder, console)
        show_best(folder, envs, tests, console)
        for line in describe_findings(folder):
            say(console, line)
        say(console, f"episodes: {folder.root / 'episodes'}   log: {folder.log}   checkpoint: step {folder.last_step}")


def describe_validation(folder: RunFolder, followed: RecordFollower | None = None) -> list[str]:
    """Return success and return of the latest validation with their intervals, and the findings.

    Args:
        followed: records of the run as far as they were read before.
    """
    if not (folder.root / "episodes").is_dir():
        return []
    every = counted_records(folder, read_latest(folder.root, VALIDATION_BYTES))
    records = [one for one in every if one["purpose"] in ("validation", "test")]
    latest = max((one["step"] for one in records), default=0)
    parts: dict[str, list[EpisodeRecord]] = {}
    for one in records:
        if one["step"] == latest:
            parts.setdefault(one["purpose"], []).append(one)
    return [*(f"{name}: {summarize(part)[-1]}" for name, part in parts.items()), *describe_findings(folder, followed)]


def describe_findings(folder: RunFolder, followed: RecordFollower | None = None) -> list[str]:
    """Return a line for each problem that keeps the run from learning, with its onset; the likeliest cause first.

    Args:
        followed: records of the run as far as they were read before.
    """
    if not (folder.root / "episodes").is_dir():
        return []
    log = read_log(path for path in folder.all_metrics if path.exists())
    episodes = (followed or RecordFollower(folder.root)).read()
    starts, abandoned = start_times(folder.all_metrics), read_abandoned(folder.root)
    found = find_problems(condensed_history(episodes, log, starts, abandoned))
    shown = f" The episodes: verl-agent view {folder.root}"
    return [f"finding: {one.text}{shown if one is found[-1] else ''}" for one in found]


def counted_records(folder: RunFolder, records: Iterable[EpisodeRecord]) -> list[EpisodeRecord]:
    """Return the records of a run without those that a later start replaced."""
    return without_replaced(records, start_times(folder.all_metrics), read_abandoned(folder.root))


def plot_run(folder: RunFolder) -> bool:
    """Plot the curves of a run; return False if it has logged no curve yet."""
    logging.getLogger("matplotlib").setLevel(logging.WARNING)
    try:
        plot_curves(folder.all_metrics, folder.curves, title=folder.root.name)
    except (ConfigError, OSError):  # a full disk has its own message
        return False
    return True


def show_success(folder: RunFolder, console: Console) -> list[EpisodeRecord]:
    """Compare the first and the last test, task by task. Before any test of a trained policy, compare the validations.

    Returns:
        Records of all tests.
    """
    records = folder.root / "episodes"
    held_out = (one for one in read_records(records) if one["purpose"] != "train") if records.is_dir() else ()
    played: dict[Purpose, list[EpisodeRecord]] = {"test": [], "validation": []}
    for record in counted_records(folder, held_out):
        if record["purpose"] in played:
            played[record["purpose"]].append(record)
    tested = max((record["step"] for record in played["test"]), default=0)
    purpose: Purpose = "test" if tested else "validation"
    tasks = "test tasks" if tested else "held-out tasks"
    gain = validation_gain(played[purpose], purpose)
    if gain:
        first, last, both = gain
        say(
            console,
            f"success on {both.difference.tasks} {tasks}: step {first} {both.before:.1%}, "
            f"step {last} {both.after:.1%}; difference {both.difference}\n"
            f"mean return: step {first} {both.return_before:.3f}, step {last} {both.return_after:.3f}; "
            f"difference {both.return_difference}",
        )
    elif tested:
        overall = summarize(record for record in played["test"] if record["step"] == tested)[-1]
        if overall.success is not None:
            rates = f"{overall.success}, mean return {overall.mean_return}"
            say(console, f"success on {overall.tasks} {tasks}: step {tested} {rates}")
    return played["test"]


def show_best(folder: RunFolder, envs: Sequence[EnvSettings], tests: Sequence[EpisodeRecord], console: Console) -> None:
    """Print the best checkpoint, the tasks that chose it, and its test or how to test it."""
    try:
        best = keep_best(folder.root)
    except OSError:  # a full disk has its own message; the next start repeats it
        best = read_best(folder.root)
    if best is None:
        return
    chosen_on = " and ".join(sorted({"env.eval_tasks" if validates_on_test(env) else "env.dev_tasks" for env in envs}))
    say(
        console,
        f"best checkpoint: step {best.step}, {best.measure} {best.value:.3f} on {chosen_on}, which chose it: "
        f"{folder.root / 'best'}",
    )
    tested = max((record["step"] for record in tests), default=0)
    of_best = [record for record in tests if record["step"] == best.step]
    if of_best and tested != best.step:
        overall = summarize(of_best)[-1]
        rates = f"{overall.success or '-'}, mean return {overall.mean_return or '-'}"
        say(console, f"its success on {overall.tasks} test tasks: {rates}")
    elif tested and tested != best.step:
        commands = [evaluation_command(env, folder.root / "best", use_cpu_device()) for env in envs]
        say(
            console,
            f"the test tasks were played at step {tested}; to test step {best.step}: {' and '.join(commands)}. "
            "trainer.test_best=true tests it during the run",
        )


def evaluation_command(env: EnvSettings, model: Path, cpu: bool) -> str:
    """Return the command that plays the test tasks of an environment with another model."""
    recipe = Path("recipes") / env.name / ("eval_cpu.yaml" if cpu else "eval.yaml")
    known = recipe if recipe.is_file() else f"EVALUATION_RECIPE_OF_{env.name.upper()}"
    given = (f"model.path={_given(str(model))}", f"env.eval_tasks={_given(env.eval_tasks)}")
    return f"verl-agent eval {known} {shlex.join(given)}"


def _given(text: str) -> str:
    """Return a text as the value of an override, with quotation marks where Hydra needs them."""
    return text if re.fullmatch(r"[\w./-]+", text, re.ASCII) else literal(text)
