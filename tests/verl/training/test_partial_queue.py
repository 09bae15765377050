"""Tests of sampler and trainer of asynchronous rollout with verl's TransferQueue as Ray actors."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch
import transfer_queue as tq
from tensordict import TensorDict
from verl.utils.tensordict_utils import get_tensordict, list_of_dict_to_tensordict

from tests.support.bare_trainers import configure
from tests.support.partial import SAMPLES, sampler
from tests.support.transfer_queue import empty_queue, running_queue
from verl_agent.config.reward_shaping import TurnRewards
from verl_agent.errors import EnvErrorLimitError
from verl_agent.horizon import Horizon
from verl_agent.rollout.seeds import TaskDraws
from verl_agent.trace.abandoned import read_abandoned
from verl_agent.trace.episode_summary import EpisodeSummary
from verl_agent.training.dispatch import EpisodeLoopManager
from verl_agent.training.groups import group_of
from verl_agent.training.invalid_episodes import PARTITION
from verl_agent.training.partial import PartialEpisodeTrainer
from verl_agent.training.sampler import EpisodeCrashError
from verl_agent.training.turn_limits import TurnLimits
from verl_agent.types import StopReason, TaskItem

REPORTS = PARTITION.format("train")


@pytest.fixture(scope="module", autouse=True)
def queue() -> Iterator[None]:
    with running_queue():
        yield


@pytest.fixture(autouse=True)
def empty(queue: None) -> None:
    empty_queue()


def put_prompt(group: str, step: int, status: str) -> None:
    tag = {"is_prompt": True, "status": status, "global_steps": step}
    columns = {
        "uid": [group],
        "env_label": ["numbers"],
        "task_id": [f"task-{group}"],
        "max_turns": torch.tensor([[4]]),
        "draw": torch.tensor([[0]]),
        "dummy_tensor": torch.zeros(1, 1, dtype=torch.uint8),  # as `TaskDataset` has it
    }
    tq.kv_batch_put(keys=[group], partition_id="train", fields=get_tensordict(columns), tags=[tag])


def put_rows(group: str, returns: list[float]) -> None:
    for sample, value in enumerate(returns):
        summary = EpisodeSummary(value, value >= 1, 2, 4, StopReason.TERMINATED)
        row = {
            "uid": group,
            "responses": torch.arange(3),
            "rm_scores": torch.tensor([0.0, 0.0, value]),
            "extra_fields": {"episode": summary.to_fields(), "turns": TurnRewards([value], ["s"]).to_fields()},
        }
        tag = {"status": "success", "response_len": 3, "seq_len": 5}
        fields = list_of_dict_to_tensordict([row])
        tq.kv_batch_put(keys=[f"{group}_{sample}_0"], partition_id="train", fields=fields, tags=[tag])


def put_report(group: str, sample: int) -> None:
    summary = EpisodeSummary(0.0, False, 0, 4, StopReason.ENV_ERROR)
    tq.kv_put(f"{group}_{sample}", REPORTS, tag=summary.to_fields())


def finish(group: str, step: int, returns: list[float] | None = None) -> None:
    put_rows(group, [0.0, 1.0] if returns is None else returns)
    put_prompt(group, step, "finished")


def keys(partition: str = "train") -> set[str]:
    return set((tq.kv_list(partition) or {}).get(partition, {}))


# Which groups form a batch


def test_a_step_trains_on_the_finished_groups_that_were_dispatched_first():
    for group, step in (("0000002-0", 2), ("0000001-1", 1), ("0000002-1", 2)):
        finish(group, step)
    put_prompt("0000001-0", 1, "running")
    put_rows("0000001-0", [1.0])  # its other episode is being played
    batch, metrics = sampler().sample(2, "train", 2)
    assert {group_of(key) for key in batch.keys} == {"0000001-1", "0000002-0"}
    assert metrics["episode/success_rate"] == 0.5
    assert {"0000001-0", "0000001-0_0_0", "0000002-1", "0000002-1_0_0"} <= keys()


def test_a_step_waits_for_a_group_that_would_become_too_old():
    finish("0000003-0", 3)
    put_prompt("0000001-0", 1, "running")
    waiting = sampler(threshold=3)
    waiting._sync_metadata_from_transfer_queue()
    finished = waiting.finished_keys["train"]
    assert waiting._has_enough_samples(2, "train", 1, finished)
    assert not waiting._has_enough_samples(3, "train", 1, finished)


def test_reports_of_groups_in_flight_stay_for_their_own_step():
    finish("0000001-0", 1)
    finish("0000001-1", 1, [1.0])
    put_report("0000001-1", 1)
    put_prompt("0000001-2", 1, "running")
    put_report("0000001-2", 0)
    put_report("0000000-9", 0)  # of a group that was filtered out
    batch, metrics = sampler().sample(1, "train", 2)
    assert {group_of(key) for key in batch.keys} == {"0000001-0"}
    assert metrics["env/errors"] == 1 and metrics["env/groups_dropped"] == 1
    assert keys(REPORTS) == {"0000001-2_0"}


def test_a_step_without_a_valid_episode_raises_env_error_limit_error():
    finish("0000001-0", 1, [])
    for sample in range(SAMPLES):
        put_report("0000001-0", sample)
    with pytest.raises(EnvErrorLimitError, match="2 of 2 episodes of this step are not valid"):
        sampler().sample(1, "train", 1)


def test_a_crashed_agent_loop_ends_the_run():
    """Verl's asynchronous buffer would replace its group by another one, and crash again, for ever."""
    put_prompt("0000001-0", 1, "failure")
    refilled: list[int] = []
    with pytest.raises(EpisodeCrashError):
        sampler(refill=refilled.append).sample(1, "train", 1)
    assert refilled == []


