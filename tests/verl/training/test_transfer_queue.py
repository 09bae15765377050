"""Tests of sampler, trainer and dispatch with verl's TransferQueue as Ray actors."""

import random
from collections.abc import Container, Iterator
from statistics import fmean, stdev
from types import SimpleNamespace
from typing import Any, ClassVar

import pyarrow.parquet as pq
import pytest
import ray
import torch
import transfer_queue as tq
from omegaconf import OmegaConf
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from tests.support.bare_trainers import configure
from tests.support.transfer_queue import running_queue
from verl_agent.config.reward_shaping import RewardShaping, TurnRewards
from verl_agent.errors import ConfigError
from verl_agent.rollout.settings import TokenRecording
from verl_agent.trace.episode_summary import EpisodeSummary
from verl_agent.trace.token_files import read_tokens, token_files
from verl_agent.training.dispatch import EpisodeLoopManager, shares
from verl_agent.training.grouped_batches import GroupedBatches
from verl_agent.training.groups import UNIFORM, group_of, row_order
from verl_agent.training.sampler import EpisodeSampler
from verl_agent.training.short_rows import shortened
from verl_agent.training.token_recorder import TokenRecorder
from verl_agent.training.trainer import EpisodeTrainer
from verl_agent.training.turn_batch import TurnBatch, write_columns
from verl_agent.types import StopReason

TASKS, SAMPLES = 4, 7
RETURNS = {0: [0.1] * 7, 1: [0.7] * 7, 2: [1 / 3] * 7, 3: [0.0, 1.0, 0.7, 0.0, 0.0, 1.0, 1.0]}
"""Returns of the episodes of each task; all but the last task are uniform, and rounded in float32."""


@pytest.fixture(scope="module", autouse=True)
def queue() -> Iterator[None]:
    with running_queue():
        yield


def sampler(**settings: object) -> EpisodeSampler:
    section = {"group_size": SAMPLES, "val_group_size": 1, "min_group_size": 2, "retries": 0, "skip_uniform": False}
    return EpisodeSampler(
        trainer_mode="sync",
        trainer_config=OmegaConf.create({}),
        max_off_policy_threshold=1,
        max_off_policy_strategy="drop",
        sampler_kwargs=OmegaConf.create({**section, "max_env_error_rate": 0.5, **settings}),
        refill_fn=lambda count: None,
    )


def finish_episodes(
    seed: int, returns: dict[int, list[float]] = RETURNS, dropped: Container[int] = (), arena: Container[int] = ()
) -> None:
    """Put the groups of a step into the queue, in an order of completion that depends on the seed."""
    if left := list((tq.kv_list() or {}).get("train", {})):
        tq.kv_clear(partition_id="train", keys=left)
    episodes = [(task, sample, value) for task, values in returns.items() for sample, value in enumerate(values)]
    for task, sample, value in random.Random(seed).sample(episodes, len(episodes)):
        seat = f"seat {sample % 2}" if task in arena else ""
        summary = EpisodeSummary(value, value >= 1, 2, 4, StopReason.TERMINATED, category=seat)
        treatment = "drop" if task in dropped and sample >= 2 else "as_is"
        turns = TurnRewards([value], ["state"], truncated=treatment, role=seat)
        ids, response = torch.arange(4 + task), torch.arange(3 + sample)
        row = {
            "uid": name(task),
            "prompts": ids,
            "responses": response,
            "input_ids": torch.cat([ids, response]),
            "position_ids": torch.arange(len(ids) + len(response)),
            "response_mask": torch.ones_like(response),
            "loss_mask": torch.ones_like(response),
            "rm_scores": torch.tensor([0.0] * (len(response) - 1) + [value]),
            "extra_fields": {"episode": summary.to_fields(), "turns": turns.to_fields()},
        }
        tag = {"status": "success", "response_len": len(response), "seq_len": len(ids) + len(response)}
        key = f"{name(task)}_{sample}_0"
        tq.kv_batch_put(keys=[key], partition_id="train", fields=list_of_dict_to_tensordict([row]), tags=[tag])
    for task in returns:
        tag = {"is_prompt": True, "status": "finished", "global_steps": 1}
        tq.kv_batch_put(keys=[name(task)], partition_id="train", tags=[tag])


def name(task: int) -> str:
    return f"0000001-{task:09d}-group"


class OneRank:
    """Worker group with one training rank."""

    _dispatch_info: ClassVar = {"actor": [0]}


class Trainer(GroupedBatches, PPOTrainerSync):
    """Smallest trainer with batches of groups."""


