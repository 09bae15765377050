"""Check before the start that a run can resume from its last checkpoint, which other ranks may have written."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from verl_agent.config.plan_parts import Layout, TrainedModel
from verl_agent.errors import ConfigError, counted
from verl_agent.platform.shard_files import KINDS, ShardFiles

ANOTHER_STEP = "write the step of an earlier checkpoint into latest_checkpointed_iteration.txt"
LISTED = 3
"""Number of missing files in a message."""
MEGATRON_CONTENTS = "ckpt_contents.json"
"""File that verl writes last into a checkpoint of Megatron, which has a folder for each of `KINDS`."""
RANDOM_STATES = re.compile(rb"rng_state/shard_\d+\.\d+_(\d+)\.(\d+)")
"""Name of a random state that Megatron saves: number of pipeline stages, and of tensor-parallel ranks in each."""


def check_ranks_of_checkpoint(
    folder: Path, key: str, section: Mapping[str, Any], ranks: tuple[str, int], strategy: str
) -> str:
    """Check that a model's checkpoint can be loaded by this number of ranks.

    Args:
        ranks: settings that make the number of ranks, for messages, and that number.
        strategy: `fsdp`, `fsdp2` or another one, which is not checked.

    Returns:
        Line for the user about resharding; empty if the number of ranks is the same.

    Raises:
        ConfigError: FSDP1 wrote or reads the checkpoint with another number of ranks, or shards are missing.
    """
    setting, count = ranks
    shards = ShardFiles.read(folder)
    if shards is None or shards.ranks == count or strategy not in ("fsdp", "fsdp2"):
        return ""
    written = counted(shards.ranks, "rank")
    if strategy == "fsdp" or shards.version == 1:
        raise ConfigError(
            f"{key}='fsdp' (FSDP1) loads a checkpoint only with the number of ranks that wrote it. "
            f"{folder} was written by {written}; {setting} gives {count}. Use {written} "
            f"again; only a run that began with {key}=fsdp2 may change their number."
        )
    contents = section.get("load_contents") or list(KINDS)
    if missing := shards.missing(content for content in contents if content in KINDS):
        listed = ", ".join(file.name for file in missing[:LISTED])
        listed += f" and {len(missing) - LISTED} more" if len(missing) > LISTED else ""
        raise ConfigError(
            f"{folder} was written by {written}; {setting} gives {count}. Each rank then needs all files "
            f"of the checkpoint, and {listed} {'is' if len(missing) == 1 else 'are'} missing. Copy the files of all "
            f"machines there, use {written} again, or {ANOTHER_STEP}."
        )
    return f"{folder.name}: resharding the checkpoint from {shards.ranks} to {count} ranks"


def check_contents(folder: Path, key: str, section: Mapping[str, Any]) -> None:
    """Check that a model's checkpoint has weights, optimizer and random state, and that all of them are loaded.

    verl would train with new ones in silence, or fail when all ranks have started.
    """
    chosen = section.get("load_contents") or list(KINDS)
    shards = ShardFiles.read(folder)
    for content in KINDS:
        if content not in chosen:
            raise ConfigError(
                f"{key}.load_contents={list(chosen)} lacks {content!r}: the run would resume with a new one. Add it, "
                f"and to {key}.save_contents too."
            )
        saved = shards is None or any(file.is_file() for file in shards.files(content))
        if (folder / MEGATRON_CONTENTS).is_file():
            saved = (folder / content).is_dir()
        if not saved:
            raise ConfigError(
                f"{folder} was saved without {content!r}, so a run cannot resume from it. To start from its weights, "
                "set the path of the model to it and choose another trainer.default_local_dir."
            )


def check_layout_of_checkpoint(folder: Path, key: str, megatron: Mapping[str, Any]) -> None:
    """Check that Megatron's ranks are divided as those that wrote a checkpoint; data-parallel ranks may change.

    verl 0.9.1, utils/checkpoint/megatron_checkpoint_manager.py:301 saves a random state for each pipeline stage and
    tensor-parallel rank, which no other layout can load.
    """
    metadata = folder / "extra" / "dist_ckpt" / ".metadata"
    found = RANDOM_STATES.search(metadata.read_bytes()) if metadata.is_file() else None
    if found is None:
        return
    sizes = ("pipeline_model_parallel_size", int(found[1])), ("tensor_model_parallel_size", int(found[2]))
    for name, written in sizes:
        if megatron[name] != written:
            raise ConfigError(
                f"{key}.{name}={megatron[name]!r} cannot resume {folder}, which was written with {written}: Megatron "
                f"saves a random state for each of these ranks. Set it to {written}; the number of data-parallel "
                "ranks may change."
            )


def check_resumed_ranks(checkpoint: Path, trained: Sequence[TrainedModel], machines: Layout) -> list[str]:
    """Check that the ranks of a run of reinforcement learning can read its last checkpoint.

    Returns:
        Lines for the user about resharding.

    Raises:
        ConfigError: the checkpoint needs another number of ranks or another layout, or a part or shards are missing.
    """
    lines = []
    setting = f"trainer.nnodes={machines.nodes} times trainer.n_gpus_per_node={machines.ranks_each}"
    for name, model in zip(("actor", "critic"), trained, strict=False):
        folder = checkpoint / name
        if model.on_megatron:
            check_layout_of_checkpoint(folder, model.layout_key, model.layout)
        else:
            ranks = setting, machines.ranks
            key = f"{model.key}.strategy"
            lines.append(check_ranks_of_checkpoint(folder, key, model.checkpoint, ranks, model.strategy))
        check_contents(folder, f"{model.key}.checkpoint", model.checkpoint)
    return [line for line in lines if line]


def check_torchrun_ranks(checkpoint: Path, model: TrainedModel) -> str:
    """Check that the ranks of torchrun can read the last checkpoint of supervised training or DPO.

    Returns:
        Line for the user about resharding; empty if the number of ranks is the same.

    Raises:
        ConfigError: the checkpoint needs another number of ranks, or a part or shards are missing.
    """
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    given = (f"WORLD_SIZE={ranks} of torchrun", ranks)
    line = check_ranks_of_checkpoint(checkpoint, "engine.strategy", model.checkpoint, given, model.strategy)
    check_contents(checkpoint, "checkpoint", model.checkpoint)
    return line
