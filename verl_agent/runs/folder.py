"""Folder of a run: paths of its files, its last checkpoint, and the claim that keeps other recipes out of it."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from verl_agent.errors import ConfigError
from verl_agent.runs.identity import SETTINGS_FILE, claim, read_settings
from verl_agent.trace.metrics_log import read_metrics

RESUME_MODES = ("auto", "disable")


def check_resume(trainer: Mapping[str, Any], model_key: str) -> None:
    """Reject resuming from a checkpoint in another folder, because nothing there records its recipe.

    Args:
        trainer: section `trainer`.
        model_key: setting that names the model to start from.

    Raises:
        ConfigError: `resume_mode` is unknown, or `resume_from_path` is set.
    """
    mode, path = trainer.get("resume_mode"), trainer.get("resume_from_path")
    key, value = ("resume_from_path", path) if path is not None else ("resume_mode", mode)
    if path is not None or mode not in RESUME_MODES:
        raise ConfigError(
            f"trainer.{key}={value!r} is not allowed: a run resumes in its own folder, which records its recipe. "
            f"Allowed: trainer.resume_mode={' or '.join(RESUME_MODES)}, without a path. To resume from an earlier "
            "step, copy the run's folder, write the step into its latest_checkpointed_iteration.txt and set "
            f"trainer.default_local_dir to the copy. To start from a checkpoint's weights, set {model_key} to it."
        )


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Paths of one run. Each start writes its own log and metrics files.

    Attributes:
        root: root directory of the run, `trainer.default_local_dir`.
        started: time of this start in UTC, part of the names of its files.
    """

    root: Path
    started: str

    @classmethod
    def at(cls, root: str | Path) -> "RunFolder":
        """Return the folder for a start at the present time."""
        return cls(Path(root).resolve(), f"{datetime.now(UTC):%Y%m%dT%H%M%S}")

    @property
    def log(self) -> Path:
        """Log file with the output of Ray, verl and the engine."""
        return self.root / "logs" / f"{self.started}.log"

    @property
    def metrics(self) -> Path:
        """Metrics file of this start, one line a step."""
        return self.root / "metrics" / f"{self.started}.jsonl"

    @property
    def all_metrics(self) -> list[Path]:
        """Metrics files of all starts, oldest first."""
        return sorted((self.root / "metrics").glob("*.jsonl"))

    @property
    def curves(self) -> Path:
        """Image of the learning curves."""
        return self.root / "curves.png"

    @property
    def last_step(self) -> int:
        """Step of the last complete checkpoint; 0 without a checkpoint."""
        tracker = self.root / "latest_checkpointed_iteration.txt"
        return int(tracker.read_text()) if tracker.is_file() else 0

    @property
    def checkpoint(self) -> Path:
        """Folder of the last complete checkpoint; exists only if there is one."""
        return self.root / f"global_step_{self.last_step}"

    def finished(self, total_steps: int) -> bool:
        """Return True if step `total_steps` is saved and logged; verl logs a step after its validation."""
        return self.last_step >= total_steps and max(read_metrics(self.all_metrics), default=0) >= total_steps

    def prune(self, keep: int | None, running: bool = False) -> None:
        """Remove old checkpoints: verl counts only those of its own start, and leaves the folders of removed ones.

        Args:
            keep: number of checkpoints to keep, including the latest complete one; None keeps all.
            running: True while a trainer may be writing the next checkpoint, which then stays.
        """
        if not keep:
            return
        last = self.last_step
        steps = {int(path.name[12:]): path for path in self.root.glob("global_step_*") if path.name[12:].isdecimal()}
        complete = sorted(step for step in steps if step <= last and any(steps[step].glob("*/")))
        for step in steps.keys() - set(complete[-keep:]):
            if step <= last or not running:
                shutil.rmtree(steps[step], ignore_errors=running)

    def claim(self, settings: Mapping[str, Any], may_change: Sequence[str], resume: bool) -> None:
        """Lock the folder and record the run's settings; if it holds a checkpoint, refuse changed ones.

        Args:
            settings: see `verl_agent.runs.identity.claim`.
            may_change: see `verl_agent.runs.identity.claim`.
            resume: True if a checkpoint in the folder is continued.

        Raises:
            ConfigError: another process runs here, or the folder holds a checkpoint of another recipe.
        """
        step = self.last_step
        if step and not resume:
            raise ConfigError(
                f"{self.root} holds step {step}, and trainer.resume_mode=disable would mix two runs. Choose another "
                "trainer.default_local_dir, or delete the folder."
            )
        if step and not read_settings(self.root):
            raise ConfigError(
                f"{self.root} holds step {step} of a run whose {SETTINGS_FILE} is missing, so its recipe is unknown. "
                "Choose another trainer.default_local_dir, or restore the file."
            )
        claim(
            self.root,
            settings,
            may_change,
            contents=f"step {step} of another recipe",
            advice="Name this run otherwise (trainer.experiment_name=...), or delete the folder.",
            earlier=None if step else {},
        )