def trainer(
    estimator: str = "grpo", mini_batch: int = 1, kind: type[GroupedBatches] = Trainer, **changes: Any
) -> GroupedBatches:
    """Return a trainer without worker processes."""
    made = kind.__new__(kind)
    settings = {
        "algorithm": {"adv_estimator": estimator, "use_kl_in_reward": False, "gamma": 1.0, "lam": 1.0},
        "actor_rollout_ref": {"actor": {"ppo_mini_batch_size": mini_batch}, "rollout": {"n": SAMPLES}},
        "trainer": {"critic_warmup": 0},
        "data": {"seed": 1},
    }
    configure(made, settings, changes)
    made.global_steps, made.use_critic, made.actor_rollout_wg = 1, False, OneRank()
    made.tokenizer = SimpleNamespace(eos_token_id=0)
    return made


@pytest.mark.parametrize("estimator", ["grpo", "rloo"])
def test_advantages_of_equal_returns_are_exactly_zero(estimator):
    """In float32 the mean of seven times 0.7 is not 0.7, so verl's advantages are 0.056 with GRPO."""
    finish_episodes(seed=0)
    batch, _ = sampler().sample(1, "train", TASKS)
    batch = trainer(estimator)._balance_batch(batch, {})
    values = TensorDict({"entropy": torch.zeros(len(batch), 1)}, batch_size=len(batch))
    batch = tq.kv_batch_put(keys=batch.keys, partition_id="train", fields=values)  # as passes before it do
    trainer(estimator)._compute_advantage(batch, {})
    data = tq.kv_batch_get(keys=batch.keys, partition_id="train", select_fields=["advantages", "returns"])
    for field in ("advantages", "returns"):
        largest = {group_of(key): 0.0 for key in batch.keys}
        for key, row in zip(batch.keys, data[field].unbind(), strict=True):
            largest[group_of(key)] = max(largest[group_of(key)], row.abs().max().item())
        assert [largest[name(task)] for task in range(3)] == [0.0, 0.0, 0.0]
        assert largest[name(3)] > 0.5


def test_an_episode_of_a_seat_is_compared_with_those_of_the_same_seat(tmp_path):
    returns = {0: [0.0, 1.0, 0.5, 0.25, 1.0, 0.0], 1: [1.0, 0.0, 0.0, 1.0, 0.0, 1.0]}
    finish_episodes(0, returns, arena=(0,))
    batch, _ = sampler(group_size=6).sample(1, "train", 2)
    loss = {"actor": {"policy_loss": {"loss_mode": "gspo"}}}
    made = trainer(kind=EpisodeTrainer, trainer={"default_local_dir": str(tmp_path)}, actor_rollout_ref=loss)
    made._shaping, made._baselines, made._empty_steps = RewardShaping(), {}, 0
    made._places_rewards = made._turn_critic = made._bypass = False
    made._rejection = made._token_recorder = None
    made._compute_advantage(batch, {})
    data = tq.kv_batch_get(keys=batch.keys, partition_id="train", select_fields=["advantages"])
    found = dict(zip(batch.keys, data["advantages"].unbind(), strict=True))
    for task, seats in ((0, (0, 1, 0, 1, 0, 1)), (1, (0,) * 6)):
        for sample, value in enumerate(returns[task]):
            same = [other for other, seat in zip(returns[task], seats, strict=True) if seat == seats[sample]]
            expected = (value - fmean(same)) / (stdev(same) + 1e-6)
            assert found[f"{name(task)}_{sample}_0"].tolist() == pytest.approx([expected] * (3 + sample), abs=1e-5)


def test_rows_of_a_seat_with_equal_returns_are_marked():
    """Its advantages are then exactly 0, although another seat of its group has different returns."""
    returns = {0: [0.7, 0.0, 0.7, 1.0], 1: [0.7, 0.0, 0.7, 0.0], 2: [0.7, 0.0, 0.7, 0.0]}
    finish_episodes(0, returns, arena=(0, 1))
    batch, metrics = sampler(group_size=4, skip_uniform=True).sample(1, "train", 3)
    marked = {key for key, tag in zip(batch.keys, batch.tags, strict=True) if tag.get(UNIFORM)}
    assert marked == {f"{name(0)}_{sample}_0" for sample in (0, 2)}
    assert {group_of(key) for key in batch.keys} == {name(0), name(2)}, "both seats of task 1 have equal returns"
    assert metrics["episode/uniform_groups"] == 1


