"""Export the model of a run as a Hugging Face folder, from merged weights or from the trainer's shards."""

import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from verl_agent.errors import ConfigError
from verl_agent.models.checkpoints import MANIFEST, checkpoints, find_damage, finish_checkpoint, latest_checkpoint
from verl_agent.models.lora import merge_adapters
from verl_agent.models.portable import COMPARED, VERSIONS
from verl_agent.models.resolve import resolve_checkpoint
from verl_agent.runs.best_checkpoint import BEST, read_best
from verl_agent.system.resources import require_disk
from verl_agent.trace.provenance import Provenance, read_json, write_json_atomically

NOTE = "verl_agent.json"
"""File in the exported folder with the checkpoint and provenance."""
DRAFT = ".part"
"""End of the name of the folder in which an export is written."""
MERGED_BYTES = 2
"""Bytes of a merged model per parameter."""
SHARD_BYTES = 4
"""Bytes of a trainer's shards per parameter."""
GENERATION = "generation_config.json"
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
"""Fields of this file that servers apply to requests without them."""


def export_model(run: Path, into: Path, step: int | None = None, best: bool = False) -> Path:
    """Copy the Hugging Face weights of a checkpoint, or merge the shards that its trainer saved.

    Args:
        run: folder of a run, or of one of its checkpoints.
        into: folder to write, new or empty.
        step: training step of the checkpoint; None for the latest.
        best: True for the checkpoint with the best validation.

    Returns:
        `into`, with config, weights, tokenizer and provenance. Merged weights are bfloat16; copied weights keep their
        dtype.

    Raises:
        ConfigError: the checkpoint does not exist or has no weights, `into` is not empty, or verl cannot merge it.
    """
    target = into.resolve()  # a link stays, and a mount point cannot be replaced
    draft = target / DRAFT if target.is_dir() else target.with_name(f".{target.name}{DRAFT}")
    if target.exists() and (not target.is_dir() or any(path != draft for path in target.iterdir())):
        raise ConfigError(f"--into {into} is not empty. Choose a new folder.")
    checkpoint = find_checkpoint(run, step, best)
    shutil.rmtree(draft, ignore_errors=True)
    try:
        shards = find_shards(checkpoint)
        try:
            weights = resolve_checkpoint(checkpoint)
        except ConfigError:
            if shards is None:
                raise
            inside = shards[1].relative_to(checkpoint).as_posix().removeprefix(".")
            if (checkpoint / MANIFEST).is_file() and (damage := find_damage(checkpoint, inside)):
                raise ConfigError(f"{checkpoint} cannot be used: {damage}. Choose another --step.") from None
            merge(shards, draft)
        else:
            size = sum(path.stat().st_size for path in weights.rglob("*") if path.is_file())
            require_disk(shutil.disk_usage(_existing(target)).free, size / 1e9, into)
            shutil.copytree(weights, draft)
        for weights_file in draft.glob("*.safetensors"):
            weights_file.chmod(0o644)  # transformers makes them readable for their owner only
        remove_sampling(draft)
        finish_checkpoint(draft)
        config = read_json(draft / "config.json", "Choose another checkpoint.")
        kept = read_best(run) if best else None
        validation = {"best": asdict(kept)} if kept else {}
        note = {
            "checkpoint": str(checkpoint.resolve()),
            **validation,
            "compared": list(VERSIONS) if config.get("model_type") in COMPARED else [],
            "provenance": asdict(Provenance.collect()),
        }
        write_json_atomically(draft / NOTE, note)
        if target.is_dir():
            for path in draft.iterdir():
                path.rename(target / path.name)
        else:
            draft.rename(target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return into


def find_checkpoint(run: Path, step: int | None = None, best: bool = False) -> Path:
    """Return the folder of the chosen checkpoint.

    Raises:
        ConfigError: the run or the checkpoint does not exist, or both `step` and `best` are given.
    """
    if not run.is_dir():
        raise ConfigError(f"{run} does not exist. Use the folder of a run (for example, runs/textcraft_grpo).")
    steps = checkpoints(run)
    if step is not None and best:
        raise ConfigError(f"--step {step} and --best name two checkpoints. Use one of them.")
    if best:
        if read_best(run) is None:
            raise ConfigError(f"{run} keeps no best checkpoint: no step was validated and saved. Use --step.")
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
    """Return the backend of verl that saved a checkpoint, and the folder of its shards; None without shards."""
    for folder in (checkpoint / "actor", checkpoint):
        if next(folder.glob("model_world_size_*_rank_0.pt"), None):
            return "fsdp", folder
        if (folder / "model" / "dist_ckpt").is_dir() or (folder / "dist_ckpt").is_dir():
            return "megatron", folder
    return None


def merge(shards: tuple[str, Path], into: Path) -> None:
    """Merge shards to a model with verl's model merger.

    Raises:
        ConfigError: the merger fails, or the disk is too small.
    """
    backend, folder = shards
    saved = sum(path.stat().st_size for path in folder.rglob("model_*.pt"))
    require_disk(shutil.disk_usage(_existing(into)).free, saved * MERGED_BYTES / SHARD_BYTES / 1e9, into)
    command = [sys.executable, "-m", "verl.model_merger", "merge", "--backend", backend]
    done = subprocess.run(
        [*command, "--local_dir", str(folder), "--target_dir", str(into)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        output = "\n".join(done.stderr.strip().splitlines()[-3:])
        raise ConfigError(f"verl's model merger cannot read the {backend} shards in {folder}: {output}")
    merge_adapters(into)  # verl's merger leaves them unmerged


def remove_sampling(folder: Path) -> None:
    """Remove the base model's advice on sampling, so that servers sample from the distribution that was trained.

    vLLM and SGLang take it for the defaults of their requests, such as `top_k=20` and `repetition_penalty=1.05` of
    Qwen2.5. The ids of tokens stay: they end a reply.
    """
    file = folder / GENERATION
    if file.is_file():
        values = read_json(file, "Choose another checkpoint.")
        write_json_atomically(file, {name: value for name, value in values.items() if name not in SAMPLING})


def _existing(path: Path) -> Path:
    """Return the nearest existing parent folder."""
    return next(folder for folder in [path, *path.resolve().parents] if folder.is_dir())
