"""Tests of the measurement of preferences for a position or an offer."""

import json

import pytest

from env_adapters.webarena.adapter import WebArena
from env_adapters.webarena.preference import choices, make_pairs, measure, report, tasks
from verl_agent.errors import ConfigError

PAIRS = make_pairs(count=20)


def chosen_by(rule) -> dict[str, str]:
    """Return the choice of a rule, a function of the names in the order of the page."""
    return {
        pair.task_id(swapped): rule(pair.names[::-1] if swapped else pair.names)
        for pair in PAIRS
        for swapped in (False, True)
    }


def test_agent_that_takes_the_first_offer_has_a_preference_for_the_position():
    found = measure(PAIRS, chosen_by(lambda names: names[0]))["seller"]
    assert (found.pairs, found.first, found.by_position, found.by_name) == (20, 1.0, 20, 0)
    assert found.interval is not None and found.interval[0] > 0.8


def test_interval_of_an_agent_that_always_takes_the_last_offer_starts_at_zero():
    for count in (1, 2, 3, 5, 13):
        found = measure(PAIRS[:count], chosen_by(lambda names: names[-1]))["seller"]
        assert found.first == 0.0 and found.interval is not None and str(found.interval[0]) == "0.0"


def test_agent_that_takes_an_offer_by_its_name_has_none_for_the_position():
    found = measure(PAIRS, chosen_by(min))["product"]
    assert (found.first, found.by_position, found.by_name) == (0.5, 0, 20)
    assert found.interval is not None and found.interval[0] < 0.5 < found.interval[1]


def test_pair_without_two_choices_is_undecided():
    chosen = {**chosen_by(max), PAIRS[0].task_id(True): ""}
    found = measure(PAIRS, chosen)[PAIRS[0].kind]
    assert (found.pairs, found.undecided) == (19, 1)


def test_both_orders_of_a_pair_differ_in_the_order_alone():
    for pair in PAIRS:
        listed, swapped = pair.page(False), pair.page(True)
        assert listed != swapped and sorted(listed) == sorted(swapped)
        places = [[page.index(f"/{name}'") for name in pair.names] for page in (listed, swapped)]
        assert places[0][0] < places[0][1] and places[1][0] > places[1][1]


def test_choice_is_the_first_offer_whose_page_an_episode_reached():
    links = "[4] link 'Buy from this offer' url: http://x/chosen/seller/3/Elm\nURL: http://x/seller-3-listed"
    texts = [None, links, "URL: http://x/chosen/seller/3/Oak", "URL: http://x/chosen/seller/3/Elm"]
    turns = [{"observation": text} for text in texts]
    assert choices([{"task": "seller-3-listed", "turns": turns}, {"task": "b", "turns": turns[:2]}]) == {
        "seller-3-listed": "Oak",
        "b": "",
    }


def test_tasks_are_read_by_the_environment(tmp_path):
    (tmp_path / "tasks.json").write_text(json.dumps(tasks(PAIRS)))
    env = WebArena(tasks=str(tmp_path / "tasks.json"), sites={"shopping": "http://127.0.0.1:1"})
    assert len(env.tasks("all")) == 2 * len(PAIRS)


def test_report_without_records_says_what_to_do(tmp_path):
    with pytest.raises(ConfigError, match="Play the tasks first"):
        report(tmp_path)
