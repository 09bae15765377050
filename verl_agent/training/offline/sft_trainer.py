"""verl's SFT trainer, whose checkpoints have a manifest, and which keeps the one with the best validation."""

from pathlib import Path
from typing import Any

import torch
from verl.trainer.sft_trainer import SFTTrainer
from verl.utils.checkpoint import CheckpointHandler
from verl.utils.distributed import destroy_global_process_group, initialize_global_process_group

from verl_agent.config.plan import OfflinePlan
from verl_agent.models.checkpoints import begin_checkpoint, finish_checkpoint
from verl_agent.runs.best_checkpoint import keep_best
from verl_agent.runs.folder import RunFolder
from verl_agent.training.offline.encoding import EpisodeEncoder
from verl_agent.training.offline.plan import Rows
from verl_agent.training.offline.play import CheckpointPlayer, player_of


class BestCheckpointHandler:
    """Checkpoint handler of verl's trainer that adds manifests, and keeps the best checkpoint when it prunes others."""

    def __init__(self, handler: CheckpointHandler, player: CheckpointPlayer | None = None) -> None:
        self._handler, self._player = handler, player
        self._keep, handler.max_ckpt_to_keep = handler.max_ckpt_to_keep, None  # verl would remove before it saves

    def save_checkpoint(self, step: int) -> None:
        """Save a checkpoint, play it, and update the best one; verl has computed the validation loss before."""
        run = Path(self._handler.default_local_dir)
        checkpoint = run / f"global_step_{step}"
        if self._handler.rank == 0:
            begin_checkpoint(checkpoint)
        self._handler.save_checkpoint(step)
        if self._handler.rank == 0:
            finish_checkpoint(checkpoint)
            if self._player is not None:
                self._player.play(step)
            keep_best(run)
            RunFolder.at(run).prune(self._keep)

    def load_checkpoint(self) -> int:
        """Load the last checkpoint and return its step; 0 without a checkpoint.

        The loader that is saved with the last step of an epoch is exhausted. verl derives the next epoch from the step
        and would skip that epoch (sft_trainer.py:341), so the state of the loader is dropped.

        Within an epoch, verl reads the state that this rank saved. With another number of ranks there may be none, and
        it counts rows of larger or smaller batches, so the state of rank 0 is used with rows counted anew.
        """
        step, loader = int(self._handler.load_checkpoint()), self._handler.train_dataloader
        if step and self._player is not None and self._handler.rank == 0:  # a killed run may have saved without playing
            self._player.play(step)
            keep_best(Path(self._handler.default_local_dir))
        if step % len(loader) == 0:
            loader.next_iter_state = None
        else:
            folder = Path(self._handler.default_local_dir) / f"global_step_{step}"
            state = torch.load(folder / "data_0.pt", weights_only=False)
            count_rows(state, loader.batch_size)
            loader.load_state_dict(state)
        return step


def count_rows(state: dict[str, Any], batch_size: int) -> None:
    """Correct the number of rows that a saved loader has taken from its sampler."""
    of_sampler = state["_snapshot"]["_main_snapshot"] if "_snapshot" in state else state
    of_sampler["_sampler_iter_state"]["samples_yielded"] = of_sampler["_sampler_iter_yielded"] * batch_size


class SupervisedTrainer(SFTTrainer):
    """SFT trainer of verl with `BestCheckpointHandler`."""

    def __init__(self, plan: OfflinePlan, config: Any, rows: Rows) -> None:
        self.plan, self._rows = plan, rows
        super().__init__(config)

    def _build_dataset(self) -> None:
        model, lengths = self.model_config, self.plan.lengths
        kind, options = model.hf_config.model_type, dict(lengths.template_options)
        encoder = EpisodeEncoder(model.tokenizer, kind, self.plan.played, int(lengths.row), options)
        self.train_dataset, self.val_dataset = self._rows.datasets(encoder)

    def _build_ckpt_handler(self) -> None:
        super()._build_ckpt_handler()
        handler: CheckpointHandler = self.ckpt_handler
        self.ckpt_handler: CheckpointHandler | BestCheckpointHandler = BestCheckpointHandler(
            handler, player_of(self.plan)
        )


def run_trainer(kind: type[SupervisedTrainer], plan: OfflinePlan, config: Any, rows: Rows) -> None:
    """Train to the end in this process, as `verl.trainer.sft_trainer.run_sft` does for verl's own class.

    Args:
        config: verl's config of the plan.
    """
    initialize_global_process_group()
    kind(plan, config, rows).fit()
    destroy_global_process_group()
