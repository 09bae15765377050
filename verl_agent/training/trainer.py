"""verl's trainer with turn limits, turn-level estimators and mini-batches of whole groups.

The name of the synchronous one for `trainer.v1.trainer_mode` is `verl_agent`; `verl_agent.training.partial` has the
others. `verl_agent.training.cluster` imports both in the process in which verl looks up the name.
"""

import logging
import time
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, ClassVar

import torch
from tensordict import TensorDict
from torchdata.stateful_dataloader import StatefulDataLoader  # type: ignore[import-untyped]
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.checkpoint_callback import build_checkpoint_callback
from verl.trainer.ppo.v1 import register_trainer
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils.dataset.rl_dataset import collate_fn

from verl_agent.config.algorithms import BY_TOKEN, TURN_CRITICS
from verl_agent.config.plan import plan_of_process, running
from verl_agent.errors import ConfigError
from verl_agent.models.checkpoints import begin_checkpoint
from verl_agent.rollout.seeds import TaskDraws
from verl_agent.runs.best_checkpoint import Best, read_best, validation_result
from verl_agent.trace.provenance import read_json, write_json_atomically
from verl_agent.training.dataset import TaskDataset
from verl_agent.training.distillation import DistilledTraining
from verl_agent.training.own_estimators import register
from verl_agent.training.phases import marking_phases
from verl_agent.training.preflight.ranks import ANOTHER_STEP
from verl_agent.training.rejection import Rejection
from verl_agent.training.saving import FinishingCallback, log_before_saving, restore_kl, save_kl
from verl_agent.training.short_rows import shortened
from verl_agent.training.token_recorder import TokenRecorder
from verl_agent.training.turn_batch import MASKS, TurnBatch, computed, fetch_columns, replaced, write_columns
from verl_agent.training.turn_limits import TurnLimits
from verl_agent.training.turn_metrics import COLUMNS, clip_fractions, staleness_metrics, turn_metrics
from verl_agent.training.turns import BATCH_TURNS, BatchTurns
from verl_agent.training.verl_config import for_trainer

STATE_FILE, BASELINES_FILE = "horizon.json", "baselines.json"
"""Files in a checkpoint: the states of schedules of turn limits, and the running baselines of roles."""
EMPTY_STEPS = 10
"""Most consecutive steps in which `credit.truncated=drop` may leave no episode in the loss."""
LONGER = "Raise horizon.max_turns or the token budgets, choose easier tasks, or set credit.truncated=as_is."
logger = logging.getLogger(__name__)