def test_mini_batches_do_not_depend_on_the_order_in_which_episodes_end():
    """The queue lists rows by completion; here a group without seven valid episodes leads to padding, too."""
    returns, batches = {**RETURNS, 1: [0.7] * 5 + [0.0]}, []
    for seed in range(3):
        finish_episodes(seed, returns)
        batch, _ = sampler().sample(1, "train", TASKS)
        batch = trainer(mini_batch=2)._balance_batch(batch, {})
        assert len(batch) == 28 and sum(tag.get("is_padding", False) for tag in batch.tags) == 1
        batches.append(
            ["pad" if tag.get("is_padding") else key for key, tag in zip(batch.keys, batch.tags, strict=True)]
        )
    assert batches[0] == batches[1] == batches[2]
    for part in (batches[0][:14], batches[0][14:]):
        assert len({group_of(key) for key in part} - {"pad"}) == 2


def test_dropped_episodes_are_spread_over_the_mini_batches():
    """Two of four groups have two rows with a loss. Packed by all of their rows, both could share a mini-batch."""
    finish_episodes(seed=0, dropped=(0, 1))
    batch, _ = sampler().sample(1, "train", TASKS)
    made = trainer(mini_batch=2, kind=EpisodeTrainer)
    made._drops = True
    for step in range(6):
        made.global_steps = step
        keys = made._balance_batch(batch, {}).keys
        trained = [group_of(key) not in (name(0), name(1)) or row_order(key)[1] < 2 for key in keys]
        assert sum(trained[:14]) == sum(trained[14:]) == 9


def test_kl_in_reward_is_refused_where_an_episode_has_several_rows(tmp_path):
    """A program may change its history. verl adds up the rewards of the last row, so other penalties have no effect."""
    finish_episodes(seed=0)
    keys = [f"{name(3)}_0_{row}" for row in (0, 1)]
    turns = TurnRewards([1.0], ["state"], first=1).to_fields()
    later = {"response_mask": torch.ones(3, dtype=torch.int64), "extra_fields": {"turns": turns}}
    tq.kv_batch_put(keys=keys[1:], partition_id="train", fields=list_of_dict_to_tensordict([later]), tags=[{}])
    folder = {"default_local_dir": str(tmp_path)}
    made = trainer(kind=EpisodeTrainer, trainer=folder, algorithm={"use_kl_in_reward": True})
    with pytest.raises(ConfigError, match=r"algorithm\.use_kl_in_reward=true is not allowed where an episode has"):
        made._compute_advantage(KVBatchMeta(partition_id="train", keys=keys, tags=[{}, {}]), {})


def test_token_data_is_that_of_the_queue(tmp_path):
    """The first two groups; the row of a dropped episode is not in the loss, and verl's padding is left out."""
    finish_episodes(seed=0, returns={**RETURNS, 1: [0.7] * 6}, dropped=(0,))
    batch, _ = sampler().sample(1, "train", TASKS)
    batch = trainer(mini_batch=1)._balance_batch(batch, {})
    assert any(tag.get("is_padding") for tag in batch.tags)
    turn_batch = TurnBatch.read(batch)
    values = [torch.arange(len(mask)) + 0.5 for mask in turn_batch.masks]
    write_columns(batch, {"advantages": values, "old_log_probs": [-value for value in values]})
    mask = turn_batch.masks[batch.keys.index(f"{name(1)}_0_0")].clone()
    mask[1] = 0  # as a rejection leaves it
    one = KVBatchMeta(partition_id="train", keys=[f"{name(1)}_0_0"], tags=[{}])
    write_columns(one, {"response_mask": [mask]})

    recorder = TokenRecorder(TokenRecording(every=5, groups=2), tmp_path, SimpleNamespace(decode=str))
    assert recorder.record(batch, turn_batch, 4) == {}
    assert 0 < recorder.record(batch, turn_batch, 5)["timing_s/record_tokens"] < 60
    (file,) = token_files(tmp_path)
    assert file.name == "step_5.parquet"
    table = pq.read_table(file)
    assert set(table["group"].to_pylist()) == {name(0), name(1)} and table.num_rows == SAMPLES + 6

    (row,) = read_tokens(file, name(1), 0)  # a prompt of 5 tokens, a reply of 3
    assert row.token_ids == [0, 1, 2, 3, 4, 0, 1, 2] and row.texts[-1] == "[2]"
    assert row.turns == [-1] * 5 + [0] * 3
    assert row.loss_mask == [False] * 5 + [True, False, True]
    assert row.columns == {"advantages": [0.5, 1.5, 2.5], "trainer_logprobs": [-0.5, -1.5, -2.5]}
    assert not any(read_tokens(file, name(0), 2)[0].loss_mask)


def test_copies_of_the_engines_log_probs_are_not_recorded_as_the_trainers(tmp_path):
    finish_episodes(seed=0)
    batch, _ = sampler().sample(1, "train", TASKS)
    turn_batch = TurnBatch.read(batch)
    write_columns(batch, {"old_log_probs": [mask * 0.5 for mask in turn_batch.masks]})
    recorder = TokenRecorder(TokenRecording(every=1), tmp_path, SimpleNamespace(decode=str), bypass_mode=True)
    recorder.record(batch, turn_batch, 1)
    assert "trainer_logprobs" not in read_tokens(*token_files(tmp_path), name(0), 0)[0].columns


