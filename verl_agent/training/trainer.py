"""verl's synchronous trainer, which also knows horizons and turns.

Registered under the name `verl_agent` for `trainer.v1.trainer_mode`; `verl_agent.training.runner` imports it where verl
looks the name up.
"""

import json
from pathlib import Path
from typing import Any

import torch
import transfer_queue as tq
from omegaconf import DictConfig, OmegaConf, open_dict
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1 import register_trainer
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

import verl_agent.training.estimators  # noqa: F401 - registers them
from verl_agent.config.mixture import run_envs
from verl_agent.errors import ConfigError
from verl_agent.preflight.algorithms import BY_TOKEN, TURN_ESTIMATORS
from verl_agent.training.adaptive_horizon import Curriculum
from verl_agent.training.padding import spread_padding
from verl_agent.training.turns import BATCH_TURNS, BatchTurns, TurnSpan, locate_turns, on_last_tokens

STATE_FILE = "curriculum.json"
"""What this trainer adds to a checkpoint."""


@register_trainer("verl_agent")
class EpisodeTrainer(PPOTrainerSync):
    """verl's `PPOTrainerSync` with the turn limit of each prompt, and with turns for estimators that ask for them."""

    def __init__(self, config: DictConfig) -> None:
        with open_dict(config):  # the mode has chosen this class; to verl, any other but this one is asynchronous
            config.trainer.v1.trainer_mode = "sync"
        super().__init__(config)
        parts = run_envs(OmegaConf.to_container(config, resolve=True))
        self.curriculum = Curriculum(parts)
        self._credit = parts[0].settings.credit
        estimator = config.algorithm.adv_estimator
        self._places_rewards = self._credit.place == "turn" and estimator in BY_TOKEN
        self._needs_turns = estimator in TURN_ESTIMATORS or self._places_rewards

    def _build_replay_buffer(self) -> ReplayBuffer:
        """See `PPOTrainer`, which keeps `algorithm.filter_groups` from samplers of others."""
        sampler = super()._build_replay_buffer()
        metric = self._resolve_filter_groups_metric()
        if metric is not None:
            groups = self.config.algorithm.filter_groups
            sampler.replace_uniform(
                metric,
                int(self.config.data.train_batch_size),
                groups.max_inflight_gen_batches,
                groups.max_num_gen_batches,
            )
        return sampler

    def _next_train_batch(self, num_prompts: int | None = None) -> TensorDict:
        """See `PPOTrainer`; every prompt gets its turn limit, int64 `(B, 1)`."""
        batch = super()._next_train_batch(num_prompts)
        limits = [[self.curriculum.max_turns(str(label), self.global_steps)] for label in batch["env_label"]]
        batch["turn_cap"] = torch.tensor(limits, dtype=torch.int64)
        return batch

    def step(self, metrics: dict[str, Any], timing_raw: dict[str, float]) -> KVBatchMeta:
        """See `PPOTrainer`; an adaptive horizon takes what was measured before the checkpoint is written."""
        batch = super().step(metrics, timing_raw)
        self.curriculum.observe(metrics)
        return batch

    def _balance_batch(self, batch: KVBatchMeta, metrics: dict[str, Any], **options: Any) -> KVBatchMeta:
        """See `PPOTrainer`; what fills mini batches up is spread over them."""
        batch = super()._balance_batch(batch, metrics, **options)
        ranks = max(self.actor_rollout_wg._dispatch_info["actor"]) + 1
        batch.reorder(spread_padding([tag.get("is_padding", False) for tag in batch.tags], ranks))
        return batch

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        """See `PPOTrainer`; estimators find the turns of the batch in `BATCH_TURNS`."""
        if not self._needs_turns:
            return super()._compute_advantage(batch, metrics)
        turns = self._turns(batch)
        token = BATCH_TURNS.set(BatchTurns(turns, self._credit))
        try:
            return super()._compute_advantage(batch, metrics)
        finally:
            BATCH_TURNS.reset(token)

    def _turns(self, batch: KVBatchMeta) -> list[TurnSpan]:
        """The turns of a batch; their rewards are put where they were earned, if the section `credit` says so."""
        data = tq.kv_batch_get(
            keys=batch.keys, partition_id=batch.partition_id, select_fields=["response_mask", "extra_fields"]
        )
        masks = list(data["response_mask"].unbind())
        fields = [getattr(value, "data", value) for value in data["extra_fields"]]
        padding = [tag.get("is_padding", False) for tag in batch.tags]
        turns = locate_turns(
            batch.keys, masks, [None if pad else field["turns"] for pad, field in zip(padding, fields, strict=True)]
        )
        if self._places_rewards:
            like_BT = torch.nn.utils.rnn.pad_sequence(masks, batch_first=True)
            rewards_BT = on_last_tokens(turns, like_BT)
            rows = [row[: len(mask)] for row, mask in zip(rewards_BT, masks, strict=True)]
            scores = TensorDict(
                {"rm_scores": torch.nested.as_nested_tensor(rows, layout=torch.jagged)}, batch_size=len(rows)
            )
            tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=scores)
        return turns

    def _save_checkpoint(self) -> None:
        """See `PPOTrainer`; the state of the horizon is written before the file that declares the checkpoint whole."""
        folder = Path(self.config.trainer.default_local_dir) / f"global_step_{self.global_steps}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / STATE_FILE).write_text(json.dumps(self.curriculum.saved()) + "\n", encoding="utf-8")
        super()._save_checkpoint()

    def _load_checkpoint(self) -> None:
        """See `PPOTrainer`.

        Raises:
            ConfigError: the checkpoint has no state of a horizon that has one.
        """
        super()._load_checkpoint()
        if self.global_steps and self.curriculum.adaptive:
            self._restore_curriculum()

    def _restore_curriculum(self) -> None:
        trainer = self.config.trainer
        if trainer.resume_mode == "resume_path":
            folder = Path(trainer.resume_from_path)
        else:
            folder = Path(trainer.default_local_dir) / f"global_step_{self.global_steps}"
        if not (folder / STATE_FILE).is_file():
            raise ConfigError(f"{folder} has no {STATE_FILE}: it was not written by a run with this trainer.")
        self.curriculum.restore(json.loads((folder / STATE_FILE).read_text(encoding="utf-8")))
