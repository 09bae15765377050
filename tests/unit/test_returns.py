"""Test that a return and a success do not depend on the rounding of float sums."""

import random
from fractions import Fraction

import numpy as np
import pytest

from verl_agent.returns import differs_by, is_uniform, reaches, sum_rewards


@pytest.mark.parametrize("dtype", [float, np.float32], ids=["float64", "float32"])
def test_equal_parts_of_a_return_reach_it(dtype):
    missed = [k for k in range(1, 1001) if not reaches([float(dtype(1 / k))] * k, 1.0)]
    assert missed == []


def test_differences_of_scores_that_end_at_the_bound_reach_it():
    luck = random.Random(0)
    for _ in range(2_000):
        scores = [round(luck.uniform(-3, 3), 2) for _ in range(luck.randint(1, 12))] + [1.0]
        rewards = [after - before for before, after in zip([0.0, *scores], scores, strict=False)]
        assert reaches(rewards, 1.0), scores


def test_a_return_below_the_bound_does_not_reach_it():
    assert not reaches([0.1] * 9, 1.0)
    assert not reaches([1.0 - 1e-6], 1.0)
    assert not reaches([0.0] * 30, 1e-6)
    assert not reaches([], 1.0)
    assert not reaches([1.0] * 474, 475)


def test_large_rewards_that_cancel_out_reach_nothing():
    assert not reaches([1e7, -1e7], 1.0)
    assert not reaches([1e9, -1e9, 0.99], 1.0)
    assert reaches([1e7, -1e7, 1.0], 1.0)


@pytest.mark.parametrize("dtype", [float, np.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("bound", [1e-6, 0.3, 0.995, 100.0, 1e7])
def test_parts_of_another_bound_reach_it_and_less_does_not(bound, dtype):
    for parts in (1, 3, 10):
        assert reaches([float(dtype(bound / parts))] * parts, bound)
        assert not reaches([float(dtype(bound / parts)) * (1 - 2e-6)] * parts, bound)


def test_large_returns_are_equal_up_to_the_rounding_of_float32_only():
    assert not is_uniform([1e6, 1e6 + 0.5])
    assert is_uniform([1e6, float(np.nextafter(np.float32(1e6), np.float32(2e6)))])
    assert is_uniform([0.3, float(np.float32(0.3))])


def test_returns_differ_by_a_gap_up_to_rounding_and_equal_ones_never():
    assert differs_by(float(np.float32(100.7)), float(np.float32(100.2)), 0.5)
    assert differs_by(1e6 + 0.5, 1e6, 0.5)
    assert not differs_by(0.7, 0.3, 0.5)
    assert not differs_by(1e7, 1e7, 0.5)
    assert not differs_by(1.0, 1.0, 1e-9)


def test_a_bound_of_zero_and_below_is_reached_up_to_rounding():
    assert reaches([1.0, *[-0.1] * 10], 0.0)
    assert reaches([-0.1] * 3, -0.3)
    assert not reaches([-0.1] * 4, -0.3)


def test_a_return_is_the_exact_sum_rounded_once():
    luck = random.Random(1)
    for _ in range(200):
        rewards = [luck.uniform(-1, 1) * 10 ** luck.randint(-8, 8) for _ in range(30)]
        exact = float(sum(map(Fraction, rewards)))
        assert sum_rewards(rewards) == sum_rewards(sorted(rewards)) == exact