def test_a_disk_without_space_does_not_end_the_run(tmp_path, caplog):
    finish_episodes(seed=0)
    batch, _ = sampler().sample(1, "train", TASKS)
    (tmp_path / "tokens").write_text("a file where the folder should be")
    recorder = TokenRecorder(TokenRecording(), tmp_path, SimpleNamespace(decode=str))
    assert "timing_s/record_tokens" in recorder.record(batch, TurnBatch.read(batch), 1)
    assert "step 1: the token data is not written" in caplog.text


def token_columns(keys: list[str]) -> dict[str, dict[str, list]]:
    """Return the columns of tokens of rows by key, in plain lists."""
    fields = ["prompts", "responses", "input_ids", "position_ids", "response_mask", "loss_mask"]
    data = tq.kv_batch_get(keys=keys, partition_id="train", select_fields=fields)
    return {
        key: {name: data[name].unbind()[row].tolist() for name in fields} for row, key in enumerate(keys)
    }  # fmt: skip


def test_rows_that_fill_up_a_batch_have_one_token_of_prompt_and_one_of_response():
    """Rows of verl have 128 tokens each, as many as half of the tokens of an update."""
    finish_episodes(seed=0, returns={**RETURNS, 1: [0.7] * 2 + [0.0]})
    batch, _ = sampler().sample(1, "train", TASKS)
    before = token_columns(batch.keys)
    batch = trainer(mini_batch=2)._balance_batch(batch, {})
    padding = [key for key, tag in zip(batch.keys, batch.tags, strict=True) if tag.get("is_padding")]
    assert len(padding) == 4
    lengths = [tag["seq_len"] for tag in batch.tags if tag.get("is_padding")]
    assert lengths == [2] * 4
    short = {"prompts": [0], "responses": [0], "input_ids": [0, 0], "position_ids": [0, 1]}
    after = token_columns(batch.keys)
    assert all(after[key] == {**short, "response_mask": [0], "loss_mask": [0]} for key in padding)
    assert {key: row for key, row in after.items() if key not in padding} == before


def test_rows_of_dropped_episodes_are_short_during_the_update_only():
    finish_episodes(seed=0, dropped=(1,))
    batch, _ = sampler().sample(1, "train", TASKS)
    dropped = [group_of(key) == name(1) and row_order(key)[1] >= 2 for key in batch.keys]
    before = token_columns(batch.keys)
    with shortened(batch, dropped):
        during = token_columns(batch.keys)
    assert sum(dropped) == 5
    for key, cut in zip(batch.keys, dropped, strict=True):
        row = during[key]
        assert [len(row[column]) for column in ("prompts", "responses", "input_ids")] == [1, 1, 2] or not cut
        assert row == before[key] or cut
    assert token_columns(batch.keys) == before


def test_dapo_trains_on_the_first_tasks_of_those_that_remain():
    """The names of groups that verl gives are random, and so was the choice."""
    filtering = sampler()
    chosen, _, _ = filtering._select_prompt_uids("train", {name(task) for task in range(40)}, 8)
    assert chosen == [name(task) for task in range(8)]


class Worker:
    """Agent-loop worker in this process, which keeps the numbers of its prompts."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self.generate_sequences = SimpleNamespace(remote=self.keep)

    def keep(self, batch: TensorDict) -> ray.ObjectRef:
        self.received += [int(index) for index in batch["index"]]
        return ray.put(None)


def test_replaced_groups_go_to_all_workers_in_turn():
    """Plain verl sends a refill of one prompt to the first worker each time."""
    manager = EpisodeLoopManager.__new__(EpisodeLoopManager)
    manager.agent_loop_workers = [Worker() for _ in range(2)]
    sent = 0
    for prompts in (4, 1, 1, 3, 1, 1):
        manager.generate_sequences(TensorDict({"index": torch.arange(sent, sent + prompts)}, batch_size=prompts))
        sent += prompts
    received = [worker.received for worker in manager.agent_loop_workers]
    assert sorted(index for indices in received for index in indices) == list(range(sent))
    assert sorted(map(len, received)) == [5, 6]


def test_shares_of_the_workers_differ_by_one_prompt_at_most():
    """Plain verl gives two of ten prompts to five of eight workers, and none to three."""
    assert shares(10, 8, 0) == [2, 2, 1, 1, 1, 1, 1, 1]
    assert shares(2, 4, 3) == [1, 0, 0, 1]
    assert shares(3, 1, 0) == [3]
