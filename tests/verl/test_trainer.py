"""What our trainer adds to verl's, as far as neither Ray nor TransferQueue has to run; whole runs cover the rest."""

import json
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from tensordict import NonTensorStack
from transfer_queue import KVBatchMeta
from verl.trainer.main_ppo import TaskRunnerV1
from verl.trainer.ppo.core_algos import get_adv_estimator_fn
from verl.trainer.ppo.v1 import get_trainer_cls
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils.dataset.rl_dataset import collate_fn

from verl_agent.config.mixture import run_envs
from verl_agent.errors import ConfigError
from verl_agent.training.adaptive_horizon import Curriculum
from verl_agent.training.dataset import ENDLESS, TaskDataset
from verl_agent.training.estimators import gigpo, turn_returns
from verl_agent.training.trainer import STATE_FILE, EpisodeTrainer

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
    "data": {"train_batch_size": 6, "env_name": "both", "env_options": {}, "env_mixture": MIXTURE, "seed": 1},
    "trainer": {"resume_mode": "auto"},
}


def dataset(purpose: str = "train") -> TaskDataset:
    return TaskDataset(f"{purpose}:train", None, OmegaConf.create(CONFIG["data"]))


def trainer(step: int = 1, **settings: object) -> EpisodeTrainer:
    """One that has a loader and a curriculum, and nothing that takes a process."""
    made = EpisodeTrainer.__new__(EpisodeTrainer)
    made.config, made.global_steps = OmegaConf.create({**CONFIG, "trainer": {**CONFIG["trainer"], **settings}}), step
    made.curriculum = Curriculum(run_envs(CONFIG))
    rows = dataset()
    made.train_dataloader_it = iter(collate_fn([rows[6 * n + i] for i in range(6)]) for n in range(9))
    return made


def test_verl_finds_trainer_and_estimators_by_name():
    assert get_trainer_cls("verl_agent") is EpisodeTrainer
    assert issubclass(EpisodeTrainer, PPOTrainerSync)
    assert (get_adv_estimator_fn("gigpo"), get_adv_estimator_fn("turn_returns")) == (gigpo, turn_returns)
    assert callable(TaskRunnerV1.__ray_metadata__.modified_class.run), "verl_agent.training.runner builds on it"


class Ranks:
    """What a worker group says of its ranks: two that train, each with a replica."""

    _dispatch_info: ClassVar = {"actor": [0, 0, 1, 1]}


def test_what_fills_a_batch_up_is_spread_over_the_mini_batches():
    """Verl sorts it to the end of each rank's part; of 32 rows 13 fill up, 8 rows are a mini batch on a rank."""
    of = trainer(critic_warmup=0)
    of.config.actor_rollout_ref = {"actor": {"ppo_mini_batch_size": 4}, "rollout": {"n": 4}}
    of.use_critic, of.actor_rollout_wg, of.tokenizer = False, Ranks(), SimpleNamespace(eos_token_id=0)
    lengths = [400 + 10 * row for row in range(19)] + [128] * 13
    tags = [{"seq_len": length, "is_padding": row >= 19} for row, length in enumerate(lengths)]
    batch = of._balance_batch(KVBatchMeta([f"g_{row}_0" for row in range(32)], tags, partition_id="train"), {})
    filling = [tag["is_padding"] for tag in batch.tags]
    assert sorted(batch.keys) == sorted(f"g_{row}_0" for row in range(32))
    for begin in (0, 16):
        shares = [sum(filling[start : start + 8]) for start in (begin, begin + 8)]
        assert sum(shares) and abs(shares[0] - shares[1]) <= 1


def test_every_prompt_gets_the_limit_of_its_environment():
    """As verl's worker reads a row (agent_loop_tq.py, `generate_sequences`): tensors by index, others by `.data`."""
    of = trainer(step=2)
    of.curriculum.observe({"env/guess_number/success_rate": 0.9, "env/guess_number/turn_limit": 0.0})
    batch = of._next_train_batch()
    columns = dict(batch.items())
    assert isinstance(columns["env_label"], NonTensorStack) and isinstance(columns["turn_cap"], torch.Tensor)
    limits = {columns["env_label"][i].data: int(columns["turn_cap"][i]) for i in range(len(batch))}
    assert limits == {"guess_number": 5, "textcraft": 4}
    assert list(batch["env_label"]).count("textcraft") == 4
    assert batch["turn_cap"].dtype == torch.int64
    assert {int(chunk["turn_cap"][0]) for chunk in batch.chunk(6)} == {4, 5}


def test_rows_of_a_mixture_come_in_its_order_and_those_of_validation_in_theirs():
    train, held_out = dataset(), dataset("validation")
    assert len(train) == ENDLESS and train[10**5]["purpose"] == "train"
    assert [train[i]["task_id"] for i in range(60)] == [dataset()[i]["task_id"] for i in range(60)]
    sources = [held_out[i]["data_source"] for i in range(len(held_out))]
    assert set(sources) == {"guess_number", "textcraft"} and len(held_out) < 1000
    assert {held_out[i]["tasks"] for i in range(len(held_out))} == {"small_test", "easy_test"}


def test_a_checkpoint_of_another_recipe_is_refused(tmp_path):
    of, folder = trainer(step=3, default_local_dir=str(tmp_path)), tmp_path / "global_step_3"
    folder.mkdir()
    with pytest.raises(ConfigError, match=f"has no {STATE_FILE}"):
        of._restore_curriculum()
    (folder / STATE_FILE).write_text("{}")
    with pytest.raises(ConfigError, match="no state of the adaptive horizon of 'guess_number'"):
        of._restore_curriculum()
    (folder / STATE_FILE).write_text(json.dumps({"guess_number": {"stage": 1, "measured": []}}))
    of._restore_curriculum()
    assert of.curriculum.max_turns("guess_number", 4) == 5


def test_columns_stay_what_collating_makes_of_them():
    """Strings travel as objects; verl warns of anything else."""
    batch = collate_fn([dataset()[i] for i in range(3)])
    assert isinstance(batch["env_label"], np.ndarray) and batch["env_label"].dtype == object
