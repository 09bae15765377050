"""Run of reinforcement learning: claim its folder, hand the config to verl and follow it to the last step."""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console
from rich.markup import escape

from verl_agent.config.keys import check_keys, check_kind
from verl_agent.config.mixture import MixtureEnv
from verl_agent.envs.settings import AUTO
from verl_agent.envs.splits import split_tasks
from verl_agent.errors import ConfigError
from verl_agent.runs import may_change
from verl_agent.runs.best_checkpoint import keep_best
from verl_agent.runs.child import Link
from verl_agent.runs.console import redirect_output, report_failure
from verl_agent.runs.folder import RunFolder, check_resume
from verl_agent.runs.identity import TASK_IDS, read_settings, task_ids
from verl_agent.runs.processes import ending_all_children
from verl_agent.system.gpus import read_gpus
from verl_agent.system.installation import describe_attention
from verl_agent.system.resources import most_checkpoints, spell_gb
from verl_agent.training.follow import finish, follow_run
from verl_agent.training.preflight.algorithms import has_critic
from verl_agent.training.preflight.estimates import CARD_GB, cpu_step_s, estimate, shape_of, spell
from verl_agent.training.preflight.loggers import check_loggers
from verl_agent.training.preflight.machine import needed_gb
from verl_agent.training.preflight.ranks import check_resumed_ranks
from verl_agent.training.preflight.rl import prepare

BASE = "agent_base"
MODELS = ("actor_rollout_ref.model.path", "critic.model.path")
"""Settings that `prepare` replaces by paths of this machine; the run's record keeps them as the recipe has them."""


def run(config: DictConfig, link: Link | None = None) -> None:
    """Train to the last step of a composed recipe, or resume from its last checkpoint.

    Args:
        config: composed recipe.
        link: connection to the supervisor, which ends the run if one of its processes dies; None without one.

    Raises:
        ConfigError: a check before the start fails, or verl rejects the config.
    """
    check_kind(config, BASE)
    check_keys(config, BASE)
    try:
        folder = RunFolder.at(config.trainer.default_local_dir)
    except OmegaConfBaseException as error:
        raise ConfigError(f"the config does not resolve: {error}") from error
    with redirect_output(folder.log) as console:
        console.print(f"[bold]{config.trainer.experiment_name}[/]: checking the recipe, the tasks and the machine ...")
        check_loggers(config.trainer.logger)
        check_resume(config.trainer, "actor_rollout_ref.model.path")
        as_written = {key: OmegaConf.select(config, key) for key in MODELS}
        mode, resume = config.trainer.resume_mode, config.trainer.resume_mode != "disable"
        if line := choose_dev_tasks(config, read_settings(folder.root) if resume and folder.last_step else {}):
            console.print(line, highlight=False, soft_wrap=True)
        config, envs = prepare(config, partial(console.print, markup=False, highlight=False, soft_wrap=True))
        total = int(config.trainer.total_training_steps)
        step, warning = folder.claim(settings_of(config, as_written, envs), may_change.REINFORCEMENT, mode)
        if warning:
            console.print(f"[yellow]{escape(warning)}[/]", highlight=False, soft_wrap=True)
        if step:
            config.trainer.resume_mode = "auto"  # verl knows no other mode, and reads the tracker
            keep_best(folder.root)
            folder.prune(config.trainer.max_actor_ckpt_to_keep)
        if folder.finished(total):
            console.print(f"All {step} steps are done already: {folder.root}")
            finish(folder, [one.env for one in envs], console)
            return
        if step < total:
            folder.require_room(needed_gb(config)[1], config.trainer.max_actor_ckpt_to_keep)
        if step:
            # True if the earlier start ended after its last checkpoint, but before the validation of that step.
            config.trainer.val_before_train = config.trainer.val_only = step >= total
            for line in check_resumed_ranks(folder.checkpoint, OmegaConf.to_container(config), has_critic(config)):
                console.print(line, markup=False, highlight=False, soft_wrap=True)
            console.print(f"resuming after step {step} of {total}", highlight=False)
        show_estimate(config, console)
        try:
            with (
                report_failure(folder, console),
                ending_all_children() as note_memory,
                follow_run(folder, config.trainer, console),
            ):
                train(config, folder, note_memory, link)
        finally:
            finish(folder, [one.env for one in envs], console)


