"""A resume with another number of ranks that cannot work raises ConfigError before Ray starts."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from verl_agent.config.plan_parts import Layout, read_model, read_part
from verl_agent.errors import ConfigError
from verl_agent.platform.shard_files import KINDS
from verl_agent.training.preflight.ranks import check_resumed_ranks, check_torchrun_ranks


def written(folder: Path, ranks: int, version: int = 2) -> Path:
    """Write the names of a model's shards."""
    folder.mkdir(parents=True)
    for kind in KINDS.values():
        for rank in range(ranks):
            (folder / f"{kind}_world_size_{ranks}_rank_{rank}.pt").touch()
    (folder / "fsdp_config.json").write_text(json.dumps({"FSDP_version": version, "world_size": ranks}))
    return folder


ALL = ["model", "optimizer", "extra", "hf_model"]


def check(
    folder: Path, ranks: int, strategy: str = "fsdp2", critic: bool = False, loaded: Sequence[str] = ALL, **sizes: int
) -> list[str]:
    """Check a run of so many ranks, which divide a model of Megatron by `sizes`."""
    megatron = {"pipeline_model_parallel_size": 1, "tensor_model_parallel_size": 1, **sizes}
    section = {"strategy": strategy, "checkpoint": {"load_contents": loaded}, "megatron": megatron}
    values = {
        "trainer": {"nnodes": 1, "n_gpus_per_node": ranks},
        "actor_rollout_ref": {"actor": section},
        "critic": section,
    }
    models = [read_model(values, key, "model", "fsdp") for key in ("actor_rollout_ref.actor", "critic")[: 1 + critic]]
    return check_resumed_ranks(folder, models, read_part(Layout, values))


def test_changed_ranks_are_reported_for_actor_and_critic(tmp_path):
    for model in ("actor", "critic"):
        written(tmp_path / model, 2)
    assert check(tmp_path, 4, critic=True) == [
        "actor: resharding the checkpoint from 2 to 4 ranks",
        "critic: resharding the checkpoint from 2 to 4 ranks",
    ]
    assert check(tmp_path, 2, critic=True) == []


def test_shards_of_an_abandoned_save_by_other_ranks_do_not_count(tmp_path):
    written(tmp_path / "actor", 4).rename(tmp_path / "old")
    actor = written(tmp_path / "actor", 2)
    for file in (tmp_path / "old").glob("*_rank_0.pt"):
        file.rename(actor / file.name)
    assert check(tmp_path, 2) == []


@pytest.mark.parametrize(("strategy", "version"), [("fsdp", 1), ("fsdp", 0), ("fsdp2", 1)])
def test_changed_ranks_of_fsdp1_raise_config_error_naming_the_keys(tmp_path, strategy, version):
    written(tmp_path / "actor", 2, version)
    message = r"\.actor\.strategy='fsdp' .* by 2 ranks; .* trainer\.n_gpus_per_node=4 gives 4\. Use 2 ranks again"
    with pytest.raises(ConfigError, match=message):
        check(tmp_path, 4, strategy)
    assert check(tmp_path, 2, strategy) == []


def test_a_missing_shard_raises_config_error_naming_it(tmp_path):
    written(tmp_path / "actor", 2)
    (written(tmp_path / "critic", 2) / "optim_world_size_2_rank_1.pt").unlink()
    message = r"critic was written by 2 ranks; .* gives 1\. .* optim_world_size_2_rank_1\.pt is missing\. .* earlier"
    with pytest.raises(ConfigError, match=message):
        check(tmp_path, 1, critic=True)
    assert check(tmp_path, 2, critic=True) == [], "each machine may have its own files"


@pytest.mark.parametrize("content", KINDS)
def test_a_part_that_would_not_be_loaded_or_was_not_saved_raises_config_error(tmp_path, content):
    """Verl would train on with initial weights or a new optimizer in silence, or fail after the start of all ranks."""
    actor = written(tmp_path / "actor", 2)
    with pytest.raises(ConfigError, match=rf"actor\.checkpoint\.load_contents=.* lacks '{content}': the run would"):
        check(tmp_path, 2, loaded=[one for one in KINDS if one != content])
    for file in actor.glob(f"{KINDS[content]}_*.pt"):
        file.unlink()
    with pytest.raises(ConfigError, match=rf"actor was saved without '{content}', so a run cannot resume from it"):
        check(tmp_path, 2)


def test_another_layout_of_megatron_raises_config_error(tmp_path):
    metadata = tmp_path / "actor" / "extra" / "dist_ckpt" / ".metadata"
    metadata.parent.mkdir(parents=True)
    metadata.write_bytes(b"\x80\x04rng_state/shard_0.0_1.2\x94rng_state/shard_0.1_1.2\x94")
    message = r"actor\.megatron\.tensor_model_parallel_size=1 cannot resume .* written with 2: .* Set it to 2;"
    with pytest.raises(ConfigError, match=message):
        check(tmp_path, 4, "megatron")
    assert check(tmp_path, 4, "megatron", tensor_model_parallel_size=2) == []


def test_changed_ranks_of_torchrun_are_reported_or_raise_config_error(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    checkpoint = written(tmp_path / "global_step_3", 1)
    one, other = (
        read_model({"engine": {"strategy": strategy}, "checkpoint": {"load_contents": None}}, "data", "model", "engine")
        for strategy in ("fsdp2", "fsdp")
    )
    assert check_torchrun_ranks(checkpoint, one) == "global_step_3: resharding the checkpoint from 1 to 2 ranks"
    message = r"^engine\.strategy='fsdp' .* by 1 rank; WORLD_SIZE=2 of torchrun gives 2\. Use 1 rank again;"
    with pytest.raises(ConfigError, match=message):
        check_torchrun_ranks(checkpoint, other)
