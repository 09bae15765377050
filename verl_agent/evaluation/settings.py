"""Sections of an evaluation recipe."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationKeyError, InterpolationResolutionError, OmegaConfBaseException
from pydantic import Field
from pydantic.dataclasses import dataclass as strict_dataclass

import verl_agent.config
from verl_agent.config.checks import check_keys
from verl_agent.config.keys import check_complete, check_kind, reference
from verl_agent.config.settings import RunEnv, read_run_env
from verl_agent.envs.model_api.settings import KINDS, ApiSettings, api_settings
from verl_agent.errors import ConfigError
from verl_agent.evaluation.perturb import PerturbSettings
from verl_agent.platform.detect import use_cpu_device
from verl_agent.rollout.settings import OverlongPrompt
from verl_agent.sections import STRICT, Needs, OnResume, section, settings

BASE = "agent_eval"
"""Base YAML of evaluation recipes."""
Count = Annotated[int, Field(ge=1)]
RENDERS = Needs(
    "model.api.kind",
    None,
    instead="A server renders the template itself; vLLM and SGLang take model.api.options.chat_template_kwargs.",
)
CUTS = Needs("model.api.kind", None, instead="A server lends no tokenizer; prompts that it refuses are dropped.")


@settings("data", base="agent_eval")
class LengthSettings:
    """Prompt and response lengths; the same keys in training and evaluation."""

    max_prompt_length: Count
    """Token limit of the prompt."""
    max_response_length: Count
    """Token limit of all replies and observations after the prompt."""
    apply_chat_template_kwargs: Annotated[Mapping[str, Any], RENDERS] = Field(default_factory=dict)
    """Keyword arguments of the chat template."""
    overlong_prompt: Annotated[OverlongPrompt, CUTS] = "drop"
    """Handling of a prompt with more tokens than its limit. `drop`: the episode is not played, has the stop reason
    `overlong_prompt`, is left out of all rates and counted separately. `truncate_observation`: the middle of the first
    observation is cut so that the prompt fits."""


@settings("engine", OnResume("play"), base="agent_eval")
class EngineSettings:
    """The inference engine of `verl-agent eval`, vLLM or SGLang."""

    name: Literal["vllm", "sglang"] = "vllm"
    """Engine. SGLang needs an environment of its own, as for training."""
    device: Literal["cuda", "cpu"] = "cuda"
    """Device that the recipe is sized for. vLLM itself uses the device that it was built for."""
    dtype: str = "auto"
    """Type of the weights, as vLLM names it; `auto` is the type of the checkpoint."""
    enforce_eager: bool = False
    """Disables compilation and CUDA graphs; the engine then starts sooner and decodes slower."""
    max_num_seqs: Count = 128
    """Most sequences that are decoded at once."""
    tensor_parallel_size: Count = 1
    """Number of GPUs that share the model."""
    data_parallel_size: Count | None = None
    """Number of copies of the model, between which episodes are divided; null for as many as the GPUs hold. A CPU holds
    one."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Share of a GPU's memory, above 0, up to 1; on a CPU the KV cache of vLLM has 1 GiB, or VLLM_CPU_KVCACHE_SPACE
    GiB, and that of SGLang 32,768 tokens."""
    block_size: Count | None = None
    """Tokens in a block of vLLM's KV cache, the unit of prefix caching; null is vLLM's choice."""

    def copies(self, gpus: int) -> int:
        """Return the number of copies of the model on a machine with `gpus` GPUs.

        Raises:
            ConfigError: the GPUs do not hold them.
        """
        if self.device == "cpu":
            gpus = 1
        wanted = self.data_parallel_size or max(1, gpus // self.tensor_parallel_size)
        if wanted * self.tensor_parallel_size > max(1, gpus):
            held = "a CPU holds one copy" if self.device == "cpu" else f"this machine has {gpus}"
            raise ConfigError(
                f"engine.data_parallel_size={self.data_parallel_size} with engine.tensor_parallel_size="
                f"{self.tensor_parallel_size} needs {wanted * self.tensor_parallel_size} GPUs, and {held}. Lower them; "
                "null uses all GPUs."
            )
        return wanted


@strict_dataclass(frozen=True, slots=True, config=STRICT)
class EvaluationHorizon:
    """Section `horizon` of an evaluation recipe, which must set one limit."""

    eval_max_turns: Count


@settings("evaluation", base="agent_eval")
class EvaluationSettings:
    """Tasks, sampling and results of `verl-agent eval`."""

    tasks: Annotated[str, OnResume("eval")] = "test"
    """Split of the environment, or path of a file with one task id per line."""
    max_tasks: Annotated[Count | None, OnResume("eval")] = None
    """Number of tasks to play, from the first on; null for all."""
    max_tasks_per_category: Annotated[Count | None, OnResume("eval")] = None
    """Number of tasks to play of each category, from the first on; null for all."""
    samples: Annotated[Count, OnResume("eval")] = 1
    """Episodes per task."""
    temperature: Annotated[float, Field(ge=0)] = 1.0
    """Sampling temperature; 0 takes the most likely token."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Probability mass that is sampled from, above 0, up to 1."""
    seed: int = 1
    """Seed of sampling; the seed of each episode and turn is derived from it."""
    concurrency: Annotated[Count, OnResume("play")] = 128
    """Episodes that are played at once."""
    output_dir: Annotated[str | None, OnResume("play")] = None
    """Folder of results and records; null for a new one in runs/eval."""
    compare_with: Annotated[str | None, OnResume("play")] = None
    """Output folder of an earlier evaluation to compare with by task, or null."""
    purpose: Annotated[Literal["evaluation", "collection"], OnResume("eval")] = "evaluation"
    """Purpose in the records: `evaluation`, or `collection` of episodes to learn from."""
    perturb: PerturbSettings = Field(default_factory=PerturbSettings)
    """Changes to the environment that measure how robust the policy is."""
    max_usd: Annotated[
        Annotated[float, Field(gt=0)] | None, OnResume("eval"), Needs("model.api.kind", instead=KINDS)
    ] = None
    """Most US dollars that a model behind an API may cost, with what requests in flight may cost at most; null for no
    limit."""
    logprobs: Annotated[Annotated[int, Field(ge=1, le=20)] | None, OnResume("play")] = None
    """Number of most likely tokens to record at each token of a reply, with their log-probs before temperature and
    top_p, in `tokens/` of the output folder; null for none. It needs a model behind vLLM."""
    approve: Annotated[str | None, OnResume("play")] = None
    """YAML file of an approval policy, whose rules or whose person decide on each action; null to carry out every
    action."""
    count_operated: Annotated[bool, OnResume("play")] = False
    """Count episodes in which a person edited, rejected or took over turns. Episodes that a person ended are never
    counted."""

    def __post_init__(self) -> None:
        if self.temperature == 0 and self.samples > 1:
            raise ConfigError(
                f"evaluation.samples={self.samples} with temperature 0 would play the same episode again. "
                "Set samples to 1, or raise the temperature."
            )


