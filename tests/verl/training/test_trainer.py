"""Tests of the trainer and the dataset without Ray and TransferQueue; whole training runs test the rest."""

import itertools
import json
import random
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from tensordict import NonTensorStack
from transfer_queue import KVBatchMeta
from verl.trainer.main_ppo import TaskRunnerV1
from verl.trainer.ppo.checkpoint_callback import CheckpointCallback
from verl.trainer.ppo.core_algos import AdaptiveKLController, get_adv_estimator_fn
from verl.trainer.ppo.v1 import get_trainer_cls
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils.dataset.rl_dataset import collate_fn

from tests.support.bare_trainers import configure
from verl_agent.config.plan import RunPlan, running
from verl_agent.envs.registry import make_env
from verl_agent.errors import ConfigError
from verl_agent.horizon import Schedule
from verl_agent.models.checkpoints import find_damage, is_complete
from verl_agent.rollout.seeds import TaskDraws
from verl_agent.runs.hang_watch import PHASE_FILE
from verl_agent.trace.episode_summary import EpisodeSummary
from verl_agent.trace.metrics_log import MetricsTail, read_metrics
from verl_agent.training.dataset import ENDLESS, TaskDataset
from verl_agent.training.estimators import gigpo, turn_returns
from verl_agent.training.partial import PartialEpisodeTrainer, SeparateEpisodeTrainer
from verl_agent.training.phases import PHASE_OF_METHOD
from verl_agent.training.saving import FinishingCallback
from verl_agent.training.trainer import STATE_FILE, EpisodeTrainer
from verl_agent.training.turn_limits import TurnLimits
from verl_agent.types import StopReason, TaskItem

MIXTURE = [
    {
        "name": "guess_number",
        "train_tasks": "small_train",
        "eval_tasks": "small_test",
        "horizon": {"max_turns": [2, 5], "adaptive": {"success_above": 0.5, "window": 1}},
    },
    {"name": "textcraft", "weight": 2, "train_tasks": "easy_train", "eval_tasks": "easy_test"},
]
CONFIG = {
    "env": {"name": "both", "mixture": MIXTURE},
    "horizon": {"max_turns": [3, 4], "steps_per_stage": 1},
    "episode": {"max_tokens_per_turn": 8},
    "agent": {"name": "react"},
    "data": {"train_batch_size": 6, "seed": 1},
    "trainer": {"resume_mode": "auto"},
}


def dataset(purpose: str = "train") -> TaskDataset:
    with running(RunPlan.of(CONFIG)):
        return TaskDataset(purpose)


def trainer(step: int = 1, more: Mapping[str, Any] | None = None, **settings: object) -> EpisodeTrainer:
    """Return a trainer with a data loader and turn limits, without worker processes.

    Args:
        more: sections beside those of `CONFIG`.
        settings: keys of section `trainer`.
    """
    made = EpisodeTrainer.__new__(EpisodeTrainer)
    configure(made, CONFIG, {"trainer": settings}, more or {})
    made.global_steps = step
    made.turn_limits, made._prompt_numbers = TurnLimits(made.plan.envs), itertools.count()
    made._draws, made._drops, made._baselines = TaskDraws(), False, {}
    rows = dataset()
    made.train_dataloader_it = iter(collate_fn([rows[6 * n + i] for i in range(6)]) for n in range(9))
    return made


def test_trainer_and_estimators_are_registered_with_verl():
    assert get_trainer_cls("verl_agent") is EpisodeTrainer
    assert issubclass(EpisodeTrainer, PPOTrainerSync)
    assert (get_adv_estimator_fn("gigpo"), get_adv_estimator_fn("turn_returns")) == (gigpo, turn_returns)
    assert callable(TaskRunnerV1.__ray_metadata__.modified_class.run), "verl_agent.training.cluster calls it"


class Ranks:
    """Worker group with two training ranks, each with a replica."""

    _dispatch_info: ClassVar = {"actor": [0, 0, 1, 1]}


def balancing_trainer(mini_batch: int = 4, critic: Mapping[str, Any] | None = None) -> EpisodeTrainer:
    """Return a trainer of two ranks with four samples for each task."""
    policy = {"actor": {"ppo_mini_batch_size": mini_batch}, "rollout": {"n": 4}}
    made = trainer(more={"actor_rollout_ref": policy, "critic": critic or {}}, critic_warmup=0)
    made.use_critic, made.actor_rollout_wg, made.tokenizer = False, Ranks(), SimpleNamespace(eos_token_id=0)
    return made


