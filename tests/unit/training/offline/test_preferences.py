"""Pairs of recorded episodes for preference learning."""

import random

import pytest

from tests.support.episodes import talk
from verl_agent.errors import ConfigError
from verl_agent.sections import section
from verl_agent.training.offline.preferences import Pair, PreferenceSettings, make_pairs, split_pairs


def settings(**changes) -> PreferenceSettings:
    return PreferenceSettings(**{"records": ["anywhere"], **changes})


def words(pair: Pair) -> tuple[str, str]:
    better, worse = (" ".join(turn["reply"] for turn in side["turns"]) for side in (pair.better, pair.worse))
    return better, worse


def test_the_best_is_paired_with_the_worst():
    records = [talk("a", 1.0), talk("b", 0.8), talk("c", 0.3), talk("d", 0.0), talk("e", task="2")]
    assert [words(pair) for pair in make_pairs(records, settings(min_gap=0.4))] == [("a", "d"), ("b", "c")]


def test_no_episode_is_in_two_pairs_and_none_is_paired_with_itself():
    records = [talk(f"good{n}") for n in range(3)] + [talk(f"bad{n}", 0.0) for n in range(5)] + [talk("good0")]
    pairs = [words(pair) for pair in make_pairs(records, settings())]
    assert sorted(better for better, _ in pairs) == ["good0", "good1", "good2"]
    assert len({worse for _, worse in pairs}) == 3


def test_a_difference_below_min_gap_makes_no_pair():
    with pytest.raises(ConfigError, match=r"has no pair.* of 1 tasks, .* differ in return by preference.min_gap=0.5"):
        make_pairs([talk("a", 0.6), talk("b", 0.3)], settings())

    with pytest.raises(ConfigError, match="has no pair"):
        make_pairs([talk("a", 1e7), talk("b", 1e7)], settings())


def test_per_task_keeps_the_widest_pairs():
    records = [talk("a", 1.0), talk("b", 0.9), talk("c", 0.2), talk("d", 0.0)]
    assert [words(pair) for pair in make_pairs(records, settings(per_task=1))] == [("a", "d")]


def test_the_order_of_the_records_does_not_matter():
    records = [talk(f"{letter} {task}", float(letter in "abc"), task) for letter in "abcdefg" for task in "123"]
    shuffled = random.Random(1).sample(records, len(records))
    assert make_pairs(records, settings()) == make_pairs(shuffled, settings())


@pytest.mark.parametrize("order", [1, -1])
def test_equal_conversations_count_with_the_best_of_their_rewards(order):
    records = [talk("a", 0.2), talk("a", 1.0), talk("b", 0.0)][::order]
    (pair,) = make_pairs(records, settings())
    assert (words(pair), pair.better["reward"]) == (("a", "b"), 1.0)


def test_different_prompts_of_one_task_raise_config_error():
    records = [talk("a", prompt="Begin."), talk("b", 0.0, prompt="Begin, please.")]
    with pytest.raises(ConfigError, match=r"preference.records hold episodes of task '1' .* 2 different prompts"):
        make_pairs(records, settings())


def test_each_seat_of_an_arena_is_paired_with_itself():
    records = [
        {**talk(text, reward, prompt=f"You are {seat}."), "data": {"seat": seat}}
        for text, reward, seat in [("a", 1.0, "left"), ("b", 0.0, "right"), ("c", 0.0, "left"), ("d", 1.0, "right")]
    ]
    assert [words(pair) for pair in make_pairs(records, settings())] == [("a", "c"), ("d", "b")]


def test_tasks_of_the_same_name_in_two_environments_are_not_paired():
    with pytest.raises(ConfigError, match="2 different episodes of 2 tasks, but no two of a task"):
        make_pairs([talk("a"), talk("b", 0.0, env="walk")], settings())


def test_entries_of_a_mixture_with_one_environment_are_not_paired_with_each_other():
    labels = ("short", "long")
    records = [talk(f"{label} {n}", n, prompt=label) | {"env_label": label} for label in labels for n in (0.0, 1.0)]
    pairs = make_pairs(records, settings())
    assert sorted((pair.task, words(pair)) for pair in pairs) == [
        (("long", "1"), ("long 1.0", "long 0.0")),
        (("short", "1"), ("short 1.0", "short 0.0")),
    ]
    train, validation = split_pairs(pairs, 0.5)
    assert (len(train), len(validation)) == (1, 1)


def test_a_gap_of_min_gap_counts_in_spite_of_rounding():
    assert 1.0 - 0.9 < 0.1
    assert len(make_pairs([talk("a", 1.0), talk("b", 0.9)], settings(min_gap=0.1))) == 1


def test_validation_pairs_share_no_task_with_training_pairs():
    records = [talk(f"{word}{n}", float(word == "a"), str(n)) for word in "ab" for n in range(20)]
    pairs = make_pairs(records, settings())
    train, held_out = split_pairs(pairs, 0.25)
    assert (len(train), len(held_out)) == (15, 5)
    assert {pair.task for pair in train}.isdisjoint(pair.task for pair in held_out)
    assert split_pairs(pairs, 0.0) == (pairs, [])


def test_the_fingerprint_of_a_pair_depends_on_its_conversations():
    (one,) = make_pairs([talk("a"), talk("b", 0.0)], settings())
    (same,) = make_pairs([talk("b", 0.0), talk("a", 2.0)], settings())
    (other,) = make_pairs([talk("a"), talk("c", 0.0)], settings())
    assert one.fingerprint == same.fingerprint != other.fingerprint


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"beta": 0.0}, "preference.beta=0.0 is not allowed. Allowed: a number > 0."),
        ({"min_gap": 0.0}, "preference.min_gap=0.0 is not allowed. Allowed: a number > 0."),
        ({"per_task": 0}, "preference.per_task=0 is not allowed. Allowed: a whole number >= 1 or null."),
        ({"val_share": 1.0}, "preference.val_share=1.0 is not allowed. Allowed: a number from 0 to below 1"),
        ({"nll_coef": -0.1}, "preference.nll_coef=-0.1 is not allowed. Allowed: a number >= 0"),
    ],
)
def test_invalid_settings_raise_config_error_naming_the_key(changes, message):
    with pytest.raises(ConfigError, match=message):
        section("preference", PreferenceSettings, {"records": ["anywhere"], **changes})
