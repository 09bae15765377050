"""Layouts of Megatron that a model or a CPU cannot have raise ConfigError before Ray starts."""

from types import SimpleNamespace

import pytest

from verl_agent.errors import ConfigError
from verl_agent.training.preflight.megatron import check_layout, check_lora, check_stand_ins

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
        ({"context_parallel_size": 2}, "llama", rf"{KEY}.context_parallel_size=2 does not work on a CPU. Allowed: 1"),
        ({"param_offload": True}, "llama", r"Allowed: False; set offload=false"),
        ({"vanilla_mbridge": False}, "llama", r"vanilla_mbridge=False does not work on a CPU. Allowed: True"),
    ],
)
def test_parts_of_megatron_for_gpus_raise_config_error_on_a_cpu(settings, kind, message):
    with pytest.raises(ConfigError, match=message):
        check_stand_ins(KEY, MEGATRON | settings, Model(model_type=kind))


def test_a_dense_model_is_accepted_on_a_cpu():
    check_stand_ins(KEY, MEGATRON | {"tensor_model_parallel_size": 2}, Model())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"lora_rank": 32, "lora": {"rank": 0}},
            r"lora_rank=32 .*: Megatron does not read it .* set model\.lora\.rank\.",
        ),
        ({"lora_rank": 0, "lora": {"rank": 8}}, r"model\.lora\.rank=8 needs Megatron-Bridge.* Allowed: 0\."),
    ],
)
def test_adapters_that_megatron_would_not_train_raise_config_error(settings, message):
    with pytest.raises(ConfigError, match=message):
        check_lora("model", settings, MEGATRON)


def test_adapters_with_megatron_bridge_and_no_adapters_are_allowed():
    check_lora("model", {"lora_rank": 0, "lora": {"rank": 8}}, MEGATRON | {"vanilla_mbridge": False})
    check_lora("model", {"lora_rank": 0}, MEGATRON)
