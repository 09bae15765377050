"""Test model folders against the documented meaning of version 4's keys, with RoPE computed here by its papers."""

import json
import math
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoTokenizer
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from tests.support.models import write_byte_model
from verl_agent.errors import ConfigError
from verl_agent.models.checkpoints import find_damage, finish_checkpoint
from verl_agent.models.portable import check_portable, make_portable

SCALINGS = {
    "plain": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 3.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 256,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256},
}
BASE, POSITIONS = 250_000.0, 1024


def old_frequencies(config: dict) -> list[float]:
    """Return the frequencies by the keys of version 4 alone.

    Sources: arXiv 2104.09864, section 3.2; 2309.00071, section 3.2 (YaRN); llama_models, `apply_scaling` (Llama 3.1).
    """
    size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    base, scaling = config["rope_theta"], config["rope_scaling"] or {"rope_type": "default"}
    plain = [base ** (-index / size) for index in range(0, size, 2)]
    if scaling["rope_type"] == "default":
        return plain
    factor, first = (
        scaling["factor"],
        scaling.get("original_max_position_embeddings", config["max_position_embeddings"]),
    )
    if scaling["rope_type"] == "linear":
        return [frequency / factor for frequency in plain]
    turns = [first * frequency / (2 * math.pi) for frequency in plain]
    if scaling["rope_type"] == "llama3":
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        shares = [min(1.0, max(0.0, (turn - low) / (high - low))) for turn in turns]
    else:
        at = [size * math.log(first / (turn * 2 * math.pi)) / (2 * math.log(base)) for turn in (32, 1)]
        low, high = max(math.floor(at[0]), 0), min(math.ceil(at[1]), size - 1)
        shares = [1 - min(1.0, max(0.0, (index - low) / (high - low))) for index in range(size // 2)]
    return [share * one + (1 - share) * one / factor for share, one in zip(shares, plain, strict=True)]


@pytest.mark.parametrize("scaling", SCALINGS.values(), ids=SCALINGS)
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_the_keys_of_version_4_have_the_same_frequencies(tmp_path, kind, scaling):
    sizes = {"hidden_size": 64, "num_attention_heads": 2, "max_position_embeddings": POSITIONS}
    config = AutoConfig.for_model(kind, rope_parameters={**scaling, "rope_theta": BASE}, **sizes)
    config.save_pretrained(tmp_path)
    before = AutoConfig.from_pretrained(tmp_path)
    make_portable(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    expected = LlamaRotaryEmbedding(config).inv_freq
    torch.testing.assert_close(torch.tensor(old_frequencies(values)), expected, rtol=1e-5, atol=1e-9)
    after = AutoConfig.from_pretrained(tmp_path)
    assert after.rope_parameters == before.rope_parameters
    torch.testing.assert_close(LlamaRotaryEmbedding(after).inv_freq, expected)
    assert values["rope_theta"] == BASE and (values["rope_scaling"] is None) == (scaling["rope_type"] == "default")


def test_a_config_inside_another_and_layers_of_two_kinds_have_the_keys_of_version_4(tmp_path):
    rope = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": BASE},
        "sliding_attention": {"rope_type": "default", "rope_theta": 7_000.0},
    }
    AutoConfig.for_model("gemma3", text_config={"rope_parameters": rope}).save_pretrained(tmp_path)
    make_portable(tmp_path)
    text = json.loads((tmp_path / "config.json").read_text())["text_config"]
    assert (text["rope_theta"], text["rope_local_base_freq"]) == (BASE, 7_000.0)
    assert text["rope_scaling"] == {"rope_type": "linear", "factor": 8.0}
    read = AutoConfig.from_pretrained(tmp_path).text_config.rope_parameters
    assert {layer: read[layer] for layer in rope} == rope


def test_renamed_keys_partial_positions_and_infinities_are_those_of_version_4(tmp_path):
    kinds = ("gpt_neox", "qwen3_moe", "stablelm", "mamba2")
    for kind in kinds:
        config = AutoConfig.for_model(kind)
        config.dtype = "bfloat16"
        config.save_pretrained(tmp_path / kind)
        make_portable(tmp_path / kind)
    neox, moe, stablelm, mamba = (
        json.loads((tmp_path / kind / "config.json").read_text())
        for kind in ("gpt_neox", "qwen3_moe", "stablelm", "mamba2")
    )
    assert (neox["rotary_emb_base"], neox["rotary_pct"]) == (10_000, 0.25)
    assert moe["num_experts"] == moe["num_local_experts"] == 128
    assert (stablelm["rope_theta"], stablelm["partial_rotary_factor"]) == (10_000, 0.25)
    assert mamba["time_step_limit"] == [0.0, math.inf] and mamba["torch_dtype"] == mamba["dtype"] == "bfloat16"


@pytest.mark.parametrize(
    ("kind", "rope", "named"),
    [
        ("nemotron", {"rope_type": "linear", "factor": 2.0, "rope_theta": BASE}, "rope_parameters={"),
        (
            "gemma3_text",
            {
                "full_attention": {"rope_type": "default", "rope_theta": BASE},
                "sliding_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": BASE},
            },
            r"rope_parameters\.sliding_attention={",
        ),
    ],
)
def test_positions_that_version_4_would_misread_are_refused_before_a_run(kind, rope, named):
    with pytest.raises(ConfigError, match=rf"^model\.path='here': {named}.*4\.57.*Allowed: rope_type=default"):
        check_portable(AutoConfig.for_model(kind, rope_parameters=rope), "model.path='here'")


def test_a_tokenizer_has_a_class_and_special_tokens_of_version_4(tmp_path):
    folder = write_byte_model(tmp_path / "model", ["some text"], 300)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<call>", "</call>"]})
    tokenizer.save_pretrained(folder)
    before = [tokenizer("<|im_start|>some <call>text</call>").input_ids, tokenizer.all_special_tokens]
    finish_checkpoint(folder)
    values = json.loads((folder / "tokenizer_config.json").read_text())
    assert values["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert values["additional_special_tokens"] == ["<call>", "</call>"] and "extra_special_tokens" not in values
    assert values["chat_template"] == (folder / "chat_template.jinja").read_text() == tokenizer.chat_template
    again = AutoTokenizer.from_pretrained(folder)
    assert [again("<|im_start|>some <call>text</call>").input_ids, again.all_special_tokens] == before
    assert again.chat_template == tokenizer.chat_template


def test_a_folder_that_is_right_already_is_not_written_again(tmp_path):
    folder = write_byte_model(tmp_path / "model", ["some text"], 300)
    finish_checkpoint(folder)
    before = {path.name: path.stat().st_mtime_ns for path in Path(folder).iterdir()}
    make_portable(folder)
    assert {path.name: path.stat().st_mtime_ns for path in Path(folder).iterdir()} == before
    assert find_damage(folder) == ""
