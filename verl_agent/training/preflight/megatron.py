"""Check that Megatron can divide a model as its settings ask, and compute it on a CPU, before Ray starts."""

from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from verl_agent.config.algorithms import has_critic
from verl_agent.errors import ConfigError
from verl_agent.models.hf import load_config
from verl_agent.platform.detect import use_cpu_device
from verl_agent.platform.megatron.activation import STAND_INS

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


def check_megatron(config: DictConfig) -> None:
    """Check the models and the settings of a run that trains with Megatron; do nothing for another run."""
    if not _uses_megatron(config):
        return
    plain: Any = OmegaConf.to_container(config)
    for key in ("actor_rollout_ref.actor.fsdp_config", "actor_rollout_ref.ref.fsdp_config", "critic.fsdp"):
        if OmegaConf.select(config, key) is not None:  # a recipe added it, and verl's settings of Megatron refuse it
            raise ConfigError(
                f"{key} belongs to FSDP, and model_engine=megatron trains with Megatron. Remove it from the recipe, or "
                f"add '~{key}' to the command line."
            )
    models = {"actor_rollout_ref.actor": plain["actor_rollout_ref"], "critic": plain["critic"]}
    if not has_critic(config):
        del models["critic"]
    for key, section in models.items():
        name = f"{'critic' if key == 'critic' else 'actor_rollout_ref'}.model.path"
        model = load_config(section["model"]["path"], name)
        check_layout(f"{key}.megatron", section.get("actor", section)["megatron"], model)
        check_weights(f"{key}.megatron", section.get("actor", section)["megatron"])
        check_lora(name.removesuffix(".path"), section["model"], section.get("actor", section)["megatron"])
        if use_cpu_device():
            check_stand_ins(f"{key}.megatron", section.get("actor", section)["megatron"], model)
    if use_cpu_device() and plain["actor_rollout_ref"]["model"]["use_fused_kernels"]:
        raise ConfigError(
            "actor_rollout_ref.model.use_fused_kernels=True needs kernels for GPUs. Allowed on a CPU: false."
        )


def stand_in_variables(config: DictConfig) -> Mapping[str, str]:
    """Return the environment variables of a run's processes that let Megatron run on a CPU; empty for another run."""
    return {STAND_INS: "1"} if use_cpu_device() and _uses_megatron(config) else {}


def _uses_megatron(config: DictConfig) -> bool:
    return bool(config.actor_rollout_ref.actor.strategy == "megatron")


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


def check_weights(key: str, megatron: Mapping[str, Any]) -> None:
    """Check that Megatron's own checkpoint of the initial weights is named where it is asked for."""
    if megatron["use_dist_checkpointing"] and not megatron["dist_checkpointing_path"]:
        raise ConfigError(
            f"{key}.use_dist_checkpointing=true reads the initial weights from {key}.dist_checkpointing_path, which is "
            "null. Set it to a folder of Megatron's format, or leave use_dist_checkpointing at false."
        )


def check_lora(key: str, settings: Mapping[str, Any], megatron: Mapping[str, Any]) -> None:
    """Check that adapters are asked for where Megatron reads it, and that its bridge has them."""
    if int(settings["lora_rank"] or 0) > 0:
        raise ConfigError(
            f"{key}.lora_rank={settings['lora_rank']} (+overlay/lora sets it): Megatron does not read it and would "
            "train all weights. Allowed: 0. Train with FSDP (model_engine=dp), or, with Megatron-Bridge, set "
            f"{key}.lora.rank."
        )
    rank = int((settings.get("lora") or {}).get("rank") or 0)
    if rank > 0 and megatron["vanilla_mbridge"]:
        raise ConfigError(
            f"{key}.lora.rank={rank} needs Megatron-Bridge, which comes with Python 3.12 and a GPU; this run uses "
            "mbridge (vanilla_mbridge=true). Allowed: 0. Or train with FSDP (model_engine=dp)."
        )


def check_stand_ins(key: str, megatron: Mapping[str, Any], model: Any) -> None:
    """Check that Megatron's stand-ins on a CPU have everything that a model needs."""
    kind = model.get_text_config().model_type
    if kind not in CPU_MODELS:
        raise ConfigError(
            f"{key}: Megatron was not tested on a CPU with models of type {kind!r}. Allowed: {_listed(CPU_MODELS)}. Or "
            "train with FSDP (model_engine=dp)."
        )
    whole = {"tensor_model_parallel_size": 1} if kind == WITH_EXPERTS else {}  # experts are not split
    for name, allowed in (ON_CPU | whole).items():
        if (value := megatron[name]) != allowed:
            hint = "; set offload=false" if name.endswith("offload") else ""
            raise ConfigError(f"{key}.{name}={value!r} does not work on a CPU. Allowed: {allowed!r}{hint}.")


def _common_divisors(*counts: int) -> list[int]:
    return [ways for ways in range(1, min(counts) + 1) if not any(count % ways for count in counts)]


def _listed(values: Any) -> str:
    return ", ".join(map(str, values))
