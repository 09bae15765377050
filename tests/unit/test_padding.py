"""Rows that fill a batch up lie evenly in it."""

import pytest

from verl_agent.training.padding import spread_padding


@pytest.mark.parametrize(("rows", "filling", "ranks"), [(12, 5, 1), (12, 0, 1), (12, 4, 2), (16, 14, 2), (8, 8, 1)])
def test_every_mini_batch_of_a_rank_has_its_share(rows, filling, ranks):
    size = rows // ranks
    padding = [place % size >= size - filling // ranks for place in range(rows)]  # last in each part, as verl has them
    order = spread_padding(padding, ranks)
    assert sorted(order) == list(range(rows))
    for begin in range(0, rows, size):
        part = order[begin : begin + size]
        assert sorted(part) == list(range(begin, begin + size))
        assert [row for row in part if not padding[row]] == sorted(row for row in part if not padding[row])
        for mini in (2, 4):
            shares = [sum(padding[row] for row in part[at : at + mini]) for at in range(0, size - mini + 1, mini)]
            assert max(shares) - min(shares) <= 1
