"""Export of a checkpoint as a model folder, and its errors."""

import json
from pathlib import Path

import pytest

from verl_agent.errors import ConfigError
from verl_agent.models.checkpoints import find_damage
from verl_agent.runs.best_checkpoint import Best, store_best
from verl_agent.runs.model_export import export_model, find_checkpoint, find_shards


def save(run: Path, step: int, weights: bool = True) -> Path:
    """Create a checkpoint of reinforcement learning."""
    actor = run / f"global_step_{step}/actor"
    (actor / "huggingface").mkdir(parents=True)
    (actor / "huggingface/config.json").write_text("{}")
    (actor / "model_world_size_2_rank_0.pt").write_text("shard")
    if weights:
        (actor / "huggingface/model.safetensors").write_text(f"weights {step}")
    return run


def exported(run: Path, into: Path, **which) -> str:
    return (export_model(run, into, **which) / "model.safetensors").read_text()


def test_the_latest_checkpoint_is_exported_with_its_provenance(tmp_path):
    run = save(save(tmp_path / "run", 5), 10)
    assert exported(run, tmp_path / "model") == "weights 10"
    note = json.loads((tmp_path / "model/verl_agent.json").read_text())
    assert note["checkpoint"] == str(run / "global_step_10")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "run"]


def test_the_base_models_advice_on_sampling_is_left_out(tmp_path):
    """Servers would apply it to requests that leave it open, and so sample from another distribution."""
    run = save(tmp_path / "run", 5)
    ends = {"eos_token_id": [7, 8], "pad_token_id": 7, "do_sample": True}
    advice = {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.05}
    file = run / "global_step_5/actor/huggingface/generation_config.json"
    file.write_text(json.dumps(advice | ends))
    exported(run, tmp_path / "model")
    assert json.loads((tmp_path / "model/generation_config.json").read_text()) == ends
    assert json.loads(file.read_text()) == advice | ends, "the checkpoint stays"
    assert find_damage(tmp_path / "model") == ""


def test_a_step_or_the_best_checkpoint_can_be_exported(tmp_path):
    run = save(save(save(tmp_path / "run", 5), 10), 15)
    store_best(run / "global_step_10", Best(10, "success", 0.5), run)
    assert exported(run, tmp_path / "a", step=5) == "weights 5"
    assert exported(run, tmp_path / "b", best=True) == "weights 10"
    assert exported(run / "global_step_5", tmp_path / "c") == "weights 5"
    assert exported(run / "best", tmp_path / "d") == "weights 10"


def test_an_empty_folder_may_exist(tmp_path):
    (tmp_path / "model").mkdir()
    assert exported(save(tmp_path / "run", 5), tmp_path / "model") == "weights 5"


def test_an_export_into_a_link_fills_the_folder_behind_it(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "model").symlink_to(tmp_path / "disk")
    run = save(tmp_path / "run", 5)
    assert exported(run, tmp_path / "model") == "weights 5"
    assert (tmp_path / "model").is_symlink()
    plain = export_model(run, tmp_path / "plain")
    names = [sorted(path.name for path in folder.iterdir()) for folder in (plain, tmp_path / "disk")]
    assert names[0] == names[1]
    with pytest.raises(ConfigError, match="is not empty"):
        export_model(run, tmp_path / "model")


def test_a_folder_that_cannot_be_replaced_is_filled(tmp_path):
    """The folder above a mount point takes no new entries, and a killed export has left its draft."""
    target = tmp_path / "disks/model"
    (target / ".part/half").mkdir(parents=True)
    target.parent.chmod(0o555)
    try:
        assert exported(save(tmp_path / "run", 5), target) == "weights 5"
    finally:
        target.parent.chmod(0o755)
    assert not (target / ".part").exists()


def test_shards_are_found_where_each_backend_leaves_them(tmp_path):
    run = save(tmp_path / "run", 5, weights=False)
    assert find_shards(run / "global_step_5") == ("fsdp", run / "global_step_5/actor")
    (tmp_path / "other/actor/model/dist_ckpt").mkdir(parents=True)
    assert find_shards(tmp_path / "other") == ("megatron", tmp_path / "other/actor")
    assert find_shards(tmp_path) is None


def test_a_missing_checkpoint_raises_config_error(tmp_path):
    run = save(save(tmp_path / "run", 5), 10)
    with pytest.raises(ConfigError, match=r"no checkpoint of step 7. Its steps are: 5, 10"):
        find_checkpoint(run, step=7)
    with pytest.raises(ConfigError, match=r"keeps no best checkpoint"):
        find_checkpoint(run, best=True)
    with pytest.raises(ConfigError, match=r"--step 5 and --best name two checkpoints"):
        find_checkpoint(run, step=5, best=True)
    with pytest.raises(ConfigError, match=r"does not exist"):
        find_checkpoint(tmp_path / "nothing")


def test_another_folder_raises_config_error_and_leaves_nothing(tmp_path):
    (tmp_path / "notes").mkdir()
    with pytest.raises(ConfigError, match=r"is neither a model folder"):
        export_model(tmp_path / "notes", tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


def test_a_folder_that_is_not_empty_raises_config_error(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model/mine.txt").write_text("keep")
    with pytest.raises(ConfigError, match=r"--into .* is not empty"):
        export_model(save(tmp_path / "run", 5), tmp_path / "model")
    assert (tmp_path / "model/mine.txt").read_text() == "keep"
