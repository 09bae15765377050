"""Tests of the order in which padding rows are spread over a batch."""

import pytest

from verl_agent.training.padding import spread_padding


@pytest.mark.parametrize(
    ("rows", "padding_rows", "ranks"), [(12, 5, 1), (12, 0, 1), (12, 4, 2), (16, 14, 2), (8, 8, 1)]
)
def test_mini_batches_of_a_rank_have_equal_padding_up_to_one_row(rows, padding_rows, ranks):
    size = rows // ranks
    padding = [row % size >= size - padding_rows // ranks for row in range(rows)]  # last of each rank, as in verl
    order = spread_padding(padding, ranks)
    assert sorted(order) == list(range(rows))
    for begin in range(0, rows, size):
        own = order[begin : begin + size]
        assert sorted(own) == list(range(begin, begin + size))
        assert [row for row in own if not padding[row]] == sorted(row for row in own if not padding[row])
        for mini in (2, 4):
            shares = [sum(padding[row] for row in own[at : at + mini]) for at in range(0, size - mini + 1, mini)]
            assert max(shares) - min(shares) <= 1
