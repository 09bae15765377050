"""Tests in a real browser that oracles solve the web tasks and that wrong scripts earn nothing.

By default they play one task of each template. `WEB_TASKS=all` plays every task, `WEB_TASKS=sites` one task of each
combination of sites. Stopping at once is tested for every task in any case. Wrong answers need no browser
(tests/unit/env_adapters/webarena/test_rewards.py).
"""

import os
from collections import defaultdict

import pytest

from env_adapters.web_sites.source import EmbeddedTasks, reached_sites
from env_adapters.web_sites.tasks import site_tasks
from env_adapters.webarena.browser.chromium import installed_chromiums
from env_adapters.webarena.tasks.miniwob import SOLVED, MiniWobTasks
from tests.support.playing import play, score_immediate_answers

pytestmark = pytest.mark.skipif(not installed_chromiums(), reason="needs Chromium: make chromium")
EVERY = EmbeddedTasks().items("train_all") + EmbeddedTasks().items("test_all")
FIRST = list({item.data["intent_template_id"]: item for item in reversed(EVERY)}.values())[::-1]
SAME_START = defaultdict(list)
"""Tasks that one session can evaluate, because they start on the same pages and reach the same sites."""
for task_item in EVERY:
    SAME_START[task_item.data["start_url"], *reached_sites(task_item)].append(task_item)
ONE_PER_SITES = list({tuple(item.data["sites"]): item for item in reversed(EVERY)}.values())
PLAYED = {"all": EVERY, "sites": ONE_PER_SITES}.get(os.environ.get("WEB_TASKS", ""), FIRST)
MINIWOB_PAGE = "http://miniwob.test/miniwob"
AGAIN = ['click [button "ONE"]']
SECOND_TAB = ["new_tab", f"goto [{MINIWOB_PAGE}/click-test-2.html?seed=0]"]
SUBMIT = ['click [button "Submit"]']
NUMBER = ['type [textbox "" #2] [-7] [0]', *SUBMIT]
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
    ("click-test-2", [*SECOND_TAB, 'click [button "TWO"]', "tab_focus [0]", *AGAIN], 0.0),
    ("click-test-2", [*SECOND_TAB, *AGAIN, "tab_focus [0]", 'click [button "TWO"]'], 1.0),
    ("click-test-2", ["press [Tab]", f"goto [{MINIWOB_PAGE}/click-test-2.html?seed=0]", "stop []"], 0.0),
    ("click-test-2", [*SECOND_TAB, "press [Tab]", "tab_focus [0]", *AGAIN], 0.0),
    ("form-sequence-2", ['click [radio "" #3]', *NUMBER], 1.0),
    ("form-sequence-2", ['click [radio "" #1]', *NUMBER], 0.0),
    ("use-autocomplete", ['type [textbox "Tags:"] [San Marino] [0]', *SUBMIT], 1.0),
    ("use-autocomplete", ['type [textbox "Tags:"] [Saino] [0]', *SUBMIT], 0.0),
]


@pytest.mark.parametrize("item", PLAYED, ids=lambda item: item.id)
def test_oracle_solves_the_task_and_wrong_scripts_do_not(item, sites):
    source = EmbeddedTasks(sites.home.folder)
    assert play(item, source) == 1.0
    assert play(item, source, item.data["corrected"]) == 1.0
    longer = {name: script for name, script in item.data["wrong"].items() if len(script) > 1}
    rewards = {name: play(item, source, script) for name, script in longer.items()}
    assert {name: reward for name, reward in rewards.items() if reward} == {}


@pytest.mark.parametrize("items", SAME_START.values(), ids=map(" ".join, SAME_START))
def test_stopping_at_once_solves_no_task(items, sites):
    scores = score_immediate_answers(items, EmbeddedTasks(sites.home.folder))
    assert [item.id for item, score in zip(items, scores, strict=True) if score != 0.0] == []


@pytest.mark.parametrize(("page", "script", "reward"), MINIWOB)
def test_page_of_miniwob_reports_its_reward(page, script, reward):
    source = MiniWobTasks()
    items = [item for split in source.splits for item in source.items(split)]
    item = next(item for item in items if item.id == f"miniwob:{page}:0")
    assert play(item, source, [*script, "stop []"]) == reward


@pytest.mark.parametrize("page", sorted(SOLVED))
def test_page_oracle_plays_its_pages(page):
    source = MiniWobTasks()
    items = [item for split in source.splits for item in source.items(split) if item.id.split(":")[1] == page]
    assert [play(item, source) for item in items[:2]] == [1.0, 1.0]


def test_default_selection_has_every_template():
    assert {item.data["intent_template_id"] for item in FIRST} == {task["intent_template_id"] for task in site_tasks()}