def test_dapo_replaces_each_uniform_group_by_one_other():
    refilled: list[int] = []

    def refill(count: int) -> None:
        refilled.append(count)
        for number in range(count):
            finish(f"0000001-9{number}", 1)

    finish("0000001-0", 1, [1.0, 1.0])
    finish("0000001-1", 1)
    filtering = sampler(refill=refill)
    filtering.replace_uniform("reward", batch_size=2, max_inflight=1, max_batches=3)
    batch, _ = filtering.sample(1, "train", 2)
    assert refilled == [1] and {group_of(key) for key in batch.keys} == {"0000001-1", "0000001-90"}


# Trainer


class Loops(EpisodeLoopManager):
    """Manager of one agent-loop worker, which only keeps what it receives."""

    def __init__(self) -> None:
        self.received: list[TensorDict] = []
        self.agent_loop_workers = [SimpleNamespace(generate_sequences=SimpleNamespace(remote=self.keep))]

    def keep(self, batch: TensorDict) -> ray.ObjectRef:
        self.received.append(batch)
        return ray.put(None)


def trainer(step: int, folder: Path, total: int = 9) -> PartialEpisodeTrainer:
    """Return a trainer without worker processes; its horizon is 4 turns, and 8 from step 3 on."""
    made = PartialEpisodeTrainer.__new__(PartialEpisodeTrainer)
    data = {"train_batch_size": 4, "gen_batch_size": 1}
    configure(made, {"data": data, "trainer": {"default_local_dir": str(folder)}})
    made.trainer_mode, made.global_steps, made.total_training_steps = "colocate_async", step, total
    made._prompt_numbers, made._draws, made.agent_loop_manager = itertools.count(), TaskDraws(), Loops()
    horizon = Horizon([4, 8], steps_per_stage=2)
    items = [TaskItem("numbers", f"task-000000{step}-{number}") for step in range(9) for number in range(9)]
    env = SimpleNamespace(train_tasks="train")
    numbers = SimpleNamespace(label="numbers", horizon=horizon, env=env, tasks=lambda source: items)
    made.turn_limits = TurnLimits([numbers])
    return made


def test_groups_in_flight_are_played_again_as_prompts_of_the_step_that_resumes(tmp_path):
    finish("0000002-0", 2)
    put_prompt("0000002-1", 2, "running")
    put_rows("0000002-1", [1.0])
    put_report("0000002-1", 1)
    put_prompt("0000002-2", 2, "pending")
    resumed = trainer(step=3, folder=tmp_path)
    assert resumed._reissue_inflight_prompts() == 2
    (batch,) = resumed.agent_loop_manager.received
    uids = list(batch["uid"])
    assert [uid[:17] for uid in uids] == ["0000003-000000000", "0000003-000000001"]
    assert [str(task) for task in batch["task_id"]] == ["task-0000002-1", "task-0000002-2"]
    assert torch.as_tensor(batch["max_turns"]).flatten().tolist() == [8, 8] and batch["global_steps"] == 3
    tags = tq.kv_list("train")["train"]
    assert {tags[uid]["global_steps"] for uid in uids} == {3}
    assert keys() == {"0000002-0", "0000002-0_0_0", "0000002-0_1_0", *uids}
    assert keys(REPORTS) == set()
    assert read_abandoned(tmp_path) == {"0000002-1", "0000002-2"}


def test_a_group_that_crashed_before_the_checkpoint_is_played_again(tmp_path):
    """The bug may be repaired, and a resumed run that still found the crash could never go on."""
    put_prompt("0000002-3", 2, "failure")
    put_rows("0000002-3", [1.0])
    resumed = trainer(step=3, folder=tmp_path)
    assert resumed._reissue_inflight_prompts() == 1
    (batch,) = resumed.agent_loop_manager.received
    assert [str(task) for task in batch["task_id"]] == ["task-0000002-3"]
    assert {tag["status"] for tag in tq.kv_list("train")["train"].values()} == {"pending"}


def test_a_restored_queue_loses_the_rows_that_its_step_has_trained_on():
    """The checkpoint is written before verl clears them."""
    from verl_agent.training.partial import clear_without_prompt

    finish("0000002-0", 2)
    put_rows("0000001-7", [1.0, 0.0])
    clear_without_prompt()
    assert keys() == {"0000002-0", "0000002-0_0_0", "0000002-0_1_0"}


@pytest.mark.parametrize(("step", "waiting", "dispatched"), [(7, 2, 4), (8, 2, 4), (9, 2, 2), (9, 4, 0)])
def test_the_last_steps_dispatch_what_will_be_trained_on(step, waiting, dispatched, tmp_path):
    """Four groups a step, nine steps; others would take the engine from the last validation."""
    for number in range(waiting):
        put_prompt(f"0000006-{number}", 6, "running")
    asked: list[int] = []

    class Counting(PartialEpisodeTrainer):
        def _next_train_batch(self, num_prompts: int | None = None) -> Any:
            asked.append(num_prompts or 4)

        def _submit_batch_to_rollout(self, batch: Any) -> int:
            return 0

    made = trainer(step, tmp_path)
    made.__class__ = Counting
    made.config.skip = {"rollout_tq": {"enable": False}}
    made._add_batch_to_generate()
    assert sum(asked) == dispatched
