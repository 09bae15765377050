"""Merging of LoRA adapters: the loaded model equals the trained one."""

import json
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from tests.support.models import write_byte_model
from verl_agent.errors import ConfigError
from verl_agent.models.lora import has_adapters, merge_adapters
from verl_agent.models.resolve import resolve_checkpoint

RANK, ALPHA = 4, 12


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    return write_byte_model(tmp_path_factory.mktemp("lora") / "model", ["a text to learn merges from"], vocabulary=300)


def adapted(base: Path):
    """Return the model with adapters that change its output."""
    torch.manual_seed(1)
    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32),
        LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules="all-linear", task_type="CAUSAL_LM"),
    )
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.3)
    return model.eval()


def saved(base: Path, checkpoint: Path, **options) -> Path:
    """Save the model as verl does (fsdp_checkpoint_manager.py:424-464): PEFT's names, rank and alpha noted above."""
    folder = checkpoint / "huggingface"
    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    model = adapted(base)
    plain.save_pretrained(folder, state_dict=model.state_dict(), **options)
    (checkpoint / "lora_train_meta.json").write_text(json.dumps({"r": RANK, "lora_alpha": ALPHA}))
    return folder


def logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=torch.arange(3, 40)[None]).logits


@pytest.mark.parametrize("options", [{}, {"max_shard_size": "400KB"}], ids=["one file", "several files"])
def test_weights_that_were_saved_with_adapters_are_merged(base, tmp_path, options):
    folder = saved(base, tmp_path / "global_step_2", **options)
    assert has_adapters(folder) and (len(list(folder.glob("*.safetensors"))) > 1) == bool(options)
    found = resolve_checkpoint(tmp_path)
    assert found == folder and not has_adapters(folder)
    read, report = AutoModelForCausalLM.from_pretrained(found, dtype=torch.float32, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    torch.testing.assert_close(logits(read.eval()), logits(adapted(base)), rtol=1e-4, atol=1e-4)
    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    assert not torch.allclose(logits(read), logits(plain), atol=1e-2), "the adapters change nothing"


def test_adapters_that_verls_merger_left_beside_the_model_are_merged(base, tmp_path):
    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    folder = tmp_path / "merged"
    plain.save_pretrained(folder)
    adapted(base).save_pretrained(folder / "lora_adapter")
    with pytest.raises(ConfigError, match=r"holds LoRA adapters apart from the weights"):
        resolve_checkpoint(folder)  # a user's folder is left unchanged
    merge_adapters(folder)
    read = AutoModelForCausalLM.from_pretrained(resolve_checkpoint(folder), dtype=torch.float32).eval()
    torch.testing.assert_close(logits(read), logits(adapted(base)), rtol=1e-4, atol=1e-4)
    assert not (folder / "lora_adapter").exists()


def test_a_killed_merge_is_finished(base, tmp_path):
    """The kill came between the renames of the old and of the merged weights."""
    folder = saved(base, tmp_path / "global_step_2")
    merge_adapters(folder)
    folder.rename(folder.with_name(".huggingface.merged"))
    saved(base, tmp_path / "other").rename(folder.with_name(".huggingface.adapters"))
    assert resolve_checkpoint(tmp_path) == folder and not has_adapters(folder)


def test_a_truncated_file_raises_config_error_and_changes_nothing(base, tmp_path):
    folder = saved(base, tmp_path / "global_step_2", max_shard_size="400KB")
    last = max(folder.glob("*.safetensors"))
    last.write_bytes(last.read_bytes()[:40])
    before = {path.name: path.stat().st_size for path in folder.iterdir()}
    with pytest.raises(ConfigError, match=r"cannot be read: .* Choose a complete checkpoint"):
        resolve_checkpoint(tmp_path)
    assert before == {path.name: path.stat().st_size for path in folder.iterdir()}


def test_adapters_of_unknown_rank_raise_config_error(base, tmp_path):
    folder = saved(base, tmp_path / "global_step_2")
    (tmp_path / "global_step_2/lora_train_meta.json").unlink()
    with pytest.raises(ConfigError, match=r"have LoRA adapters, and neither .* has their rank and alpha"):
        resolve_checkpoint(tmp_path)
    assert has_adapters(folder)
