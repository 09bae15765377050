"""Estimates of the memory of a run and of an upper bound of its time.

Computed from the shape of the model and the settings by the rules in `estimate_footprint`, not measured. Network and
memory fragmentation are not included; keep some GB of a GPU free.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from verl_agent.config.mixture import run_envs
from verl_agent.models.resolve import SMOLLM2
from verl_agent.training.preflight.condition_table import SEPARATE

CARD_GB = 80.0
"""Memory of the GPUs for which recipes are sized, in GB."""
CONTEXT_GB = 3.0
"""GPU memory of CUDA, NCCL and a sleeping engine, in GB."""
ADAM, RESTING = 4, 3
"""Numbers of a trained parameter during an update (weight, gradient, two moments), and when gradients are freed."""
DTYPE_BYTES = {"fp16": 2, "float16": 2, "half": 2, "bf16": 2, "bfloat16": 2}
"""Bytes of a number by `fsdp_config.model_dtype`; any other value is float32."""
LOGIT_BYTES = 10
"""Bytes of a logit of a micro batch: bfloat16, a float32 copy, its gradient."""
ACTIVATION_BYTES = 34
"""Bytes of a layer per token and hidden unit, without checkpointing (arXiv 2205.05198, with fused attention)."""
FLOPS = 4e14
"""Operations per second that an 80 GB GPU reaches in training: 40 % of its bfloat16 peak."""
TOKENS_S = 30.0
"""Tokens per second of one episode in a full engine."""
CORE_FLOPS = 1e11
"""Operations per second that a core reaches in training, in float32 with AVX-512; 1.3e11 measured at 2.5 GHz."""
CPU_TOKENS_S = 10.0
"""Tokens per second of one episode in vLLM on two cores."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Shape of a decoder-only model, in numbers of its config."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    vocabulary: int
    tied: bool

    @property
    def parameters(self) -> int:
        """Number of weights, without biases and norms."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        layer = attention + 3 * self.hidden * self.inner
        return self.layers * layer + self.vocabulary * self.hidden * (1 if self.tied else 2)

    @property
    def cache_bytes(self) -> int:
        """Bytes of the key-value cache per token, in bfloat16."""
        return 2 * 2 * self.layers * self.kv_heads * self.head_dim


SHAPES = {
    SMOLLM2: Shape(30, 576, 9, 3, 64, 1536, 49152, True),
    "Qwen/Qwen2.5-0.5B-Instruct": Shape(24, 896, 14, 2, 64, 4864, 151936, True),
    "Qwen/Qwen2.5-1.5B-Instruct": Shape(28, 1536, 12, 2, 128, 8960, 151936, True),
    "Qwen/Qwen2.5-3B-Instruct": Shape(36, 2048, 16, 2, 128, 11008, 151936, True),
    "Qwen/Qwen2.5-7B-Instruct": Shape(28, 3584, 28, 4, 128, 18944, 152064, False),
    "Qwen/Qwen3-1.7B": Shape(28, 2048, 16, 8, 128, 6144, 151936, True),
    "Qwen/Qwen3-4B": Shape(36, 2560, 32, 8, 128, 9728, 151936, True),
    "Qwen/Qwen3-8B": Shape(36, 4096, 32, 8, 128, 12288, 151936, False),
    "Qwen/Qwen3-14B": Shape(40, 5120, 40, 8, 128, 17408, 151936, False),
}
"""Shapes of the recipes' models (from their config.json), so that an estimate needs no download."""


def shape_of(path: str) -> Shape | None:
    """Return the shape of a model, from `SHAPES` or from a model on this machine; None if it is in neither."""
    if path in SHAPES:
        return SHAPES[path]
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(path, local_files_only=True).get_text_config()
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return Shape(
            config.num_hidden_layers,
            config.hidden_size,
            config.num_attention_heads,
            config.num_key_value_heads,
            head_dim,
            config.intermediate_size,
            config.vocab_size,
            bool(config.tie_word_embeddings),
        )
    except (OSError, ValueError, AttributeError):  # not on this machine, or of another kind
        return None


@dataclass(frozen=True, slots=True)
class Footprint:
    """Estimated memory and time of a run.

    Attributes:
        train_gb: peak memory of each GPU during training, in GB.
        play_gb: memory of each GPU while the engine plays, in GB.
        host_gb: host memory of each machine for offloaded weights and optimizer, in GB.
        episodes: number of full-length episodes whose tokens fit into the caches of all engines.
        of_episodes: number of episodes of a step.
        step_s: upper bound of the time of a step in seconds, with every episode at full length.
    """

    train_gb: float
    play_gb: float
    host_gb: float
    episodes: int
    of_episodes: int
    step_s: float

    @property
    def peak_gb(self) -> float:
        """Peak memory of each GPU, in GB."""
        return max(self.train_gb, self.play_gb)

    def __str__(self) -> str:
        host = f", {self.host_gb:.0f} GB of host memory on each machine" if self.host_gb else ""
        return (
            f"estimated: {self.train_gb:.0f} GB of each GPU in training, {self.play_gb:.0f} GB in play{host}; room for "
            f"{self.episodes} episodes of full length at once ({self.of_episodes} in a step); a step of "
            f"full-length episodes takes {spell(self.step_s)}"
        )


