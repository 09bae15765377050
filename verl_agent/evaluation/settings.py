"""Sections of an evaluation recipe."""

from collections.abc import Mapping
from dataclasses import dataclass as plain_dataclass
from typing import Annotated, Any, Literal

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationKeyError, InterpolationResolutionError, OmegaConfBaseException
from pydantic import Field
from pydantic.dataclasses import dataclass

from verl_agent.config.keys import check_complete, check_keys, check_kind
from verl_agent.config.settings import RunEnv, read_run_env
from verl_agent.errors import ConfigError
from verl_agent.evaluation.api.settings import ApiSettings, api_settings
from verl_agent.evaluation.perturb import PerturbSettings
from verl_agent.rollout.settings import OverlongPrompt
from verl_agent.sections import STRICT, section

BASE = "agent_eval"
"""Base YAML of evaluation recipes."""
Count = Annotated[int, Field(ge=1)]


@dataclass(frozen=True, slots=True, config=STRICT)
class LengthSettings:
    """Section `data` of an evaluation, with the names that training uses.

    Attributes:
        max_prompt_length: token limit of the prompt.
        max_response_length: token limit of all replies and observations after the prompt.
        apply_chat_template_kwargs: keyword arguments of the chat template.
        overlong_prompt: handling of a prompt with more tokens than its limit. `drop`: the episode is not played, has
            the stop reason `overlong_prompt`, is left out of all rates and counted separately.
            `truncate_observation`: the middle of the first observation is cut so that the prompt fits.
    """

    max_prompt_length: Count
    max_response_length: Count
    apply_chat_template_kwargs: Mapping[str, Any] = Field(default_factory=dict)
    overlong_prompt: OverlongPrompt = "drop"


@dataclass(frozen=True, slots=True, config=STRICT)
class EngineSettings:
    """Section `engine` of an evaluation: options of vLLM or SGLang, which serves the model.

    Attributes:
        name: engine. SGLang needs an environment of its own, as for training.
        device: device that the recipe is sized for. vLLM itself uses the device that it was built for.
        dtype: type of the weights, as vLLM names it; `auto` is the type of the checkpoint.
        enforce_eager: disables compilation and CUDA graphs; the engine then starts sooner and decodes slower.
        max_num_seqs: most sequences that are decoded at once.
        tensor_parallel_size: number of GPUs that share the model.
        data_parallel_size: number of copies of the model, between which episodes are divided; null for as many as the
            GPUs hold. A CPU holds one.
        gpu_memory_utilization: share of a GPU's memory, above 0, up to 1; on a CPU the KV cache of vLLM
            has 1 GiB, or VLLM_CPU_KVCACHE_SPACE GiB, and that of SGLang 32,768 tokens.
        block_size: tokens in a block of vLLM's KV cache, the unit of prefix caching; null is vLLM's choice.
    """

    name: Literal["vllm", "sglang"] = "vllm"
    device: Literal["cuda", "cpu"] = "cuda"
    dtype: str = "auto"
    enforce_eager: bool = False
    max_num_seqs: Count = 128
    tensor_parallel_size: Count = 1
    data_parallel_size: Count | None = None
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.9
    block_size: Count | None = None

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


