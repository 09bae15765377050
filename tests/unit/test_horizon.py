"""The turn limit is a function of the step alone, so it is the same before and after a restart."""

import json

import pytest

from verl_agent.errors import ConfigError
from verl_agent.horizon import Adaptive, AdaptiveState, Horizon


def test_each_stage_lasts_its_steps_and_the_last_one_for_ever():
    horizon = Horizon([5, 8, 10], steps_per_stage=100)
    stages = {step: horizon.turns_at(step) for step in (1, 100, 101, 200, 201, 300, 10_000)}
    assert stages == {1: 5, 100: 5, 101: 8, 200: 8, 201: 10, 300: 10, 10_000: 10}


def test_a_run_resumed_at_any_step_goes_on_as_if_it_had_not_stopped():
    """The reference gave 8, then 10 after a restart at step 100 of [5, 8, 10]/100 (fault 2)."""
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
        ({"max_turns": []}, "horizon.max_turns must hold limits >= 1, got []."),
        ({"max_turns": [0, 5]}, "horizon.max_turns must hold limits >= 1, got [0, 5]."),
        (
            {"max_turns": [10, 5]},
            "horizon.max_turns must not shrink, got [10, 5]. Sort it, or fix the typing error.",
        ),
        ({"max_turns": [5], "steps_per_stage": 0}, "horizon.steps_per_stage must be >= 1, got 0."),
        ({"max_turns": [5], "eval_max_turns": 0}, "horizon.eval_max_turns must be >= 1 or null, got 0."),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(values, message):
    with pytest.raises(ConfigError) as error:
        Horizon(**values)
    assert str(error.value) == message


@pytest.mark.parametrize("limits", [8, "8", ["5", 8], [4.5]])
def test_limits_that_are_no_list_of_whole_numbers_are_refused(limits):
    with pytest.raises(ConfigError, match=r"horizon\.max_turns must be a list of whole numbers such as \[8\], got"):
        Horizon(limits)


# Further forms


def test_each_stage_can_last_its_own_number_of_steps():
    horizon = Horizon([2, 4, 6], steps_per_stage=[1, 3])
    assert [horizon.turns_at(step) for step in range(1, 7)] == [2, 4, 4, 4, 6, 6]


def test_the_papers_growth_by_a_constant_ends_at_its_bound():
    horizon = Horizon([4], steps_per_stage=10, grow_by=3, up_to=12)
    assert horizon.stages == [4, 7, 10, 12]
    assert [horizon.turns_at(step) for step in (1, 10, 11, 21, 31, 999)] == [4, 4, 7, 10, 12, 12]
    assert horizon.turns_for_evaluation() == 12


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"steps_per_stage": [1, 2]}, "horizon.steps_per_stage=[1, 2] must have one value for each stage but the last"),
        ({"steps_per_stage": [0]}, "horizon.steps_per_stage must be >= 1, got [0]."),
        ({"grow_by": 2}, "horizon.grow_by and horizon.up_to belong together"),
        ({"grow_by": 2, "up_to": 9}, "horizon.grow_by grows from one limit, horizon.max_turns has 2: [3, 6]."),
        ({"max_turns": [3], "grow_by": -1, "up_to": 9}, "horizon.grow_by must be >= 1 turn, got -1"),
        ({"max_turns": [3], "grow_by": 1, "up_to": 3}, "horizon.up_to=3 must exceed the first limit, 3."),
        ({"max_turns": [True, 6]}, "horizon.max_turns must be a list of whole numbers such as [8], got [True, 6]."),
        ({"max_turns": [3], "grow_by": 1.5, "up_to": 9}, "horizon.grow_by must be a whole number of turns or null"),
        ({"eval_max_turns": 2.5}, "horizon.eval_max_turns must be a whole number of turns or null, got 2.5."),
        ({"max_turns": [3], "adaptive": Adaptive(0.5)}, "horizon.adaptive has nowhere to grow from [3]."),
    ],
)
def test_other_forms_that_cannot_be_meant_are_refused(values, message):
    with pytest.raises(ConfigError) as error:
        Horizon(**{"max_turns": [3, 6], **values})
    assert str(error.value).startswith(message)


@pytest.mark.parametrize("values", [{}, {"success_above": 1.0}, {"cut_above": -0.1}, {"cut_above": 0.5, "window": 0}])
def test_a_rule_that_never_or_always_grows_is_refused(values):
    with pytest.raises(ConfigError, match=r"horizon\.adaptive"):
        Adaptive(**values)


# By measurement

GROWING = Horizon([3, 6, 9], steps_per_stage=2, adaptive=Adaptive(success_above=0.6, cut_above=0.8, window=2))
MEASURED = [(0.1, 0.5), (0.7, 0.1), (0.9, 0.1), (0.9, 0.9), (0.0, 0.2), (0.0, 0.9), (0.0, 0.9), (1.0, 1.0)]


def limits(state: AdaptiveState, measured: list[tuple[float, float]]) -> list[int]:
    out = []
    for success, cut in measured:
        out.append(state.max_turns)
        state.observe(success, cut)
    return out


def test_the_horizon_grows_when_the_present_one_is_mastered_or_too_short():
    """Steps 2 and 3 solve 0.8 on average; the next two at 6 turns 0.45; steps 6 and 7 are cut in 0.9."""
    assert limits(AdaptiveState(GROWING), MEASURED) == [3, 3, 3, 6, 6, 6, 6, 9]


def test_one_good_step_after_a_growth_is_not_enough_for_the_next():
    patient = Horizon([3, 6, 9], steps_per_stage=[3, 1], adaptive=Adaptive(success_above=0.6, window=1))
    assert limits(AdaptiveState(patient), [(1.0, 0.0)] * 5) == [3, 3, 3, 6, 9]


@pytest.mark.parametrize("stop", range(len(MEASURED)))
def test_a_run_resumed_anywhere_goes_on_as_if_it_had_not_stopped(stop):
    """The state travels as JSON in the checkpoint; the measurements are replayed."""
    whole = limits(AdaptiveState(GROWING), MEASURED)
    before, after = AdaptiveState(GROWING), AdaptiveState(GROWING)
    limits(before, MEASURED[:stop])
    after.restore(json.loads(json.dumps(before.saved())))
    assert limits(after, MEASURED[stop:]) == whole[stop:]


def test_a_state_of_more_stages_is_refused():
    with pytest.raises(ConfigError, match="at stage 4 of an adaptive horizon, horizon has only 3"):
        AdaptiveState(GROWING).restore({"stage": 3, "measured": []})


def test_the_step_does_not_tell_an_adaptive_horizon():
    with pytest.raises(ValueError, match="the trainer hands it down"):
        GROWING.turns_at(1)
