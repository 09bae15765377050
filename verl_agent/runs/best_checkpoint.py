"""Best checkpoint of a run, kept in `best/` when the trainer prunes older checkpoints.

It is chosen from the metrics in the folder of the run, so it works for RL, supervised training and DPO.
"""

import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import fmean

from verl_agent.models.checkpoints import (
    HUGGINGFACE,
    MANIFEST,
    checkpoints,
    is_complete,
    manifest_entries,
    write_manifest,
)
from verl_agent.models.resolve import WEIGHTS, resolve_checkpoint
from verl_agent.runs.folder import RunFolder
from verl_agent.trace.metrics_log import read_metrics, validation_scores
from verl_agent.trace.provenance import read_json, write_json_atomically

BEST, OLD, NOTE = "best", "best.old", "best.json"
NOT_NEEDED = ("optim_", "extra_state_", "data_", "data.", MANIFEST)
"""Prefixes of files that only a resumed run needs."""


@dataclass(frozen=True, slots=True)
class Best:
    """Validation result of the checkpoint that is kept."""

    step: int
    measure: str
    value: float

    def better_than(self, other: "Best | None") -> bool:
        """Return True if this result is better than the other one; of equal ones the other stays."""
        if other is None or self.measure != other.measure:
            return True
        return self.value < other.value if self.measure == "loss" else self.value > other.value


BEST_KEYS = tuple(field.name for field in fields(Best))


def validation_result(step: int, values: Mapping[str, float]) -> Best | None:
    """Return the validation result of a step, averaged over environments; None if it was not validated."""
    scores = validation_scores(dict(values))
    for measure in ("success", "reward"):
        of_measure = [score.value for score in scores if score.measure == measure]
        if of_measure:
            return Best(step, measure, fmean(of_measure))
    return Best(step, "loss", values["val/loss"]) if "val/loss" in values else None


def read_best(run: Path) -> Best | None:
    """Return the best checkpoint that a run keeps; None if it keeps none."""
    note = run / BEST / NOTE
    if not note.is_file():
        return None
    values = read_json(note, f"Delete {note.parent}; the next validation chooses again.", BEST_KEYS)
    return Best(**{key: values[key] for key in BEST_KEYS})


def keep_best(run: Path) -> Best | None:
    """Compare the saved checkpoints with the kept one, and keep the best in `best/`.

    `best/` holds only weights. They are hard links if the file system supports them, so that they need no disk space
    while the checkpoint itself exists.

    Returns:
        The kept checkpoint; None if no saved step was validated.
    """
    folder = RunFolder.at(run)
    best, old = folder.root / BEST, folder.root / OLD
    if old.is_dir() and not best.is_dir():  # the run was killed between the two renames of `store_best`
        old.rename(best)
    metrics = read_metrics(folder.all_metrics)
    kept = read_best(folder.root)
    for step, checkpoint in checkpoints(folder.root).items():
        result = validation_result(step, metrics.get(step, {}))
        if result is not None and step <= folder.last_step and is_complete(checkpoint) and result.better_than(kept):
            store_best(checkpoint, result, folder.root)
            kept = result
    return kept


class BestKeeper:
    """Poller of a run that updates its best checkpoint."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._seen: tuple[int, int] = (-1, -1)

    def poll(self) -> None:
        """Call `keep_best` if the run has saved or logged a step since the last call."""
        log = self._folder.metrics
        now = (self._folder.last_step, log.stat().st_size if log.is_file() else 0)
        if now != self._seen:
            self._seen = now
            keep_best(self._folder.root)


def store_best(checkpoint: Path, result: Best, run: Path) -> None:
    """Keep the weights of a checkpoint in `best/`, which is replaced as a whole."""
    target = run / BEST
    actor = checkpoint / "actor"
    weights = actor if actor.is_dir() else checkpoint
    folders = (weights / HUGGINGFACE, weights / "model" / HUGGINGFACE)  # of FSDP and of Megatron
    merged = next((folder for folder in folders if any(next(folder.glob(name), None) for name in WEIGHTS)), None)
    if merged:
        resolve_checkpoint(merged)  # merges LoRA adapters now: the file with their rank is not kept
    draft, old = run / f"{BEST}.new", run / OLD
    for leftover in (draft, old):
        shutil.rmtree(leftover, ignore_errors=True)
    root = merged.parent if merged else weights
    for path in sorted((merged or weights).rglob("*")):
        if path.is_file() and not path.name.startswith(NOT_NEEDED):
            _link(path, draft / path.relative_to(root))
    inside = f"{root.relative_to(checkpoint).as_posix()}/".removeprefix("./")
    known = {
        name.removeprefix(inside): entry
        for name, entry in manifest_entries(checkpoint).items()
        if name.startswith(inside)
    }
    write_manifest(draft, known)
    write_json_atomically(draft / NOTE, asdict(result))
    if target.is_dir():
        target.rename(old)
    draft.rename(target)
    shutil.rmtree(old, ignore_errors=True)


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        shutil.copy2(source, target)
