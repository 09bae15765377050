"""PyTorch's attention without flash-attn: packed episodes do not see each other, and the critic uses it too."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.masking_utils import (
    and_masks,
    causal_mask_function,
    or_masks,
    packed_sequence_mask_function,
    sliding_window_causal_mask_function,
)

from tests.support.engines import batch_of, new_engine, policy_loss
from tests.support.letters import LOST, SHORT, TRUNCATED, WON
from tests.support.models import write_byte_model
from verl_agent.platform.packed_attention import NAME, mask_unless_rows, use_packed_attention
from verl_agent.platform.resharding import ReshardingLanguageEngine

LENGTHS = (5, 1, 9)
ROWS = [WON, LOST, SHORT, TRUNCATED]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folder with a random llama of two layers."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes["num_key_value_heads"] = 2
    folder = tmp_path_factory.mktemp("llama")
    LlamaForCausalLM(LlamaConfig(vocab_size=50, **sizes)).save_pretrained(folder)
    return str(folder)


def language_model(folder, attention):
    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation=attention, dtype=torch.float32)


def value_model(folder, attention):
    """Load a critic as verl's engine does."""
    from verl.utils.model import load_valuehead_model

    config = AutoConfig.from_pretrained(folder, attn_implementation=attention, num_labels=1)
    config.classifier_dropout = 0.0
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


def packed_rows():
    ids = torch.cat([torch.randint(0, 50, (1, length)) for length in LENGTHS], dim=1)
    return {"input_ids": ids, "position_ids": torch.cat([torch.arange(length) for length in LENGTHS])[None]}


@pytest.mark.parametrize("load", [language_model, value_model])
def test_attention_row_by_row_has_the_logits_and_gradients_of_a_mask(folder, load):
    masked, by_row = load(folder, "sdpa"), load(folder, "sdpa")
    use_packed_attention(by_row)
    assert by_row.config._attn_implementation == NAME
    by_row.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    rows, logits = packed_rows(), []
    for model in (masked, by_row):
        model.train()
        logits.append(model(**rows, attention_mask=None, use_cache=False).logits)
        logits[-1].square().sum().backward()
    assert torch.allclose(*logits, atol=1e-5)
    for (name, one), other in zip(masked.named_parameters(), by_row.parameters(), strict=True):
        assert torch.allclose(one.grad, other.grad, rtol=1e-3, atol=1e-4), name


def test_attention_row_by_row_needs_whole_rows(folder):
    model, rows = language_model(folder, "sdpa"), packed_rows()
    use_packed_attention(model)
    with pytest.raises(ValueError, match="begins with the first token of a row"):
        model(input_ids=rows["input_ids"][:, 1:], position_ids=rows["position_ids"][:, 1:], use_cache=False)
    with pytest.raises(ValueError, match="needs one sequence"):
        model(input_ids=rows["input_ids"].repeat(2, 1), use_cache=False)


def test_only_layers_of_limited_range_have_a_mask():
    """test_families.py compares the results."""
    rows = packed_sequence_mask_function(torch.tensor([[0, 0, 1, 1]]))
    sizes = {"batch_size": 1, "q_length": 4, "kv_length": 4}
    assert mask_unless_rows(**sizes) is None
    assert mask_unless_rows(**sizes, mask_function=and_masks(causal_mask_function, rows)) is None
    window = and_masks(sliding_window_causal_mask_function(2), rows)
    assert mask_unless_rows(**sizes, mask_function=window, local_size=2) is not None
    other = or_masks(causal_mask_function, rows)
    assert mask_unless_rows(**sizes, mask_function=other, allow_is_causal_skip=False) is not None


def test_verls_engine_packs_rows_with_it_and_has_the_log_probs_of_padded_ones(tmp_path):
    model = write_byte_model(tmp_path / "model", ["abc"], vocabulary=300)
    outputs = []
    for packed in (False, True):
        engine = new_engine(ReshardingLanguageEngine, model, "float32", packed=packed)
        assert (engine.module.config._attn_implementation == NAME) is packed
        with engine.eval_mode():
            outputs.append(engine.infer_batch(batch_of(ROWS, use_remove_padding=packed), policy_loss()))
    padded, packed = (one["model_output"]["log_probs"].values() for one in outputs)
    assert torch.allclose(padded, packed, atol=1e-5)
