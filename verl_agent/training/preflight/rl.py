"""Preparation of a training run: a composed recipe becomes a config for verl, or fails with a clear error."""

import logging
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

import verl_agent.config
from verl_agent.agents.registry import check_retries
from verl_agent.config.algorithms import find_loss, has_critic
from verl_agent.config.keys import check_complete
from verl_agent.config.mixture import run_envs
from verl_agent.config.settings import RunEnv
from verl_agent.envs.settings import AUTO
from verl_agent.envs.tasks import check_disjoint, task_ids
from verl_agent.errors import ConfigError
from verl_agent.models.resolve import largest_weight, resolve_model
from verl_agent.platform.detect import use_cpu_device
from verl_agent.platform.megatron.activation import STAND_INS
from verl_agent.platform.worker_environment import worker_environment
from verl_agent.runs.identity import TASK_IDS
from verl_agent.system.compiler import compilation_variables
from verl_agent.system.installation import check_installation
from verl_agent.training.preflight.condition_table import CONDITIONS, SEPARATE
from verl_agent.training.preflight.conditions import check_conditions
from verl_agent.training.preflight.lengths import check_critic, check_micro_batches, check_places, check_shares
from verl_agent.training.preflight.machine import check_machine
from verl_agent.training.preflight.megatron import MEGATRON_CONDITIONS, check_megatron
from verl_agent.training.preflight.prompts import check_prompts
from verl_agent.training.seats import check_comparison
from verl_agent.training.splits import split_tasks, validates_on_test