def choose_dev_tasks(config: DictConfig, earlier: Mapping[str, Any]) -> str:
    """Replace `env.dev_tasks: auto` by null where no checkpoint is chosen, or where the run has trained on all tasks.

    Args:
        config: recipe with its overrides; changed in place.
        earlier: settings that the run began with; empty for a new run.

    Returns:
        Line that tells the user why a resumed run keeps null; empty otherwise.
    """
    if config.env.get("dev_tasks") != AUTO:
        return ""
    every, total = (OmegaConf.select(config, f"trainer.{key}") for key in ("test_freq", "total_training_steps"))
    chooses = not (isinstance(every, int) and isinstance(total, int)) or 0 < every < total
    began = earlier.get("env")
    trains_on_all = began is not None and began.get("dev_tasks") is None
    if trains_on_all or (began is None and not chooses):
        config.env.dev_tasks = None
    if trains_on_all and chooses:
        return "env.dev_tasks stays null, as this run began: it trains on all of env.train_tasks"
    return ""


def settings_of(config: DictConfig, as_written: dict[str, object], envs: Sequence[MixtureEnv]) -> dict[str, object]:
    """Return the settings that identify a run: its config, and a hash of the tasks that it trains on.

    Args:
        config: complete config.
        as_written: values of the recipe in place of those that `prepare` wrote, by key.
        envs: environments of the run.
    """
    written = OmegaConf.create(OmegaConf.to_container(config))
    for key, path in as_written.items():
        OmegaConf.update(written, key, path)
    tasks = [item for splits in split_tasks([one.env for one in envs]) for item in splits.train]
    plain = {str(key): value for key, value in OmegaConf.to_container(written).items()}
    return {"command": "train", **plain, TASK_IDS: task_ids(tasks)}


def show_estimate(config: DictConfig, console: Console) -> None:
    """Print the memory, disk and time that the run needs, and warn if that is more than the GPUs have."""
    shape, plain = shape_of(config.actor_rollout_ref.model.path), OmegaConf.to_container(config)
    critic = shape_of(config.critic.model.path) if has_critic(config) else None
    if config.trainer.device == "cpu":
        cores = len(os.sched_getaffinity(0))
        memory_gb, each_gb = needed_gb(config)
        disk = spell_gb(each_gb * most_checkpoints(config.trainer.max_actor_ckpt_to_keep))
        step = spell(cpu_step_s(plain, shape, critic, cores)) if shape else "?"
        console.print(
            f"estimated: {memory_gb:.0f} GB of memory, {disk} of disk; a step of full-length episodes takes "
            f"{step} on {cores} cores",
            highlight=False,
            soft_wrap=True,
        )
        return
    if shape is None:
        return
    memory_mib = read_gpus().memory_mib  # not asked from torch, which would start CUDA in this process
    card_gb = memory_mib * 2**20 / 1e9 if memory_mib else CARD_GB
    needed = estimate(plain, shape, critic, card_gb)
    console.print(str(needed), soft_wrap=True)
    console.print(describe_attention(plain), highlight=False, soft_wrap=True)
    if needed.peak_gb > card_gb:
        console.print(
            f"[yellow]That is more than the {card_gb:.0f} GB of a GPU.[/] To need less, set offload=true, add "
            "+overlay/lora=rank_32, lower actor_rollout_ref.rollout.gpu_memory_utilization, or use more GPUs.",
            soft_wrap=True,
        )


def train(config: DictConfig, folder: RunFolder, before_end: Callable[[], None], link: Link | None) -> None:
    """Hand the config to verl, in this process and the Ray processes that it starts.

    Args:
        config: complete, checked config.
        folder: folder of the run.
        before_end: called before Ray ends its processes.
        link: see `run`.

    Raises:
        ConfigError: verl rejects the config.
    """
    folder.metrics.parent.mkdir(parents=True, exist_ok=True)
    environment = config.ray_kwargs.ray_init.runtime_env.env_vars
    OmegaConf.set_struct(environment, False)
    environment.VERL_FILE_LOGGER_PATH = str(folder.metrics)
    os.environ.update(environment)
    from verl_agent.platform.plugin import require_plugin  # importing it imports verl

    environment.VERL_PLATFORM = require_plugin()
    import ray
    from verl.trainer.main_ppo import run_ppo
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    try:
        validate_config(config, need_reference_policy(config), need_critic(config))
    except (AssertionError, ValueError) as error:
        raise ConfigError(f"verl rejects the config: {error}") from error
    from verl_agent.training.actor_watch import watch_actors
    from verl_agent.training.cluster import join_cluster
    from verl_agent.training.runner import DriverRunner, EpisodeRunner

    # On GPUs the driver may be on a machine that has none.
    runner = DriverRunner if config.trainer.device == "cpu" else ray.remote(EpisodeRunner)
    try:
        join_cluster(config)
        with watch_actors(link):
            run_ppo(config, runner)
    finally:
        before_end()
        ray.shutdown()
