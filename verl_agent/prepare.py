"""Turn a composed recipe into a config that verl can run, or refuse it before anything starts."""

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

import verl_agent.config
from verl_agent.config.schema import AgentSettings, agent_settings
from verl_agent.envs.registry import new_session
from verl_agent.envs.tasks import check_disjoint, select_tasks
from verl_agent.errors import ConfigError
from verl_agent.machine import (
    RL_BYTES,
    RL_MEMORY_GB,
    check_disk,
    check_memory,
    disk_needed,
    memory_needed,
    read_memory,
)
from verl_agent.model_config import load_config
from verl_agent.models import parameters, resolve_model
from verl_agent.platform.detect import use_cpu_device
from verl_agent.prompts import agent_of, check_prompts

UNIFORM_IS_ZERO = ("grpo", "grpo_vectorized", "rloo", "rloo_vectorized")
"""Estimators (verl/trainer/ppo/core_algos.py) that give a group of equal rewards no advantage, whatever the others."""


def prepare(config: DictConfig) -> tuple[DictConfig, AgentSettings]:
    """Resolve, check and complete a config.

    Args:
        config: a recipe with its overrides, as Hydra composed it.

    Returns:
        The config that verl gets, resolved, and the sections of this package.

    Raises:
        ConfigError: anything that would make the run fail later, named by key.
    """
    try:
        OmegaConf.resolve(config)
        missing = OmegaConf.missing_keys(config)
    except OmegaConfBaseException as error:
        raise ConfigError(f"the config does not resolve: {error}") from error
    missing = {key for key in missing if not key.startswith("reward.")}  # verl's reward model, which is not used
    if missing:
        raise ConfigError(f"the config lacks a value for {', '.join(sorted(missing))}.")
    settings = agent_settings(OmegaConf.to_container(config))
    check_trainer(config)
    check_environment(settings)
    check_context(config, settings)
    check_budgets(config, settings)
    with open_dict(config):
        _complete(config)
    check_prompts(config, settings)
    if has_critic(config):
        load_config(config.critic.model.path, "critic.model.path")
    check_machine(config)
    return config, settings


def check_trainer(config: DictConfig) -> None:
    """The config is for this machine's device, and asks for nothing that our sampler leaves out.

    Raises:
        ConfigError: it does not fit.
    """
    if (config.trainer.device == "cpu") != use_cpu_device():
        raise ConfigError(
            "this recipe is for a GPU, and the machine has none. Choose a recipe whose name ends with _cpu."
            if use_cpu_device()
            else "this recipe is for the CPU, and the machine has an accelerator. Set VERL_PLATFORM=cpu to train on "
            "the CPU all the same, with the packages of `make setup DEVICE=cpu`."
        )
    if use_cpu_device() and os.environ.get("RAY_ADDRESS"):
        raise ConfigError("RAY_ADDRESS names a Ray cluster, but a recipe for the CPU starts its own Ray. Unset it.")
    for key, wanted in (
        ("trainer.use_v1", True),
        ("trainer.v1.trainer_mode", "sync"),
        ("trainer.v1.sampler.sync_refill_failed_groups", False),
        ("algorithm.filter_groups.enable", False),
    ):
        if OmegaConf.select(config, key) != wanted:
            raise ConfigError(
                f"{key}={OmegaConf.select(config, key)!r} does not work with the episode sampler. Allowed: {wanted!r}."
            )
    estimator = config.algorithm.adv_estimator
    if config.trainer.v1.sampler.sampler_kwargs.skip_uniform and estimator not in UNIFORM_IS_ZERO:
        raise ConfigError(
            "trainer.v1.sampler.sampler_kwargs.skip_uniform leaves out groups that algorithm.adv_estimator="
            f"{estimator!r} learns from. Set it to false, or choose one of {', '.join(UNIFORM_IS_ZERO)}."
        )


def check_environment(settings: AgentSettings) -> None:
    """The environment exists, accepts its options, and knows the tasks.

    Raises:
        ConfigError: it does not.
    """
    env = settings.env
    new_session(env.name, env.options)
    agent_of(settings)
    select_tasks(env.name, env.train_tasks, env.options)
    check_disjoint(env.name, env.train_tasks, env.eval_tasks, env.options)


def check_context(config: DictConfig, settings: AgentSettings) -> None:
    """A context that is edited makes several rows of an episode, which not every estimator and loss counts as one.

    Raises:
        ConfigError: the estimator, or how the loss is averaged, would weigh an episode by its rows.
    """
    if not agent_of(settings).context.edits:
        return
    keep = settings.agent.context["keep"]
    for key, allowed, why in (
        ("algorithm.adv_estimator", "grpo", "takes an episode's rows for episodes"),
        ("actor_rollout_ref.actor.loss_agg_mode", "token-mean", "gives an episode the weight of its rows"),
        ("algorithm.use_kl_in_reward", False, "counts the penalty of its last row alone"),
    ):
        if OmegaConf.select(config, key) != allowed:
            raise ConfigError(
                f"agent.context.keep={keep!r} makes several rows of an episode, and {key}="
                f"{OmegaConf.select(config, key)!r} {why}. Allowed with it: {allowed!r}."
            )