ROUTER = Path(verl_agent.config.__file__).with_name("router.yaml")
"""File for verl that names the class which assigns requests to rollout servers."""
LOSS_MODULE = "verl_agent.training.policy_losses"
"""Module that verl's workers import: it registers `turn_ratio` and counts the clipped tokens of each turn."""
BUCKET_MB = 128
"""Smallest bucket of a weight transfer in MiB."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """Checked run of reinforcement learning.

    Attributes:
        verl: complete config, which verl reads.
        plain: the same in plain values.
        settings: settings that identify the run: those of `plain` with the models as the recipe names them, and a hash
            of the tasks that it trains on.
        envs: environments of the run.
    """

    verl: DictConfig
    plain: Mapping[str, Any]
    settings: Mapping[str, Any]
    envs: Sequence[RunEnv]


def prepare_run(config: DictConfig, report: Callable[[str], None] = logger.info) -> TrainingRun:
    """Resolve, check and complete a config.

    Args:
        config: recipe with its overrides, as Hydra composed it; changed in place.

    Raises:
        ConfigError: a setting would make the run fail later.
    """
    try:
        OmegaConf.resolve(config)
    except OmegaConfBaseException as error:
        raise ConfigError(f"the config does not resolve: {error}") from error
    check_complete(config)
    plain: Any = OmegaConf.to_container(config)
    envs = run_envs(plain)
    on_cpu, policy, critic = use_cpu_device(), config.actor_rollout_ref, has_critic(config)
    if (config.trainer.device == "cpu") != on_cpu:
        raise ConfigError(
            "this recipe is for a GPU, and the machine has none. Choose a recipe whose name ends with _cpu."
            if on_cpu
            else "this recipe is for the CPU, and the machine has an accelerator. To train on the CPU anyway, set "
            "VERL_PLATFORM=cpu and use the packages of `make setup DEVICE=cpu`."
        )
    check_conditions(config, (*CONDITIONS, *MEGATRON_CONDITIONS))
    if config.trainer.test_best and all(validates_on_test(one.env) for one in envs):
        raise ConfigError(
            "trainer.test_best=True has no effect: validation plays env.eval_tasks already. Set env.dev_tasks to other "
            "tasks, or trainer.test_best=false."
        )
    check_installation(plain, critic)
    estimator, filters = config.algorithm.adv_estimator, config.algorithm.filter_groups.enable
    for run_env in envs:
        check_environment(run_env, envs)
        check_comparison(estimator, policy.rollout.n, policy.rollout.val_kwargs.n, run_env, filters)
        check_places(plain, run_env, envs)
    find_loss(policy.actor.policy_loss.loss_mode)  # imports that of another package
    for horizon in (one.horizon for one in envs if one.horizon.schedule):  # one of another package may fail
        for step in range(1, int(config.trainer.total_training_steps) + 1):
            horizon.turns_at(step)
    check_micro_batches(config)
    check_shares(config, envs)
    with open_dict(config):
        _complete(config, len(envs) > 1, on_cpu, report)
    check_machine(config, report)
    for run_env in envs:
        check_prompts(config, run_env, report)
    if critic:
        check_critic(config.critic.model.path, policy.model.path)
    if policy.actor.strategy == "megatron":
        check_megatron(config)
    complete: Any = OmegaConf.to_container(config)
    as_written = {
        name: {**complete[name], "model": {**complete[name]["model"], "path": plain[name]["model"]["path"]}}
        for name in ("actor_rollout_ref", "critic")
    }
    tasks = task_ids([item for splits in split_tasks(envs) for item in splits.train])
    return TrainingRun(config, complete, {"command": "train", **complete, **as_written, TASK_IDS: tasks}, envs)


def check_environment(run_env: RunEnv, envs: Sequence[RunEnv]) -> None:
    """Check the environment's name, options and tasks.

    No held-out task is trained on, and no development task is trained or tested on by an entry of the same run.
    """
    env = run_env.env
    run_env.new_agent()
    check_retries(run_env.agent, run_env.live)
    train = run_env.tasks(env.train_tasks, "env.train_tasks")
    for other in envs:
        if other.env.name == env.name and not other.env.overlap:
            sources = {"env.train_tasks": env.train_tasks, "env.eval_tasks": other.env.eval_tasks}
            check_disjoint(train, run_env.tasks(other.env.eval_tasks, "env.eval_tasks"), sources)
            if env.dev_tasks is None or env.dev_tasks == AUTO:
                continue  # tasks of `auto` are training tasks of `run_env`, and held out of those of `other`
            null = "Choose splits that do not overlap, or set env.dev_tasks=null to validate on env.eval_tasks."
            dev = run_env.tasks(env.dev_tasks, "env.dev_tasks")
            for source, key in ((other.env.train_tasks, "env.train_tasks"), (other.env.eval_tasks, "env.eval_tasks")):
                check_disjoint(dev, run_env.tasks(source, key), {"env.dev_tasks": env.dev_tasks, key: source}, null)


def _complete(config: DictConfig, mixed: bool, on_cpu: bool, report: Callable[[str], None]) -> None:
    """Fill in values of this machine: paths and environment variables of workers."""
    if mixed:
        config.data.shuffle = False  # the order of a mixture is already shuffled, see verl_agent.training.mixture
    run_dir = Path(config.trainer.default_local_dir).resolve()
    config.trainer.default_local_dir = str(run_dir)
    if config.episode.record_dir is not None:
        config.episode.record_dir = str(Path(config.episode.record_dir).resolve())
    model = config.actor_rollout_ref.model
    model.path = resolve_model(model.path)
    given = model.external_lib
    model.external_lib = [*([given] if isinstance(given, str) else given or ()), LOSS_MODULE]
    if has_critic(config):
        config.critic.model.path = resolve_model(config.critic.model.path, key="critic.model.path")
    loop_config = Path(verl_agent.config.__file__).with_name("agent_loop.yaml")
    config.actor_rollout_ref.rollout.agent.agent_loop_config_path = str(loop_config)
    init = config.ray_kwargs.ray_init
    megatron = config.actor_rollout_ref.actor.strategy == "megatron"
    init.runtime_env.env_vars = {
        **worker_environment(run_dir, config.trainer.n_gpus_per_node),
        **({STAND_INS: "1"} if on_cpu and megatron else {}),
        **(compilation_variables(report) if on_cpu else {}),
        **(init.runtime_env.get("env_vars") or {}),
    }
    if on_cpu:
        rollout = config.actor_rollout_ref.rollout
        alone = rollout.agent.num_workers == 1 and config.trainer.v1.trainer_mode != SEPARATE
        if alone and rollout.router_config_path is None and not rollout.full_determinism:
            rollout.router_config_path = str(ROUTER)
        transfer = rollout.checkpoint_engine
        largest = largest_weight(config.actor_rollout_ref.model.path)
        transfer.update_weights_bucket_megabytes = bucket_mb(largest, transfer.update_weights_bucket_megabytes)
    if on_cpu and "_temp_dir" not in init:
        # a short path, since names of sockets have at most 107 characters
        init._temp_dir = str(Path(tempfile.gettempdir()) / f"ray-{os.getuid()}")


def bucket_mb(largest: int | None, configured: int) -> int:
    """Return the MiB of weights that trainer and engine of a CPU share at a time, of which the engine makes a copy.

    Args:
        largest: elements of the largest tensor, which a bucket must hold in float32; None if unknown.
        configured: upper bound of the config in MiB.
    """
    return configured if largest is None else min(configured, max(BUCKET_MB, -(-4 * largest // 2**20)))