def mini_batches(made: EpisodeTrainer, rows: list[tuple[str, int]], size: int) -> list[list[str]]:
    """Return the keys of each optimizer step over both ranks, as verl splits the balanced batch."""
    tags = [{"seq_len": length} for _, length in rows]
    keys = made._balance_batch(KVBatchMeta([key for key, _ in rows], tags, partition_id="train"), {}).keys
    assert sorted(keys) == sorted(key for key, _ in rows)
    half, part = len(rows) // 2, size // 2
    return [[*keys[begin : begin + part], *keys[half + begin : half + begin + part]] for begin in range(0, half, part)]


def test_mini_batches_have_whole_groups_in_any_order_of_completion():
    """Plain verl keeps the order of completion, so the first mini-batch of a step has the shortest episodes."""
    rows = [(f"g{group}_{sample}_0", 200 + 100 * sample + group) for group in range(8) for sample in range(4)]
    finished = sorted(rows, key=lambda row: row[1])
    expected = mini_batches(balancing_trainer(2), finished, 8)
    for part in expected:
        assert len({key.split("_")[0] for key in part}) == 2
    for seed in range(5):
        assert mini_batches(balancing_trainer(2), random.Random(seed).sample(rows, 32), 8) == expected


def test_balance_of_the_ranks_is_that_of_the_final_order():
    metrics, lengths = {}, [400 + 10 * row for row in range(32)]
    keys, tags = [f"g{row // 4}_{row % 4}_0" for row in range(32)], [{"seq_len": length} for length in lengths]
    batch = balancing_trainer()._balance_batch(KVBatchMeta(keys, tags, partition_id="train"), metrics)
    shares = [sum(tag["seq_len"] for tag in batch.tags[begin : begin + 16]) for begin in (0, 16)]
    assert (metrics["global_seqlen/balanced_min"], metrics["global_seqlen/balanced_max"]) == (min(shares), max(shares))


@pytest.mark.parametrize(("actor", "critic", "rows"), [(4, 2, 8), (6, 4, 8), (4, 4, 16)])
def test_mini_batches_of_actor_and_critic_consist_of_the_same_parts(actor, critic, rows):
    made = balancing_trainer(actor, {"enable": True, "ppo_mini_batch_size": critic})
    assert made._mini_batch_rows() == rows


def test_names_of_groups_sort_in_the_order_of_tasks():
    """The names that verl gives are random, so nothing else in a batch has the order of tasks."""
    made = trainer(step=9)
    first = list(made._next_train_batch()["uid"])
    made.global_steps = 10
    names = [*first, *made._next_train_batch()["uid"]]
    assert names == sorted(names) and len(set(names)) == 12
    assert not any("_" in name for name in names), "verl splits the key of a row at underscores"


def test_every_prompt_has_the_turn_limit_of_its_environment():
    """Workers of verl read tensors by index and other columns by `.data` (agent_loop_tq.py, `generate_sequences`)."""
    made = trainer(step=2)
    task = make_env("guess_number").tasks("small_train")[0].id
    episode = EpisodeSummary(1.0, True, 2, 2, StopReason.TERMINATED, env_label="guess_number", task=task)
    made.turn_limits.observe([episode])
    batch = made._next_train_batch()
    columns = dict(batch.items())
    assert isinstance(columns["env_label"], NonTensorStack) and isinstance(columns["max_turns"], torch.Tensor)
    limits = {columns["env_label"][i].data: int(columns["max_turns"][i]) for i in range(len(batch))}
    assert limits == {"guess_number": 5, "textcraft": 4}
    assert list(batch["env_label"]).count("textcraft") == 4
    assert batch["max_turns"].dtype == torch.int64
    assert {int(chunk["max_turns"][0]) for chunk in batch.chunk(6)} == {4, 5}


def test_a_task_that_a_step_draws_again_is_numbered():
    """DAPO replaces groups, and the episodes of the second draw must have other seeds."""
    made = trainer(step=2)
    rows = collate_fn([dataset()[i] for i in range(6)])
    made.train_dataloader_it = iter([{**rows}, {**rows}, {**rows}])
    assert {int(draw) for draw in made._next_train_batch()["draw"]} == {0}
    assert {int(draw) for draw in made._next_train_batch()["draw"]} == {1}
    made.global_steps = 3
    assert {int(draw) for draw in made._next_train_batch()["draw"]} == {0}


def test_training_rows_of_a_mixture_are_endless_and_validation_rows_are_not():
    train, validation = dataset(), dataset("validation")
    assert len(train) == ENDLESS and train[10**5]["purpose"] == "train"
    assert [train[i]["task_id"] for i in range(60)] == [dataset()[i]["task_id"] for i in range(60)]
    sources = [validation[i]["data_source"] for i in range(len(validation))]
    assert set(sources) == {"guess_number", "textcraft"} and len(validation) < 1000
    assert {validation[i]["tasks"] for i in range(len(validation))} == {"small_train", "easy_train"}


