"""Folder of a run: paths of its files, its last checkpoint, and the claim that keeps other recipes out of it."""

import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from verl_agent.config.plan_parts import Schedule
from verl_agent.errors import ConfigError
from verl_agent.models.checkpoints import (
    TRACKER,
    UNFINISHED,
    checkpoints,
    find_damage,
    is_complete,
    saved_step,
    size_bytes,
    tracked_step,
)
from verl_agent.runs.identity import SETTINGS_FILE, claim, is_first_rank, lock, read_settings
from verl_agent.system.resources import make_folder, most_checkpoints, require_disk
from verl_agent.trace.metrics_log import read_metrics

RESUME_MODES = ("auto", "latest", "disable")
"""Resume from the newest complete checkpoint; only from the last one, so that a damaged one is an error; never."""
LATER = f"{TRACKER} names an earlier one"
"""Reason to set a complete checkpoint aside: the user has gone back to an earlier one."""
_TIME = "%Y%m%dT%H%M%S"
"""Form of the time of a start, whose order as text is that of the times."""


def check_resume(schedule: Schedule, model_key: str) -> None:
    """Reject resuming from a checkpoint in another folder, because nothing there records its recipe.

    Raises:
        ConfigError: `resume_mode` is unknown, or `resume_from_path` is set.
    """
    mode, path = schedule.resume, schedule.resume_from
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
        started: time of this start in UTC, part of the names of its files.
    """

    root: Path
    started: str

    @classmethod
    def at(cls, root: str | Path) -> "RunFolder":
        """Return the folder for a start at the present time.

        The files of all starts are read in the order of their names. After a clock that went back, the name is one
        second later than that of the newest metrics file.
        """
        folder, now = Path(root).resolve(), datetime.now(UTC)
        for file in (folder / "metrics").glob("*.jsonl"):
            with suppress(ValueError, OverflowError):  # a name that is no time
                now = max(now, datetime.strptime(file.stem, _TIME).replace(tzinfo=UTC) + timedelta(seconds=1))
        return cls(folder, f"{now:{_TIME}}")

    @classmethod
    def create(cls, root: str | Path) -> "RunFolder":
        """Return the folder as `at` does, created if it is missing.

        Raises:
            ConfigError: it cannot be created or written to.
        """
        folder = cls.at(root)
        make_folder(folder.root, "trainer.default_local_dir")
        return folder

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
        return saved_step(self.root)

    @property
    def checkpoint(self) -> Path:
        """Folder of the last complete checkpoint; exists only if there is one."""
        return self.root / f"global_step_{self.last_step}"

    def finished(self, total_steps: int) -> bool:
        """Return True if step `total_steps` is saved and logged; verl logs a step after its validation."""
        return (
            self.last_step >= total_steps and max(read_metrics(self.all_metrics, ended=True), default=0) >= total_steps
        )

    def prune(self, keep: int | None, running: bool = False) -> None:
        """Remove old checkpoints; verl would remove one before the next is saved, and only those of its own start.

        Args:
            keep: number of checkpoints to keep, including the latest complete one; None keeps all.
            running: True while a trainer may be writing the next checkpoint, which then stays.
        """
        if not keep:
            return
        last, steps = self.last_step, checkpoints(self.root)
        whole = {
            step
            for step, path in steps.items()
            if (is_complete(path) if running else not find_damage(path, contents=False))
        }
        kept = sorted(step for step in whole if step <= last)[-keep:]
        for step in steps.keys() - set(kept):
            if step <= last or (step not in whole and not running):
                _remove(steps[step], ignore_errors=running)

    def require_room(self, checkpoint_gb: float, keep: int | None) -> None:
        """Raise if the disk has no room for the checkpoints that the run still adds; one more exists than are kept.

        Args:
            checkpoint_gb: estimated GB of a checkpoint, used while the folder has none; 0 if the run saves none.
            keep: number of checkpoints to keep; None, for all, counts as one.

        Raises:
            ConfigError: the disk is too small.
        """
        sizes = [size_bytes(path) / 1e9 for path in checkpoints(self.root).values() if is_complete(path)]
        count = max(1, most_checkpoints(keep) - len(sizes))
        needed_gb = count * (sizes[-1] if sizes and checkpoint_gb else checkpoint_gb)
        require_disk(shutil.disk_usage(self.root).free, needed_gb, self.root)

    def claim(self, settings: Mapping[str, Any], may_change: Sequence[str], mode: str = "auto") -> tuple[int, str]:
        """Lock the folder, record the run's settings, and choose the checkpoint to resume from.

        Checkpoints after the chosen one are renamed, and unfinished ones removed.

        Args:
            may_change: see `verl_agent.runs.identity.claim`; other settings must be those of the checkpoint.
            mode: one of `RESUME_MODES`.

        Returns:
            The step to resume after, 0 for a new run; and a warning for the user, empty if the last checkpoint is used.

        Raises:
            ConfigError: another process runs here, the folder holds a checkpoint of another recipe, or the last
                checkpoint is damaged, and there is no other one or `mode` allows no other one.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        lock(self.root)
        step, damage = self._choose(mode)
        if step and mode == "disable":
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
            advice="Restore what changed, name this run otherwise (trainer.experiment_name=...), or delete the folder.",
            earlier=None if step else {},
        )
        if is_first_rank():
            self._set_aside(step, damage)
        warning = "; ".join(f"global_step_{number}: {text}" for number, text in damage.items())
        kept = [path.name for number in damage if (path := self._aside(number, damage[number])).is_dir()]
        kept_as = f" Kept as {' and '.join(kept)}." if kept else ""
        goes_on = f"resumes after step {step}" if step else "starts from step 0"
        return step, warning and f"{warning}.{kept_as} The run {goes_on}."

    def _choose(self, mode: str) -> tuple[int, dict[int, str]]:
        """Return the step to resume after, and the damage of each later step up to the last one."""
        found, tracked = checkpoints(self.root), tracked_step(self.root)
        last = tracked if tracked is not None else max(found, default=0)
        damage: dict[int, str] = {}
        for step in sorted({*found, last} - {0}, reverse=True):
            if step > last and is_complete(self.root / f"global_step_{step}"):
                damage[step] = LATER
                continue
            text = find_damage(self.root / f"global_step_{step}")
            if not text:
                break
            damage[step] = text
        else:
            step = 0
        lost = [f"global_step_{number}: {text}" for number, text in damage.items() if text not in (UNFINISHED, LATER)]
        if lost and (not step or mode != "auto"):
            remedy = (
                f"trainer.resume_mode=auto resumes after step {step}, the newest that is complete."
                if step
                else f"No other one is complete. Restore its files; or delete {TRACKER} and the folders global_step_*, "
                "which starts from step 0."
            )
            raise ConfigError(f"the last checkpoint in {self.root} cannot be resumed: {lost[0]}. {remedy}")
        return step, damage

    def _aside(self, step: int, text: str) -> Path:
        return self.root / f"global_step_{step}.{'later' if text == LATER else 'damaged'}"

    def _set_aside(self, step: int, damage: Mapping[int, str]) -> None:
        """Make `step` the last one for verl, which reads the tracker only."""
        draft, tracker = self.root / f".{TRACKER}.tmp", self.root / TRACKER
        if step:
            draft.write_text(str(step), encoding="utf-8")
            draft.replace(tracker)
        else:
            tracker.unlink(missing_ok=True)
        for number, text in damage.items():
            folder, aside = self.root / f"global_step_{number}", self._aside(number, text)
            _remove(aside if text != UNFINISHED else folder, ignore_errors=True)
            if folder.is_dir():
                folder.rename(aside)


def _remove(folder: Path, ignore_errors: bool) -> None:
    """Remove a folder; where a user put a link to another disk in its place, only the link."""
    if folder.is_symlink():
        folder.unlink()
    else:
        shutil.rmtree(folder, ignore_errors=ignore_errors)
