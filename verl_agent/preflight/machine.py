"""Checks of this machine before Ray starts; all problems are reported together."""

import os
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from verl_agent.errors import ConfigError
from verl_agent.models.resolve import parameters
from verl_agent.platform.detect import use_cpu_device
from verl_agent.platform.weight_transfer import SHARED_MEMORY
from verl_agent.preflight.algorithms import has_critic
from verl_agent.preflight.estimates import estimate, shape_of
from verl_agent.system.checks import install_command
from verl_agent.system.compiler import compiler_error
from verl_agent.system.operators import first_operators_error
from verl_agent.system.resources import (
    RANK_GB,
    RL_BARE_GB,
    RL_BYTES,
    RL_MEMORY_GB,
    TEMPORARY_GB,
    activations_gb,
    disk_needed,
    memory_needed,
    read_memory,
    require_disk,
    require_memory,
    require_temporary_space,
)

Check = Callable[[], None]
NO_COMPILE = "TORCH_COMPILE_DISABLE"
"""Variable of torch that turns `torch.compile` off."""


def check_machine(config: DictConfig, report: Callable[[str], None]) -> None:
    """Check that this machine has what a run takes: memory, disk, and on a CPU what its engine needs.

    Args:
        config: complete config.
        report: receives a line about what is slower than it could be.

    Raises:
        ConfigError: something is missing; the message has all problems.
    """
    memory_gb, disk_gb = needed_gb(config)
    run_dir = Path(config.trainer.default_local_dir)
    run_dir.mkdir(parents=True, exist_ok=True)
    on_cpu, rollout = use_cpu_device(), config.actor_rollout_ref.rollout
    stored_gb = files_gb(config, shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.is_dir() else 0)
    if on_cpu:
        enough = partial(require_memory, read_memory(), memory_gb)
    else:
        purpose = "keeping weights and optimizer in it (offload=true)"
        enough = partial(require_memory, read_memory(), offloaded_gb(config), purpose)
    check_together(
        enough,
        lambda: require_disk(shutil.disk_usage(run_dir).free, disk_gb, run_dir),
        lambda: require_temporary_space(TEMPORARY_GB + stored_gb),
        *(engine_checks(rollout.name, rollout.calculate_log_probs or not rollout.enforce_eager) if on_cpu else ()),
    )
    if stored_gb:
        report(
            f"{SHARED_MEMORY} has less than the {stored_gb:.1f} GB that objects and weights take, so they pass through "
            "files in the temporary folder, which is slower. In Docker, `--shm-size=2g` makes it larger."
        )


def check_together(*checks: Check) -> None:
    """Make all checks.

    Raises:
        ConfigError: checks fail; the message is that of each of them.
    """
    problems = []
    for check in checks:
        try:
            check()
        except ConfigError as error:
            problems.append(str(error))
    if len(problems) == 1:
        raise ConfigError(problems[0])
    if problems:
        listed = "\n".join(f"  {number}. {problem}" for number, problem in enumerate(problems, start=1))
        raise ConfigError(f"this machine has {len(problems)} problems:\n{listed}")


def engine_checks(engine: str, compiles: bool) -> list[Check]:
    """Return the checks of what a rollout engine needs on a CPU.

    Args:
        engine: name of the engine, as in `actor_rollout_ref.rollout.name`.
        compiles: True if it compiles the model, or the function by which vLLM ranks the log-probs that it returns.
    """
    if engine != "vllm":
        return []
    return [check_operators, check_compiler] if compiles else [check_operators]


def check_operators() -> None:
    """Check that vLLM's own operators load.

    Raises:
        ConfigError: they do not.
    """
    if error := first_operators_error():
        raise ConfigError(_with_advice("the operators of vLLM cannot be loaded", error))


def may_compile(prefix: str = sys.prefix) -> bool:
    """Return False if `torch.compile` is turned off, or if its path has a space.

    torch 2.13.0 passes the folder of its own libraries to the linker without quotes.

    Args:
        prefix: folder of the environment with torch.
    """
    return os.environ.get(NO_COMPILE) != "1" and " " not in prefix


def check_compiler() -> None:
    """Check that `torch.compile`, by which vLLM builds parts of its sampler, has a compiler that works.

    Raises:
        ConfigError: it has none, and `torch.compile` is not turned off.
    """
    if not may_compile():
        return
    try:
        require_temporary_space(TEMPORARY_GB)
    except ConfigError:  # a check of its own; without space no compiler works
        return
    if error := compiler_error():
        raise ConfigError(_with_advice("the C++ compiler that torch.compile needs does not work", error))


def _with_advice(problem: str, error: str) -> str:
    command = install_command(error)
    end = "\n" if "\n" in error else " "
    advice = f"Install what is missing: `{command}` on Debian and Ubuntu." if command else ""
    return f"{problem}: {error.rstrip('.')}.{end}{advice}".rstrip()


def files_gb(config: DictConfig, free_bytes: int) -> float:
    """Return the GB of objects and weights that pass through files because shared memory is too small; 0 if it is not.

    Args:
        config: complete config.
        free_bytes: free bytes of shared memory.
    """
    store = OmegaConf.select(config, "ray_kwargs.ray_init.object_store_memory")
    if store is None or free_bytes >= store:
        return 0.0
    bucket = config.actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes
    return float(store / 1e9 + bucket * config.trainer.n_gpus_per_node * 2**20 / 1e9)


def offloaded_gb(config: DictConfig) -> float:
    """Return the GB of host memory of each machine that offloaded weights and optimizers take; 0 if unknown."""
    shape = shape_of(config.actor_rollout_ref.model.path)
    critic = shape_of(config.critic.model.path) if has_critic(config) else None
    return estimate(OmegaConf.to_container(config), shape, critic).host_gb if shape else 0.0


def needed_gb(config: DictConfig) -> tuple[float, float]:
    """Return the memory that a run takes on a CPU and the disk space that its checkpoints take, in GB."""
    sizes = [parameters(config.actor_rollout_ref.model.path)]
    if has_critic(config):
        sizes.append(parameters(config.critic.model.path))
    count, trainer = sum(size or 0 for size in sizes) or None, config.trainer
    saved = list(config.actor_rollout_ref.actor.checkpoint.save_contents) if trainer.save_freq > 0 else []
    actor, row = config.actor_rollout_ref.actor, config.data.max_prompt_length + config.data.max_response_length
    tokens = actor.ppo_max_token_len_per_gpu if actor.use_dynamic_bsz else actor.ppo_micro_batch_size_per_gpu * row
    memory_gb = memory_needed(count, RL_MEMORY_GB, RL_BYTES, RL_BARE_GB) + (trainer.n_gpus_per_node - 1) * RANK_GB
    memory_gb += activations_gb(count, tokens)
    return memory_gb, disk_needed(count, saved, trainer.max_actor_ckpt_to_keep)
