"""Test that grading reads every state after 2,000 random links and forms on each embedded site."""

import pytest

from tests.support.site_walk import STARTS, walk_under_the_grader

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("site", STARTS)
def test_two_thousand_steps_never_make_grading_raise(site, sites):
    errors, changed = walk_under_the_grader(sites, site, range(100, 110), 200)
    assert errors == []
    assert changed
