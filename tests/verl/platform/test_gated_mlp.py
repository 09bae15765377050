"""Tests that a gated MLP equals that of transformers, and keeps less for the backward pass."""

import weakref

import pytest
import torch
from transformers import GemmaConfig, LlamaConfig
from transformers.models.gemma.modeling_gemma import GemmaMLP
from transformers.models.llama.modeling_llama import LlamaMLP

from verl_agent.platform.gated_mlp import GatedMlp, use_gated_mlps

SIZES = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2}


@pytest.mark.parametrize("bias", [False, True], ids=["without bias", "with bias"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_values_and_gradients_are_those_of_transformers_without_the_product_in_memory(bias, dtype):
    torch.manual_seed(0)
    mlp = LlamaMLP(LlamaConfig(**SIZES, mlp_bias=bias))
    values, weights, found, products = torch.randn(2, 3, 16), torch.randn(2, 3, 16), [], []
    mlp.down_proj.register_forward_pre_hook(lambda _, inputs: products.append(weakref.ref(inputs[0])))
    for own in (False, True):
        hidden = values.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            output = mlp(hidden)
        assert (products.pop()() is None) == own
        (output * weights).sum().backward()
        found.append([output, hidden.grad, *(one.grad.clone() for one in mlp.parameters())])
        mlp.zero_grad()
        use_gated_mlps(mlp)
        products.clear()
    assert isinstance(mlp, GatedMlp)
    for expected, actual in zip(*found, strict=True):
        assert torch.equal(actual, expected)


def test_an_mlp_with_another_activation_stays():
    mlp = GemmaMLP(GemmaConfig(**SIZES, hidden_act="gelu_pytorch_tanh"))
    use_gated_mlps(mlp)
    assert type(mlp) is GemmaMLP