@dataclass(frozen=True, slots=True, config=STRICT)
class EvaluationSettings:
    """Section `evaluation`.

    Attributes:
        tasks: split of the environment, or path of a file with one task id per line.
        max_tasks: number of tasks to play, from the first on; null for all.
        max_tasks_per_category: number of tasks to play of each category, from the first on; null for all.
        samples: episodes per task.
        temperature: sampling temperature; 0 takes the most likely token.
        top_p: probability mass that is sampled from, above 0, up to 1.
        seed: seed of sampling; the seed of each episode and turn is derived from it.
        concurrency: episodes that are played at once.
        output_dir: folder of results and records; null for a new one in runs/eval.
        compare_with: output folder of an earlier evaluation to compare with by task, or null.
        purpose: purpose in the records: `evaluation`, or `collection` of episodes to learn from.
        perturb: changes to the environment that measure how robust the policy is.
        max_usd: most US dollars that a model behind an API may cost, with what requests in flight may cost at most;
            null for no limit.
        logprobs: number of most likely tokens to record at each token of a reply, with their log-probs before
            temperature and top_p, in `tokens/` of the output folder; null for none. It needs a model behind vLLM.
        approve: YAML file of an approval policy, whose rules or whose person decide on each action; null to carry out
            every action.
        count_operated: count episodes in which a person edited, rejected or took over turns. Episodes that a person
            ended are never counted.
    """

    tasks: str = "test"
    max_tasks: Count | None = None
    max_tasks_per_category: Count | None = None
    samples: Count = 1
    temperature: Annotated[float, Field(ge=0)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    seed: int = 1
    concurrency: Count = 128
    output_dir: str | None = None
    compare_with: str | None = None
    purpose: Literal["evaluation", "collection"] = "evaluation"
    perturb: PerturbSettings = Field(default_factory=PerturbSettings)
    max_usd: Annotated[float, Field(gt=0)] | None = None
    logprobs: Annotated[int, Field(ge=1, le=20)] | None = None
    approve: str | None = None
    count_operated: bool = False

    def __post_init__(self) -> None:
        if self.temperature == 0 and self.samples > 1:
            raise ConfigError(
                f"evaluation.samples={self.samples} with temperature 0 would play the same episode again. "
                "Set samples to 1, or raise the temperature."
            )


@dataclass(frozen=True, slots=True, config=STRICT)
class EvaluationHorizon:
    """Key of section `horizon` that an evaluation recipe sets.

    Attributes:
        eval_max_turns: turn limit of an episode.
    """

    eval_max_turns: Count


@plain_dataclass(frozen=True, slots=True)
class EvaluationConfig:
    """All sections of an evaluation.

    Attributes:
        plain: whole config in plain values, for records and reports.
        model: `model.path`, or the label of a model behind an API, such as `openai:gpt-4o-mini`.
        run: environment with the sections that training has, too.
        data: section `data`.
        engine: section `engine`.
        evaluation: section `evaluation`.
        api: section `model.api`; None if `model.path` names the policy.
    """

    plain: Mapping[str, Any]
    model: str
    run: RunEnv
    data: LengthSettings
    engine: EngineSettings
    evaluation: EvaluationSettings
    api: ApiSettings | None = None


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
            f"episode.max_tokens_per_turn={turn} exceeds data.max_response_length={data.max_response_length}."
        )
    # first the evaluation: engine.max_num_seqs is a copy of evaluation.concurrency
    evaluation = section("evaluation", EvaluationSettings, config["evaluation"])
    engine = section("engine", EngineSettings, config["engine"])
    model: Mapping[str, Any] = config.get("model") or {}
    api = api_settings(model.get("api"), model.get("path"))
    _check_api_settings(api, data, evaluation)
    name = str(model.get("path")) if api is None else api.label
    return EvaluationConfig(config, name, run, data, engine, evaluation, api)


def _check_api_settings(api: ApiSettings | None, data: LengthSettings, evaluation: EvaluationSettings) -> None:
    """Check that settings for models behind an API, and only for local ones, are set where they act.

    Raises:
        ConfigError: a setting has no effect.
    """
    if api is None:
        if evaluation.max_usd is not None:
            raise ConfigError(
                f"evaluation.max_usd={evaluation.max_usd:g} has no effect without model.api. Leave it out, or name a "
                "model behind an API with model.api.kind."
            )
        return
    if data.apply_chat_template_kwargs:
        raise ConfigError(
            "data.apply_chat_template_kwargs has no effect with model.api, since the server renders the chat template. "
            "Set data.apply_chat_template_kwargs={}; for vLLM and SGLang set model.api.options.chat_template_kwargs."
        )
    if data.overlong_prompt != "drop":
        raise ConfigError(
            f"data.overlong_prompt={data.overlong_prompt!r} needs the tokenizer of the model, which model.api does not "
            "have. Allowed with model.api: drop, which acts if the server refuses the length of a prompt."
        )
