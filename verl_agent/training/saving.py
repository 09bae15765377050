"""Files of the trainer around a checkpoint: metrics of its step before it, KL coefficient in it, manifest last."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.checkpoint_callback import CheckpointCallback
from verl.trainer.ppo.core_algos import AdaptiveKLController

from verl_agent.models.checkpoints import finish_checkpoint
from verl_agent.trace.provenance import read_json, write_json_atomically
from verl_agent.training.preflight.ranks import ANOTHER_STEP

KL_FILE = "kl.json"
"""File in a checkpoint: the coefficient of `algorithm.kl_ctrl.type=adaptive`, which follows from measurements."""


def save_kl(trainer: Any, folder: Path) -> None:
    """Write the adaptive coefficient of the KL penalty into a checkpoint; nothing without one."""
    if isinstance(kl := getattr(trainer, "kl_ctrl_in_reward", None), AdaptiveKLController):
        write_json_atomically(folder / KL_FILE, {"coefficient": float(kl.value)})


def restore_kl(trainer: Any, folder: Path) -> None:
    """Set the adaptive coefficient of the KL penalty to that of a checkpoint, unless it has none."""
    kl, file = getattr(trainer, "kl_ctrl_in_reward", None), folder / KL_FILE
    if isinstance(kl, AdaptiveKLController) and file.is_file():
        kl.value = read_json(file, f"To resume elsewhere, {ANOTHER_STEP}.", ["coefficient"])["coefficient"]


def log_before_saving(trainer: Any, batch: KVBatchMeta, metrics: dict[str, Any], began_s: float) -> None:
    """Append the metrics of a step to the metrics file of the run, before its checkpoint is written.

    verl logs a step after its checkpoint and its validation (verl 0.9.1, trainer_base.py:514). A run that ends in
    between would lose the step's metrics, and for good if the checkpoint is complete.

    Args:
        metrics: metrics so far; they stay as they are.
        began_s: time at which the step began, as `time.perf_counter` gives it.
    """
    file = trainer.logger.logger.get("file")
    if file is None:
        return
    known, step = dict(metrics), trainer.global_steps
    if not trainer.config.actor_rollout_ref.rollout.get("moe_load_balance_metrics_interval", 0):  # it would count twice
        timing = {**trainer.timing_raw, "step": time.perf_counter() - began_s}
        epoch = (step - 1) // trainer.steps_per_epoch
        trainer._compute_metrics(batch, known, timing, global_steps=step, epoch=epoch)
    numbers = {name: value for name, value in known.items() if isinstance(value, int | float | np.number)}
    entry = {"step": step, "data": numbers, "before_saving": True}
    file.fp.write(orjson.dumps(entry, option=orjson.OPT_SERIALIZE_NUMPY) + b"\n")


class FinishingCallback(CheckpointCallback):
    """Checkpoint callback of verl that writes the manifest before it calls the callback of the recipe."""

    def __init__(self, then: CheckpointCallback) -> None:
        super().__init__(then.config)
        self._then = then

    def on_save(
        self, trainer: Any, global_step: int, checkpoint_dir: str, async_save: bool = False, **more: Any
    ) -> None:
        """Write the manifest before other callbacks read the checkpoint."""
        finish_checkpoint(Path(checkpoint_dir))
        self._then.on_save(trainer, global_step, checkpoint_dir, async_save, **more)
