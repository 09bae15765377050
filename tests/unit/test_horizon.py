"""Test that the turn limit is a function of the step, so that a restart does not change it."""

import json

import pytest

from tests.support.packages import write_metadata
from verl_agent.errors import ConfigError
from verl_agent.horizon import SCHEDULE_GROUP, Adaptive, AdaptiveState, Horizon
from verl_agent.sections import section


def test_each_stage_lasts_its_steps_and_the_last_one_never_ends():
    horizon = Horizon([5, 8, 10], steps_per_stage=100)
    stages = {step: horizon.turns_at(step) for step in (1, 100, 101, 200, 201, 300, 10_000)}
    assert stages == {1: 5, 100: 5, 101: 8, 200: 8, 201: 10, 300: 10, 10_000: 10}


def test_a_resumed_run_has_the_limits_of_an_uninterrupted_one():
    """After a restart at step 100 of [5, 8, 10]/100, AgentGym-RL returned 8 and then 10."""
    whole = [Horizon([5, 8, 10], 100).turns_at(step) for step in range(1, 301)]
    for start in (50, 100, 101, 102, 250):
        assert [Horizon([5, 8, 10], 100).turns_at(step) for step in range(start + 1, 301)] == whole[start:]


def test_one_value_is_a_fixed_horizon():
    assert {Horizon([20]).turns_at(step) for step in (0, 1, 2, 999)} == {20}


def test_validation_before_training_uses_the_first_stage_of_the_schedule():
    assert Horizon([3, 6], 10).turns_at(0) == 3


def test_evaluation_does_not_depend_on_the_step():
    assert Horizon([3, 6, 10]).turns_for_evaluation() == 10
    assert Horizon([3, 6, 10], eval_max_turns=30).turns_for_evaluation() == 30


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_turns": []}, "horizon.max_turns=[] is not allowed. Allowed: a list of 1 or more whole numbers >= 1."),
        ({"max_turns": [0, 5]}, "horizon.max_turns[0]=0 is not allowed. Allowed: a whole number >= 1."),
        ({"max_turns": [10, 5]}, "horizon.max_turns must not shrink, got [10, 5]. Sort it, or fix the typing error."),
        (
            {"max_turns": [5], "steps_per_stage": 0},
            "horizon.steps_per_stage=0 is not allowed. Allowed: a whole number >= 1 or a list of whole numbers >= 1.",
        ),
        (
            {"max_turns": [5], "eval_max_turns": 0},
            "horizon.eval_max_turns=0 is not allowed. Allowed: a whole number >= 1 or null.",
        ),
    ],
)
def test_invalid_limits_raise_config_error_naming_the_key(values, message):
    with pytest.raises(ConfigError) as error:
        section("horizon", Horizon, values)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (8, "horizon.max_turns=8 is not allowed. Allowed: a list of 1 or more whole numbers >= 1, such as [8]."),
        (0, "horizon.max_turns=0 is not allowed. Allowed: a list of 1 or more whole numbers >= 1."),
        ("8", "horizon.max_turns='8' is not allowed. Allowed: a list of 1 or more whole numbers >= 1."),
        (["5", 8], "horizon.max_turns[0]='5' is not allowed. Allowed: a whole number >= 1."),
        ([4.5], "horizon.max_turns[0]=4.5 is not allowed. Allowed: a whole number >= 1."),
        ([True, 6], "horizon.max_turns[0]=True is not allowed. Allowed: a whole number >= 1."),
    ],
)
def test_limits_must_be_a_list_of_whole_numbers(limits, message):
    with pytest.raises(ConfigError) as error:
        section("horizon", Horizon, {"max_turns": limits})
    assert str(error.value) == message


# Growth by a constant, stages of different lengths


def test_each_stage_can_last_its_own_number_of_steps():
    horizon = Horizon([2, 4, 6], steps_per_stage=[1, 3])
    assert [horizon.turns_at(step) for step in range(1, 7)] == [2, 4, 4, 4, 6, 6]


def test_growth_by_a_constant_ends_at_up_to():
    horizon = Horizon([4], steps_per_stage=10, grow_by=3, up_to=12)
    assert horizon.stages == [4, 7, 10, 12]
    assert [horizon.turns_at(step) for step in (1, 10, 11, 21, 31, 999)] == [4, 4, 7, 10, 12, 12]
    assert horizon.turns_for_evaluation() == 12


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"steps_per_stage": [1, 2]}, "horizon.steps_per_stage=[1, 2] must have one value for each stage but the last"),
        ({"steps_per_stage": [0]}, "horizon.steps_per_stage[0]=0 is not allowed. Allowed: a whole number >= 1."),
        ({"grow_by": 2}, "horizon.grow_by=2 and horizon.up_to=None belong together."),
        ({"grow_by": 2, "up_to": 9}, "horizon.grow_by grows from one limit, horizon.max_turns has 2: [3, 6]."),
        (
            {"max_turns": [3], "grow_by": -1, "up_to": 9},
            "horizon.grow_by=-1 is not allowed. Allowed: a whole number >= 1",
        ),
        ({"max_turns": [3], "grow_by": 1, "up_to": 3}, "horizon.up_to=3 must exceed the first limit, 3."),
        ({"max_turns": [3], "grow_by": 1.5, "up_to": 9}, "horizon.grow_by=1.5 is not allowed. Allowed: a whole number"),
        ({"eval_max_turns": 2.5}, "horizon.eval_max_turns=2.5 is not allowed. Allowed: a whole number >= 1 or null."),
        ({"max_turns": [3], "adaptive": {"success_above": 0.5}}, "horizon.adaptive cannot grow from [3]."),
    ],
)
def test_invalid_stages_raise_config_error_naming_the_key(values, message):
    with pytest.raises(ConfigError) as error:
        section("horizon", Horizon, {"max_turns": [3, 6], **values})
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    "values", [{}, {"success_above": 1.0}, {"turn_limit_above": -0.1}, {"turn_limit_above": 0.5, "window": 0}]
)
def test_conditions_that_never_or_always_hold_raise_config_error(values):
    with pytest.raises(ConfigError, match=r"horizon\.adaptive"):
        section("horizon.adaptive", Adaptive, values)


