"""Test reward shaping: scale, costs and placement of the return; nothing changes by default."""

from dataclasses import replace

import pytest

from verl_agent.config.reward_shaping import RewardShaping, turn_rewards
from verl_agent.errors import ConfigError
from verl_agent.sections import section
from verl_agent.types import Episode, Reply, StepResult, StopReason, TaskItem, Turn


def episode(*steps: StepResult | None) -> Episode:
    turns = [Turn(Reply("x", tokens=1), "x", step, 0.0, 0.0) for step in steps]
    return Episode(TaskItem("talk", "1"), 9, turns=turns, stop=StopReason.TERMINATED)


PLAYED = episode(
    StepResult("one", 10.0), StepResult("what?", 0.0, info={"invalid_action": 1.0}), StepResult("two", 40.0), None
)


def test_by_default_the_raw_return_lies_on_the_last_turn():
    assert RewardShaping().rewards(PLAYED) == [0.0, 0.0, 0.0, 50.0]


def test_each_turn_can_keep_its_reward():
    assert RewardShaping(place="turn").rewards(PLAYED) == [10.0, 0.0, 40.0, 0.0]


@pytest.mark.parametrize("place", ["outcome", "turn"])
def test_a_range_is_mapped_onto_0_to_1(place):
    """ScienceWorld scores 0 to 100, and below 0 for mistakes."""
    assert sum(RewardShaping(range=[0, 100], place=place).rewards(PLAYED)) == pytest.approx(0.5)
    assert sum(RewardShaping(range=[-100, 100], place=place).rewards(PLAYED)) == pytest.approx(0.75)
    assert sum(RewardShaping(range=[-100, 100], place=place).rewards(episode(None))) == pytest.approx(0.5)


def test_costs_are_in_units_of_the_scaled_return():
    credit = RewardShaping(range=[0, 100], place="turn", step_cost=0.01, invalid_action_cost=0.1)
    assert credit.rewards(PLAYED) == pytest.approx([0.09, -0.11, 0.39, -0.01])


def test_an_episode_without_turns_has_no_rewards():
    assert RewardShaping(range=[-1, 1]).rewards(episode()) == []


def test_turns_after_equal_observations_have_equal_anchors():
    again = episode(StepResult("one"), StepResult("one"), StepResult("two"))
    anchors = turn_rewards(again, RewardShaping()).anchors
    assert anchors[1] == anchors[2] != anchors[0]
    assert anchors[0] == turn_rewards(PLAYED, RewardShaping()).anchors[0], (
        "all episodes of a task begin in the same state"
    )


def test_a_reply_without_an_action_does_not_change_the_state():
    """Otherwise the same format error would make different states equal."""
    observed, rejected = StepResult("you see a lamp"), StepResult("your reply holds no action")
    turns = [
        Turn(Reply("x"), action, step, 0.0, 0.0)
        for action, step in (("look", observed), (None, rejected), ("go", observed))
    ]
    for anchor in ("observation", "history"):
        anchors = turn_rewards(
            Episode(TaskItem("talk", "1"), 9, turns=turns, stop=StopReason.TERMINATED), RewardShaping(anchor=anchor)
        ).anchors
        assert anchors[1] == anchors[2] != anchors[0], anchor


def test_history_anchors_distinguish_states_with_equal_observations():
    """`Higher.` after 3 is not the state of `Higher.` after 7."""

    def guesses(*numbers: str) -> list[str]:
        turns = [Turn(Reply(number), number, StepResult("Higher."), 0.0, 0.0) for number in numbers]
        played = Episode(TaskItem("guess", "1"), 9, turns=turns, stop=StopReason.TERMINATED)
        return [turn_rewards(played, RewardShaping(anchor=kind)).anchors[-1] for kind in ("observation", "history")]

    three, seven, same = guesses("3", "1"), guesses("7", "1"), guesses("3", "2")
    assert three[0] == seven[0] and three[1] != seven[1]
    assert three == same


@pytest.mark.parametrize("kind", ["observation", "history"])
def test_first_anchors_distinguish_the_moves_of_another_seat_before(kind):
    def first(prompt: str) -> str:
        begun = replace(PLAYED, messages=[{"role": "user", "content": prompt}], prompt_length=1)
        return turn_rewards(begun, RewardShaping(anchor=kind)).anchors[0]

    assert first("Your card is king. The other seat bets.") != first("Your card is king. The other seat passes.")
    assert first("Your card is king.") == first("Your card is king.")


def test_split_rows_keep_the_turn_numbers_of_the_episode():
    whole = turn_rewards(PLAYED, RewardShaping(place="turn"))
    first, second = whole.split([1, 3])
    assert (first.rewards, first.first, second.rewards, second.first) == ([10.0], 0, [0.0, 40.0, 0.0], 1)
    assert [*first.anchors, *second.anchors] == whole.anchors
    with pytest.raises(ValueError, match="hold \\[1, 2\\] replies, it has 4 turns"):
        whole.split([1, 2])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"place": "trun"}, "credit.place='trun' is not allowed. Allowed: outcome, turn. Did you mean 'turn'?"),
        ({"range": [1, 0]}, "credit.range=[1.0, 0.0] is not allowed. Allowed: the lowest and the highest return"),
        ({"range": [1]}, "credit.range=[1] is not allowed. Allowed: a list of 2 numbers or null."),
        ({"step_cost": -0.1}, "credit.step_cost=-0.1 is not allowed. Allowed: a number >= 0."),
        ({"turn_gamma": 0.0}, "credit.turn_gamma=0.0 is not allowed. Allowed: a number above 0 and at most 1."),
    ],
)
def test_invalid_values_raise_config_error_naming_the_key(values, message):
    with pytest.raises(ConfigError) as error:
        section("credit", RewardShaping, values)
    assert str(error.value).startswith(message)


def stopped(stop: StopReason, reward: float = 0.0) -> Episode:
    played = episode(StepResult("one", reward), StepResult("two"))
    played.stop = stop
    return played


@pytest.mark.parametrize("treatment", ["as_is", "drop", "bootstrap"])
def test_only_an_episode_that_a_limit_ended_unsolved_is_treated_as_truncated(treatment):
    credit = RewardShaping(truncated=treatment)
    treated = {stop: turn_rewards(stopped(stop), credit).truncated for stop in StopReason}
    limits = {StopReason.TURN_LIMIT, StopReason.TURN_TOKENS, StopReason.EPISODE_TOKENS}
    assert {stop for stop, value in treated.items() if value == treatment} >= limits
    assert {treated[stop] for stop in set(StopReason) - limits} == {"as_is"}
    assert turn_rewards(stopped(StopReason.TURN_LIMIT, reward=1.0), credit).truncated == "as_is"


def test_a_reply_that_was_truncated_and_played_does_not_truncate_its_episode():
    played = stopped(StopReason.TERMINATED)
    played.turns[0] = Turn(Reply("x", tokens=1, force_closed=True), "x", StepResult("one"), 0.0, 0.0)
    assert turn_rewards(played, RewardShaping(truncated="drop")).truncated == "as_is"


def test_all_rows_of_an_episode_are_dropped_and_only_the_last_one_is_bootstrapped():
    for treatment, rows in (("drop", ["drop", "drop"]), ("bootstrap", ["as_is", "bootstrap"])):
        whole = turn_rewards(stopped(StopReason.TURN_LIMIT), RewardShaping(truncated=treatment))
        assert [part.truncated for part in whole.split([1, 1])] == rows
