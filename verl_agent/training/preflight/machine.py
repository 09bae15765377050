"""Checks of this machine before Ray starts; all problems are reported together."""

import shutil
from collections.abc import Callable

from omegaconf import DictConfig, OmegaConf

from verl_agent.config.algorithms import has_critic
from verl_agent.errors import ConfigError
from verl_agent.models.resolve import parameters
from verl_agent.platform.detect import use_cpu_device
from verl_agent.platform.weight_transfer import SHARED_MEMORY
from verl_agent.system.operators import check_together, engine_checks
from verl_agent.system.resources import (
    RANK_GB,
    RL_BARE_GB,
    RL_BYTES,
    RL_MEMORY_GB,
    TEMPORARY_GB,
    activations_gb,
    checkpoint_gb,
    machine_memory,
    memory_needed,
    require_memory,
    require_temporary_space,
)
from verl_agent.training.preflight.estimates import estimate_footprint, shape_of


def check_machine(config: DictConfig, report: Callable[[str], None]) -> None:
    """Check that this machine has what a run takes: memory, temporary space, and on a CPU what its engine needs.

    `RunFolder.require_room` checks the disk of the run.

    Raises:
        ConfigError: something is missing; the message has all problems.
    """
    policy, on_cpu = config.actor_rollout_ref, use_cpu_device()
    stored_gb = files_gb(config, shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.is_dir() else 0)

    def enough_memory() -> None:
        memory_gb, purpose = needed_gb(config)[0], "training this model on the CPU"
        if not on_cpu:
            shape = shape_of(policy.model.path)
            critic = shape_of(config.critic.model.path) if has_critic(config) else None
            memory_gb = estimate_footprint(OmegaConf.to_container(config), shape, critic).host_gb if shape else 0.0
            purpose = "keeping weights and optimizer in it (offload=true)"
        try:
            require_memory(machine_memory(), memory_gb, purpose)
        except ConfigError as error:
            if config.trainer.check_memory:
                raise
            report(f"{error} The run starts anyway (trainer.check_memory=false).")

    check_together(
        enough_memory,
        lambda: require_temporary_space(TEMPORARY_GB + stored_gb),
        *(engine_checks(policy.rollout.name) if on_cpu else ()),
    )
    if stored_gb:
        report(
            f"{SHARED_MEMORY} has less than the {stored_gb:.1f} GB that objects and weights take, so they pass through "
            "files in the temporary folder, which is slower. In Docker, `--shm-size=2g` makes it larger."
        )


def files_gb(config: DictConfig, free_bytes: int) -> float:
    """Return the GB of objects and weights that pass through files, 0 unless shared memory is too small."""
    store = OmegaConf.select(config, "ray_kwargs.ray_init.object_store_memory")
    if store is None or free_bytes >= store:
        return 0.0
    bucket = config.actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes
    return float(store / 1e9 + bucket * config.trainer.n_gpus_per_node * 2**20 / 1e9)


def needed_gb(config: DictConfig) -> tuple[float, float]:
    """Return the memory that a run takes on a CPU and the disk space that a checkpoint takes, in GB."""
    sizes = [parameters(config.actor_rollout_ref.model.path)]
    if has_critic(config):
        sizes.append(parameters(config.critic.model.path))
    count, trainer = sum(size or 0 for size in sizes) or None, config.trainer
    saved = list(config.actor_rollout_ref.actor.checkpoint.save_contents) if trainer.save_freq > 0 else []
    actor, row = config.actor_rollout_ref.actor, config.data.max_prompt_length + config.data.max_response_length
    tokens = actor.ppo_max_token_len_per_gpu if actor.use_dynamic_bsz else actor.ppo_micro_batch_size_per_gpu * row
    memory_gb = memory_needed(count, RL_MEMORY_GB, RL_BYTES, RL_BARE_GB) + (trainer.n_gpus_per_node - 1) * RANK_GB
    memory_gb += activations_gb(count, tokens)
    return memory_gb, checkpoint_gb(count, saved)
