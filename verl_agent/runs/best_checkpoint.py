"""Keep the checkpoint of a run that validated best, whatever the trainer prunes later.

Knows the folder of a run and its metrics, no trainer: it serves reinforcement learning, supervised training and DPO.
"""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

from verl_agent.models.resolve import WEIGHTS, checkpoints, resolve_checkpoint
from verl_agent.runs.folder import RunFolder
from verl_agent.trace.metrics_log import read_metrics, validation_scores

BEST, NOTE = "best", "best.json"
NOT_NEEDED = ("optim_", "extra_state_", "data_", "data.")
"""How files begin that only going on with a run needs."""


@dataclass(frozen=True, slots=True)
class Best:
    """The checkpoint that is kept.

    Attributes:
        step: its training step.
        measure: what was compared: `success` or `reward` on held-out tasks, or `loss` on held-out episodes.
        value: of that measure.
    """

    step: int
    measure: str
    value: float

    def better_than(self, other: "Best | None") -> bool:
        """Whether it validated better than the other one; of two equal ones the earlier stays."""
        if other is None or self.measure != other.measure:
            return True
        return self.value < other.value if self.measure == "loss" else self.value > other.value


def validation_result(step: int, values: Mapping[str, float]) -> Best | None:
    """What a step's metrics say of its validation, averaged over environments; None if it was not validated."""
    scores = validation_scores(dict(values))
    for measure in ("success", "reward"):
        found = [score.value for score in scores if score.measure == measure]
        if found:
            return Best(step, measure, fmean(found))
    return Best(step, "loss", values["val/loss"]) if "val/loss" in values else None


def read_best(run: Path) -> Best | None:
    """What is kept in a run's folder."""
    note = run / BEST / NOTE
    return Best(**json.loads(note.read_text(encoding="utf-8"))) if note.is_file() else None


def keep_best(run: Path) -> Best | None:
    """Compare the checkpoints that are there with the one that is kept, and keep the best, in `best/`.

    It holds the weights alone, as hard links where the file system has them, so that it takes no room while the
    checkpoint itself is there.

    Returns:
        What is kept now; None if no saved step was validated.
    """
    folder = RunFolder.at(run)
    metrics = read_metrics(folder.all_metrics)
    kept = read_best(folder.root)
    for step, checkpoint in checkpoints(folder.root).items():
        found = validation_result(step, metrics.get(step, {}))
        if found is not None and step <= folder.last_step and found.better_than(kept):
            store_best(checkpoint, found, folder.root)
            kept = found
    return kept


class BestKeeper:
    """Calls `keep_best` whenever a run has saved or logged a step since the last look.

    Args:
        folder: of the run, at this start.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._seen: tuple[int, int] = (-1, -1)

    def look(self) -> None:
        """Look once; a trainer validates, saves and logs in this or another order, at most once a second."""
        log = self._folder.metrics
        now = (self._folder.last_step, log.stat().st_size if log.is_file() else 0)
        if now != self._seen:
            self._seen = now
            keep_best(self._folder.root)


def store_best(checkpoint: Path, found: Best, run: Path) -> None:
    """Keep the weights of a checkpoint in `best/`, written beside and moved there: it is whole at any moment."""
    target = run / BEST
    actor = checkpoint / "actor"
    weights = actor if actor.is_dir() else checkpoint
    merged = weights / "huggingface"
    whole = any(next(merged.glob(pattern), None) for pattern in WEIGHTS)
    if whole:
        resolve_checkpoint(merged)  # adapters are merged while the note of their rank is at hand
    draft, old = target.with_name(f"{BEST}.new"), target.with_name(f"{BEST}.old")
    for left_over in (draft, old):
        shutil.rmtree(left_over, ignore_errors=True)
    for path in sorted((merged if whole else weights).rglob("*")):
        if path.is_file() and not path.name.startswith(NOT_NEEDED):
            _link(path, draft / path.relative_to(weights))
    draft.joinpath(NOTE).write_text(json.dumps(asdict(found)) + "\n", encoding="utf-8")
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
