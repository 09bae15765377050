"""Manifests of checkpoints, and the checkpoint that a reader of a run's folder gets."""

from pathlib import Path

import pytest

from verl_agent.errors import ConfigError
from verl_agent.models.checkpoints import (
    MANIFEST,
    TRACKER,
    begin_checkpoint,
    find_damage,
    finish_checkpoint,
    is_complete,
    latest_checkpoint,
    size_bytes,
)
from verl_agent.models.resolve import resolve_checkpoint
from verl_agent.runs.model_export import export_model

FSDP = (
    "actor/model_world_size_2_rank_0.pt",
    "actor/model_world_size_2_rank_1.pt",
    "actor/optim_world_size_2_rank_1.pt",
    "actor/huggingface/config.json",
    "actor/huggingface/model.safetensors",
    "critic/model_world_size_2_rank_0.pt",
    "data.pt",
)
MEGATRON = (
    "actor/model/huggingface/config.json",
    "actor/model/huggingface/model.safetensors",
    "actor/optimizer/dist_ckpt/.metadata",
    "actor/optimizer/dist_ckpt/__1_0.distcp",
    "transfer_queue/0/state.bin",
)
OFFLINE = ("model_world_size_1_rank_0.pt", "data_0.pt", "data_1.pt", "huggingface/model.safetensors")


def write(folder: Path, names: tuple[str, ...]) -> Path:
    """Write a complete checkpoint."""
    begin_checkpoint(folder)
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}" if name.endswith(".json") else name)
    finish_checkpoint(folder)
    return folder


@pytest.mark.parametrize("names", [FSDP, MEGATRON, OFFLINE], ids=["fsdp", "megatron", "offline"])
def test_a_change_of_any_file_is_named(tmp_path, names):
    folder = write(tmp_path / "global_step_1", names)
    assert find_damage(folder) == "" and size_bytes(folder) > 0
    for name in names:
        before = (folder / name).read_bytes()
        (folder / name).write_bytes(before[:-1])
        assert find_damage(folder) == f"{name} has {len(before) - 1} bytes instead of {len(before)}"
        (folder / name).write_bytes(b"x" * len(before))
        assert find_damage(folder) == f"{name} has changed since it was written"
        (folder / name).unlink()
        assert find_damage(folder) == f"{name} is missing"
        (folder / name).write_bytes(before)
    assert find_damage(folder) == ""


def test_a_checkpoint_is_complete_only_when_its_manifest_is(tmp_path):
    folder = tmp_path / "global_step_1"
    begin_checkpoint(folder)
    assert not is_complete(folder) and find_damage(folder) == "its writing did not end"
    finish_checkpoint(folder)
    assert is_complete(folder)
    begin_checkpoint(folder)  # the step is saved again
    assert not is_complete(folder)
    (folder / MANIFEST).write_text('{"files"')
    assert not is_complete(folder) and find_damage(folder) == "it has no readable manifest.json"


def test_merging_of_adapters_is_no_damage(tmp_path):
    folder = write(tmp_path / "global_step_1", (*FSDP, "actor/lora_train_meta.json"))
    (folder / "actor/huggingface/model.safetensors").write_text("merged")
    assert find_damage(folder) == ""


def test_a_run_resolves_to_its_newest_complete_checkpoint(tmp_path):
    for step in (1, 2):
        write(tmp_path / f"global_step_{step}", FSDP)
    (tmp_path / TRACKER).write_text("")
    begin_checkpoint(tmp_path / "global_step_3")
    (tmp_path / "global_step_3/actor/huggingface").mkdir(parents=True)
    assert latest_checkpoint(tmp_path) == tmp_path / "global_step_2"
    assert resolve_checkpoint(tmp_path) == tmp_path / "global_step_2/actor/huggingface"


@pytest.mark.parametrize("names", [FSDP, MEGATRON], ids=["fsdp", "megatron"])
def test_damaged_weights_are_refused_and_other_damage_is_not(tmp_path, names):
    folder = write(tmp_path / "global_step_2", names)
    (folder / names[-1]).unlink()  # needed by a resumed run only
    weights = resolve_checkpoint(folder)
    (weights / "model.safetensors").write_text("half")
    with pytest.raises(ConfigError, match=r"global_step_2 cannot be used: \S+/model\.safetensors has 4 bytes instead"):
        resolve_checkpoint(folder)


def test_damaged_shards_are_not_exported(tmp_path):
    folder = write(tmp_path / "run/global_step_2", FSDP[:3])
    (folder / FSDP[0]).write_text("half")
    with pytest.raises(ConfigError, match=r"global_step_2 cannot be used: actor/model_world_size_2_rank_0\.pt has 4"):
        export_model(tmp_path / "run", tmp_path / "model")
