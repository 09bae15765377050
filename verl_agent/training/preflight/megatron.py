"""Conditions on the settings of Megatron, and checks that it can divide a model and compute it on a CPU."""

from collections.abc import Iterator, Mapping, Sequence
from types import NoneType
from typing import Any, Literal

from verl_agent.config.algorithms import CRITICS, ESTIMATOR
from verl_agent.config.plan_parts import TrainedModel
from verl_agent.errors import ConfigError
from verl_agent.models.hf import load_config
from verl_agent.training.preflight.conditions import Condition, Where
from verl_agent.training.preflight.update_conditions import Off

WITH_EXPERTS = "qwen3_moe"
CPU_MODELS = ("llama", "qwen2", "qwen3", WITH_EXPERTS)
"""Types of models that Megatron was tested with on a CPU."""
ON_CPU = {
    "vanilla_mbridge": True,
    "context_parallel_size": 1,
    "expert_model_parallel_size": 1,
    "param_offload": False,
    "optimizer_offload": False,
}
"""Settings of Megatron with the only value that works on a CPU."""
UNEVEN = (
    *("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage", "pipeline_model_parallel_layout"),
    *("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"),
)
"""Settings of Megatron's model with which stages may have different numbers of layers."""


ACTOR, MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.model"
USED = {f"{ACTOR}.strategy": ["megatron"]}
"""Condition of a run that trains with Megatron."""


def _conditions(megatron: str, model: str, used: Mapping[str, Any]) -> Iterator[Condition]:
    """Yield the conditions on a model that Megatron trains: its sections `megatron` and `model`."""
    yield Condition(
        f"{megatron}.use_dist_checkpointing",
        Where(
            f"false while {megatron}.dist_checkpointing_path is null",
            lambda uses, get: not uses or bool(get(f"{megatron}.dist_checkpointing_path")),
        ),
        "The initial weights are read from there. Set it to a folder of Megatron's format.",
        used,
    )
    yield Condition(
        f"{model}.lora_rank",
        Literal[0] | NoneType,
        "Megatron does not read it (+overlay/lora sets it) and would train all weights. Train with FSDP "
        f"(model_engine=dp), or, with Megatron-Bridge, set {model}.lora.rank.",
        used,
    )
    yield Condition(
        f"{model}.lora.rank",
        Literal[0] | NoneType,
        "Adapters need Megatron-Bridge, which comes with Python 3.12 and a GPU. Or train with FSDP (model_engine=dp).",
        {**used, f"{megatron}.vanilla_mbridge": [True]},
    )
    for name, value in ON_CPU.items():
        hint = " Set offload=false." if name.endswith("offload") else ""
        remedy = f"Another value does not work on a CPU.{hint}"
        yield Condition(f"{megatron}.{name}", Literal[value], remedy, {**used, "trainer.device": ["cpu"]})


MEGATRON_CONDITIONS = (
    *(
        Condition(
            key,
            NoneType,
            "It belongs to FSDP, and model_engine=megatron trains with Megatron. Remove it from the recipe, or add "
            f"'~{key}' to the command line.",
            USED,
        )
        for key in (f"{ACTOR}.fsdp_config", "actor_rollout_ref.ref.fsdp_config", "critic.fsdp")
    ),
    Condition(f"{MODEL}.use_fused_kernels", Off, "They are kernels for GPUs.", {**USED, "trainer.device": ["cpu"]}),
    *_conditions(f"{ACTOR}.megatron", MODEL, USED),
    *_conditions("critic.megatron", "critic.model", {**USED, ESTIMATOR: CRITICS}),
)
"""Conditions on the settings of a run that trains with Megatron; a recipe may have added settings of FSDP."""


def check_megatron(models: Sequence[TrainedModel], on_cpu: bool) -> None:
    """Check that the models of a run that trains with Megatron divide as its settings ask, and work on a CPU.

    Args:
        on_cpu: the recipe is for a CPU.
    """
    for one in models:
        model = load_config(one.path, f"{one.model_key}.path")
        check_layout(one.layout_key, one.layout, model)
        if on_cpu:
            check_stand_ins(one.layout_key, one.layout, model)


def check_layout(key: str, megatron: Mapping[str, Any], model: Any) -> None:
    """Check that tensor and pipeline parallelism divide a model."""
    text = model.get_text_config()
    ways = int(megatron["tensor_model_parallel_size"])
    heads = int(text.num_attention_heads)
    parts = {
        "attention heads": heads,
        "key-value heads": int(getattr(text, "num_key_value_heads", None) or heads),
        "tokens of the vocabulary": int(text.vocab_size),
    }
    if not megatron["vanilla_mbridge"] and ways % parts["key-value heads"] == 0:
        del parts["key-value heads"]  # Megatron-Bridge gives several ranks a copy of each
    for name, count in parts.items():
        if count % ways:
            raise ConfigError(
                f"{key}.tensor_model_parallel_size={ways} does not divide the {count} {name} of the model. Allowed: "
                f"{_listed(_common_divisors(*parts.values()))}."
            )
    stages, layers = int(megatron["pipeline_model_parallel_size"]), int(text.num_hidden_layers)
    uneven = any(megatron["override_transformer_config"].get(name) for name in UNEVEN)
    if stages > layers or (layers % stages and not uneven):
        raise ConfigError(
            f"{key}.pipeline_model_parallel_size={stages} does not divide the {layers} layers of the model into stages "
            f"of equal size. Allowed: {_listed(_common_divisors(layers))}."
        )
    tied = bool(getattr(text, "tie_word_embeddings", False))
    if stages > 1 and tied and megatron["vanilla_mbridge"] and text.model_type == "llama":
        raise ConfigError(
            f"{key}.pipeline_model_parallel_size={stages} does not work with a Llama whose output layer is its "
            "embedding (tie_word_embeddings): mbridge finds no weights for the last stage. Allowed: 1."
        )


def check_stand_ins(key: str, megatron: Mapping[str, Any], model: Any) -> None:
    """Check that Megatron's stand-ins on a CPU have everything that a model needs."""
    kind = model.get_text_config().model_type
    if kind not in CPU_MODELS:
        raise ConfigError(
            f"{key}: Megatron was not tested on a CPU with models of type {kind!r}. Allowed: {_listed(CPU_MODELS)}. Or "
            "train with FSDP (model_engine=dp)."
        )
    if kind == WITH_EXPERTS and (ways := megatron["tensor_model_parallel_size"]) != 1:
        raise ConfigError(
            f"{key}.tensor_model_parallel_size={ways} does not work on a CPU, which splits no experts. Allowed: 1."
        )


def _common_divisors(*counts: int) -> list[int]:
    return [ways for ways in range(1, min(counts) + 1) if not any(count % ways for count in counts)]


def _listed(values: Any) -> str:
    return ", ".join(map(str, values))
