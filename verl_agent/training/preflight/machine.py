"""Checks of this machine before Ray starts: packages, driver, GPUs, memory and space."""

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from verl_agent.config.plan import RunPlan
from verl_agent.config.plan_parts import Layout, TrainedModel
from verl_agent.errors import ConfigError, did_you_mean
from verl_agent.models.resolve import largest_weight, parameters
from verl_agent.platform.detect import use_cpu_device
from verl_agent.platform.versions import TESTED_MEGATRON, installed_version, untested_versions
from verl_agent.platform.weight_transfer import SHARED_MEMORY
from verl_agent.system.gpus import Gpus, read_gpus
from verl_agent.system.installation import FLASH, Installed, require_attention, require_engine
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
from verl_agent.training.preflight.estimates import (
    DTYPE_BYTES,
    MeanEpisode,
    Shape,
    cpu_step_s,
    estimate_footprint,
    shape_of,
    spell,
)

MEASURED_S = 1.0
"""Seconds of the measurement of a CPU."""

BUCKET_MB = 128
"""Smallest bucket of a weight transfer in MiB."""
MEGATRON_ATTENTION = ("flash", "fused", "auto")
"""Attention of Transformer Engine that has packed rows, by its name in Megatron."""
CUDNN_PACKED = (9, 0)
"""Least compute capability for cuDNN's attention to packed rows."""


def check_installation(
    models: Sequence[TrainedModel],
    machines: Layout,
    engine: str,
    installed: Installed = installed_version,
    gpus: Gpus | None = None,
) -> None:
    """Check packages, driver and GPUs.

    Args:
        models: models that are trained.
        engine: name of the rollout engine.
        gpus: GPUs of this machine; None to look them up. The CPU device ignores them.

    Raises:
        ConfigError: something is missing, too old or too few.
    """
    on_cpu = machines.device == "cpu"
    require_engine("actor_rollout_ref.rollout.name", engine, on_cpu, installed)
    if not on_cpu:
        gpus = read_gpus() if gpus is None else gpus
        _check_gpus(machines, gpus)
    for model in models:
        if not model.on_megatron:
            require_attention(model.model_key, model.model, model.layout, not on_cpu, installed)
            continue
        _check_megatron(model.layout, on_cpu, installed)
        if gpus is not None and not on_cpu:
            check_megatron_attention(model.layout_key, model.layout, gpus, installed)


def _check_gpus(machines: Layout, gpus: Gpus) -> None:
    """Check the driver, and the number of GPUs if the run uses this machine alone."""
    if gpus.oldest_driver:
        raise ConfigError(
            f"the NVIDIA driver of this machine is {gpus.driver}, and torch for CUDA {gpus.torch_cuda} needs "
            f"{gpus.oldest_driver} or later. Update the driver; `verl-agent doctor` shows both versions."
        )
    if gpus.names and not machines.joins_ray and machines.ranks_each > len(gpus.names):
        raise ConfigError(
            f"trainer.n_gpus_per_node={machines.ranks_each} exceeds the {len(gpus.names)} GPUs of this machine "
            f"({gpus.names[0]}). Lower it, or add +overlay/size=1gpu_80gb for a single GPU. CUDA_VISIBLE_DEVICES hides "
            "GPUs."
        )


def _check_megatron(megatron: Mapping[str, Any], on_cpu: bool, installed: Installed) -> None:
    """Check Megatron's packages, and that the chosen bridge to Hugging Face's weights is installed."""
    if on_cpu:
        if found := untested_versions(TESTED_MEGATRON, installed):
            raise ConfigError(
                f"model_engine=megatron does not work in this environment: {found}. Install Megatron for the CPU "
                "(`make setup-megatron`) and use .venv-megatron-cpu, or train with FSDP (model_engine=dp)."
            )
        return
    bridge = "mbridge" if megatron["vanilla_mbridge"] else "megatron-bridge"
    needed = ["megatron-core", bridge, "transformer-engine-torch"]
    missing = [name for name in needed if not installed(name)]
    if missing:
        raise ConfigError(
            f"model_engine=megatron needs packages that are not installed: {', '.join(missing)}. Install them: "
            "`make setup DEVICE=gpu ENGINE=megatron VENV=.venv-megatron`, or train with FSDP (model_engine=dp)."
        )


