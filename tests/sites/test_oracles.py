"""Scripts solve the tasks through the text actions, and wrong endings earn nothing: in a real browser.

By default one task of each template; the variable `WEB_TASKS=all` plays every one, `WEB_TASKS=sites` one of each site
and of each company of sites. That a task is not solved by doing
nothing, or by a wrong answer at once, is seen for every task in any case.
"""

import os
from collections import defaultdict

import pytest

from env_adapters.webarena.browser.chromium import installed_chromiums
from env_adapters.webarena.sites_tasks import site_tasks
from env_adapters.webarena.tasks.embedded import EmbeddedTasks, MiniWobTasks, reached_sites
from env_adapters.webarena.tasks.miniwob_oracle import SOLVED
from tests.support.playing import judge_at_once, play

pytestmark = pytest.mark.skipif(not installed_chromiums(), reason="needs Chromium: make chromium")
EVERY = EmbeddedTasks().items("train_all") + EmbeddedTasks().items("test_all")
FIRST = list({item.data["intent_template_id"]: item for item in reversed(EVERY)}.values())[::-1]
ALIKE = defaultdict(list)
"""Tasks that one session can judge: they begin on the same pages, and reach the same sites."""
for one in EVERY:
    ALIKE[one.data["start_url"], *reached_sites(one)].append(one)
OF_SITES = list({tuple(item.data["sites"]): item for item in reversed(EVERY)}.values())
PLAYED = {"all": EVERY, "sites": OF_SITES}.get(os.environ.get("WEB_TASKS", ""), FIRST)
MINIWOB_PAGE = "http://miniwob.test/miniwob"
AGAIN = ['click [button "ONE"]']
MINIWOB = [
    ("click-test-2", ['click [button "ONE"]'], 1.0),
    ("click-test-2", ['click [button "TWO"]', 'click [button "ONE"]'], 0.0),
    ("click-test-2", [], 0.0),
    ("click-test-2", ['click [button "ONE"]', "goto [http://miniwob.test/miniwob/click-test.html?seed=0]"], 0.0),
    ("click-test", ['click [button "Click Me!"]'], 1.0),
    ("click-test", ['click [button "Click Me!"]', f"goto [{MINIWOB_PAGE}/click-test.html?seed=0]"], 1.0),
    ("click-test-2", ['click [button "TWO"]', f"goto [{MINIWOB_PAGE}/click-test-2.html?seed=0]", *AGAIN], 0.0),
    ("click-test-2", ['click [button "TWO"]', f"goto [{MINIWOB_PAGE}/click-test-2.html?seed=0&x]", *AGAIN], 0.0),
    ("click-test-2", [f"goto [{MINIWOB_PAGE}/click-test-2.html?seed=7&seed=0]", *AGAIN], 0.0),
]


@pytest.mark.parametrize("item", PLAYED, ids=lambda item: item.id)
def test_the_script_solves_the_task_and_wrong_endings_do_not(item, sites):
    source = EmbeddedTasks(sites.home.folder)
    assert play(item, source) == 1.0
    for script in item.data["wrong"]:
        assert play(item, source, script) == 0.0


@pytest.mark.parametrize("items", ALIKE.values(), ids=map(" ".join, ALIKE))
def test_no_task_is_solved_by_ending_at_once(items, sites):
    """With a wrong answer, or with nothing said and nothing done: each task has such an ending of one action."""
    assert all(min(map(len, item.data["wrong"])) == 1 for item in items)
    scores = judge_at_once(items, EmbeddedTasks(sites.home.folder))
    assert [item.id for item, score in zip(items, scores, strict=True) if score != 0.0] == []


@pytest.mark.parametrize(("page", "script", "reward"), MINIWOB)
def test_a_page_of_miniwob_says_whether_it_was_solved(page, script, reward):
    source = MiniWobTasks()
    item = next(one for split in source.splits for one in source.items(split) if one.id == f"miniwob:{page}:0")
    assert play(item, source, [*script, "stop []"]) == reward


@pytest.mark.parametrize("page", sorted(SOLVED))
def test_the_oracle_plays_a_page_of_miniwob(page):
    source = MiniWobTasks()
    items = [one for split in source.splits for one in source.items(split) if one.id.split(":")[1] == page]
    assert [play(item, source) for item in items[:2]] == [1.0, 1.0]


def test_every_template_is_played():
    assert {item.data["intent_template_id"] for item in FIRST} == {task["intent_template_id"] for task in site_tasks()}
