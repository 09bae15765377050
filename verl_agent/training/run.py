"""Run of reinforcement learning: claim its folder, hand the config to verl and follow it to the last step."""

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console

from verl_agent.config.algorithms import has_critic
from verl_agent.config.catalogue import may_change
from verl_agent.config.checks import check_keys
from verl_agent.config.mixture import running
from verl_agent.envs.settings import AUTO
from verl_agent.errors import ConfigError
from verl_agent.runs.best_checkpoint import keep_best
from verl_agent.runs.child import Link
from verl_agent.runs.console import redirect_output, report_failure
from verl_agent.runs.folder import RunFolder, check_resume
from verl_agent.runs.identity import read_settings
from verl_agent.runs.processes import ending_all_children
from verl_agent.system.gpus import read_gpus
from verl_agent.system.installation import describe_attention
from verl_agent.system.resources import most_checkpoints, spell_gb
from verl_agent.training.follow import finish, follow_run
from verl_agent.training.preflight.estimates import CARD_GB, cpu_step_s, estimate_footprint, shape_of, spell
from verl_agent.training.preflight.loggers import check_loggers
from verl_agent.training.preflight.machine import needed_gb
from verl_agent.training.preflight.ranks import check_resumed_ranks
from verl_agent.training.preflight.rl import TrainingRun, prepare_run

BASE = "agent_base"


def run(config: DictConfig, link: Link | None = None) -> None:
    """Train to the last step of a composed recipe, or resume from its last checkpoint.

    Raises:
        ConfigError: a check before the start fails, or verl rejects the config.
    """
    check_keys(config, BASE)
    try:
        folder = RunFolder.create(config.trainer.default_local_dir)
    except OmegaConfBaseException as error:
        raise ConfigError(f"the config does not resolve: {error}") from error
    with redirect_output(folder.log) as console:
        say = partial(console.print, markup=False, highlight=False, soft_wrap=True)
        say(f"{config.trainer.experiment_name}: checking the recipe, the tasks and the machine ...")
        check_loggers(config.trainer.logger)
        check_resume(config.trainer, "actor_rollout_ref.model.path")
        mode, last = config.trainer.resume_mode, folder.last_step
        choose_dev_tasks(config, read_settings(folder.root) if last and mode != "disable" else {}, say)
        this = prepare_run(config, say)
        trainer, envs = this.verl.trainer, [one.env for one in this.envs]
        total, keep = int(trainer.total_training_steps), trainer.max_actor_ckpt_to_keep
        step, warning = folder.claim(this.settings, may_change("train"), mode)
        if warning:
            say(warning, style="yellow")
        if step:
            trainer.resume_mode = "auto"  # verl knows no other mode, and reads the tracker
            keep_best(folder.root)
            folder.prune(keep)
        if folder.finished(total):
            say(f"All {step} steps are done already: {folder.root}")
            finish(folder, envs, console)
            return
        if step < total:
            folder.require_room(needed_gb(this.verl)[1], keep)
        if step:
            # True if the earlier start ended after its last checkpoint, but before the validation of that step.
            trainer.val_before_train = trainer.val_only = step >= total
            resharded = check_resumed_ranks(folder.checkpoint, this.plain, has_critic(this.verl))
            say("\n".join([*resharded, f"resuming after step {step} of {total}"]))
        show_estimate(this, console)
        try:
            with (
                report_failure(folder, console),
                ending_all_children() as note_memory,
                follow_run(folder, total, keep, console),
            ):
                hand_to_verl(this, folder, note_memory, link)
        finally:
            finish(folder, envs, console)


def choose_dev_tasks(config: DictConfig, earlier: Mapping[str, Any], report: Callable[[str], None]) -> None:
    """Replace `env.dev_tasks: auto` by null where no checkpoint is chosen, or where the run has trained on all tasks.

    Args:
        earlier: settings that the run began with; empty for a new run.
    """
    if config.env.get("dev_tasks") != AUTO:
        return
    every, total = (OmegaConf.select(config, f"trainer.{key}") for key in ("test_freq", "total_training_steps"))
    chooses = not (isinstance(every, int) and isinstance(total, int)) or 0 < every < total
    began = earlier.get("env")
    trains_on_all = began is not None and began.get("dev_tasks") is None
    if trains_on_all or (began is None and not chooses):
        config.env.dev_tasks = None
    if trains_on_all and chooses:
        report("env.dev_tasks stays null, as this run began: it trains on all of env.train_tasks")


def show_estimate(run: TrainingRun, console: Console) -> None:
    """Print the memory, disk and time that the run needs, and warn if that is more than the GPUs have."""
    config, plain = run.verl, run.plain
    shape = shape_of(config.actor_rollout_ref.model.path)
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
    needed = estimate_footprint(plain, shape, critic, card_gb)
    console.print(str(needed), soft_wrap=True)
    console.print(describe_attention(plain), highlight=False, soft_wrap=True)
    if needed.peak_gb > card_gb:
        console.print(
            f"[yellow]That is more than the {card_gb:.0f} GB of a GPU.[/] To need less, set offload=true, add "
            "+overlay/lora=rank_32, lower actor_rollout_ref.rollout.gpu_memory_utilization, or use more GPUs.",
            soft_wrap=True,
        )


def hand_to_verl(run: TrainingRun, folder: RunFolder, before_end: Callable[[], None], link: Link | None) -> None:
    """Hand the config to verl, in this process and the Ray processes that it starts.

    From here on verl calls us, by names in `config/agent_base.yaml` and `agent_loop.yaml`: `TaskDataset` (tasks),
    `EpisodeLoopManager` and `EpisodeLoop` (episodes to rows), `EpisodeSampler` (rows to a batch), and the trainers that
    `EpisodeRunner` registers (turn limits, advantages). Estimators and losses are in verl's registries.

    Raises:
        ConfigError: verl rejects the config.
    """
    config = run.verl
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
    from verl_agent.training.cluster import DriverRunner, EpisodeRunner, join_cluster

    # On GPUs the driver may be on a machine that has none.
    runner = DriverRunner if config.trainer.device == "cpu" else ray.remote(EpisodeRunner)
    try:
        join_cluster(config)
        with running(run.envs), watch_actors(link):
            run_ppo(config, runner)
    finally:
        before_end()
        ray.shutdown()
