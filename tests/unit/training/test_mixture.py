"""Tests of the task order of a mixture and of the turn limits of its environments."""

from collections import Counter

import pytest

from verl_agent.config.mixture import tasks_per_batch
from verl_agent.config.settings import RunEnv
from verl_agent.envs.settings import EnvSettings
from verl_agent.errors import ConfigError
from verl_agent.horizon import Adaptive, Horizon, PerTask
from verl_agent.rollout.settings import EpisodeSettings
from verl_agent.trace.episode_summary import EpisodeSummary
from verl_agent.training.mixture import MixtureOrder
from verl_agent.training.turn_limits import TurnLimits
from verl_agent.types import StopReason, TaskItem

SIZES = {"a": 5, "b": 7, "c": 3}


@pytest.mark.parametrize("weights", [[1, 1, 1], [3, 1, 1], [0.5, 0.3, 0.2], [10, 1, 0.1]])
def test_every_batch_has_environments_in_proportion_to_their_weights(weights):
    order = MixtureOrder(SIZES, weights, seed=1)
    for start in range(0, 400, 8):
        counts = Counter(order.at(position)[0] for position in range(start, start + 8))
        for label, weight in zip(SIZES, weights, strict=True):
            assert abs(counts[label] - 8 * weight / sum(weights)) < 2
    total = Counter(order.at(position)[0] for position in range(400))
    for label, weight in zip(SIZES, weights, strict=True):
        assert abs(total[label] - 400 * weight / sum(weights)) <= 1


def test_task_repeats_only_after_all_tasks_of_its_environment():
    order = MixtureOrder(SIZES, [1, 1, 1], seed=1)
    played = [order.at(position) for position in range(3 * 35)]
    for label, size in SIZES.items():
        numbers = [number for env, number in played if env == label]
        rounds = [numbers[start : start + size] for start in range(0, len(numbers), size)]
        assert all(sorted(one) == list(range(size)) for one in rounds if len(one) == size)
        assert rounds[0] != rounds[1], "each round is shuffled anew"


@pytest.mark.parametrize("stop", [1, 8, 57])
def test_order_from_a_later_position_equals_the_whole_order(stop):
    whole = [MixtureOrder(SIZES, [3, 2, 1], seed=4).at(position) for position in range(100)]
    resumed = MixtureOrder(SIZES, [3, 2, 1], seed=4)
    assert [resumed.at(position) for position in range(stop, 100)] == whole[stop:]


def test_order_depends_on_the_seed():
    first, second = ([MixtureOrder(SIZES, [1, 1, 1], seed).at(position) for position in range(30)] for seed in (1, 2))
    assert first != second


def test_tasks_per_batch_are_rounded_up():
    assert tasks_per_batch([2, 1], 8) == [6, 3]
    assert tasks_per_batch([1], 32) == [32]


# Turn limits

ADAPTIVE = Horizon([3, 6], adaptive=Adaptive(success_above=0.5, window=1))


TASK = TaskItem("any", "1")


def episodes(label: str, solved: int = 0, limited: int = 0) -> list[EpisodeSummary]:
    """Return ten episodes of three turns, of which these numbers solved the task or were ended by the limit."""
    stops = [StopReason.TURN_LIMIT] * limited + [StopReason.TERMINATED] * (10 - limited)
    return [EpisodeSummary(0.0, number < solved, 3, 3, stop, env_label=label) for number, stop in enumerate(stops)]


def run_env(label: str, horizon: Horizon) -> RunEnv:
    return RunEnv(env=EnvSettings(label), horizon=horizon, episode=EpisodeSettings(8), label=label)


def test_each_environment_has_the_turn_limit_of_its_own_horizon():
    limits = TurnLimits([run_env("a", Horizon([2, 4], 2)), run_env("b", ADAPTIVE), run_env("c", ADAPTIVE)])
    limits.observe(episodes("b", solved=9))
    assert [limits.max_turns("a", step, TASK) for step in (1, 3)] == [2, 4]
    assert (limits.max_turns("b", 2, TASK), limits.max_turns("c", 2, TASK)) == (6, 3)