# Adaptive horizons

GROWING = Horizon([3, 6, 9], steps_per_stage=2, adaptive=Adaptive(success_above=0.6, turn_limit_above=0.8, window=2))
MEASURED = [(0.1, 0.5), (0.7, 0.1), (0.9, 0.1), (0.9, 0.9), (0.0, 0.2), (0.0, 0.9), (0.0, 0.9), (1.0, 1.0)]


def limits(state: AdaptiveState, measured: list[tuple[float, float]]) -> list[int]:
    limits_by_step = []
    for success, turn_limit in measured:
        limits_by_step.append(state.max_turns)
        state.observe(success, turn_limit)
    return limits_by_step


def test_the_horizon_grows_when_tasks_are_solved_or_the_limit_ends_episodes():
    """Steps 2 and 3 solve 0.8 on average, the next two at 6 turns 0.45. The limit ends 0.9 of steps 6 and 7."""
    assert limits(AdaptiveState(GROWING), MEASURED) == [3, 3, 3, 6, 6, 6, 6, 9]


def test_a_stage_lasts_at_least_its_steps():
    patient = Horizon([3, 6, 9], steps_per_stage=[3, 1], adaptive=Adaptive(success_above=0.6, window=1))
    assert limits(AdaptiveState(patient), [(1.0, 0.0)] * 5) == [3, 3, 3, 6, 9]


@pytest.mark.parametrize("stop", range(len(MEASURED)))
def test_a_restored_state_continues_like_an_uninterrupted_one(stop):
    """The checkpoint holds the state as JSON."""
    whole = limits(AdaptiveState(GROWING), MEASURED)
    before, after = AdaptiveState(GROWING), AdaptiveState(GROWING)
    limits(before, MEASURED[:stop])
    after.restore(json.loads(json.dumps(before.saved())))
    assert limits(after, MEASURED[stop:]) == whole[stop:]


def test_a_state_with_more_stages_raises_config_error():
    with pytest.raises(ConfigError, match="at stage 4 of an adaptive horizon, but section `horizon` has only 3"):
        AdaptiveState(GROWING).restore({"stage": 3, "measured": []})


def test_turns_at_of_an_adaptive_horizon_raises():
    with pytest.raises(ValueError, match="is not a function of the step"):
        GROWING.turns_at(1)


SCHEDULES = """
def down(step, stages, *, by=1):
    return stages[-1] - by * step

def broken(step, stages):
    return {}[step]
"""


@pytest.fixture
def schedules(tmp_path, monkeypatch):
    names = ("down", "broken")
    write_metadata(tmp_path, "own-schedules", {SCHEDULE_GROUP: {name: f"own_schedules:{name}" for name in names}})
    tmp_path.joinpath("own_schedules.py").write_text(SCHEDULES)
    monkeypatch.syspath_prepend(tmp_path)


def test_a_schedule_of_another_package_chooses_the_limit_of_each_step(schedules):
    horizon = Horizon([4, 10], schedule="down", options={"by": 2})
    assert [horizon.turns_at(step) for step in (1, 2, 3)] == [8, 6, 4]
    assert horizon.turns_for_evaluation() == 10


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("dwn", {}, "horizon.schedule='dwn' is not registered. Did you mean 'down'?"),
        ("down", {"by": 10}, "returned 0 at step 1. Allowed: a whole number from 1 to 10"),
        ("down", {"by": 0.5}, "returned 9.5 at step 1"),
        ("down", {"to": 1}, "horizon.schedule='down' failed at step 1: TypeError"),
        ("broken", {}, "horizon.schedule='broken' failed at step 1: KeyError"),
    ],
)
def test_a_schedule_that_fails_raises_config_error_with_the_step(schedules, name, options, message):
    with pytest.raises(ConfigError) as error:
        Horizon([4, 10], schedule=name, options=options).turns_at(1)
    assert message in str(error.value)


@pytest.mark.parametrize(
    "others", [{"adaptive": Adaptive(success_above=0.5)}, {"steps_per_stage": 5}, {"order": "random"}]
)
def test_a_schedule_with_another_rule_for_the_limit_raises_config_error(others):
    with pytest.raises(ConfigError, match=r"horizon\.schedule='down' chooses the limit of every step"):
        Horizon([4, 10], schedule="down", **others)


def test_a_random_order_plays_every_limit_equally_often():
    horizon = Horizon([4, 8, 12], order="random")
    limits = [horizon.turns_at(step) for step in range(1, 31)]
    assert all(sorted(limits[start : start + 3]) == [4, 8, 12] for start in range(0, 30, 3))
    assert limits != [4, 8, 12] * 10 and horizon.turns_for_evaluation() == 12


def test_a_shrinking_order_begins_with_the_longest_limit():
    horizon = Horizon([4, 8], steps_per_stage=2, order="shrinking")
    assert [horizon.turns_at(step) for step in range(1, 5)] == [8, 8, 4, 4]


def test_an_order_without_several_limits_raises_config_error():
    with pytest.raises(ConfigError, match=r"horizon\.order=random"):
        Horizon([4], order="random")
