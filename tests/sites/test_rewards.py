"""Tests on the running sites that only the complete change of a task earns its reward; changes are made by forms."""

from dataclasses import replace
from functools import partial

import pytest

from env_adapters.web_sites.records import record_changes
from env_adapters.webarena.grading.strict import is_permanent, state_change
from tests.support.site_detours import DETOURS
from tests.support.site_forms import carry_out, wrong_values
from tests.support.visitor import Visitor
from tests.support.web_attacks import as_changes, kind_of, tasks_by_template

CHANGING = {name: tasks for name, tasks in tasks_by_template().items() if kind_of(tasks[0]) == "state_change"}


def changed(sites, act):
    """Return the changes of a fresh copy of the sites after `act`, a function of a visitor."""
    copy = sites.acquire()
    try:
        act(Visitor(sites, copy))
        return record_changes(sites.home.seed(sites.seed), copy.folder)
    finally:
        copy.release()


def reward(sites, task, *made):
    """Return the reward of a task after some changes in a fresh copy of the sites."""
    found = changed(sites, lambda visitor: [carry_out(visitor, change) for change in made])
    return state_change(task["eval"]["state_change"], found)


@pytest.mark.parametrize("name", CHANGING)
def test_only_the_complete_change_earns_the_reward(name, sites):
    task, other = CHANGING[name][:2]
    (right,), (another,) = as_changes(task), as_changes(other)
    rewards = {}
    for value, change in wrong_values(right).items():
        found = changed(sites, partial(carry_out, change=change))
        assert found, f"the form of a wrong {value} has changed nothing"
        rewards[f"wrong {value}"] = state_change(task["eval"]["state_change"], found)
    assert rewards
    rewards["nothing"] = reward(sites, task)
    rewards["another task"] = reward(sites, task, another)
    # One record in another project may be a first attempt, because the order of records of two projects is unknown.
    may_be_first = is_permanent(another) and another.record != right.record
    rewards["something else too"] = reward(sites, task, right, *[another] * (2 if may_be_first else 1))
    assert {attack: earned for attack, earned in rewards.items() if earned} == {}
    assert reward(sites, task, right) == 1.0


@pytest.mark.parametrize("name", [name for name in CHANGING if is_permanent(as_changes(CHANGING[name][0])[0])])
def test_record_that_cannot_be_removed_may_follow_one_mistake(name, sites):
    task = CHANGING[name][0]
    (right,) = as_changes(task)
    wrong = wrong_values(right)
    first, second, *_ = wrong.values()
    assert {value: reward(sites, task, change, right) for value, change in wrong.items()} == dict.fromkeys(wrong, 1.0)
    assert reward(sites, task, right, first) == 0.0
    assert reward(sites, task, first, second, right) == 0.0


@pytest.mark.parametrize(("name", "detour"), DETOURS, ids=[detour.__name__ for _, detour in DETOURS])
def test_detour_earns_nothing(name, detour, sites):
    task = CHANGING[name][0]
    (right,) = as_changes(task)
    found = changed(sites, lambda visitor: detour(visitor, right))
    assert found != [replace(right, key=found[0].key)], "the site has not carried out the detour"
    assert state_change(task["eval"]["state_change"], found) == 0.0
