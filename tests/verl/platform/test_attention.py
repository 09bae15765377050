"""PyTorch's attention without flash-attn: packed episodes do not see each other, and the critic uses it too."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

LENGTHS = (5, 1, 9)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folder with a random llama of two layers."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    folder = tmp_path_factory.mktemp("llama")
    LlamaForCausalLM(LlamaConfig(vocab_size=50, **sizes)).save_pretrained(folder)
    return str(folder)


def language_model(folder, attention):
    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation=attention, dtype=torch.float32)


def value_model(folder, attention):
    """Load a critic as verl's engine does."""
    from verl.utils.model import load_valuehead_model

    config = AutoConfig.from_pretrained(folder, attn_implementation=attention, num_labels=1)
    torch.manual_seed(0)  # the value head is new
    return load_valuehead_model(folder, torch.float32, config, False)


@pytest.mark.parametrize("load", [language_model, value_model])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_packed_episodes_have_the_outputs_of_single_ones(folder, load, attention):
    """As verl packs them with `use_remove_padding`: no mask, and positions that start again."""
    model = load(folder, attention)
    assert model.config._attn_implementation == attention
    ids = [torch.randint(0, 50, (1, length)) for length in LENGTHS]
    positions = torch.cat([torch.arange(length) for length in LENGTHS])[None]
    with torch.no_grad():
        packed = model(torch.cat(ids, dim=1), attention_mask=None, position_ids=positions, use_cache=False).logits
        single = torch.cat([model(each, use_cache=False).logits for each in ids], dim=1)
    assert torch.allclose(packed, single, atol=1e-5)
    assert not torch.allclose(packed[:, 6:], model(torch.cat(ids, dim=1), use_cache=False).logits[:, 6:], atol=1e-3)
