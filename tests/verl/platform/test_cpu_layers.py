"""Tests that norms in front of products and gated MLPs equal those of transformers, and keep less."""

import weakref

import pytest
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM, GemmaConfig, GemmaForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.models.gemma.modeling_gemma import GemmaMLP
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm

from verl_agent.platform.cpu_layers import GatedMlp, InputNorm, use_cpu_layers

SIZES = {
    "vocab_size": 20,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
}


def norms() -> tuple[LlamaRMSNorm, InputNorm, torch.Tensor]:
    """Return a norm of transformers, one of this package with the same weight, and an input."""
    torch.manual_seed(0)
    norm, own = LlamaRMSNorm(16), LlamaRMSNorm(16)
    norm.weight.data.normal_()
    own.load_state_dict(norm.state_dict())
    own.__class__ = InputNorm
    return norm, own, 100 * torch.randn(2, 3, 16)


def test_values_and_gradients_of_a_norm_are_those_of_transformers():
    norm, own, values = norms()
    weights, found = torch.randn(2, 3, 16), []
    for one in (norm, own):
        hidden = values.clone().requires_grad_()
        output = one(hidden)
        (output * weights).sum().backward()
        found.append((output, hidden.grad, one.weight.grad))
    for expected, actual in zip(*found, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


def test_the_result_has_the_type_of_the_products_and_the_input_is_all_that_is_kept():
    norm, own, values = norms()
    hidden, kept = values.requires_grad_(), []
    with (
        torch.autocast("cpu", torch.bfloat16),
        torch.autograd.graph.saved_tensors_hooks(lambda one: kept.append(one) or one, lambda one: one),
    ):
        output = own(hidden)
    assert torch.equal(output, norm(values).to(torch.bfloat16))
    assert sum(one.numel() for one in kept if one.data_ptr() not in (hidden.data_ptr(), own.weight.data_ptr())) == 6


def test_a_frozen_weight_gets_no_gradient():
    _, own, values = norms()
    own.weight.requires_grad_(False)
    own(values.requires_grad_()).sum().backward()
    assert own.weight.grad is None and values.grad is not None


def test_a_llama_has_them_in_its_layers_and_keeps_its_last_norm():
    model = LlamaForCausalLM(LlamaConfig(**SIZES))
    names = set(model.state_dict())
    use_cpu_layers(model)
    assert [type(one) for one in (model.model.layers[1].input_layernorm, model.model.norm)] == [InputNorm, LlamaRMSNorm]
    assert set(model.state_dict()) == names


@pytest.mark.parametrize(
    "model", [GemmaForCausalLM(GemmaConfig(**SIZES)), Gemma2ForCausalLM(Gemma2Config(**SIZES))], ids=["1 + w", "behind"]
)
def test_other_norms_stay(model):
    use_cpu_layers(model)
    assert not any(isinstance(one, InputNorm) for one in model.modules())


@pytest.mark.parametrize("bias", [False, True], ids=["without bias", "with bias"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_values_and_gradients_of_an_mlp_are_those_of_transformers_without_the_product_in_memory(bias, dtype):
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
        use_cpu_layers(mlp)
        products.clear()
    assert isinstance(mlp, GatedMlp)
    for expected, actual in zip(*found, strict=True):
        assert torch.equal(actual, expected)


def test_an_mlp_with_another_activation_stays():
    mlp = GemmaMLP(GemmaConfig(**SIZES, hidden_act="gelu_pytorch_tanh"))
    use_cpu_layers(mlp)
    assert type(mlp) is GemmaMLP