def test_training_validation_and_test_share_no_task():
    endless, validation, test = dataset(), dataset("validation"), dataset("test")
    rows = {"train": endless.rows, "validation": validation.rows, "test": test.rows}
    tasks = {name: {(row["env_label"], row["task_id"]) for row in part} for name, part in rows.items()}
    assert all(tasks.values()) and len(set.union(*tasks.values())) == sum(map(len, tasks.values()))
    assert {row["tasks"] for row in test.rows} == {"small_test", "easy_test"}
    assert {row["purpose"] for part in rows.values() for row in part} == set(rows)


def test_an_unknown_purpose_of_tasks_raises_config_error():
    with pytest.raises(ConfigError, match=r"got 'train:easy_train'\. Allowed: train, validation, test\."):
        dataset("train:easy_train")


def test_only_saved_steps_with_a_better_validation_are_the_best_so_far(tmp_path):
    made = trainer(default_local_dir=str(tmp_path), save_freq=2)
    made.total_training_steps, made._best = 9, None
    best = []
    for step, success in enumerate([0.9, 0.9, 0.2, 0.9, 0.2, 0.3, 0.3, 0.3, 0.3, 0.8]):
        made.global_steps = step
        if made._is_best({"val-core/talk/success/mean@1": success, "val-core/talk/reward/mean@1": -success}):
            best.append(step)
    assert best == [2, 6, 9], "steps 0, 1, 3 and 5 are not saved; step 9 is the last one"


def test_a_resumed_run_compares_with_the_best_checkpoint_that_it_has(tmp_path):
    made = trainer(step=4, default_local_dir=str(tmp_path), save_freq=2)
    made.total_training_steps, made._best = 9, None
    tmp_path.joinpath("best").mkdir()
    tmp_path.joinpath("best/best.json").write_text(json.dumps({"step": 2, "measure": "success", "value": 0.5}))
    assert not made._is_best({"val-core/talk/success/mean@1": 0.5})
    assert made._is_best({"val-core/talk/success/mean@1": 0.6})


def test_checkpoint_without_the_horizons_state_raises_config_error(tmp_path):
    made, folder = trainer(step=3, default_local_dir=str(tmp_path)), tmp_path / "global_step_3"
    folder.mkdir()
    with pytest.raises(ConfigError, match=f"has no {STATE_FILE}"):
        made.turn_limits.restore(made._saved_state(STATE_FILE))
    (folder / STATE_FILE).write_text("{}")
    with pytest.raises(ConfigError, match="no state of the schedule of 'guess_number'"):
        made.turn_limits.restore(made._saved_state(STATE_FILE))
    (folder / STATE_FILE).write_text(json.dumps({"guess_number": {"stage": 1, "measured": []}}))
    made.turn_limits.restore(made._saved_state(STATE_FILE))
    task = make_env("guess_number").tasks("small_train")[0]
    assert made.turn_limits.max_turns("guess_number", 4, task) == 5


class Counted(Schedule):
    """Schedule whose state is empty until it has seen episodes."""

    def __init__(self) -> None:
        super().__init__([4])
        self.seen: dict[str, int] = {}

    def limit(self, step: int, item: TaskItem) -> int:
        return 4

    def saved(self) -> dict[str, Any]:
        return dict(self.seen)

    def restore(self, saved: Mapping[str, Any]) -> None:
        self.seen = dict(saved)


def test_a_schedule_that_begins_with_an_empty_state_is_restored(tmp_path):
    made, folder = trainer(step=3, default_local_dir=str(tmp_path)), tmp_path / "global_step_3"
    folder.mkdir()
    made.turn_limits._schedules = {"guess_number": (own := Counted())}
    made._restore_states()  # the checkpoint has no file, and the schedule needs none
    (folder / STATE_FILE).write_text(json.dumps({"guess_number": {"a": 7}}))
    made._restore_states()
    assert own.seen == {"a": 7}


def test_text_columns_are_object_arrays_after_collating():
    """For other types verl prints a warning."""
    batch = collate_fn([dataset()[i] for i in range(3)])
    assert isinstance(batch["env_label"], np.ndarray) and batch["env_label"].dtype == object


class Saving:
    """Worker group and data loader that save a file; the first does not survive verl's deletion of old checkpoints."""

    def save_checkpoint(
        self, local_path: str, hdfs_path: str | None, global_step: int, max_ckpt_to_keep: int | None
    ) -> None:
        assert max_ckpt_to_keep is None, "verl would remove a checkpoint before the next one is complete"
        assert not is_complete(Path(local_path).parent)
        Path(local_path).mkdir()
        (Path(local_path) / "model_world_size_1_rank_0.pt").write_text(f"weights of step {global_step}")

    def state_dict(self) -> dict[str, int]:
        return {"row": 7}


