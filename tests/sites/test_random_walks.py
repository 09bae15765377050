"""Tests that grading reads every state that a random visitor of the embedded sites reaches."""

import pytest

from env_adapters.web_sites.records import record_changes
from env_adapters.webarena.grading.strict import state_change
from tests.support.site_forms import carry_out
from tests.support.site_walk import STARTS, walk_under_the_grader
from tests.support.visitor import Visitor
from tests.support.web_attacks import as_changes, tasks_by_template

STEPS = {"shop": 40, "forum": 60, "code": 200}
"""Steps of a short walk over each site, enough to change it."""


@pytest.mark.parametrize("site", STARTS)
def test_random_links_and_forms_never_make_grading_raise(site, sites):
    errors, changed = walk_under_the_grader(sites, site, range(3), STEPS[site])
    assert errors == []
    assert changed, "the walk has changed nothing"


@pytest.mark.parametrize("site", STARTS)
def test_reading_changes_nothing(site, sites):
    assert walk_under_the_grader(sites, site, [0], STEPS[site], forms=False) == ([], set())


def test_pages_visited_again_keep_the_reward_of_the_solution(sites):
    """The second visit by a link lets Fossil create its page cache, a table without `rowid`."""
    task = tasks_by_template()["comment_ticket"][0]
    (right,) = as_changes(task)
    page = f"http://code.test/{right.record.partition(' ')[0]}/home"
    copy = sites.acquire()
    try:
        visitor = Visitor(sites, copy)
        for _ in range(2):
            visitor.request("GET", page, referer="http://code.test/")
        carry_out(visitor, right)
        found = record_changes(sites.home.seed(sites.seed), copy.folder)
    finally:
        copy.release()
    assert state_change(task["eval"]["state_change"], found) == 1.0