def check_budgets(config: DictConfig, settings: AgentSettings) -> None:
    """Token budgets fit into each other and into the engine's context; batches divide.

    Raises:
        ConfigError: they do not.
    """
    prompt, response = int(config.data.max_prompt_length), int(config.data.max_response_length)
    context, turn = config.actor_rollout_ref.rollout.max_model_len, settings.episode.max_tokens_per_turn
    if context is not None and prompt + response > int(context):
        raise ConfigError(
            f"data.max_prompt_length={prompt} and data.max_response_length={response} exceed "
            f"actor_rollout_ref.rollout.max_model_len={context} tokens. Lower them, or raise it."
        )
    if turn > response:
        raise ConfigError(
            f"episode.max_tokens_per_turn={turn} exceeds data.max_response_length={response}, the tokens of the whole "
            "episode after its prompt."
        )
    batch, mini = int(config.data.train_batch_size), int(config.actor_rollout_ref.actor.ppo_mini_batch_size)
    several = agent_of(settings).context.edits and mini % batch == 0  # one update for all rows of a step
    if batch % mini and not several:
        raise ConfigError(
            f"data.train_batch_size={batch} must be a multiple of actor_rollout_ref.actor.ppo_mini_batch_size={mini}."
        )
    tasks = len(select_tasks(settings.env.name, settings.env.train_tasks, settings.env.options))
    if tasks < batch:
        raise ConfigError(
            f"env.train_tasks={settings.env.train_tasks!r} has {tasks} tasks, fewer than data.train_batch_size={batch}."
        )


def check_machine(config: DictConfig) -> None:
    """The machine has the memory and the disk that training this model takes.

    Raises:
        ConfigError: it does not.
    """
    sizes = [parameters(config.actor_rollout_ref.model.path)]
    if has_critic(config):
        sizes.append(parameters(config.critic.model.path))
    count = sum(size or 0 for size in sizes) or None
    if use_cpu_device():
        check_memory(read_memory(), memory_needed(count, RL_MEMORY_GB, RL_BYTES))
    run_dir, trainer = Path(config.trainer.default_local_dir), config.trainer
    run_dir.mkdir(parents=True, exist_ok=True)
    saved = list(config.actor_rollout_ref.actor.checkpoint.save_contents) if trainer.save_freq > 0 else []
    check_disk(shutil.disk_usage(run_dir).free, disk_needed(count, saved, trainer.max_actor_ckpt_to_keep), run_dir)


def has_critic(config: DictConfig) -> bool:
    """Whether verl will train a critic (trainer/ppo/utils.py, `need_critic`)."""
    return bool(config.critic.enable or (config.critic.enable is None and config.algorithm.adv_estimator == "gae"))


def _complete(config: DictConfig) -> None:
    """Fill in what only this machine knows: paths, environment variables of workers."""
    run_dir = Path(config.trainer.default_local_dir).resolve()
    config.trainer.default_local_dir = str(run_dir)
    if config.episode.record_dir is not None:
        config.episode.record_dir = str(Path(config.episode.record_dir).resolve())
    config.actor_rollout_ref.model.path = resolve_model(config.actor_rollout_ref.model.path)
    if has_critic(config):
        config.critic.model.path = resolve_model(config.critic.model.path, key="critic.model.path")
    loop_config = Path(verl_agent.config.__file__).with_name("agent_loop.yaml")
    config.actor_rollout_ref.rollout.agent.agent_loop_config_path = str(loop_config)
    init = config.ray_kwargs.ray_init
    init.runtime_env.env_vars = {**worker_environment(run_dir), **(init.runtime_env.get("env_vars") or {})}
    if use_cpu_device() and "_temp_dir" not in init:
        init._temp_dir = str(ray_dir())


def worker_environment(run_dir: Path) -> Mapping[str, str]:
    """Environment variables that every process of the run gets."""
    variables = {
        "TENSORBOARD_DIR": str(run_dir / "tensorboard"),
        "HYDRA_FULL_ERROR": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONWARNINGS": "ignore",
    }
    if use_cpu_device():
        cores = str(len(os.sched_getaffinity(0)))
        variables |= {
            "VERL_PLATFORM": "cpu",
            "OMP_NUM_THREADS": cores,  # Ray would set 1
            "VLLM_CPU_KVCACHE_SPACE": os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1"),  # GiB
            "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",  # trainer and engine take turns
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        }
    return variables


def ray_dir() -> Path:
    """Where Ray keeps its session and logs; a short path, since its sockets' names must fit 107 characters."""
    return Path(tempfile.gettempdir()) / f"ray-{os.getuid()}"
