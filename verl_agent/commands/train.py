"""Train an agent with verl: `python -m verl_agent.commands.train --config-dir recipes/<env> --config-name <recipe>`."""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import hydra
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console

from verl_agent.commands.hydra_main import launch
from verl_agent.config.keys import check_keys, check_kind
from verl_agent.envs.tasks import select_tasks
from verl_agent.errors import ConfigError
from verl_agent.evaluation.results import validation_gain
from verl_agent.preflight.algorithms import has_critic
from verl_agent.preflight.estimates import cpu_step_s, estimate, shape_of, spell
from verl_agent.preflight.loggers import check_loggers
from verl_agent.preflight.rl import needed_gb, prepare
from verl_agent.runs.best_checkpoint import BestKeeper, keep_best
from verl_agent.runs.console import exit_with, poll_in_background, redirect_output, report_failure
from verl_agent.runs.folder import RL_IDENTITY, RunFolder, check_resume, identity
from verl_agent.runs.processes import ending_all_children
from verl_agent.trace.curves import plot_curves
from verl_agent.trace.progress import ProgressView
from verl_agent.trace.record_files import read_records

PHASES = (
    ("Started a local Ray instance", "starting Ray"),
    ("create worker group", "loading the model into the trainer"),
    ("actor and ref model engine initialized", "starting the rollout engine"),
    ("all initialize finished", "handing the weights to the rollout engine"),
    ("Creating file logger", "playing the first episodes"),
)
"""What a line in the log says about where start-up is."""
POLL_S = 1.0
MODELS = ("actor_rollout_ref.model.path", "critic.model.path")
"""Settings that `prepare` makes a path of this machine of, which may differ where a run goes on."""


def run(config: DictConfig) -> None:
    """Train to the end of a composed recipe, or go on from its last checkpoint.

    Raises:
        ConfigError: the run must not start, or cannot go on.
    """
    check_kind(config, "agent_base")
    try:
        folder = RunFolder.at(config.trainer.default_local_dir)
    except OmegaConfBaseException as error:
        raise ConfigError(f"the config does not resolve: {error}") from error
    with redirect_output(folder.log) as console:
        console.print(f"[bold]{config.trainer.experiment_name}[/]: checking the recipe, the tasks and the machine ...")
        check_keys(config, "agent_base")
        check_loggers(config.trainer.logger)
        check_resume(config.trainer, "actor_rollout_ref.model.path")
        as_written = {key: OmegaConf.select(config, key) for key in MODELS}
        config, parts = prepare(config)
        resume, total = config.trainer.resume_mode != "disable", int(config.trainer.total_training_steps)
        written = OmegaConf.create(OmegaConf.to_container(config))
        for key, path in as_written.items():
            OmegaConf.update(written, key, path)
        tasks = [item for part in parts for item in select_tasks(part.env.name, part.env.train_tasks, part.env.options)]
        facts = identity(OmegaConf.to_container(written), RL_IDENTITY, tasks)
        folder.check_identity({"command": "train", **facts}, resume)
        if resume and folder.finished(total):
            console.print(f"All {folder.last_step} steps are done already: {folder.root}")
            keep_best(folder.root)
            folder.prune(config.trainer.max_actor_ckpt_to_keep)
            finish(folder, console)
            return
        if resume and folder.last_step:
            keep_best(folder.root)
            folder.prune(config.trainer.max_actor_ckpt_to_keep)
            last = folder.last_step >= total  # it ended between its last checkpoint and the validation of it
            config.trainer.val_before_train = config.trainer.val_only = last
            console.print(f"going on after step {folder.last_step} of {total}", highlight=False)
        show_footprint(config, console)
        try:
            with (
                report_failure(folder, console),
                ending_all_children() as note_memory,
                follow_run(folder, config.trainer, console),
            ):
                train(config, folder, note_memory)
        finally:
            finish(folder, console)


