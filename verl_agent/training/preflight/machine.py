"""Checks of this machine before Ray starts; all problems are reported together."""

import shutil
import time
from collections.abc import Callable

from verl_agent.config.plan import RunPlan
from verl_agent.errors import ConfigError
from verl_agent.models.resolve import largest_weight, parameters
from verl_agent.platform.detect import use_cpu_device
from verl_agent.platform.weight_transfer import SHARED_MEMORY
from verl_agent.system.operators import check_operators, check_together
from verl_agent.system.resources import (
    MEASURED_PARAMETERS,
    RANK_GB,
    RL_BARE_GB,
    RL_BYTES,
    RL_MEMORY_GB,
    TEACHER_BYTES,
    TEMPORARY_GB,
    activations_gb,
    checkpoint_gb,
    machine_memory,
    memory_needed,
    require_memory,
    require_temporary_space,
)
from verl_agent.training.preflight.estimates import MeanEpisode, Shape, cpu_step_s, estimate_footprint, shape_of, spell

MEASURED_S = 1.0
"""Seconds of the measurement of a CPU."""

BUCKET_MB = 128
"""Smallest bucket of a weight transfer in MiB."""


def check_machine(plan: RunPlan, report: Callable[[str], None]) -> None:
    """Check that this machine has what a run takes: memory, temporary space, and on a CPU what its engine needs.

    `RunFolder.require_room` checks the disk of the run.

    Raises:
        ConfigError: something is missing; the message has all problems.
    """
    on_cpu = use_cpu_device()
    stored_gb = files_gb(plan, shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.is_dir() else 0)

    def enough_memory() -> None:
        memory_gb, purpose = needed_gb(plan)[0], "training this model on the CPU"
        if not on_cpu:
            shape, critic, *_ = (*(shape_of(one.path) for one in plan.trained), None)
            memory_gb = estimate_footprint(plan, shape, critic).host_gb if shape else 0.0
            purpose = "keeping weights and optimizer in it (offload=true)"
        try:
            require_memory(machine_memory(), memory_gb, purpose)
        except ConfigError as error:
            if plan.layout.check_memory:
                raise
            report(f"{error} The run starts anyway (trainer.check_memory=false).")

    check_together(
        enough_memory,
        lambda: require_temporary_space(TEMPORARY_GB + stored_gb),
        *([check_operators] if on_cpu and plan.engine.name == "vllm" else []),
    )
    if stored_gb:
        report(
            f"{SHARED_MEMORY} has less than the {stored_gb:.1f} GB that objects and weights take, so they pass through "
            "files in the temporary folder, which is slower. In Docker, `--shm-size=2g` makes it larger."
        )


def files_gb(plan: RunPlan, free_bytes: int) -> float:
    """Return the GB of objects and weights that pass through files, 0 unless shared memory is too small."""
    store = plan.layout.object_bytes
    if store is None or free_bytes >= store:
        return 0.0
    return store / 1e9 + bucket_mb(plan) * plan.layout.ranks_each * 2**20 / 1e9


def bucket_mb(plan: RunPlan) -> int:
    """Return the MiB of weights that trainer and engine share at a time; of a CPU's bucket the engine makes a copy."""
    largest = largest_weight(plan.actor.path) if plan.on_cpu else None
    return smallest_bucket_mb(largest, plan.engine.bucket_mb)


def smallest_bucket_mb(largest: int | None, configured: int) -> int:
    """Return the smallest bucket that holds the largest tensor in float32.

    Args:
        largest: number of its elements; None if unknown.
        configured: upper bound in MiB.
    """
    return configured if largest is None else min(configured, max(BUCKET_MB, -(-4 * largest // 2**20)))


def needed_gb(plan: RunPlan) -> tuple[float, float]:
    """Return the memory that a run takes on a CPU and the disk space that a checkpoint takes, in GB."""
    count = sum(parameters(one.path) or 0 for one in plan.trained) or None
    saved = list(plan.actor.checkpoint["save_contents"]) if plan.schedule.save_every > 0 else []
    memory_gb = memory_needed(count, RL_MEMORY_GB, RL_BYTES, RL_BARE_GB) + (plan.layout.ranks_each - 1) * RANK_GB
    memory_gb += activations_gb(count, plan.actor.passes.most_tokens(plan.lengths.episode))
    if plan.teacher:
        memory_gb += (parameters(plan.teacher.path) or MEASURED_PARAMETERS) * TEACHER_BYTES / 1e9
    return memory_gb, checkpoint_gb(count, saved)


def cpu_flops(seconds: float = MEASURED_S) -> float:
    """Return the operations per second that training reaches on this machine now, by its own matrix products.

    Number and kind of cores tell too little: other processes and the limit of a container take a part of them.
    """
    import torch

    tokens, weights = torch.randn(1024, 768), torch.randn(768, 3072)
    torch.mm(tokens, weights)  # the first product starts the threads
    began, count = time.perf_counter(), 0
    while (passed := time.perf_counter() - began) < seconds:
        torch.mm(tokens, weights)
        count += 1
    return count * 2 * 1024 * 768 * 3072 / passed


def describe_step(plan: RunPlan, shape: Shape, critic: Shape | None, episode: MeanEpisode | None = None) -> str:
    """Return the estimated time of a training step on this CPU, in words; without an episode, an upper bound."""
    kind = f"episodes of {episode.tokens:.0f} tokens" if episode else "full-length episodes"
    return f"a step of {kind} takes {spell(cpu_step_s(plan, shape, critic, cpu_flops(), episode))}"