def check_megatron_attention(key: str, megatron: Mapping[str, Any], gpus: Gpus, installed: Installed) -> None:
    """Check that the only attention that Megatron leaves switched on exists on this machine.

    Rows are packed. Transformer Engine 2.11, dot_product_attention/utils.py, has no unfused attention for them, and
    cuDNN has one from compute capability 9.0 on.

    Raises:
        ConfigError: no kernel would be left, so that the first pass would fail.
    """
    name = megatron["override_transformer_config"]["attention_backend"]
    setting = f"{key}.override_transformer_config.attention_backend={name!r}"
    if name not in MEGATRON_ATTENTION:
        raise ConfigError(f"{setting} cannot attend to packed rows. {did_you_mean(str(name), MEGATRON_ATTENTION)}")
    flash = any(map(installed, FLASH.values()))
    if name == "flash" and not flash:
        raise ConfigError(
            f"{setting} needs flash-attn, which is not installed, and Megatron switches all other kernels off. Set it "
            "to 'fused', cuDNN's attention, or install flash-attn."
        )
    lacks_flash = name == "fused" or not flash
    if lacks_flash and gpus.capability is not None and gpus.capability < CUDNN_PACKED:
        own, least = (".".join(map(str, one)) for one in (gpus.capability, CUDNN_PACKED))
        raise ConfigError(
            f"{setting} needs compute capability {least} for packed rows, and {gpus.names[0]} has {own}. Install "
            "flash-attn and set it to 'flash', or train with FSDP (model_engine=dp)."
        )


def describe_attention(model: TrainedModel) -> str:
    """Return the line that names the attention of the update on GPUs."""
    if model.on_megatron:
        backend = model.layout["override_transformer_config"]["attention_backend"]
        return f"attention of the update: {backend} of Transformer Engine"
    name = model.model["override_config"]["attn_implementation"]
    if name != "sdpa" or not model.model["use_remove_padding"]:
        return f"attention of the update: {name}"
    return (
        "attention of the update: PyTorch's (sdpa), one call for each packed row, because flash-attn is not installed"
    )


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
            shape, critic = shapes_of(plan)
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


def shapes_of(plan: RunPlan) -> tuple[Shape | None, Shape | None]:
    """Return the shapes of the policy and of the critic; None for an unknown one, and without a critic."""
    return shape_of(plan.actor.path), shape_of(plan.critic.path) if plan.critic else None


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


def cpu_flops(model: TrainedModel, seconds: float = MEASURED_S) -> float:
    """Return the operations per second that the update of a model reaches on this machine now.

    Measured by updates of a layer as large as one of SmolLM2-135M, on a small micro batch, in the type of the model's
    products. Plain products are two to three times as fast where the processor has instructions for bfloat16. Number
    and kind of cores tell too little: other processes and the limit of a container take a part of them.
    """
    import torch

    named = (model.layout.get("mixed_precision") or {}).get("param_dtype") or model.layout.get("dtype")
    low = str(named) in DTYPE_BYTES
    with torch.random.fork_rng(devices=[]), torch.autocast("cpu", torch.bfloat16, enabled=low):
        layer = torch.nn.TransformerEncoderLayer(576, 9, 1536, dropout=0.0, batch_first=True, norm_first=True)
        rows = torch.randn(2, 100, 576)
        layer(rows).sum().backward()  # the first pass starts the threads
        began, count = time.perf_counter(), 0
        while (passed := time.perf_counter() - began) < seconds:
            layer(rows).sum().backward()
            count += 1
    weights: int = sum(each.numel() for each in layer.parameters())
    return count * 6 * 2 * 100 * weights / passed


def describe_step(plan: RunPlan, shape: Shape, critic: Shape | None, episode: MeanEpisode | None = None) -> str:
    """Return the estimated time of a training step on this CPU, in words; without an episode, an upper bound."""
    kind = f"episodes of {episode.tokens:.0f} tokens" if episode else "full-length episodes"
    return f"a step of {kind} takes {spell(cpu_step_s(plan, shape, critic, cpu_flops(plan.actor), episode))}"
