"""Progress of a run of reinforcement learning on the terminal, from its log and metrics files."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from omegaconf import DictConfig
from rich.console import Console

from verl_agent.errors import ConfigError
from verl_agent.evaluation.results import validation_gain
from verl_agent.runs.best_checkpoint import BestKeeper, keep_best
from verl_agent.runs.console import poll_in_background
from verl_agent.runs.folder import RunFolder
from verl_agent.trace.curves import plot_curves
from verl_agent.trace.progress import ProgressView
from verl_agent.trace.record_files import read_records

PHASES = (
    ("Started a local Ray instance", "starting Ray"),
    ("create worker group", "loading the model into the trainer"),
    ("actor and ref model engine initialized", "starting the rollout engine"),
    ("all initialize finished", "sending the weights to the rollout engine"),
    ("Creating file logger", "playing the first episodes"),
)
"""Texts in the log of Ray and verl, and the phase of start-up that each begins."""
POLL_S = 1.0


@contextmanager
def follow_run(folder: RunFolder, trainer: DictConfig, console: Console) -> Iterator[None]:
    """Show the phases of start-up, then one line a step, while the block runs.

    At each checkpoint, older ones are removed and the curves are plotted.

    Args:
        folder: folder of the run.
        trainer: section `trainer`.
        console: console to print on.
    """
    shown, position, saved = -1, 0, folder.last_step
    keeper = BestKeeper(folder)
    with ProgressView(folder.metrics, trainer.total_training_steps, console) as view:
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
                folder.prune(trainer.max_actor_ckpt_to_keep, running=True)
                plot_run(folder)

        with poll_in_background(poll, POLL_S):
            yield


def finish(folder: RunFolder, console: Console) -> None:
    """Plot the curves and print the paths of the results, if the run has logged any step."""
    if any(path.stat().st_size for path in folder.all_metrics):
        console.print(f"curves: {folder.curves}" if plot_run(folder) else "no curves to plot yet", soft_wrap=True)
        show_gain(folder, console)
        best = keep_best(folder.root)
        if best is not None:
            console.print(f"best checkpoint: step {best.step}, {best.measure} {best.value:.3f}: {folder.root / 'best'}")
        console.print(
            f"episodes: {folder.root / 'episodes'}   log: {folder.log}   checkpoint: step {folder.last_step}",
            soft_wrap=True,
        )


def plot_run(folder: RunFolder) -> bool:
    """Plot the curves of a run; return False if it has logged no curve yet."""
    logging.getLogger("matplotlib").setLevel(logging.WARNING)
    try:
        plot_curves(folder.all_metrics, folder.curves, title=folder.root.name)
    except ConfigError:
        return False
    return True


def show_gain(folder: RunFolder, console: Console) -> None:
    """Compare the first and the last validation, task by task."""
    records = folder.root / "episodes"
    gain = validation_gain(read_records(records)) if records.is_dir() else None
    if gain:
        first, last, both = gain
        console.print(
            f"success on {both.difference.tasks} held-out tasks: step {first} {both.before:.1%}, "
            f"step {last} {both.after:.1%}; difference {both.difference}",
            soft_wrap=True,
        )
