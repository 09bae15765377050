"""The order of a mixture keeps the weights in every batch, plays every task as often, and needs no state."""

from collections import Counter

import pytest

from verl_agent.config.mixture import MixtureEnv, shares_of_a_batch
from verl_agent.config.settings import RunSettings
from verl_agent.envs.settings import EnvSettings
from verl_agent.errors import ConfigError
from verl_agent.horizon import Adaptive, Horizon
from verl_agent.rollout.settings import EpisodeSettings
from verl_agent.training.adaptive_horizon import Curriculum
from verl_agent.training.mixture import MixtureOrder

SIZES = {"a": 5, "b": 7, "c": 3}


@pytest.mark.parametrize("weights", [[1, 1, 1], [3, 1, 1], [0.5, 0.3, 0.2], [10, 1, 0.1]])
def test_every_batch_has_its_share_of_each_part(weights):
    order = MixtureOrder(SIZES, weights, seed=1)
    for start in range(0, 400, 8):
        drawn = Counter(order.at(position)[0] for position in range(start, start + 8))
        for label, weight in zip(SIZES, weights, strict=True):
            assert abs(drawn[label] - 8 * weight / sum(weights)) < 2
    total = Counter(order.at(position)[0] for position in range(400))
    for label, weight in zip(SIZES, weights, strict=True):
        assert abs(total[label] - 400 * weight / sum(weights)) <= 1


def test_a_task_comes_again_only_when_all_others_of_its_part_have_come():
    order = MixtureOrder(SIZES, [1, 1, 1], seed=1)
    played = [order.at(position) for position in range(3 * 35)]
    for label, size in SIZES.items():
        numbers = [number for part, number in played if part == label]
        rounds = [numbers[start : start + size] for start in range(0, len(numbers), size)]
        assert all(sorted(whole) == list(range(size)) for whole in rounds if len(whole) == size)
        assert rounds[0] != rounds[1], "each round is shuffled anew"


@pytest.mark.parametrize("stop", [1, 8, 57])
def test_an_order_that_begins_in_the_middle_goes_on_as_the_whole_one(stop):
    whole = [MixtureOrder(SIZES, [3, 2, 1], seed=4).at(position) for position in range(100)]
    resumed = MixtureOrder(SIZES, [3, 2, 1], seed=4)
    assert [resumed.at(position) for position in range(stop, 100)] == whole[stop:]


def test_the_seed_makes_the_order():
    first, second = ([MixtureOrder(SIZES, [1, 1, 1], seed).at(position) for position in range(30)] for seed in (1, 2))
    assert first != second


def test_shares_are_rounded_up():
    assert shares_of_a_batch([2, 1], 8) == [6, 3]
    assert shares_of_a_batch([1], 32) == [32]


# Limits of the parts

ADAPTIVE = Horizon([3, 6], adaptive=Adaptive(success_above=0.5, window=1))


def part(label: str, horizon: Horizon) -> MixtureEnv:
    return MixtureEnv(label, 1.0, RunSettings(EnvSettings(label), horizon, EpisodeSettings(8)))


def test_each_part_has_the_limit_of_its_own_horizon():
    curriculum = Curriculum([part("a", Horizon([2, 4], 2)), part("b", ADAPTIVE), part("c", ADAPTIVE)])
    curriculum.observe({"env/b/success_rate": 0.9, "env/b/turn_limit": 0.0, "episode/success_rate": 0.9})
    assert [curriculum.max_turns("a", step) for step in (1, 3)] == [2, 4]
    assert (curriculum.max_turns("b", 2), curriculum.max_turns("c", 2)) == (6, 3)


def test_a_single_environment_follows_the_metrics_of_the_batch():
    curriculum = Curriculum([part("a", ADAPTIVE)])
    curriculum.observe({"env/a/success_rate": 0.9, "env/a/turn_limit": 0.0})
    assert curriculum.max_turns("a", 2) == 3
    curriculum.observe({"episode/success_rate": 0.9, "stop/turn_limit": 0.0, "env/error_rate": 0.0})
    assert curriculum.max_turns("a", 3) == 6


def test_episodes_that_failed_say_nothing_of_the_limit():
    """Half of them did; of the others four fifths were cut."""
    horizon = Horizon([3, 6], adaptive=Adaptive(turn_limit_above=0.6, window=1))
    curriculum = Curriculum([part("a", horizon)])
    curriculum.observe({"episode/success_rate": 0.0, "stop/turn_limit": 0.4, "env/error_rate": 0.5})
    assert curriculum.max_turns("a", 2) == 6


def test_a_checkpoint_holds_the_state_of_every_adaptive_part():
    before, after = (Curriculum([part("a", Horizon([2])), part("b", ADAPTIVE)]) for _ in range(2))
    before.observe({"env/b/success_rate": 0.9, "env/b/turn_limit": 0.0})
    after.restore(before.saved())
    assert after.max_turns("b", 2) == 6
    with pytest.raises(ConfigError, match="no state of the adaptive horizon of 'b'"):
        after.restore({})