class Uploading(CheckpointCallback):
    """Callback of a recipe, which copies complete checkpoints only."""

    def on_save(self, trainer, global_step, checkpoint_dir, async_save=False, **kwargs):
        assert find_damage(Path(checkpoint_dir)) == ""
        (Path(checkpoint_dir).parent / "uploaded").write_text(str(global_step))


class Logged:
    """verl's tracking, with its logger of files only."""

    def __init__(self, path: Path) -> None:
        self.fp = path.open("wb", buffering=0)
        self.logger = {"file": self}


class Full(Saving):
    """Worker group whose disk is full."""

    def save_checkpoint(self, *given: object, **named: object) -> None:
        raise OSError("the disk is full")


def test_the_metrics_of_a_step_are_in_the_file_before_its_checkpoint_is_written(tmp_path):
    made = trainer(step=3, default_local_dir=str(tmp_path), default_hdfs_dir=None)
    made.logger, made.timing_raw, made.steps_per_epoch = Logged(tmp_path / "a.jsonl"), {"gen": 2.0}, 2
    made.config.actor_rollout_ref, made.actor_rollout_wg = {"rollout": {}}, Full()

    def compute(batch: object, metrics: dict[str, object], timing: dict[str, float], **where: int) -> None:
        metrics.update({"rewards": batch, "timings": len(timing), **where})

    made._compute_metrics = compute  # verl's needs a batch in its queue
    made._stepped = (0.5, {"actor/loss": np.float32(0.25), "names": ["not a number"]}, 0.0)
    with pytest.raises(OSError, match="the disk is full"):
        made._save_checkpoint()
    expected = {"actor/loss": 0.25, "rewards": 0.5, "timings": 2.0, "global_steps": 3.0, "epoch": 1.0}
    assert read_metrics(tmp_path / "a.jsonl") == {3: expected}
    assert read_metrics(tmp_path / "a.jsonl", ended=True) == {} and MetricsTail(tmp_path / "a.jsonl").read() == []
    assert made._stepped[1] == {"actor/loss": 0.25, "names": ["not a number"]}, "verl logs its own later"
    made.logger.fp.close()


def saving_trainer(tmp_path: Path) -> EpisodeTrainer:
    """Return a trainer after step 3 that saves files in place of weights."""
    made = trainer(step=3, default_local_dir=str(tmp_path), default_hdfs_dir=None)
    made.config.trainer.max_actor_ckpt_to_keep = None
    made.actor_rollout_wg = made.train_dataloader = Saving()
    made.use_critic, made.trainer_mode = False, "sync"
    made.config.actor_rollout_ref = {"actor": {"checkpoint": {"async_save": False}}}
    made.checkpoint_callback = FinishingCallback(Uploading())
    return made


def test_a_checkpoint_gets_its_manifest_last_and_verl_removes_none(tmp_path):
    saving_trainer(tmp_path)._save_checkpoint()
    folder = tmp_path / "global_step_3"
    assert find_damage(folder) == "" and (tmp_path / "uploaded").read_text() == "3"
    assert (tmp_path / PHASE_FILE).read_text() == PHASE_OF_METHOD["_save_checkpoint"]
    for name in ("data.pt", STATE_FILE, "actor/model_world_size_1_rank_0.pt"):
        (folder / name).rename(tmp_path / "away")
        assert find_damage(folder) == f"{name} is missing"
        (tmp_path / "away").rename(folder / name)


def test_a_resumed_run_continues_with_the_adaptive_kl_coefficient_of_its_checkpoint(tmp_path):
    made = saving_trainer(tmp_path)
    made.kl_ctrl_in_reward = AdaptiveKLController(init_kl_coef=0.1, target_kl=1.0, horizon=10)
    made.kl_ctrl_in_reward.update(current_kl=9.0, n_steps=10)  # a clipped error of 0.2
    made._save_checkpoint()
    resumed = trainer(step=3, default_local_dir=str(tmp_path))
    resumed.kl_ctrl_in_reward = AdaptiveKLController(init_kl_coef=0.1, target_kl=1.0, horizon=10)
    resumed._restore_states()
    assert resumed.kl_ctrl_in_reward.value == pytest.approx(0.12)
    (tmp_path / "global_step_3/kl.json").unlink()  # a checkpoint of an earlier version
    resumed._restore_states()


@pytest.mark.parametrize("kind", [EpisodeTrainer, PartialEpisodeTrainer, SeparateEpisodeTrainer])
def test_every_trainer_marks_every_phase(kind):
    """A phase whose method verl has renamed is missing here."""
    assert all(hasattr(getattr(kind, name), "__wrapped__") for name in PHASE_OF_METHOD)
