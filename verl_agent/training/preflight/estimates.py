"""Estimates of the memory of a run and of an upper bound of its time.

Computed from the shape of the model and the settings by the rules in `estimate_footprint`, not measured. Network and
memory fragmentation are not included; keep some GB of a GPU free.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from verl_agent.config.plan import OfflinePlan, RunPlan
from verl_agent.config.plan_parts import SEPARATE, TrainedModel
from verl_agent.models.resolve import SMOLLM2

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
CPU_TOKENS_S = 20.0
"""Tokens per second of one episode in vLLM on a CPU, apart from its operations: calls, scheduling, sampling."""

NOT_UNIFORM = 0.5
"""Share of the groups that `skip_uniform` leaves in the loss; 0.14 to 0.57 in the recorded quickstart."""


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
    context: int | None = None
    """Most tokens of an episode with its prompt; None if unknown."""

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
    SMOLLM2: Shape(30, 576, 9, 3, 64, 1536, 49152, True, 8192),
    "Qwen/Qwen2.5-0.5B-Instruct": Shape(24, 896, 14, 2, 64, 4864, 151936, True, 32768),
    "Qwen/Qwen2.5-1.5B-Instruct": Shape(28, 1536, 12, 2, 128, 8960, 151936, True, 32768),
    "Qwen/Qwen2.5-3B-Instruct": Shape(36, 2048, 16, 2, 128, 11008, 151936, True, 32768),
    "Qwen/Qwen2.5-7B-Instruct": Shape(28, 3584, 28, 4, 128, 18944, 152064, False, 32768),
    "Qwen/Qwen3-1.7B": Shape(28, 2048, 16, 8, 128, 6144, 151936, True, 40960),
    "Qwen/Qwen3-4B": Shape(36, 2560, 32, 8, 128, 9728, 151936, True, 40960),
    "Qwen/Qwen3-8B": Shape(36, 4096, 32, 8, 128, 12288, 151936, False, 40960),
    "Qwen/Qwen3-14B": Shape(40, 5120, 40, 8, 128, 17408, 151936, False, 40960),
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
            getattr(config, "max_position_embeddings", None),
        )
    except (OSError, ValueError, AttributeError):  # not on this machine, or of another kind
        return None


@dataclass(frozen=True, slots=True)
class MeanEpisode:
    """Expected tokens of an episode: all, with its prompt, and those that the policy writes."""

    tokens: float
    written: float


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


def estimate_footprint(plan: RunPlan, shape: Shape, critic: Shape | None = None, card_gb: float = CARD_GB) -> Footprint:
    """Estimate memory and time of a training run on GPUs."""
    engine, gpus, offload = plan.engine, plan.layout.ranks, bool(plan.layout.offload)
    ways = None
    if plan.actor.on_megatron:
        ways = prod(size for key, size in plan.actor.ways.items() if "context" not in key)
    shards = prod(size for key, size in plan.actor.ways.items() if "tensor" in key)  # of the activations
    rank, separate = _lora_rank(plan.actor), engine.mode == SEPARATE
    playing = int(engine.gpus_each) * int(engine.nodes) if separate else gpus

    trained = [each for each in (shape, critic) if each]
    ranks = [rank, 0]  # a critic trains whole
    sizes = [4, 4] if ways else [_bytes(plan.actor.layout), _bytes(plan.value("critic.fsdp"))]
    parts = list(zip(trained, ranks, sizes, strict=False))
    updating, resting = (
        [_states(each, gpus, ways, own, numbers, size) for each, own, size in parts] for numbers in (ADAM, RESTING)
    )
    of_reference = 2 / ways if ways else _bytes(plan.value("actor_rollout_ref.ref.fsdp_config")) / gpus
    taught_by = reference_parameters(plan, shape)
    reference = of_reference * taught_by if plan.teacher or not rank else 0.0

    length = plan.lengths.episode
    tokens = plan.actor.passes.most_tokens(length)
    if not plan.actor.passes.packed:
        tokens //= prod(size for key, size in plan.actor.ways.items() if "ulysses" in key)
    working = max(_activations(each, tokens, recomputes(plan)) for each in trained) / shards
    on_card = max(updating) if offload else sum(updating) + reference
    share = float(engine.share)
    awake = not (separate or (engine.frees_cache and engine.may_sleep))  # while the trainer computes
    cache = share * card_gb * 1e9 - 2 * shape.parameters / engine.ranks - 2e9
    return Footprint(
        train_gb=(on_card + working) / 1e9 + CONTEXT_GB + (share * card_gb if awake else 0.0),
        play_gb=share * card_gb + (0.0 if offload or separate else (sum(resting) + reference) / 1e9) + CONTEXT_GB,
        host_gb=(sum(resting) + reference) * int(plan.layout.ranks_each) / 1e9 if offload else 0.0,
        episodes=max(0, int(cache * engine.ranks / shape.cache_bytes / length) * (playing // engine.ranks)),
        of_episodes=plan.batch.episodes,
        step_s=plan.batch.episodes * length * _operations(plan, trained, taught_by if reference else 0) / (FLOPS * gpus)
        + _longest(plan) / TOKENS_S,
    )


def recomputes(plan: RunPlan) -> bool:
    """Return True if the backward pass of the policy computes activations again instead of keeping them."""
    if plan.actor.on_megatron:
        return bool(plan.actor.layout["override_transformer_config"]["recompute_granularity"] == "full")
    return bool(plan.actor.model["enable_gradient_checkpointing"])


def _lora_rank(model: TrainedModel) -> int:
    return int(model.model["lora_rank"] or 0)


def _bytes(engine: Mapping[str, Any]) -> int:
    """Return the bytes of a weight, a gradient and a moment in verl's FSDP engine."""
    return DTYPE_BYTES.get(str(engine["model_dtype"]), 4)


