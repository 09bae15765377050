"""verl's SFT trainer, which also keeps the checkpoint that validated best."""

from pathlib import Path
from typing import Any

from verl.trainer.sft_trainer import SFTTrainer
from verl.utils.checkpoint import CheckpointHandler
from verl.utils.distributed import destroy_global_process_group, initialize_global_process_group

from verl_agent.runs.best_checkpoint import keep_best
from verl_agent.runs.folder import RunFolder


class KeepingHandler:
    """What verl's trainer asks of a checkpoint handler; the best checkpoint is kept apart from those it prunes.

    Args:
        handler: verl's own, which saves and loads.
    """

    def __init__(self, handler: CheckpointHandler) -> None:
        self._handler = handler

    def save_checkpoint(self, step: int) -> None:
        """Save; verl validates a step before."""
        self._handler.save_checkpoint(step)
        if self._handler.rank == 0:
            run = Path(self._handler.default_local_dir)
            keep_best(run)
            RunFolder.at(run).prune(self._handler.max_ckpt_to_keep)

    def load_checkpoint(self) -> int:
        """Load the last checkpoint, if there is one; returns its step or 0.

        What was saved with the last step of an epoch is a loader that has given everything. verl goes on with the
        next epoch by the number of the step, and would take that epoch for done (sft_trainer.py:341), so the loader
        begins anew.
        """
        step, loader = int(self._handler.load_checkpoint()), self._handler.train_dataloader
        if step % len(loader) == 0:
            loader.next_iter_state = None
        return step


class SupervisedTrainer(SFTTrainer):
    """verl's trainer with `KeepingHandler`."""

    def _build_ckpt_handler(self) -> None:
        super()._build_ckpt_handler()
        handler: CheckpointHandler = self.ckpt_handler
        self.ckpt_handler: CheckpointHandler | KeepingHandler = KeepingHandler(handler)


def run_trainer(kind: type[SFTTrainer], config: Any) -> None:
    """Train to the end in this process, as `verl.trainer.sft_trainer.run_sft` does with its own class."""
    initialize_global_process_group()
    kind(config=config).fit()
    destroy_global_process_group()
