"""Config of verl: the settings of a plan, and all that this machine and this start add to them."""

import os
import shlex
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

import verl_agent.config
from verl_agent.config.plan import OfflinePlan, RunPlan
from verl_agent.config.plan_parts import SEPARATE, TEACHER_PATH, Schedule
from verl_agent.models.resolve import weights_hash
from verl_agent.platform.megatron.activation import STAND_INS
from verl_agent.platform.worker_environment import worker_environment
from verl_agent.runs.folder import RunFolder
from verl_agent.trace.metrics_log import read_metrics
from verl_agent.training.preflight.machine import bucket_mb

CONFIG = Path(verl_agent.config.__file__).parent
ROUTER = CONFIG / "router.yaml"
"""File for verl that names the class which assigns requests to rollout servers."""
LOSS_MODULE = "verl_agent.training.policy_losses"
"""Module that verl's workers import: it registers `turn_ratio` and counts the clipped tokens of each turn."""


def to_verl(plan: RunPlan, step: int = 0, variables: Mapping[str, str] | None = None) -> DictConfig:
    """Return the config that verl reads.

    Args:
        plan: checked plan, with the folders of its models.
        step: step to resume after; 0 for a new run.
        variables: environment variables of all processes of this start.
    """
    config = OmegaConf.create(dict(plan.values))
    policy, trainer, init = config.actor_rollout_ref, config.trainer, config.ray_kwargs.ray_init
    trainer.default_local_dir = str(plan.schedule.folder)
    trainer.resume_mode = resume_mode(plan.schedule, step)
    if step:
        trainer.val_only = step >= (plan.schedule.steps or 0)
        trainer.val_before_train = trainer.val_only or lacks_validation(plan.schedule, step)
    if len(plan.envs) > 1:
        config.data.shuffle = False  # the order of a mixture is already shuffled, see verl_agent.training.mixture
    if config.episode.record_dir is not None:
        config.episode.record_dir = str(plan.schedule.records)
    policy.model.path, given = plan.actor.path, policy.model.external_lib
    policy.model.external_lib = [*([given] if isinstance(given, str) else given or ()), LOSS_MODULE]
    if plan.critic:
        config.critic.model.path = plan.critic.path
    if plan.teacher:
        OmegaConf.update(config, TEACHER_PATH, plan.teacher.path)
    policy.rollout.agent.agent_loop_config_path = str(CONFIG / "agent_loop.yaml")
    own_variables = ray_variables(plan)
    init.runtime_env.env_vars = {
        **worker_environment(plan.schedule.folder, plan.layout.ranks_each, own_variables),
        **({STAND_INS: "1"} if plan.on_cpu and plan.actor.on_megatron else {}),
        **own_variables,
        **(variables or {}),
    }
    quoted = quoted_python()
    if quoted != sys.executable and not plan.layout.joins_ray and init.runtime_env.get("py_executable") is None:
        init.runtime_env.py_executable = quoted
    if plan.on_cpu:
        alone = plan.engine.workers == 1 and plan.engine.mode != SEPARATE
        if alone and policy.rollout.router_config_path is None and not policy.rollout.full_determinism:
            policy.rollout.router_config_path = str(ROUTER)
        policy.rollout.checkpoint_engine.update_weights_bucket_megabytes = bucket_mb(plan)
        if "_temp_dir" not in init:  # a short path, since names of sockets have at most 107 characters
            init._temp_dir = str(Path(tempfile.gettempdir()) / f"ray-{os.getuid()}")
    OmegaConf.set_struct(config, True)
    return config


def resume_mode(schedule: Schedule, step: int) -> str:
    """Return verl's mode: it does not know `latest`, and reads the tracker, in which the chosen checkpoint stands."""
    return "disable" if schedule.resume == "disable" and not step else "auto"


def lacks_validation(schedule: Schedule, step: int) -> bool:
    """Return True if a saved step was to be validated, and the run ended before its validation did."""
    every = schedule.test_every
    if not isinstance(every, int) or every <= 0 or step % every:
        return False
    logs = (read_metrics(log).get(step) for log in reversed(RunFolder.at(schedule.folder).all_metrics))
    last = next(filter(None, logs), {})  # an earlier start may have played the step with other weights
    return not any(name.startswith("val-") for name in last)


def ray_variables(plan: RunPlan) -> dict[str, str]:
    """Return the environment variables that a recipe gives to the workers of Ray, without those that are null."""
    given = plan.value("ray_kwargs.ray_init.runtime_env.env_vars") or {}
    return {str(name): str(value) for name, value in given.items() if value is not None}


def environment(config: DictConfig) -> dict[str, str]:
    """Return the environment variables that a config of verl gives to all processes of the run."""
    return {str(name): str(value) for name, value in config.ray_kwargs.ray_init.runtime_env.env_vars.items()}


def reference_weights(key: str, model: str) -> dict[str, str]:
    """Return the setting that identifies a reference model: its name may mean other weights at the next start.

    Args:
        key: key of its path.
        model: its folder, whose weights are read, or hub id, which identifies it alone.
    """
    weights = weights_hash(model)
    return {f"weights of {key}": weights} if weights else {}


def identity(plan: RunPlan) -> dict[str, Any]:
    """Return the settings that identify a run: verl's config with the models as the recipe names them.

    Checkpoints hold all models but the reference: the teacher, or the initial model. With LoRA the
    initial model is the policy without its adapters, which checkpoints hold.
    """
    settings: Any = OmegaConf.to_container(to_verl(plan))
    for name in ("actor_rollout_ref", "critic"):
        settings[name]["model"]["path"] = plan.value(f"{name}.model.path")
    if plan.teacher:
        settings["distillation"]["teacher_models"]["teacher_model"]["model_path"] = plan.value(TEACHER_PATH)
        return {**settings, **reference_weights(TEACHER_PATH, plan.teacher.path)}
    if plan.estimation.has_reference and not plan.actor.model.get("lora_rank"):
        return {**settings, **reference_weights(f"{plan.actor.model_key}.path", plan.actor.path)}
    return dict(settings)


def to_verl_offline(plan: OfflinePlan, step: int) -> DictConfig:
    """Return the config of verl's SFT trainer; see `to_verl`."""
    config = OmegaConf.create(dict(plan.values))
    config.trainer.default_local_dir, config.model.path = str(plan.schedule.folder), plan.actor.path
    config.trainer.resume_mode = resume_mode(plan.schedule, step)
    OmegaConf.set_struct(config, True)
    return config


def for_trainer(config: DictConfig, mode: str) -> DictConfig:
    """Return the config of a trainer of this package, once verl has chosen its class by the mode of the recipe.

    It has verl's own mode, removes no checkpoints, and has no rejection, which `verl_agent.training.rejection` applies
    later than verl, and no distillation, of which `verl_agent.training.distillation` does the part of the trainer.
    """
    with open_dict(config):
        OmegaConf.update(config, "distillation.enabled", False)
        config.trainer.v1.trainer_mode = mode
        for model in ("actor", "critic"):  # `RunFolder.prune` removes old checkpoints, after the next is complete
            config.trainer[f"max_{model}_ckpt_to_keep"] = None
        correction = config.algorithm.rollout_correction
        if not correction.bypass_mode:
            correction.rollout_rs = correction.rollout_rs_threshold = None
    return config


def quoted_python(executable: str = sys.executable) -> str:
    """Return the path of Python for the command by which Ray starts workers, for example one with a space.

    ray 2.60.0, _private/runtime_env/context.py:48 hands this path to a shell as it is. Without the quotes no worker
    starts.
    """
    return shlex.quote(executable)