def cpu_step_s(
    plan: RunPlan, shape: Shape, critic: Shape | None, rate: float, episode: MeanEpisode | None = None
) -> float:
    """Return the seconds of a training step on a CPU: the engine's and the trainer's passes, and the decoding.

    Args:
        rate: operations per second of this machine; see `machine.cpu_flops`.
        episode: expected episode; None for episodes of full length, an upper bound.
    """
    episode = episode or MeanEpisode(plan.lengths.episode, _longest(plan))
    trained = _operations(plan, [each for each in (shape, critic) if each], reference_parameters(plan, shape))
    work = 2 * shape.parameters + trained * (NOT_UNIFORM if plan.estimation.skips_uniform else 1.0)
    return plan.batch.episodes * episode.tokens * work / rate + episode.written / CPU_TOKENS_S


def offline_gb(plan: OfflinePlan, shape: Shape, ranks: int) -> float:
    """Return an upper bound of the GB of each GPU in supervised training or DPO."""
    model = plan.actor
    tokens = model.passes.most_tokens(plan.lengths.row * (2 if plan.has_pairs else 1))
    working = _activations(shape, tokens, bool(model.model["enable_gradient_checkpointing"]))
    held = _states(shape, ranks, None, _lora_rank(model), ADAM, _bytes(model.layout))
    return (held + working) / 1e9 + CONTEXT_GB


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


def _longest(plan: RunPlan) -> float:
    """Return the most tokens that the policy writes in an episode."""
    turns = (one.horizon.turns_for_evaluation() * one.episode.max_tokens_per_turn for one in plan.envs)
    return float(min(max(turns), plan.lengths.episode))


def reference_parameters(plan: RunPlan, policy: Shape) -> int:
    """Return the parameters of the initial model or the teacher; 0 if the run has none of them.

    A teacher of unknown size counts as large as the policy.
    """
    teacher = shape_of(plan.teacher.path) if plan.teacher else None
    return (teacher or policy).parameters if plan.estimation.has_reference else 0


def _operations(plan: RunPlan, trained: list[Shape], reference: int) -> float:
    """Return the operations of all passes of the trainer for a token.

    Args:
        reference: parameters of the model that only scores tokens; 0 without one.
    """
    each = 8 if recomputes(plan) else 6  # operations per parameter and token: forward, backward, and forward again
    work = sum(shape.parameters for shape in trained) * (2 + each * int(plan.actor.epochs))
    work -= 2 * trained[0].parameters if plan.estimation.bypass else 0
    return float(work + 2 * reference)
