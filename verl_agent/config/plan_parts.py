"""Parts of the plan of a training run: each field names the key of its setting."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self, TypeVar

from verl_agent.config.keys import value_at
from verl_agent.errors import ConfigError
from verl_agent.models.resolve import resolve_model

T = TypeVar("T")
MEGATRON = "megatron"
SYNC, PARTIAL, SEPARATE = "verl_agent", "verl_agent_partial", "verl_agent_separate"
"""Values of `trainer.v1.trainer_mode`."""
WAYS = {
    True: ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"),
    False: ("ulysses_sequence_parallel_size",),
}
"""Sizes of the groups of ranks that share the work on the same rows, of Megatron and of FSDP."""


def at(*keys: str) -> Any:
    """Return a field with the value of the first of these dotted keys that is set, else None."""
    return field(metadata={"keys": keys})


def read_part(kind: type[T], values: Mapping[str, Any], names: Mapping[str, str] | None = None, **own: Any) -> T:
    """Return a part whose fields have the values of their keys, in which `names` replace braces, and of `own`."""
    missing = [part for part in fields(kind) if part.name not in own]  # type: ignore[arg-type]  # a dataclass
    for part in missing:
        found = (value_at(values, key.format_map(names or {})) for key in part.metadata["keys"])
        own[part.name] = next((value for value in found if value is not None), None)
    return kind(**own)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Folder, length, checkpoints and validations of a run, and from where it resumes."""

    folder: Path
    name: str = at("trainer.experiment_name")
    steps: int | None = at("trainer.total_training_steps")
    epochs: int = at("trainer.total_epochs")
    save_every: int = at("trainer.save_freq")
    test_every: int | str = at("trainer.test_freq")
    keep: int | None = at("trainer.max_actor_ckpt_to_keep", "trainer.max_ckpt_to_keep")
    test_best: bool = at("trainer.test_best")
    resume: str = at("trainer.resume_mode")
    resume_from: str | None = at("trainer.resume_from_path")
    loggers: Sequence[str] = at("trainer.logger")
    record_dir: str | None = at("episode.record_dir")
    max_restarts: int = at("trainer.max_restarts")
    hang_timeout_s: float = at("trainer.hang_timeout_s")

    @property
    def records(self) -> Path:
        """Folder of the recorded episodes."""
        return Path(self.record_dir or self.folder / "episodes").resolve()


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Tasks and episodes of a step; rows of an optimizer step in supervised training and DPO."""

    tasks: int = at("data.train_batch_size")
    samples: int = at("actor_rollout_ref.rollout.n")
    val_samples: int = at("actor_rollout_ref.rollout.val_kwargs.n")
    most: int = at("data.train_max_samples")
    """Most tasks or rows to train on; all if it is not above 0."""
    most_val: int = at("data.val_max_samples")
    val_tasks: int | None = at("data.val_batch_size")
    """Tasks that are played together in a validation; all if null."""
    seed: int = at("data.seed")
    train_files: str = at("data.train_files")
    val_files: str | None = at("data.val_files")

    @property
    def episodes(self) -> int:
        """Number of episodes of a step."""
        return self.tasks * self.samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Limits in tokens."""

    prompt: int = at("data.max_prompt_length")
    response: int = at("data.max_response_length")
    row: int = at("data.max_length")
    """Longest row of supervised training and DPO."""
    overlong: str = at("data.overlong_prompt")
    template_options: Mapping[str, Any] = at("data.apply_chat_template_kwargs")

    @property
    def episode(self) -> int:
        """Tokens of the longest episode with its prompt."""
        return self.prompt + self.response


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Machines of a run, with one rank for each GPU."""

    device: str = at("trainer.device")
    nodes: int = at("trainer.nnodes")
    ranks_each: int = at("trainer.n_gpus_per_node")
    offload: bool = at("offload")
    check_memory: bool = at("trainer.check_memory")
    object_bytes: int | None = at("ray_kwargs.ray_init.object_store_memory")
    ray_address: str | None = at("ray_kwargs.ray_init.address")

    @property
    def ranks(self) -> int:
        """Number of ranks on all machines."""
        return int(self.nodes * self.ranks_each)

    @property
    def joins_ray(self) -> bool:
        """True if the run joins a Ray that is running already, on this or another machine."""
        return bool(os.environ.get("RAY_ADDRESS") or self.ray_address or self.nodes > 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """Engine that plays; with `mode=SEPARATE` it has GPUs of its own."""

    name: str = at("actor_rollout_ref.rollout.name")
    share: float = at("actor_rollout_ref.rollout.gpu_memory_utilization")
    ranks: int = at("actor_rollout_ref.rollout.tensor_model_parallel_size")
    nodes: int = at("actor_rollout_ref.rollout.nnodes")
    gpus_each: int = at("actor_rollout_ref.rollout.n_gpus_per_node")
    frees_cache: bool = at("actor_rollout_ref.rollout.free_cache_engine")
    may_sleep: bool = at("actor_rollout_ref.rollout.enable_sleep_mode")
    bucket_mb: int = at("actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes")
    workers: int = at("actor_rollout_ref.rollout.agent.num_workers")
    mode: str = at("trainer.v1.trainer_mode")


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimation:
    """Estimator, its filter of groups, and what the loss compares with."""

    name: str = at("algorithm.adv_estimator")
    gamma: float = at("algorithm.gamma")
    loss: str = at("actor_rollout_ref.actor.policy_loss.loss_mode")
    clip_low: float = at("actor_rollout_ref.actor.clip_ratio_low")
    clip_high: float = at("actor_rollout_ref.actor.clip_ratio_high")
    filters: bool = at("algorithm.filter_groups.enable")
    kl_in_reward: bool = at("algorithm.use_kl_in_reward")
    kl_loss: bool = at("actor_rollout_ref.actor.use_kl_loss")
    bypass: bool = at("algorithm.rollout_correction.bypass_mode")
    skips_uniform: bool = at("trainer.v1.sampler.sampler_kwargs.skip_uniform")
    distils: bool = at("distillation.enabled")

    @property
    def has_reference(self) -> bool:
        """True if the log-probs of the initial model, or of a teacher, are computed."""
        return bool(self.kl_loss or self.kl_in_reward or self.distils)


TEACHER_PATH, DISTILLATION_LOSS = (
    "distillation.teacher_models.teacher_model.model_path",
    "distillation.distillation_loss",
)
UNNAMED_TEACHER = "runs/teacher"
"""Path in `overlay/algorithm/distill.yaml`, which no recipe writes."""
BEHIND_API = (
    "A model behind an API scores no tokens: play its episodes with `verl-agent eval`, and train on them with "
    "`verl-agent sft`."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Teacher:
    """Model that scores the tokens of the policy, in the place of the initial model."""

    path: str = at(TEACHER_PATH)
    """Name in the recipe, and the folder after `Plan.located`."""
    adds_rewards: bool = at(f"{DISTILLATION_LOSS}.use_task_rewards")
    coefficient: float = at(f"{DISTILLATION_LOSS}.distillation_loss_coef")
    clamp: float | None = at(f"{DISTILLATION_LOSS}.loss_max_clamp")
    """Largest distance of two log-probs of a token, in nats; None for no limit."""

    def located(self) -> Self:
        """Return the teacher with its folder, or raise ConfigError."""
        try:
            return replace(self, path=resolve_model(self.path, key=TEACHER_PATH))
        except ConfigError as error:
            if self.path != UNNAMED_TEACHER or Path(self.path).exists():
                raise ConfigError(f"{error} {BEHIND_API}") from error
            raise ConfigError(
                f"{TEACHER_PATH}={self.path!r} does not exist: it is the value of the overlay, and no run writes it. "
                "It must name a teacher with the tokenizer of the policy: the folder of a model, a run, a checkpoint, "
                "or a hub id. docs/guides/distillation.md has an example: the run runs/textcraft_sft_135m teaches the "
                "policy of recipes/textcraft/grpo_cpu.yaml."
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """Size of the passes over rows: a number of rows, or of tokens where rows are packed."""

    key: str
    """Key of the number of rows."""
    rows: int | None = at("{section}.{begin}micro_batch_size_per_gpu")
    tokens: int | None = at("{section}.{begin}max_token_len_per_gpu")
    packed: bool = at("{section}.{begin}use_dynamic_bsz", "{section}.use_dynamic_bsz")

    def most_tokens(self, row: int) -> int:
        """Return the most tokens of a pass with rows of `row` tokens."""
        return int((self.tokens if self.packed else (self.rows or 1) * row) or 0)


def read_passes(values: Mapping[str, Any], section: str, begin: str) -> Passes:
    """Read the passes of a section, whose keys begin with a word."""
    names = {"section": section, "begin": begin}
    return read_part(Passes, values, names, key=f"{section}.{begin}micro_batch_size_per_gpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedModel:
    """Policy or critic of a run, or the model of supervised training or DPO."""

    key: str
    """Section of its update."""
    model_key: str
    layout_key: str
    passes: Passes
    """Passes of its update."""
    ways: Mapping[str, int]
    """Sizes of model parallelism, by key."""
    path: str = at("{model}.path")
    """Name in the recipe, and the folder after `Plan.located`."""
    model: Mapping[str, Any] = at("{model}")
    layout: Mapping[str, Any] = at("{layout}")
    """Section of FSDP or Megatron."""
    strategy: str = at("{key}.strategy", "{layout}.strategy")
    checkpoint: Mapping[str, Any] = at("{key}.checkpoint", "checkpoint")
    mini_tasks: int = at("{key}.ppo_mini_batch_size")
    epochs: int = at("{key}.ppo_epochs")

    @property
    def tokenizer_path(self) -> str:
        """Name or folder of the tokenizer, by default that of the model."""
        return str(self.model.get("tokenizer_path") or self.path)

    @property
    def on_megatron(self) -> bool:
        """True if Megatron trains it."""
        return self.strategy == MEGATRON

    def located(self) -> Self:
        """Return the model with its folder, or raise ConfigError."""
        return replace(self, path=resolve_model(self.path, key=f"{self.model_key}.path"))


def read_model(values: Mapping[str, Any], key: str, model_key: str, fsdp_key: str, begin: str = "ppo_") -> TrainedModel:
    """Read a model from the section of its update, that of the model, and that of FSDP."""
    megatron = value_at(values, f"{key}.strategy") == MEGATRON
    layout = f"{key}.megatron" if megatron else fsdp_key
    ways = {name: int(value_at(values, name) or 1) for name in (f"{layout}.{way}" for way in WAYS[megatron])}
    own = {"key": key, "model_key": model_key, "layout_key": layout, "passes": read_passes(values, key, begin)}
    return read_part(TrainedModel, values, {"key": key, "model": model_key, "layout": layout}, **own, ways=ways)
