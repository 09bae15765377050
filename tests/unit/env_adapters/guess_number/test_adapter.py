"""Test the replies, rewards, splits and demonstrations of GuessNumber."""

import asyncio

import pytest

from env_adapters.guess_number.adapter import GuessNumber
from verl_agent.errors import ConfigError
from verl_agent.types import StepResult, TaskItem

ITEM = TaskItem("guess_number", "100:37", {"high": 100, "target": 37})


def answers(*replies: str, tolerant: bool = False) -> list[StepResult]:
    env = GuessNumber(tolerant)
    asyncio.run(env.reset(ITEM))
    return [asyncio.run(env.step(reply)) for reply in replies]


@pytest.mark.parametrize(
    ("reply", "tolerant", "observation"),
    [
        ("36", False, "Higher."),
        ("38.", False, "Lower."),
        ("37", False, "Right."),
        ("37 or 38", False, "That is no whole number."),
        ("37", True, "Right."),
        ("Maybe 37 or 38?", True, "Right."),
        ("no number", True, "That is no whole number."),
        ("0", False, "Out of range: guess from 1 to 100."),
        ("-37", False, "Out of range: guess from 1 to 100."),
        ("-37", True, "Out of range: guess from 1 to 100."),
        ("" + "9" * 10_000, False, "Out of range: guess from 1 to 100."),
    ],
)
def test_a_guess_is_compared_with_the_hidden_number(reply, tolerant, observation):
    assert answers(reply, tolerant=tolerant)[0].observation == observation


def test_the_number_is_rewarded_once():
    steps = answers("37", "37")
    assert [(step.reward, step.terminated) for step in steps] == [(1.0, True), (0.0, True)]


def test_invalid_guesses_are_counted():
    assert [step.info for step in answers("what?", "101", "5")] == [
        {"invalid_action": 1.0},
        {"invalid_action": 1.0},
        {},
    ]


def test_splits_have_the_documented_numbers_of_items():
    assert {split: len(GuessNumber().tasks(split)) for split in GuessNumber.splits} == {
        "train": 390,
        "test": 130,
        "small_train": 51,
        "small_test": 17,
    }


@pytest.mark.parametrize("size", ["", "small_"])
def test_train_and_test_share_no_range(size):
    """Training on a part of a range would teach the model never to guess the other numbers."""
    ranges = [{item.data["high"] for item in GuessNumber().tasks(size + part)} for part in ("train", "test")]
    assert ranges[0].isdisjoint(ranges[1])
    assert min(ranges[0]) < min(ranges[1]) < max(ranges[1]) < max(ranges[0])


def test_small_splits_share_no_item_with_the_others():
    items = [*GuessNumber().tasks("small_train"), *GuessNumber().tasks("small_test")]
    assert len({item.id for item in items}) == len(items)
    assert all(1 <= item.data["target"] <= item.data["high"] <= 12 for item in items)


@pytest.mark.parametrize("split", GuessNumber.splits)
def test_binary_search_solves_every_item(split):
    for item in GuessNumber().tasks(split):
        env = GuessNumber()
        asyncio.run(env.reset(item))
        steps = [asyncio.run(env.step(move.action)) for move in env.demonstration(item)]
        assert (steps[-1].reward, len(steps) <= 7) == (1.0, True)


def test_an_option_of_the_wrong_type_raises_config_error():
    with pytest.raises(ConfigError, match=r"env\.options\.tolerant='yes' is not allowed\. Allowed: true or false\."):
        GuessNumber("yes")


def test_own_ranges_hold_every_third_one_out():
    env = GuessNumber(ranges=[4, 5, 6])
    assert {item.data["high"] for item in env.tasks("train")} == {4, 5}
    assert {item.data["high"] for item in env.tasks("test")} == {6}


@pytest.mark.parametrize("ranges", [[], [1], ["ten"], [True]])
def test_ranges_that_are_no_list_of_numbers_raise_config_error(ranges):
    with pytest.raises(ConfigError, match=r"env\.options\.ranges"):
        GuessNumber(ranges=ranges)