@dataclass(frozen=True, slots=True)
class EvaluationConfig:
    """All sections of an evaluation.

    Attributes:
        plain: whole config in plain values, for records and reports.
        model: `model.path`, or the label of a model behind an API, such as `openai:gpt-4o-mini`.
        api: section `model.api`; None if `model.path` names the policy.
    """

    plain: Mapping[str, Any]
    model: str
    run: RunEnv
    data: LengthSettings
    engine: EngineSettings
    evaluation: EvaluationSettings
    api: ApiSettings | None = None


def evaluation_base() -> DictConfig:
    """Return the defaults of an evaluation on this machine."""
    config = OmegaConf.create(reference(BASE))
    if use_cpu_device():
        config = OmegaConf.merge(config, OmegaConf.load(Path(verl_agent.config.__file__).with_name("cpu_eval.yaml")))
    OmegaConf.set_struct(config, False)
    assert isinstance(config, DictConfig)
    return config


class UnresolvedError(ConfigError):
    """An evaluation refers to something that this machine does not have, such as an environment variable."""


def read_evaluation(config: DictConfig) -> EvaluationConfig:
    """Read a composed evaluation recipe.

    Args:
        config: config as Hydra composed it. `model.path` may be missing where `model.api` names a model.

    Raises:
        UnresolvedError: a reference does not resolve on this machine.
        ConfigError: the recipe is for another command, or a key or a value is not allowed.
    """
    check_kind(config, BASE)
    try:
        check_keys(config, BASE)
        if OmegaConf.select(config, "model.api.kind") is not None and OmegaConf.is_missing(config.model, "path"):
            config.model.path = None
        check_complete(config)
        plain: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        lacking = isinstance(error, InterpolationResolutionError) and not isinstance(error, InterpolationKeyError)
        kind = UnresolvedError if lacking else ConfigError
        raise kind(f"the config does not resolve: {str(error).splitlines()[0]}") from error
    return evaluation_config(plain)


def evaluation_config(config: Mapping[str, Any]) -> EvaluationConfig:
    """Build the sections of a complete evaluation config whose references are resolved.

    Raises:
        ConfigError: a section is missing, `section` rejects one, or a turn's token budget exceeds the episode's.
    """
    for name in ("data", "engine", "evaluation"):
        if not isinstance(config.get(name), Mapping):
            raise ConfigError(f"the config has no section {name!r}. Start from an evaluation recipe in recipes/.")
    horizon = config.get("horizon")
    if isinstance(horizon, Mapping) and horizon.get("max_turns") == [horizon.get("eval_max_turns")]:
        # The base YAML copies the limit to max_turns, a key that the recipe does not set and errors must not name.
        section("horizon", EvaluationHorizon, {"eval_max_turns": horizon.get("eval_max_turns")})
    run, data = read_run_env(config), section("data", LengthSettings, config["data"])
    if run.env.hosts.where == "ray":
        raise ConfigError("env.hosts.where='ray' is for training. Allowed in an evaluation: auto, local, inline.")
    turn = run.episode.max_tokens_per_turn
    if turn > data.max_response_length:
        raise ConfigError(
            f"episode.max_tokens_per_turn={turn} exceeds data.max_response_length={data.max_response_length}, the "
            "tokens of all replies and observations of an episode. Lower it, or raise data.max_response_length."
        )
    # first the evaluation: engine.max_num_seqs is a copy of evaluation.concurrency
    evaluation = section("evaluation", EvaluationSettings, config["evaluation"])
    engine = section("engine", EngineSettings, config["engine"])
    model: Mapping[str, Any] = config.get("model") or {}
    api = api_settings(model.get("api"), model.get("path"))
    name = str(model.get("path")) if api is None else api.label
    if api is not None and (api.max_output_tokens or 0) > data.max_response_length:
        raise ConfigError(
            f"model.api.max_output_tokens={api.max_output_tokens} exceeds data.max_response_length="
            f"{data.max_response_length}, the tokens of all replies and observations of an episode: no reply gets so "
            "many. Lower it, or raise data.max_response_length."
        )
    return EvaluationConfig(config, name, run, data, engine, evaluation, api)
