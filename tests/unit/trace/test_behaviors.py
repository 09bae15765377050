"""Test the definition of each behavior on short episodes."""

import pytest

from tests.support.episodes import STARTED, played
from verl_agent.agents.base import TURNS_LEFT
from verl_agent.trace.behaviors import behavior_turns, first_divergence, thought_length
from verl_agent.trace.record import EpisodeMeta, to_episode, to_record


def found(*turns: tuple[str, str], **options: object) -> dict[str, list[int]]:
    return behavior_turns(played(*turns, **options))


def test_an_episode_without_peculiarities_shows_no_behavior() -> None:
    assert found(("north", "hall"), ("east", "kitchen"), ("take cup", "taken")) == {}


def test_an_action_that_leaves_the_observation_as_it_is_has_no_effect() -> None:
    assert found(("north", "hall"), ("jump", "hall"), ("east", "yard"))["no_effect"] == [1]
    assert found(("jump", "start"), ("east", "yard"), first="start")["no_effect"] == [0]


def test_a_rewarded_action_has_an_effect_even_with_the_same_observation() -> None:
    record = played(("jump", "start"), ("east", "yard"), first="start")
    record["turns"][0]["reward"] = 0.5
    assert "no_effect" not in behavior_turns(record)


def test_the_same_action_twice_in_a_row_is_repeated() -> None:
    assert found(("north", "hall"), ("north ", "kitchen"), ("east", "yard"))["repeated_action"] == [1]


@pytest.mark.parametrize("cycle", ["ab", "abc", "abcd"])
def test_a_cycle_that_ends_for_the_second_time_is_a_loop(cycle: str) -> None:
    turns = [(letter, f"room {number}") for number, letter in enumerate(cycle * 2)]
    assert found(*turns)["loop"] == [2 * len(cycle) - 1]


@pytest.mark.parametrize("actions", ["abcdeabcde", "aaaaaaaa", "abcabd"])
def test_longer_cycles_equal_actions_and_other_orders_are_no_loop(actions: str) -> None:
    assert "loop" not in found(*[(letter, f"room {number}") for number, letter in enumerate(actions)])


def test_returning_to_the_observation_of_two_turns_ago_is_back_and_forth() -> None:
    assert found(("north", "hall"), ("east", "kitchen"), ("west", "hall"))["back_and_forth"] == [2]


def test_a_reply_without_action_and_an_invalid_action_are_told_apart() -> None:
    shown = found((None, "No action."), ("fly", "Unknown."), info={"invalid_action": 1.0})
    assert shown["no_action"] == [0]
    assert shown["invalid_action"] == [1]


@pytest.mark.parametrize(
    ("last", "reward", "expected"),
    [
        ("stop [N/A]", 0.0, [1]),
        ("give up", 0.0, [1]),
        ("stop", 1.0, []),
        ("east", 0.0, []),
        ("answer[Paris]", 0.0, []),
        ("stop [7]", 0.0, []),
        ("submit", 0.0, []),
    ],
)
def test_an_ending_action_without_an_answer_or_success_gives_up(last: str, reward: float, expected: list[int]) -> None:
    assert found(("north", "hall"), (last, "end"), reward=reward).get("gave_up", []) == expected


def test_a_reply_that_continues_with_an_observation_is_found() -> None:
    turns = ("Action: north\nObservation: You are in the hall.", "hall")
    assert found(turns)["wrote_observation"] == [0]


@pytest.mark.parametrize(
    "reply", ["Instruction: find a cup. I go.\nAction: north", "Observation: unclear.", "<think>\nUser: me"]
)
def test_a_label_in_the_thought_is_no_written_observation(reply: str) -> None:
    record = played(("north", "hall"))
    record["turns"][0]["reply"] = reply
    assert "wrote_observation" not in behavior_turns(record)


@pytest.mark.parametrize("first", ["Action: north", "```north```", "<act>north</act>"])
def test_an_observation_between_two_actions_is_found(first: str) -> None:
    """The parser takes the last of them."""
    record = played(("east", "hall"))
    record["turns"][0]["reply"] = f"{first}\nObservation: a hall\nAction: east"
    assert behavior_turns(record)["wrote_observation"] == [0]


def test_the_number_of_turns_left_is_no_effect_of_an_action() -> None:
    shown = found(("jump", "hall"), ("jump up", "hall\nTurns left: 2/3"), ("east", "yard"), first=f"hall{TURNS_LEFT}4")
    assert shown["no_effect"] == [0, 1]


def test_thought_length_counts_characters_outside_the_action() -> None:
    record = played(("north", "hall"), ("east", "yard"))
    record["turns"][0]["reply"] = "I go. north"
    assert thought_length(record) == (6 + 0) / 2


@pytest.mark.parametrize(
    ("reply", "length"),
    [
        ("Action: 7", 0),
        ("**Action:** 7", 0),
        ("<action>7</action>", 0),
        ("```7```", 0),
        ("```\n7\n```", 0),
        ("7", 0),
        ("Hm.\nAction: 7", 4),
        ("<think>Hm.</think><action>7</action>", len("<think>Hm.</think>")),
        ("7, since 7 is reaction: 7", len("7, since 7 is reaction: ")),
    ],
)
def test_the_marks_of_an_action_are_no_thought(reply: str, length: int) -> None:
    record = played(("7", "low"))
    record["turns"][0]["reply"] = reply
    assert thought_length(record) == length


def test_the_whole_reply_to_an_empty_action_is_thought() -> None:
    record = played(("", "low"))
    record["turns"][0]["reply"] = "Action: "
    assert thought_length(record) == len("Action: ")


def test_first_divergence_is_the_first_turn_with_different_actions() -> None:
    assert first_divergence([["a", "b", "c"], ["a", "b", "d"]]) == 2
    assert first_divergence([["a", "b"], ["a", "b", "c"]]) == 2
    assert first_divergence([["a"], ["a"]]) is None
    assert first_divergence([]) is None


def test_turns_after_those_of_the_oracle_are_over_interaction() -> None:
    record = played(("north", "hall"), ("east", "kitchen"), ("take cup", "taken"))
    assert "over_interaction" not in behavior_turns(record), "no oracle is known"
    record["oracle_turns"] = 1
    assert behavior_turns(record)["over_interaction"] == [1, 2]
    meta = EpisodeMeta("evaluation", "train", 0, "1", 0, STARTED, seconds=1.0)
    assert to_record(to_episode(record), meta) == record