def test_a_single_environment_follows_the_episodes_of_the_step_and_keeps_its_limit_without_any():
    limits = TurnLimits([run_env("a", ADAPTIVE)])
    limits.observe([])
    assert limits.max_turns("a", 2, TASK) == 3
    limits.observe(episodes("", solved=9))
    assert limits.max_turns("a", 3, TASK) == 6


@pytest.mark.parametrize("reason", [StopReason.ENV_ERROR, StopReason.OVERLONG_PROMPT])
def test_episodes_that_measure_nothing_do_not_count_in_the_turn_limit_share(reason: StopReason):
    """Half of the episodes do not count; the limit ended four fifths of the others."""
    horizon = Horizon([3, 6], adaptive=Adaptive(turn_limit_above=0.6, window=1))
    limits, invalid = TurnLimits([run_env("a", horizon)]), EpisodeSummary(0.0, False, 1, 3, reason)
    limits.observe([*episodes("", limited=4)[:5], *(invalid for _ in range(5))])
    assert limits.max_turns("a", 2, TASK) == 6


def test_an_episode_that_went_on_after_its_success_counts_up_to_the_success():
    """Solved at turn 3 or 4 of 16 by half of the episodes: four turns suffice."""
    horizon = Horizon([4, 8, 16], per_task=PerTask(explore=0.0, prior=0.0))
    limits, item = TurnLimits([run_env("a", horizon)]), TaskItem("any", "task")
    stop = StopReason.TURN_LIMIT
    solved = [EpisodeSummary(1.0, True, 16, 16, stop, task="task", solved_turns=at) for at in (3, 4, 3, 4)]
    limits.observe([*solved, *(EpisodeSummary(0.0, False, 16, 16, stop, task="task") for _ in range(4))])
    assert limits.max_turns("a", 2, item) == 4


def test_groups_of_a_task_are_told_apart():
    horizon = Horizon([4, 8], per_task=PerTask("ladder", patience=2))
    limits, item = TurnLimits([run_env("a", horizon)]), TaskItem("any", "task")
    limits.observe([EpisodeSummary(0.0, False, 4, 4, StopReason.TURN_LIMIT, task="task", group=at) for at in "aabb"])
    assert limits.max_turns("a", 2, item) == 8


def test_runs_of_different_seeds_explore_in_different_groups():
    horizon, found = Horizon([4, 8], per_task=PerTask(explore=0.5, prior=0.0)), set()
    for seed in (1, 1, 2):
        limits = TurnLimits([run_env("a", horizon)], seed)
        stop, half = StopReason.TERMINATED, (True, True, False, False)
        limits.observe([EpisodeSummary(0.0, solved, 3, 4, stop, task="1") for solved in half])
        found.add(tuple(limits.max_turns("a", step, TASK) for step in range(1, 41)))
    assert len(found) == 2


def test_environments_of_a_mixture_learn_limits_of_tasks_of_the_same_id_apart():
    """In `a` the task needs 7 turns, in `b` 3."""
    rule, stop = PerTask(explore=0.0, prior=0.0), StopReason.TERMINATED
    envs = [run_env(label, Horizon([4, 8], per_task=rule)) for label in "ab"]
    before, after = TurnLimits(envs), TurnLimits(envs)
    before.observe(
        [
            EpisodeSummary(0.0, solved, turns, 8, stop, task=TASK.id, env_label=label)
            for label, turns in (("a", 7), ("b", 3))
            for solved in (True, True, False, False)
        ]
    )
    after.restore(before.saved())
    assert [[one.max_turns(label, 2, TASK) for label in "ab"] for one in (before, after)] == [[8, 4], [8, 4]]


def test_checkpoint_has_the_state_of_every_adaptive_horizon():
    before, after = (TurnLimits([run_env("a", Horizon([2])), run_env("b", ADAPTIVE)]) for _ in range(2))
    before.observe(episodes("b", solved=9))
    after.restore(before.saved())
    assert after.max_turns("b", 2, TASK) == 6
    with pytest.raises(ConfigError, match="no state of the schedule of 'b'"):
        after.restore({})