class EpisodeTraining(DistilledTraining):
    """verl's `PPOTrainer`, which sets the turn limit of each prompt and passes turns to estimators.

    Attributes:
        mode: verl's mode of the trainer (`trainer.v1.trainer_mode`) from which a subclass also inherits.
    """

    mode: ClassVar[str]
    _stepped: tuple[KVBatchMeta, dict[str, Any], float] | None = None

    def __init__(self, config: Any) -> None:
        self.plan = plan = plan_of_process(config)
        self._rejection = Rejection.of(plan.value("algorithm.rollout_correction"))
        super().__init__(for_trainer(config, self.mode))
        self.checkpoint_callback = FinishingCallback(build_checkpoint_callback(config))
        self.turn_limits, self._draws = TurnLimits(plan.envs, plan.batch.seed), TaskDraws()
        self._shaping = plan.envs[0].credit
        estimator, treatments = plan.estimation.name, {env.credit.truncated for env in plan.envs}
        register(estimator)
        bootstraps, self._drops = "bootstrap" in treatments, "drop" in treatments
        self._places_rewards = estimator in BY_TOKEN and (self._shaping.place == "turn" or bootstraps)
        self._turn_critic = estimator in TURN_CRITICS
        self._recording = plan.envs[0].episode.record_tokens
        self._token_recorder: TokenRecorder | None = None
        self._bypass, self._dump_folder = bool(plan.estimation.bypass), ""
        self._empty_steps, self._baselines = 0, dict[str, float]()
        self._turn_batch: TurnBatch | None = None
        self._best: Best | None = None

    def _init_dataloader(self) -> None:
        """Add the tasks of the test, which are as many as those of a validation at most."""
        with running(self.plan):
            super()._init_dataloader()
            self._test_tasks = TaskDataset("test", max_samples=self.plan.batch.most_val)
        if self._recording:  # verl loads the tokenizer here
            self._token_recorder = TokenRecorder(
                self._recording, self.plan.schedule.folder, self.tokenizer, self._bypass
            )

    def _validate(self) -> dict[str, float]:
        """Play the tasks of the test too, before the first step and after the last.

        With `trainer.test_best` so does each saved step whose validation is the best so far. The best checkpoint of the
        run has then been tested with its own weights, without loading it again.
        """
        scores: dict[str, float] = super()._validate()
        is_end = self.global_steps == 0 or self.global_steps >= self.total_training_steps
        is_best = self.plan.schedule.test_best and self._is_best(scores)
        if len(self._test_tasks) and (is_end or is_best):
            scores |= self._test()
        return scores

    def _is_best(self, scores: Mapping[str, float]) -> bool:
        """Return True if this step is saved and validated better than all before, as `keep_best` compares them."""
        every, step = self.plan.schedule.save_every, self.global_steps
        result = validation_result(step, scores)
        is_saved = step > 0 and every > 0 and (step % every == 0 or step >= self.total_training_steps)
        best = self._best or read_best(self.plan.schedule.folder)
        if result is None or not is_saved or not result.better_than(best):
            return False
        self._best = result
        return True

    def _test(self) -> dict[str, float]:
        """Validate on the tasks of the test; metrics have the prefix `test-` instead of `val-`."""
        dev_tasks = self.val_dataloader  # type: ignore[has-type]
        size = self.plan.batch.val_tasks or len(self._test_tasks)
        self.val_dataloader = StatefulDataLoader(self._test_tasks, batch_size=size, collate_fn=collate_fn)
        self._dump_folder = "test"
        self.replay_buffer.begin_validation()
        try:
            scores = super()._validate()
        finally:
            self.val_dataloader, self._dump_folder = dev_tasks, ""
        return {f"test-{name.removeprefix('val-')}": value for name, value in scores.items()}

    def _dump_generations(self, *columns: Any, dump_path: str, **named: Any) -> None:
        """Keep the generations of the test apart from those of validations."""
        super()._dump_generations(*columns, dump_path=str(Path(dump_path) / self._dump_folder), **named)

    def _build_replay_buffer(self) -> ReplayBuffer:
        """Pass `algorithm.filter_groups` to the sampler, which verl does for its own only."""
        sampler = super()._build_replay_buffer()
        metric = self._resolve_filter_groups_metric()
        if metric is not None:
            most = (f"algorithm.filter_groups.{key}" for key in ("max_inflight_gen_batches", "max_num_gen_batches"))
            sampler.replace_uniform(metric, self.plan.batch.tasks, *map(self.plan.value, most))
        return sampler

    def _next_train_batch(self, num_prompts: int | None = None) -> TensorDict:
        """Add the columns of `_add_limits`."""
        return self._add_limits(super()._next_train_batch(num_prompts))

    def _add_limits(self, batch: TensorDict) -> TensorDict:
        """Set the columns `max_turns` and `draw` of `RolloutRow`, int64 `(B, 1)`, of prompts that this step plays."""
        labels, tasks = ([str(value) for value in batch[name]] for name in ("env_label", "task_id"))
        both = list(zip(labels, tasks, strict=True))
        limits = [[self.turn_limits.of_task(*key, self.global_steps)] for key in both]
        batch["max_turns"] = torch.tensor(limits, dtype=torch.int64)
        draws = [[self._draws.count(self.global_steps, *key)] for key in both]
        batch["draw"] = torch.tensor(draws, dtype=torch.int64)
        return batch

    def step(self, metrics: dict[str, Any], timing_raw: dict[str, float]) -> KVBatchMeta:
        """Schedules of turn limits observe the episodes of the step before its checkpoint is written."""
        began_s = time.perf_counter()
        batch = super().step(metrics, timing_raw)
        self.turn_limits.observe(self.replay_buffer.take_played())
        self._stepped = (batch, metrics, began_s)
        return batch

    def _without_loss(self, batch: KVBatchMeta) -> list[bool]:
        """The rows of dropped episodes have no loss either."""
        if not self._drops:
            return super()._without_loss(batch)
        turn_batch = TurnBatch.read(batch)
        return [any(reasons) for reasons in zip(turn_batch.padding, turn_batch.dropped, strict=True)]

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        """Compute advantages with the turns of the batch.

        In this order: rewards on tokens by turn, the teacher's (`DistilledTraining`), groups of equal returns
        (`GroupedBatches`), verl's estimator; then the critic's values, metrics, rejected tokens and recorded ones.
        """
        self._turn_batch = turn_batch = TurnBatch.read(batch)
        if self.plan.estimation.kl_in_reward:
            turn_batch.check_kl_in_reward()
        turn_batch.write_roles(batch)
        turns = BatchTurns(turn_batch.turns, self._shaping, turn_batch.token_values, self._baselines)
        token = BATCH_TURNS.set(turns)
        rewards = turn_batch.rewards(self.plan.estimation.gamma) if self._places_rewards else None
        try:
            with replaced(batch, rewards) if rewards else nullcontext():
                batch = super()._compute_advantage(batch, metrics)
        finally:
            BATCH_TURNS.reset(token)
        if self._turn_critic:
            write_columns(batch, turn_batch.values())
        estimation = self.plan.estimation
        clip = (estimation.clip_low, estimation.clip_high) if estimation.loss == "vanilla" else None
        columns = fetch_columns(batch, computed(COLUMNS, self._bypass))
        metrics.update(turn_metrics(turn_batch.turns, columns, clip))
        both = [columns[name] for name in ("old_log_probs", "rollout_log_probs") if name in columns]
        log_probs = (both[0], both[1]) if len(both) == 2 else None
        metrics.update(staleness_metrics(batch.keys, turn_batch.versions, self.global_steps - 1, log_probs))
        metrics["credit/dropped_share"] = turn_batch.dropped_share
        if self._rejection is not None:
            metrics.update(self._rejection.apply(batch))
        if self._token_recorder is not None:
            metrics.update(self._token_recorder.record(batch, turn_batch, self.global_steps))
        self._count_empty(turn_batch.dropped_share == 1)
        return batch

    def _count_empty(self, empty: bool) -> None:
        """Count consecutive steps in which no episode is left in the loss.

        Raises:
            ConfigError: there are `EMPTY_STEPS` of them.
        """
        self._empty_steps = self._empty_steps + 1 if empty else 0
        if empty:
            logger.warning("step %d: all episodes are truncated; no update is made. %s", self.global_steps, LONGER)
        if self._empty_steps >= EMPTY_STEPS:
            raise ConfigError(
                f"credit.truncated=drop left no episode in the loss in {EMPTY_STEPS} steps one after another. {LONGER}"
            )

    def _update_critic(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        """A critic of turns learns at the first token of each reply only.

        A critic learns from all episodes. Without those that `credit.truncated=drop` leaves out, it would expect
        success in every state of an environment that ends unsolved episodes at the turn limit only.
        """
        if not self._turn_critic:
            return super()._update_critic(batch, metrics)
        with replaced(batch, self._present.masks_of_first_tokens(fetch_columns(batch, MASKS))):
            return super()._update_critic(batch, metrics)

    def _update_actor(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        """Dropped episodes have no loss, and without any other episode the update is skipped."""
        turn_batch, updated = self._present, dict[str, Any]()
        if turn_batch.dropped_share == 1:
            return batch
        if any(turn_batch.dropped):
            with (
                replaced(batch, turn_batch.masks_without_dropped(fetch_columns(batch, MASKS))),
                shortened(batch, turn_batch.dropped),
            ):
                batch = super()._update_actor(batch, updated)
        else:
            batch = super()._update_actor(batch, updated)
        metrics.update(clip_fractions(updated, self._rejection is None and turn_batch.whole_episodes))
        return batch

    @property
    def _present(self) -> TurnBatch:
        """Turns of the present batch."""
        assert self._turn_batch is not None  # set by `_compute_advantage`
        return self._turn_batch

    def _save_checkpoint(self) -> None:
        """Log the step, add the states of horizons, baselines and KL coefficient, and write the manifest last."""
        if self._stepped is not None:
            log_before_saving(self, *self._stepped)
        folder = self.plan.schedule.folder / f"global_step_{self.global_steps}"
        begin_checkpoint(folder)
        write_json_atomically(folder / STATE_FILE, self.turn_limits.saved())
        write_json_atomically(folder / BASELINES_FILE, self._baselines)
        save_kl(self, folder)
        super()._save_checkpoint()

    def _load_checkpoint(self) -> None:
        """Load the checkpoint and the states that the run needs.

        Raises:
            ConfigError: the checkpoint lacks one.
        """
        super()._load_checkpoint()
        if self.global_steps:
            self._restore_states()

    def _restore_states(self) -> None:
        file = self.plan.schedule.folder / f"global_step_{self.global_steps}" / STATE_FILE
        if file.is_file() or self.turn_limits.saved():  # a package's own schedule may begin with an empty state
            self.turn_limits.restore(self._saved_state(STATE_FILE))
        if self.plan.estimation.name == "rae":
            self._baselines.update(self._saved_state(BASELINES_FILE))
        restore_kl(self, file.parent)

    def _saved_state(self, name: str) -> Any:
        file = self.plan.schedule.folder / f"global_step_{self.global_steps}" / name
        if not file.is_file():
            raise ConfigError(f"{file.parent} has no {name}: it was not written by a run with this trainer.")
        return read_json(file, f"To resume elsewhere, {ANOTHER_STEP}.")


@register_trainer("verl_agent")
@marking_phases
class EpisodeTrainer(EpisodeTraining, PPOTrainerSync):
    """Trainer that waits for all episodes of a step before it updates the weights."""

    mode = "sync"