def spell(seconds: float) -> str:
    """Return a time in words.

    Example:
        >>> [spell(seconds) for seconds in (45, 600, 10_000)]
        ['less than a minute', 'about 10 min', 'about 2.8 h']
    """
    if seconds < 60:
        return "less than a minute"
    return f"about {seconds / 60:.0f} min" if seconds < 5400 else f"about {seconds / 3600:.1f} h"


def estimate_footprint(
    config: Mapping[str, Any], shape: Shape, critic: Shape | None, card_gb: float = CARD_GB
) -> Footprint:
    """Estimate memory and time of a training run on GPUs."""
    trainer, actor, rollout = (
        config["trainer"],
        config["actor_rollout_ref"]["actor"],
        config["actor_rollout_ref"]["rollout"],
    )
    model, data, offload = config["actor_rollout_ref"]["model"], config["data"], bool(config["offload"])
    gpus = int(trainer["n_gpus_per_node"]) * int(trainer["nnodes"])
    megatron = actor["strategy"] == "megatron"
    ways = int(actor["megatron"]["tensor_model_parallel_size"]) if megatron else 1
    stages = int(actor["megatron"]["pipeline_model_parallel_size"]) if megatron else 1
    split = 1 if megatron else int(actor["fsdp_config"]["ulysses_sequence_parallel_size"])
    rank = int(model["lora_rank"] or 0)
    separate = config["trainer"]["v1"]["trainer_mode"] == SEPARATE  # engines have GPUs of their own
    playing = int(rollout["n_gpus_per_node"]) * int(rollout["nnodes"]) if separate else gpus

    trained = [each for each in (shape, critic) if each]
    ranks = [rank, 0]  # a critic trains whole
    sizes = [4, 4] if megatron else [_bytes(actor["fsdp_config"]), _bytes(config["critic"]["fsdp"])]
    parts = list(zip(trained, ranks, sizes, strict=False))
    updating, resting = (
        [_states(each, gpus, ways * stages if megatron else None, own, numbers, size) for each, own, size in parts]
        for numbers in (ADAM, RESTING)
    )
    has_reference = bool(actor["use_kl_loss"] or config["algorithm"]["use_kl_in_reward"]) and not rank
    of_reference = 2 / (ways * stages) if megatron else _bytes(config["actor_rollout_ref"]["ref"]["fsdp_config"]) / gpus
    reference = of_reference * shape.parameters if has_reference else 0.0

    length = int(data["max_prompt_length"]) + int(data["max_response_length"])
    tokens = (
        int(actor["ppo_max_token_len_per_gpu"])
        if actor["use_dynamic_bsz"]
        else int(actor["ppo_micro_batch_size_per_gpu"]) * length // split
    )
    working = max(_activations(each, tokens, recomputes(config)) for each in trained) / ways
    on_card = max(updating) if offload else sum(updating) + reference
    share = float(rollout["gpu_memory_utilization"])
    parallel = int(rollout["tensor_model_parallel_size"])
    sleeps = rollout["free_cache_engine"] and rollout["enable_sleep_mode"]
    awake = not (separate or sleeps)  # the engine keeps its memory while the trainer computes
    cache = share * card_gb * 1e9 - 2 * shape.parameters / parallel - 2e9
    return Footprint(
        train_gb=(on_card + working) / 1e9 + CONTEXT_GB + (share * card_gb if awake else 0.0),
        play_gb=share * card_gb + (0.0 if offload or separate else (sum(resting) + reference) / 1e9) + CONTEXT_GB,
        host_gb=(sum(resting) + reference) * int(trainer["n_gpus_per_node"]) / 1e9 if offload else 0.0,
        episodes=max(0, int(cache * parallel / shape.cache_bytes / length) * (playing // parallel)),
        of_episodes=int(data["train_batch_size"]) * int(rollout["n"]),
        step_s=_seconds(config, trained, length, reference > 0, FLOPS * gpus, TOKENS_S),
    )


def recomputes(config: Mapping[str, Any]) -> bool:
    """Return True if the backward pass of the policy computes activations again instead of keeping them."""
    actor = config["actor_rollout_ref"]["actor"]
    if actor["strategy"] == "megatron":
        return bool(actor["megatron"]["override_transformer_config"]["recompute_granularity"] == "full")
    return bool(config["actor_rollout_ref"]["model"]["enable_gradient_checkpointing"])


def _bytes(engine: Mapping[str, Any]) -> int:
    """Return the bytes of a weight, a gradient and a moment in verl's FSDP engine."""
    return DTYPE_BYTES.get(str(engine["model_dtype"]), 4)


def cpu_step_s(config: Mapping[str, Any], shape: Shape, critic: Shape | None, cores: int) -> float:
    """Return an upper bound of the seconds of a training step on a CPU, with every episode at full length."""
    length = int(config["data"]["max_prompt_length"]) + int(config["data"]["max_response_length"])
    has_reference = bool(config["actor_rollout_ref"]["actor"]["use_kl_loss"] or config["algorithm"]["use_kl_in_reward"])
    trained = [each for each in (shape, critic) if each]
    return _seconds(config, trained, length, has_reference, CORE_FLOPS * cores, CPU_TOKENS_S)


def offline_estimate(
    config: Mapping[str, Any], shape: Shape, rows: int, rate: float, ranks: int
) -> tuple[float, float]:
    """Return an upper bound of memory and time of supervised training or DPO.

    Args:
        rows: number of episodes in an epoch; a pair counts as two.
        rate: operations per second of all processes together.

    Returns:
        GB of each GPU, and seconds of all epochs with every episode at full length.
    """
    data, model, pairs = config["data"], config["model"], "preference" in config
    length = int(data["max_length"])
    tokens = (
        int(data["max_token_len_per_gpu"])
        if data["use_dynamic_bsz"]
        else (int(data["micro_batch_size_per_gpu"]) * length * (2 if pairs else 1))
    )
    working = _activations(shape, tokens, bool(model["enable_gradient_checkpointing"]))
    held = _states(shape, ranks, None, int(model["lora_rank"] or 0), ADAM, _bytes(config["engine"]))
    each = 8 if model["enable_gradient_checkpointing"] else 6  # forward, backward, and forward again
    passes = each * int(config["trainer"]["total_epochs"]) + (2 if pairs else 0)  # the reference reads each pair once
    return (held + working) / 1e9 + CONTEXT_GB, passes * shape.parameters * rows * length / rate


def _states(shape: Shape, gpus: int, ways: int | None, rank: int, numbers: int, size: int) -> float:
    """Return the bytes of a trained model on one GPU: `numbers` for each parameter, of `size` bytes.

    FSDP, without `ways`, splits all of them. Megatron splits bfloat16 weights and float32 gradients over `ways` GPUs,
    and the float32 optimizer over all.
    """
    count = shape.parameters
    if rank:
        wide = shape.hidden + shape.head_dim * shape.heads
        adapters = shape.layers * rank * (4 * wide + 3 * (shape.hidden + shape.inner))
        return (size * count + numbers * size * adapters) / gpus
    if ways is not None:
        return (2 + (4 if numbers == ADAM else 0)) * count / ways + 12 * count / gpus
    return numbers * size * count / gpus


def _activations(shape: Shape, tokens: int, checkpointing: bool) -> float:
    """Return the bytes of a micro batch: stored activations, the active layer and the logits."""
    layer = ACTIVATION_BYTES * tokens * shape.hidden + 6 * tokens * shape.inner
    kept = shape.layers * 2 * tokens * shape.hidden + layer if checkpointing else shape.layers * layer
    whole_layer = 4 * shape.parameters / shape.layers
    return kept + whole_layer + LOGIT_BYTES * tokens * shape.vocabulary


def _seconds(
    config: Mapping[str, Any], trained: list[Shape], length: int, reference: bool, rate: float, tokens_s: float
) -> float:
    """Return the seconds of a step of full-length episodes: all passes at `rate`, and the decoding of one episode."""
    actor, rollout = config["actor_rollout_ref"]["actor"], config["actor_rollout_ref"]["rollout"]
    tokens = int(config["data"]["train_batch_size"]) * int(rollout["n"]) * length
    each = 8 if recomputes(config) else 6  # operations per parameter and token: forward, backward, and forward again
    work = sum(shape.parameters for shape in trained) * (2 + each * int(actor["ppo_epochs"]))
    work -= 2 * trained[0].parameters if config["algorithm"]["rollout_correction"]["bypass_mode"] else 0
    work += 2 * trained[0].parameters if reference else 0
    longest = max(one.horizon.turns_for_evaluation() * one.episode.max_tokens_per_turn for one in run_envs(config))
    return float(work * tokens / rate + min(longest, length) / tokens_s)