def show_footprint(config: DictConfig, console: Console) -> None:
    """Say what the run will take, and warn where that is more than the GPUs have."""
    shape, plain = shape_of(config.actor_rollout_ref.model.path), OmegaConf.to_container(config)
    critic = shape_of(config.critic.model.path) if has_critic(config) else None
    if config.trainer.device == "cpu":
        cores = len(os.sched_getaffinity(0))
        memory_gb, disk_gb = needed_gb(config)
        step = spell(cpu_step_s(plain, shape, critic, cores)) if shape else "?"
        console.print(
            f"estimated: {memory_gb:.0f} GB of memory, {disk_gb:.1f} GB of disk; a step of full-length episodes takes "
            f"{step} on {cores} cores",
            highlight=False,
            soft_wrap=True,
        )
        return
    if shape is None:
        return
    import torch

    card_gb = torch.cuda.get_device_properties(0).total_memory / 1e9
    found = estimate(plain, shape, critic, card_gb)
    console.print(str(found), soft_wrap=True)
    if found.peak_gb > card_gb:
        console.print(
            f"[yellow]That is more than the {card_gb:.0f} GB of a GPU here.[/] offload=true, +overlay/lora=rank_32, a "
            "lower actor_rollout_ref.rollout.gpu_memory_utilization or more GPUs take less.",
            soft_wrap=True,
        )


def train(config: DictConfig, folder: RunFolder, before_end: Callable[[], None]) -> None:
    """Hand the config to verl, in this process and the Ray processes that it starts.

    Args:
        config: complete and checked.
        folder: of the run.
        before_end: called before Ray ends its processes.
    """
    folder.metrics.parent.mkdir(parents=True, exist_ok=True)
    environment = config.ray_kwargs.ray_init.runtime_env.env_vars
    OmegaConf.set_struct(environment, False)
    environment.VERL_FILE_LOGGER_PATH = str(folder.metrics)
    os.environ.update(environment)
    from verl_agent.plugin import require_plugin  # importing it imports verl

    require_plugin()
    import ray
    from verl.trainer.main_ppo import run_ppo
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    try:
        validate_config(config, need_reference_policy(config), need_critic(config))
    except (AssertionError, ValueError) as error:
        raise ConfigError(f"verl refuses the config: {error}") from error
    from verl_agent.training.runner import EpisodeRunner

    try:
        run_ppo(config, EpisodeRunner)
    finally:
        before_end()
        ray.shutdown()


@contextmanager
def follow_run(folder: RunFolder, trainer: DictConfig, console: Console) -> Iterator[None]:
    """While the block runs, show where start-up is, then a line a step; at each checkpoint keep house."""
    shown, position, saved = -1, 0, folder.last_step
    keeper = BestKeeper(folder)
    with ProgressView(folder.metrics, trainer.total_training_steps, console) as view:
        view.phase("loading verl, Ray and torch")

        def look() -> None:
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
            keeper.look()
            if folder.last_step > saved:
                saved = folder.last_step
                folder.prune(trainer.max_actor_ckpt_to_keep, running=True)
                plot_run(folder)

        with poll_in_background(look, POLL_S):
            yield


def finish(folder: RunFolder, console: Console) -> None:
    """Draw the curves and say where everything is."""
    if any(path.stat().st_size for path in folder.all_metrics):
        console.print(f"curves: {folder.curves}" if plot_run(folder) else "nothing to draw yet", soft_wrap=True)
        show_gain(folder, console)
        best = keep_best(folder.root)
        if best is not None:
            console.print(f"best checkpoint: step {best.step}, {best.measure} {best.value:.3f}: {folder.root / 'best'}")
        console.print(
            f"episodes: {folder.root / 'episodes'}   log: {folder.log}   checkpoint: step {folder.last_step}",
            soft_wrap=True,
        )


def plot_run(folder: RunFolder) -> bool:
    """Draw the curves of a run; returns whether there is anything to draw."""
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


@hydra.main(version_base=None, config_path=None, config_name=None)
def main(config: DictConfig) -> None:
    """Entry point of `python -m verl_agent.commands.train`."""
    exit_with(run, config)


if __name__ == "__main__":
    launch(main, "agent_base")
