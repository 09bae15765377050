"""Manifests of checkpoints, and the checkpoint that a reader of a run's folder gets."""

import json
from pathlib import Path

import pytest

from verl_agent.errors import ConfigError
from verl_agent.models.checkpoints import (
    MANIFEST,
    READ_BYTES,
    TRACKER,
    begin_checkpoint,
    find_damage,
    finish_checkpoint,
    is_complete,
    latest_checkpoint,
    size_bytes,
)
from verl_agent.models.resolve import resolve_checkpoint
from verl_agent.runs.best_checkpoint import Best, store_best
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
        assert find_damage(folder).startswith(f"{name} has changed since it was written")
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


def flip_bit(file: Path, at: int = -1) -> None:
    """Flip one bit of a file, which keeps its size."""
    content = bytearray(file.read_bytes())
    content[at] ^= 0x40
    file.write_bytes(content)


@pytest.mark.parametrize("name", [FSDP[0], FSDP[2], FSDP[4], "data.pt"], ids=["shard", "optimizer", "weights", "data"])
def test_one_flipped_bit_in_a_large_file_is_named(tmp_path, name):
    folder = write(tmp_path / "global_step_1", FSDP)
    with (folder / name).open("r+b") as file:
        file.truncate(2 * READ_BYTES + 3)
    finish_checkpoint(folder)
    assert find_damage(folder) == ""
    flip_bit(folder / name, at=READ_BYTES + 1)
    assert find_damage(folder).startswith(f"{name} has changed since it was written")
    assert find_damage(folder, contents=False) == ""


def test_weights_that_were_merged_later_have_a_manifest_of_their_own(tmp_path):
    folder = write(tmp_path / "global_step_1", (*FSDP, "actor/lora_train_meta.json"))
    weights = folder / "actor/huggingface"
    (weights / "model.safetensors").write_text("merged")
    finish_checkpoint(weights)
    assert find_damage(folder) == ""
    flip_bit(weights / "model.safetensors")
    assert find_damage(folder).startswith("actor/huggingface/model.safetensors has changed")
    finish_checkpoint(folder)
    assert find_damage(folder) == "", "the step was saved again"


def test_a_flipped_bit_is_named_in_an_export_and_in_the_best_checkpoint(tmp_path):
    checkpoint = write(tmp_path / "run/global_step_2", FSDP)
    exported = export_model(tmp_path / "run", tmp_path / "model")
    store_best(checkpoint, Best(2, "success", 0.5), tmp_path / "run")
    for weights in (exported, tmp_path / "run/best/huggingface"):
        assert resolve_checkpoint(weights) == weights
        flip_bit(weights / "model.safetensors")
        with pytest.raises(
            ConfigError, match=r"cannot be used: \S*model\.safetensors has changed since it was written"
        ):
            resolve_checkpoint(weights)
    with pytest.raises(ConfigError, match=r"best cannot be used: huggingface/model\.safetensors has changed"):
        export_model(tmp_path / "run", tmp_path / "other", best=True)


def test_a_manifest_of_another_program_is_no_manifest_of_weights(tmp_path):
    exported = export_model(write(tmp_path / "run/global_step_2", FSDP).parent, tmp_path / "site/model")
    (tmp_path / "site/manifest.json").write_text('{"files": {"main.js": "/static/main.js"}}')
    (exported / "manifest.json").write_text('{"name": "a web app", "icons": []}')
    assert resolve_checkpoint(exported) == exported


@pytest.mark.parametrize("content", [b"", b"{", b"\0" * 9, b'{"a": "\xe2'], ids=repr)
def test_a_manifest_that_cannot_be_parsed_is_damage(tmp_path, content):
    exported = export_model(write(tmp_path / "run/global_step_2", FSDP).parent, tmp_path / "model")
    (exported / MANIFEST).write_bytes(content)
    with pytest.raises(ConfigError, match=r"model cannot be used: it has no readable manifest\.json\. If it was"):
        resolve_checkpoint(exported)


@pytest.mark.parametrize("flipped", ["hash", "xxh3_128", "files"])
def test_a_flipped_bit_in_a_manifest_is_damage_that_does_not_hide_that_of_a_file(tmp_path, flipped):
    exported = export_model(write(tmp_path / "run/global_step_2", FSDP).parent, tmp_path / "model")
    for folder in (exported, tmp_path / "run/global_step_2"):
        flip_bit(folder / MANIFEST, at=(folder / MANIFEST).read_bytes().index(f'"{flipped}"'.encode()) + 2)
        assert find_damage(folder) == "it has no readable manifest.json"
    with pytest.raises(ConfigError, match=r"model cannot be used: it has no readable manifest\.json"):
        resolve_checkpoint(exported)


@pytest.mark.parametrize("files", ['{"data.pt": 5}', '{"data.pt": [1]}', '{"data.pt": ["7", null]}', "[1]", "0"])
def test_a_manifest_with_other_values_is_damage(tmp_path, files):
    folder = write(tmp_path / "global_step_1", ("data.pt",))
    (folder / MANIFEST).write_text(f'{{"hash": "xxh3_128", "files": {files}}}')
    assert find_damage(folder) == "it has no readable manifest.json" and not is_complete(folder)


def test_a_step_of_thousands_of_digits_is_none(tmp_path):
    write(tmp_path / "global_step_1", FSDP)
    (tmp_path / TRACKER).write_text("9" * 5000)
    assert latest_checkpoint(tmp_path) == tmp_path / "global_step_1"


def test_files_in_a_manifest_without_hashes_are_compared_by_their_size(tmp_path):
    folder = write(tmp_path / "global_step_1", ("data.pt",))
    (folder / MANIFEST).write_text(json.dumps({"files": {"data.pt": [7, None]}}))
    assert find_damage(folder) == ""
    (folder / "data.pt").write_text("longer than that")
    assert find_damage(folder) == "data.pt has 16 bytes instead of 7"


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
