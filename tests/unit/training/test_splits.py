"""Tests of the tasks to train on, to choose a checkpoint on, and to test on."""

import pytest

from verl_agent.config.settings import AgentEnv
from verl_agent.envs.settings import EnvSettings
from verl_agent.errors import ConfigError
from verl_agent.training.splits import count_held_out, split_tasks


def guess(train: str = "small_train", **more) -> AgentEnv:
    return AgentEnv(env=EnvSettings(name="guess_number", train_tasks=train, eval_tasks="small_test", **more))


def ids(tasks) -> set[str]:
    return {item.id for item in tasks}


def test_tasks_to_choose_a_checkpoint_on_are_held_out_of_the_training_tasks():
    (splits,) = split_tasks([guess()])
    every = guess().tasks("small_train")
    assert ids(splits.train) | ids(splits.dev) == ids(every)
    assert len(splits.train) + len(splits.dev) == len(every)
    assert ids(splits.test) == ids(guess().tasks("small_test"))
    assert not ids(splits.test) & ids(every)
    assert splits.dev_source == "small_train"
    assert [item.id for item in splits.train] == [item.id for item in every if item.id in ids(splits.train)]


def test_the_same_tasks_are_held_out_in_any_order_of_the_training_tasks(tmp_path):
    names = [item.id for item in guess().tasks("small_train")]
    path = tmp_path / "tasks.txt"
    path.write_text("\n".join(reversed(names)))
    (splits,), (again,) = split_tasks([guess()]), split_tasks([guess(str(path))])
    assert ids(splits.dev) == ids(again.dev)


@pytest.mark.parametrize(
    ("tasks", "held_out"), [(2, 1), (5, 1), (20, 4), (50, 10), (100, 10), (400, 40), (1000, 100), (9999, 100)]
)
def test_a_tenth_of_the_training_tasks_is_held_out(tasks, held_out):
    assert count_held_out(tasks) == held_out


@pytest.mark.parametrize("more", [{"dev_tasks": None}, {"overlap": True}, {"dev_tasks": "small_test", "overlap": True}])
def test_a_run_may_validate_on_the_tasks_of_the_test_alone(more):
    (splits,) = split_tasks([guess(**more)])
    assert ids(splits.train) == ids(guess().tasks("small_train"))
    assert (ids(splits.dev), splits.dev_source) == (ids(guess().tasks("small_test")), "small_test")
    assert splits.test == []


def test_a_chosen_split_takes_no_task_from_the_training_tasks():
    (splits,) = split_tasks([guess("small_test", dev_tasks="small_train")])
    assert len(splits.train) == len(guess().tasks("small_test"))
    assert ids(splits.dev) == ids(guess().tasks("small_train"))


def test_no_entry_of_a_mixture_trains_on_held_out_tasks_of_another(tmp_path):
    (alone,) = split_tasks([guess()])
    few = tmp_path / "few.txt"
    few.write_text("\n".join(item.id for item in alone.train[:20]))
    splits = split_tasks([guess(), guess(str(few))])
    held_out = ids(splits[0].dev) | ids(splits[1].dev)
    assert len(held_out) > len(splits[0].dev)
    for part in splits:
        assert part.train and not ids(part.train) & held_out


def test_a_single_training_task_cannot_be_held_out(tmp_path):
    one = tmp_path / "one.txt"
    one.write_text("5:1\n")
    with pytest.raises(ConfigError, match=r"one.txt' has too few tasks \(1\) for env.dev_tasks='auto'"):
        split_tasks([guess(str(one))])
