"""Write the model of a run as a plain Hugging Face folder, from whatever its trainer saved."""

import json
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from verl_agent.errors import ConfigError
from verl_agent.models.lora import merge_adapters
from verl_agent.models.resolve import checkpoints, latest_checkpoint, resolve_checkpoint
from verl_agent.runs.best_checkpoint import BEST, read_best
from verl_agent.system.resources import require_disk
from verl_agent.trace.provenance import Provenance

NOTE = "verl_agent.json"
"""File in the exported folder that says where it comes from."""
MERGED_BYTES = 2
"""Bytes that a merged model takes for each parameter."""
SHARD_BYTES = 4
"""Bytes that a trainer's shards take for each parameter."""


def export(run: Path, into: Path, step: int | None = None, best: bool = False) -> Path:
    """Copy the Hugging Face weights of a checkpoint, or merge the shards that its trainer saved.

    Args:
        run: a run's folder, or one checkpoint of it.
        into: the folder to write, new or empty.
        step: the checkpoint of this training step; None for the latest.
        best: the checkpoint that validated best instead.

    Returns:
        `into`; it holds config, weights, tokenizer and a note on their origin. Merged weights are bfloat16, copied
        ones as they were saved.

    Raises:
        ConfigError: there is no such checkpoint, it has no weights, the folder is not empty, or verl cannot merge it.
    """
    if into.exists() and (not into.is_dir() or any(into.iterdir())):
        raise ConfigError(f"--into {into} is not empty. Name a new folder.")
    checkpoint = find_checkpoint(run, step, best)
    draft = into.with_name(f".{into.name}.part")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        shards = find_shards(checkpoint)
        try:
            weights = resolve_checkpoint(checkpoint)
        except ConfigError:
            if shards is None:
                raise
            merge(shards, draft)
        else:
            size = sum(path.stat().st_size for path in weights.rglob("*") if path.is_file())
            require_disk(shutil.disk_usage(_existing(into)).free, size / 1e9, into)
            shutil.copytree(weights, draft)
        for weights_file in draft.glob("*.safetensors"):
            weights_file.chmod(0o644)  # transformers writes them for their owner alone
        kept = read_best(run) if best else None
        found = {"best": asdict(kept)} if kept else {}
        note = {"checkpoint": str(checkpoint.resolve()), **found, "provenance": asdict(Provenance.collect())}
        draft.joinpath(NOTE).write_text(json.dumps(note, indent=1) + "\n", encoding="utf-8")
        if into.is_dir():
            into.rmdir()
        draft.rename(into)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return into


def find_checkpoint(run: Path, step: int | None = None, best: bool = False) -> Path:
    """The folder of the checkpoint that is meant.

    Raises:
        ConfigError: there is none.
    """
    if not run.is_dir():
        raise ConfigError(f"{run} does not exist. Name the folder of a run, such as runs/textcraft_grpo.")
    steps = checkpoints(run)
    if step is not None and best:
        raise ConfigError(f"--step {step} and --best name two checkpoints. Give one of them.")
    if best:
        if read_best(run) is None:
            raise ConfigError(f"{run} keeps no best checkpoint: no step was validated and saved. Give --step.")
        return run / BEST
    if step is not None:
        if step not in steps:
            there = ", ".join(map(str, steps)) or "none"
            raise ConfigError(f"{run} has no checkpoint of step {step}. Its steps are: {there}.")
        return steps[step]
    latest = latest_checkpoint(run)
    if latest is None and (run / BEST).is_dir():
        return run / BEST
    return latest or run


def find_shards(checkpoint: Path) -> tuple[str, Path] | None:
    """The backend of verl that saved a checkpoint, and the folder of its shards; None if there are none."""
    for folder in (checkpoint / "actor", checkpoint):
        if next(folder.glob("model_world_size_*_rank_0.pt"), None):
            return "fsdp", folder
        if (folder / "model" / "dist_ckpt").is_dir() or (folder / "dist_ckpt").is_dir():
            return "megatron", folder
    return None


def merge(shards: tuple[str, Path], into: Path) -> None:
    """Let verl's model merger write the whole model.

    Raises:
        ConfigError: it fails, or the disk is too small.
    """
    backend, folder = shards
    saved = sum(path.stat().st_size for path in folder.rglob("model_*.pt"))
    require_disk(shutil.disk_usage(_existing(into)).free, saved * MERGED_BYTES / SHARD_BYTES / 1e9, into)
    command = [sys.executable, "-m", "verl.model_merger", "merge", "--backend", backend]
    done = subprocess.run(
        [*command, "--local_dir", str(folder), "--target_dir", str(into)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = "\n".join(done.stderr.strip().splitlines()[-3:])
        raise ConfigError(f"verl's model merger does not read the {backend} shards in {folder}: {said}")
    merge_adapters(into)  # which verl's leaves apart


def _existing(path: Path) -> Path:
    """The nearest folder above that exists."""
    return next(folder for folder in [path, *path.resolve().parents] if folder.is_dir())
