"""The sections of an evaluation, typed and checked before anything starts."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from verl_agent.config.settings import RunSettings, run_settings
from verl_agent.errors import ConfigError
from verl_agent.sections import section


@dataclass(frozen=True, slots=True)
class LengthSettings:
    """Section `data` of an evaluation, under the names that training has.

    Attributes:
        max_prompt_length: tokens before the first reply.
        max_response_length: tokens after it, replies and observations together.
        apply_chat_template_kwargs: keyword arguments of the chat template.
    """

    max_prompt_length: int
    max_response_length: int
    apply_chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("max_prompt_length", "max_response_length"):
            if getattr(self, name) < 1:
                raise ConfigError(f"data.{name} must be >= 1 token, got {getattr(self, name)}.")


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Section `engine` of an evaluation: how vLLM serves the model.

    Attributes:
        device: `cuda` or `cpu`: what the recipe is sized for. vLLM itself uses what it was built for.
        dtype: type of the weights, as vLLM names it; `auto` is that of the checkpoint.
        enforce_eager: do without compilation and CUDA graphs: starts sooner, decodes slower.
        max_num_seqs: sequences decoded at once.
        tensor_parallel_size: GPUs that share the model.
        gpu_memory_utilization: share of a GPU's memory, 0 to 1; on a CPU VLLM_CPU_KVCACHE_SPACE counts instead.
        block_size: tokens in a block of the cache, of which whole ones are reused between turns; null is vLLM's choice.
    """

    device: str = "cuda"
    dtype: str = "auto"
    enforce_eager: bool = False
    max_num_seqs: int = 128
    tensor_parallel_size: int = 1
    gpu_memory_utilization: float = 0.9
    block_size: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "tensor_parallel_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"engine.{name} must be >= 1, got {getattr(self, name)}.")
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ConfigError(f"engine.gpu_memory_utilization must be in 0 to 1, got {self.gpu_memory_utilization}.")


@dataclass(frozen=True, slots=True)
class EvaluationSettings:
    """Section `evaluation`.

    Attributes:
        tasks: a split of the environment, or a file with one task id a line.
        max_tasks: play the first so many of them; null for all.
        samples: episodes of each task.
        temperature: of sampling; 0 takes the likeliest token.
        top_p: share of the probability mass that is sampled from, above 0, up to 1.
        seed: of sampling; each episode and turn derives its own.
        concurrency: episodes played at once.
        output_dir: folder of results and records; null for a new one in runs/eval.
        compare_with: output folder of an earlier evaluation to compare with, task by task, or null.
        purpose: what the records say that they are for: `evaluation`, or `collection` of episodes to learn from.
    """

    tasks: str = "test"
    max_tasks: int | None = None
    samples: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 1
    concurrency: int = 128
    output_dir: str | None = None
    compare_with: str | None = None
    purpose: str = "evaluation"

    def __post_init__(self) -> None:
        if self.purpose not in ("evaluation", "collection"):
            raise ConfigError(f"evaluation.purpose={self.purpose!r} is not allowed. Allowed: evaluation, collection.")
        for name in ("samples", "concurrency", "max_tasks"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"evaluation.{name} must be >= 1, got {value}.")
        if self.temperature < 0:
            raise ConfigError(f"evaluation.temperature must be >= 0, got {self.temperature}.")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"evaluation.top_p must be above 0 and at most 1, got {self.top_p}.")
        if self.temperature == 0 and self.samples > 1:
            raise ConfigError(
                f"evaluation.samples={self.samples} with temperature 0 would play the same episode again. "
                "Set samples to 1, or raise the temperature."
            )


@dataclass(frozen=True, slots=True)
class EvaluationConfig:
    """All sections of an evaluation."""

    agent: RunSettings
    data: LengthSettings
    engine: EngineSettings
    evaluation: EvaluationSettings


def evaluation_config(config: Mapping[str, Any]) -> EvaluationConfig:
    """The sections of a whole, resolved evaluation config.

    Raises:
        ConfigError: see `section`; or a turn's token budget exceeds the episode's.
    """
    for name in ("data", "engine", "evaluation"):
        if not isinstance(config.get(name), Mapping):
            raise ConfigError(f"the config has no section {name!r}. Start from an evaluation recipe in recipes/.")
    agent, data = run_settings(config), section("data", LengthSettings, config["data"])
    if agent.env.hosts.where == "ray":
        raise ConfigError("env.hosts.where='ray' is for training. Allowed in an evaluation: auto, local, inline.")
    turn = agent.episode.max_tokens_per_turn
    if turn > data.max_response_length:
        raise ConfigError(
            f"episode.max_tokens_per_turn={turn} exceeds data.max_response_length={data.max_response_length}."
        )
    return EvaluationConfig(
        agent,
        data,
        section("engine", EngineSettings, config["engine"]),
        section("evaluation", EvaluationSettings, config["evaluation"]),
    )
