"""Tests of the order of a batch: whole groups in mini-batches, independent of the order in which episodes ended."""

import random

import pytest

from verl_agent.training.batch_order import BatchRow, order_batch
from verl_agent.training.groups import group_of


def batch(sizes: list[int], rows: int, segments: int = 1, seed: int = 0) -> list[BatchRow]:
    """Return groups with these numbers of episodes, and padding up to a number of rows, in the order of completion."""
    luck = random.Random(seed)
    keys = [
        f"task{group}_{sample}_{segment}"
        for group, size in enumerate(sizes)
        for sample in range(size)
        for segment in range(segments)
    ]
    completed = [BatchRow(key, 100 + luck.randrange(900)) for key in keys]
    completed += [BatchRow(f"pad_{number}_0", 128, padding=True) for number in range(rows - len(keys))]
    return completed


def steps(rows: list[BatchRow], mini_batch: int, ranks: int, seed: int = 1, step: int = 1) -> list[list[BatchRow]]:
    """Return the rows of each optimizer step over all ranks, as verl splits the ordered batch."""
    ordered = [rows[index] for index in order_batch(rows, mini_batch, ranks, seed, step)]
    assert sorted(row.key for row in ordered) == sorted(row.key for row in rows)
    share, part = len(rows) // ranks, mini_batch // ranks
    return [
        [row for rank in range(ranks) for row in ordered[rank * share + begin : rank * share + begin + part]]
        for begin in range(0, share, part)
    ]


def groups_of(rows: list[BatchRow]) -> set[str]:
    return {group_of(row.key) for row in rows if not row.padding}


def split_groups(of_steps: list[list[BatchRow]]) -> set[str]:
    """Return the groups with rows in more than one optimizer step."""
    every = [group for rows in of_steps for group in groups_of(rows)]
    return {group for group in every if every.count(group) > 1}


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize(
    ("sizes", "rows", "segments"),
    [
        ([8] * 16, 128, 1),
        ([8, 7, 8, 5, 2, 8, 8, 6] * 2, 128, 1),
        ([8] * 9, 96, 1),
        ([1] * 30, 32, 1),
        ([3, 4] * 3, 96, 3),
    ],
    ids=["whole", "uneven", "dropped groups", "one sample", "segments"],
)
def test_every_optimizer_step_has_whole_groups(sizes, rows, segments, ranks):
    of_steps = steps(batch(sizes, rows, segments), 32, ranks)
    assert len(of_steps) == rows // 32
    assert all(len(step) == 32 for step in of_steps)
    assert split_groups(of_steps) == set()


@pytest.mark.parametrize("ranks", [1, 2])
def test_order_in_which_episodes_end_has_no_effect(ranks):
    rows = batch([8, 7, 8, 5, 2, 8, 8, 6], 64, seed=3)
    ordered = [rows[index].key for index in order_batch(rows, 16, ranks, 1, 5)]
    for seed in range(20):
        ended = random.Random(seed).sample(rows, len(rows))
        assert [ended[index].key for index in order_batch(ended, 16, ranks, 1, 5)] == ordered


def test_tasks_that_share_a_mini_batch_depend_on_seed_and_step():
    rows = batch([4] * 8, 32)

    def shared(seed: int, step: int) -> list[set[str]]:
        return [groups_of(part) for part in steps(rows, 8, 1, seed, step)]

    assert shared(1, 1) == shared(1, 1)
    assert len({str(list(map(sorted, shared(1, step)))) for step in range(10)}) == 10
    assert len({str(list(map(sorted, shared(seed, 1)))) for seed in range(10)}) == 10


def test_every_group_is_as_often_in_each_optimizer_step():
    """Groups of another size, such as those that lost episodes, are not always first or last."""
    rows = batch([4, 4, 4, 4, 4, 4, 4, 1], 32)
    first = [steps(rows, 8, 1, 1, step)[0] for step in range(400)]
    for group in range(8):
        count = sum(f"task{group}" in groups_of(part) for part in first)
        assert 60 < count < 140, f"task{group}: {count} of 400, expected 100"


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(("sizes", "rows"), [([8] * 13, 128), ([8] * 9, 128), ([1] * 70, 128), ([8, 7, 3] * 5, 96)])
def test_padding_of_optimizer_steps_differs_by_one_group_at_most(sizes, rows, ranks):
    shares = [sum(row.padding for row in part) for part in steps(batch(sizes, rows), 32, ranks)]
    assert max(shares) - min(shares) <= max(sizes)


@pytest.mark.parametrize("ranks", [1, 2])
def test_group_larger_than_a_mini_batch_is_split(ranks):
    of_steps = steps(batch([20, 3, 3, 2], 32), 8, ranks)
    assert split_groups(of_steps) == {"task0"}


def test_groups_that_cannot_be_packed_whole_are_split_and_the_batch_is_full():
    """Three groups of 5 rows do not fit into two mini-batches of 8 rows."""
    of_steps = steps(batch([5, 5, 5], 16), 8, 2)
    assert len(split_groups(of_steps)) == 1


@pytest.mark.parametrize("mini_batch", [32, 64, 128])
def test_ranks_have_about_the_same_workload_in_every_optimizer_step(mini_batch):
    rows, ranks = batch([8] * 15, 128), 4
    ordered = [rows[index] for index in order_batch(rows, mini_batch, ranks, 1, 1)]
    share, part = len(rows) // ranks, mini_batch // ranks
    loads = [
        [
            sum(row.workload for row in ordered[rank * share + begin : rank * share + begin + part])
            for rank in range(ranks)
        ]
        for begin in range(0, share, part)
    ]
    assert all(max(of_step) < 1.15 * min(of_step) for of_step in loads)
    totals = [sum(load) for load in zip(*loads, strict=True)]
    assert max(totals) < 1.03 * min(totals)


@pytest.mark.parametrize("size", [0, 6, 10])
def test_rows_that_fill_no_whole_mini_batches_raise_value_error(size):
    with pytest.raises(ValueError, match="do not fill mini-batches of 8 rows"):
        order_batch(batch([1] * size, size), 8, 1, 1, 1)
