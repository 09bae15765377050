"""Tests of groups: keys of rows, and groups whose episodes have equal returns."""

import pytest

from verl_agent.training.groups import parts_of_equal_returns, row_order


def returns(**groups: list[float]) -> dict[str, float]:
    return {f"{group}_{sample}": value for group, values in groups.items() for sample, value in enumerate(values)}


def test_group_is_uniform_if_all_its_episodes_have_the_same_return():
    assert parts_of_equal_returns(returns(a=[1, 1, 1], b=[1, 0], c=[0]), {}) == {("a", ""), ("c", "")}


def test_returns_of_different_seats_are_not_compared():
    seats = {"a_0": "left", "a_1": "right", "a_2": "left", "a_3": "right"}
    assert parts_of_equal_returns(returns(a=[1, -1, 1, 0]), seats) == {("a", "left")}


@pytest.mark.parametrize("values", [[0.1 + 0.2, 0.3], [0.1 * 3 - 0.3, 0.0], [1e3, 1e3 + 1e-4]])
def test_returns_that_differ_by_rounding_are_equal(values):
    assert parts_of_equal_returns(returns(a=values), {}) == {("a", "")}


def test_small_differences_in_return_count():
    assert parts_of_equal_returns(returns(a=[0.70001, 0.7], b=[1e-5, 0.0]), {}) == set()


def test_rows_sort_by_group_sample_and_segment_as_numbers():
    keys = ["a_10_0", "a_9_1", "b_0_0", "a_9_0", "a_9_10"]
    assert sorted(keys, key=row_order) == ["a_9_0", "a_9_1", "a_9_10", "a_10_0", "b_0_0"]
