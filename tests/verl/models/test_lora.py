"""Merging of LoRA adapters: the loaded model equals the trained one."""

import json
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from tests.support.models import write_byte_model
from verl_agent.errors import ConfigError
from verl_agent.models.lora import check_adapters, has_adapters, merge_adapters
from verl_agent.models.resolve import resolve_checkpoint
from verl_agent.training.preflight.computation import check_computation

RANK, ALPHA = 4, 12


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    return write_byte_model(tmp_path_factory.mktemp("lora") / "model", ["a text to learn merges from"], vocabulary=300)


def adapted(base: Path, **options):
    """Return the model with adapters that change its output."""
    torch.manual_seed(1)
    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32),
        LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules="all-linear", task_type="CAUSAL_LM", **options),
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


def test_tensors_that_plain_lora_lacks_raise_config_error(base, tmp_path):
    """Merged without them, the model would be another one."""
    folder = tmp_path / "global_step_2/huggingface"
    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    plain.save_pretrained(folder, state_dict=adapted(base, use_dora=True).state_dict())
    (folder.parent / "lora_train_meta.json").write_text(json.dumps({"r": RANK, "lora_alpha": ALPHA}))
    with pytest.raises(ConfigError, match=r"tensors that plain LoRA does not have .*lora_magnitude_vector"):
        resolve_checkpoint(tmp_path)
    assert has_adapters(folder)


def continued(base: Path, folder: Path, **options) -> dict[str, object]:
    """Return the section of a model that continues adapters with some options of PEFT."""
    adapted(base, **options).save_pretrained(folder)
    return {"lora_adapter_path": str(folder), "lora_rank": RANK, "lora_alpha": ALPHA}


def test_adapters_of_rank_and_alpha_alone_are_continued(base, tmp_path):
    check_adapters("model", continued(base, tmp_path), may_be_random=False)
    check_adapters("model", {"lora_adapter_path": None, "lora_rank": 8}, may_be_random=False)


@pytest.mark.parametrize(
    "option",
    [
        {"use_rslora": True},
        {"use_dora": True},
        {"alpha_pattern": {"q_proj": 64}},
        {"rank_pattern": {"q_proj": 2}},
        {"modules_to_save": ["lm_head"]},
        {"bias": "all"},
        {"lora_bias": True},
        {"alora_invocation_tokens": [1]},
        {"lora_dropout": 0.1},
    ],
    ids=lambda option: next(iter(option)),
)
def test_adapters_that_are_no_plain_lora_are_refused(base, tmp_path, option):
    section, (name,) = continued(base, tmp_path, **option), option
    with pytest.raises(ConfigError, match=rf"^model\.lora_adapter_path='.* has {name}=.*merge_and_unload"):
        check_adapters("model", section, may_be_random=False)


def test_dropout_of_adapters_is_allowed_where_a_pass_may_be_random(base, tmp_path):
    check_adapters("model", continued(base, tmp_path, lora_dropout=0.1), may_be_random=True)


@pytest.mark.parametrize(("key", "value"), [("lora_rank", 0), ("lora_rank", 8), ("lora_alpha", 16)])
def test_adapters_of_another_rank_or_alpha_than_the_config_are_refused(base, tmp_path, key, value):
    """An SFT run notes the config's alpha in each checkpoint, and its adapters are merged by that."""
    given = {**continued(base, tmp_path), key: value, "path": str(base), "use_remove_padding": True}
    with pytest.raises(ConfigError, match=rf"^model\.{key}={value} is not allowed with .*Allowed: (4|12), with which"):
        check_computation("model", given, 100, may_be_random=True)


def test_adapters_that_do_not_load_raise_config_error(tmp_path):
    with pytest.raises(ConfigError, match=r"^model\.lora_adapter_path='.*' does not load: .*adapter_config\.json"):
        check_adapters("model", {"lora_adapter_path": str(tmp_path)}, may_be_random=True)
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "OF_TOMORROW"}')
    with pytest.raises(ConfigError, match=r"^model\.lora_adapter_path='.*' does not load: KeyError 'OF_TOMORROW'"):
        check_adapters("model", {"lora_adapter_path": str(tmp_path)}, may_be_random=True)
