"""Layouts of Megatron that a model or a CPU cannot have raise ConfigError before Ray starts."""

import re
from types import SimpleNamespace

import pytest

from verl_agent.errors import ConfigError
from verl_agent.training.preflight.megatron import MEGATRON_CONDITIONS, check_layout, check_stand_ins

KEY = "actor_rollout_ref.actor.megatron"
MEGATRON = {
    "tensor_model_parallel_size": 1,
    "pipeline_model_parallel_size": 1,
    "context_parallel_size": 1,
    "expert_model_parallel_size": 1,
    "param_offload": False,
    "optimizer_offload": False,
    "vanilla_mbridge": True,
    "override_transformer_config": {},
}


class Model(SimpleNamespace):
    """Config of a model with 12 heads in 4 groups, 6 layers and 512 tokens."""

    def __init__(self, **changes: object) -> None:
        sizes = {"num_attention_heads": 12, "num_key_value_heads": 4, "num_hidden_layers": 6, "vocab_size": 512}
        super().__init__(**{"model_type": "qwen2", **sizes, **changes})

    def get_text_config(self) -> "Model":
        return self


@pytest.mark.parametrize(
    ("settings", "model", "message"),
    [
        ({"tensor_model_parallel_size": 8}, {}, r"=8 does not divide the 12 attention heads .* Allowed: 1, 2, 4\.$"),
        ({"tensor_model_parallel_size": 3}, {}, r"=3 does not divide the 4 key-value heads"),
        (
            {"tensor_model_parallel_size": 2},
            {"vocab_size": 511},
            r"=2 does not divide the 511 tokens of the vocabulary",
        ),
        ({"pipeline_model_parallel_size": 4}, {}, r"=4 does not divide the 6 layers .* Allowed: 1, 2, 3, 6\.$"),
        (
            {"pipeline_model_parallel_size": 2},
            {"model_type": "llama", "tie_word_embeddings": True},
            r"=2 .* Allowed: 1",
        ),
        ({"pipeline_model_parallel_size": 8}, {}, r"pipeline_model_parallel_size=8 does not divide the 6 layers"),
    ],
)
def test_a_layout_that_does_not_divide_the_model_raises_config_error(settings, model, message):
    with pytest.raises(ConfigError, match=rf"^{KEY}\..*{message}"):
        check_layout(KEY, MEGATRON | settings, Model(**model))


@pytest.mark.parametrize(
    "settings",
    [
        {"tensor_model_parallel_size": 4, "pipeline_model_parallel_size": 6},
        {"tensor_model_parallel_size": 12, "vanilla_mbridge": False},  # three ranks share a key-value head
        {"pipeline_model_parallel_size": 4, "override_transformer_config": {"num_layers_in_first_pipeline_stage": 3}},
    ],
)
def test_a_layout_that_divides_the_model_is_accepted(settings):
    check_layout(KEY, MEGATRON | settings, Model(vocab_size=24))


@pytest.mark.parametrize(
    ("settings", "kind", "message"),
    [
        ({}, "mixtral", r"models of type 'mixtral'. Allowed: llama, qwen2, qwen3, qwen3_moe"),
        ({"tensor_model_parallel_size": 2}, "qwen3_moe", r"tensor_model_parallel_size=2 does not work .*Allowed: 1"),
    ],
)
def test_models_without_stand_ins_raise_config_error_on_a_cpu(settings, kind, message):
    with pytest.raises(ConfigError, match=message):
        check_stand_ins(KEY, MEGATRON | settings, Model(model_type=kind))


def test_a_dense_model_is_accepted_on_a_cpu():
    check_stand_ins(KEY, MEGATRON | {"tensor_model_parallel_size": 2}, Model())


USED = {
    "actor_rollout_ref.actor.strategy": "megatron",
    "actor_rollout_ref.model.use_fused_kernels": False,
    "algorithm.adv_estimator": "gae",
    **{f"{key}.{name}": value for key in (KEY, "critic.megatron") for name, value in MEGATRON.items()},
}
BRIDGE, CPU = {f"{KEY}.vanilla_mbridge": False}, {"trainer.device": "cpu"}


def problems(changes: dict) -> list[str]:
    return [text for one in MEGATRON_CONDITIONS if (text := one.message({**USED, **changes}.get))]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"actor_rollout_ref.model.lora_rank": 32}, r"lora_rank=32 .* Allowed: 0 or null\. Megatron does not read it"),
        ({"critic.model.lora.rank": 8}, r"^critic\.model\.lora\.rank=8 .* Adapters need Megatron-Bridge"),
        ({f"{KEY}.use_dist_checkpointing": True}, r"Allowed: false while .*_path is null\."),
        ({"actor_rollout_ref.actor.fsdp_config": {"offload_policy": False}}, r"fsdp_config=.* It belongs to FSDP"),
        ({**CPU, "actor_rollout_ref.model.use_fused_kernels": True}, r"use_fused_kernels=true .* Allowed: false\."),
        ({**CPU, f"{KEY}.context_parallel_size": 2}, r"context_parallel_size=2 .* Allowed: 1\. .*not work on a CPU"),
        ({**CPU, f"{KEY}.param_offload": True}, r"param_offload=true .* Allowed: false\. .* Set offload=false\."),
        ({**CPU, **BRIDGE}, r"vanilla_mbridge=false .* Allowed: true\."),
    ],
    ids=str,
)
def test_settings_that_megatron_does_not_obey_are_refused(changes, message):
    (found,) = problems(changes)
    assert re.search(message, found)


@pytest.mark.parametrize("changes", [CPU, {**BRIDGE, "actor_rollout_ref.model.lora.rank": 8}])
def test_settings_that_megatron_obeys_are_accepted(changes):
    assert problems(changes) == []
