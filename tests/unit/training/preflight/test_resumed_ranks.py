"""A resume with another number of ranks that cannot work raises ConfigError before Ray starts."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from verl_agent.errors import ConfigError
from verl_agent.platform.shard_files import KINDS
from verl_agent.training.preflight.ranks import check_checkpoints, check_resumed_ranks, check_torchrun_ranks


def written(folder: Path, ranks: int, version: int = 2) -> Path:
    """Write the names of a model's shards."""
    folder.mkdir(parents=True)
    for kind in KINDS.values():
        for rank in range(ranks):
            (folder / f"{kind}_world_size_{ranks}_rank_{rank}.pt").touch()
    (folder / "fsdp_config.json").write_text(json.dumps({"FSDP_version": version, "world_size": ranks}))
    return folder


def config(ranks: int, strategy: str = "fsdp2", **megatron: int) -> dict[str, Any]:
    section = {"strategy": strategy, "checkpoint": {"load_contents": ["model", "optimizer", "extra", "hf_model"]}}
    sizes = {"pipeline_model_parallel_size": 1, "tensor_model_parallel_size": 1, **megatron}
    return {
        "trainer": {"nnodes": 1, "n_gpus_per_node": ranks},
        "actor_rollout_ref": {"actor": {**section, "megatron": sizes}},
        "critic": {**section, "megatron": sizes},
    }


def test_changed_ranks_are_reported_for_actor_and_critic(tmp_path):
    for model in ("actor", "critic"):
        written(tmp_path / model, 2)
    assert check_resumed_ranks(tmp_path, config(4), critic=True) == [
        "actor: resharding the checkpoint from 2 to 4 ranks",
        "critic: resharding the checkpoint from 2 to 4 ranks",
    ]
    assert check_resumed_ranks(tmp_path, config(2), critic=True) == []


def test_shards_of_an_abandoned_save_by_other_ranks_do_not_count(tmp_path):
    written(tmp_path / "actor", 4).rename(tmp_path / "old")
    actor = written(tmp_path / "actor", 2)
    for file in (tmp_path / "old").glob("*_rank_0.pt"):
        file.rename(actor / file.name)
    assert check_resumed_ranks(tmp_path, config(2), critic=False) == []


@pytest.mark.parametrize(("strategy", "version"), [("fsdp", 1), ("fsdp", 0), ("fsdp2", 1)])
def test_changed_ranks_of_fsdp1_raise_config_error_naming_the_keys(tmp_path, strategy, version):
    written(tmp_path / "actor", 2, version)
    message = r"\.actor\.strategy='fsdp' .* by 2 ranks; .* trainer\.n_gpus_per_node=4 gives 4\. Use 2 ranks again"
    with pytest.raises(ConfigError, match=message):
        check_resumed_ranks(tmp_path, config(4, strategy), critic=False)
    assert check_resumed_ranks(tmp_path, config(2, strategy), critic=False) == []


def test_a_missing_shard_raises_config_error_naming_it(tmp_path):
    written(tmp_path / "actor", 2)
    (written(tmp_path / "critic", 2) / "optim_world_size_2_rank_1.pt").unlink()
    message = r"critic was written by 2 ranks; .* gives 1\. .* optim_world_size_2_rank_1\.pt is missing\. .* earlier"
    with pytest.raises(ConfigError, match=message):
        check_resumed_ranks(tmp_path, config(1), critic=True)
    assert check_resumed_ranks(tmp_path, config(2), critic=True) == [], "each machine may have its own files"


@pytest.mark.parametrize("content", KINDS)
def test_a_part_that_would_not_be_loaded_or_was_not_saved_raises_config_error(tmp_path, content):
    """Verl would train on with initial weights or a new optimizer in silence, or fail after the start of all ranks."""
    actor, settings = written(tmp_path / "actor", 2), config(2)
    settings["actor_rollout_ref"]["actor"]["checkpoint"] = {"load_contents": [one for one in KINDS if one != content]}
    with pytest.raises(ConfigError, match=rf"actor\.checkpoint\.load_contents=.* lacks '{content}': the run would"):
        check_resumed_ranks(tmp_path, settings, critic=False)
    for file in actor.glob(f"{KINDS[content]}_*.pt"):
        file.unlink()
    with pytest.raises(ConfigError, match=rf"actor was saved without '{content}', so a run cannot resume from it"):
        check_resumed_ranks(tmp_path, config(2), critic=False)


FULL = {"save_contents": ["model", "optimizer", "extra", "hf_model"], "async_save": False}


@pytest.mark.parametrize("strategy", ["fsdp2", "megatron"])
@pytest.mark.parametrize(
    ("actor", "critic", "trainer", "message"),
    [
        (
            {"save_contents": ["hf_model"]},
            {},
            {},
            "actor.checkpoint.save_contents=['hf_model'] is not allowed: without ",
        ),
        (
            {},
            {"save_contents": ["model"]},
            {},
            "critic.checkpoint.save_contents=['model'] is not allowed: without opti",
        ),
        ({"async_save": True}, {}, {}, "actor.checkpoint.async_save=True is not allowed"),
        ({}, {}, {"max_critic_ckpt_to_keep": 1}, "trainer.max_critic_ckpt_to_keep=1 is not allowed"),
        ({"save_contents": ["hf_model"]}, {}, {"max_restarts": 0}, ""),
        ({"save_contents": ["hf_model"]}, {}, {"save_freq": -1}, ""),
        ({}, {}, {}, ""),
    ],
)
def test_settings_that_leave_no_checkpoint_to_resume_from_raise_config_error(strategy, actor, critic, trainer, message):
    settings = {
        "actor_rollout_ref": {"actor": {"strategy": strategy, "checkpoint": FULL | actor}},
        "critic": {"checkpoint": FULL | critic},
        "trainer": {"save_freq": 5, "max_restarts": 3, "max_actor_ckpt_to_keep": 2, "max_critic_ckpt_to_keep": 2}
        | trainer,
    }
    if not message:
        check_checkpoints(settings)
        return
    with pytest.raises(ConfigError, match=re.escape(message)):
        check_checkpoints(settings)


def test_another_layout_of_megatron_raises_config_error(tmp_path):
    metadata = tmp_path / "actor" / "extra" / "dist_ckpt" / ".metadata"
    metadata.parent.mkdir(parents=True)
    metadata.write_bytes(b"\x80\x04rng_state/shard_0.0_1.2\x94rng_state/shard_0.1_1.2\x94")
    message = r"actor\.megatron\.tensor_model_parallel_size=1 cannot resume .* written with 2: .* Set it to 2;"
    with pytest.raises(ConfigError, match=message):
        check_resumed_ranks(tmp_path, config(4, "megatron"), critic=False)
    same = config(4, "megatron", tensor_model_parallel_size=2)
    assert check_resumed_ranks(tmp_path, same, critic=False) == []


def test_changed_ranks_of_torchrun_are_reported_or_raise_config_error(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    checkpoint = written(tmp_path / "global_step_3", 1)
    config = {"engine": {"strategy": "fsdp2"}, "checkpoint": {"load_contents": None}}
    assert check_torchrun_ranks(checkpoint, config) == "global_step_3: resharding the checkpoint from 1 to 2 ranks"
    message = r"^engine\.strategy='fsdp' .* by 1 rank; WORLD_SIZE=2 of torchrun gives 2\. Use 1 rank again;"
    with pytest.raises(ConfigError, match=message):
        check_torchrun_ranks(checkpoint, config | {"engine": {"strategy": "fsdp"}})
