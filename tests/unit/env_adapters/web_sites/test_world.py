"""The made-up world is the same for the same seed, and the tasks about it can be told right from wrong."""

import json
import re
import subprocess
import sys
from collections import defaultdict
from datetime import timedelta
from hashlib import sha256

import pytest

from env_adapters.web_sites.served.fossil.dates import dated
from env_adapters.web_sites.siteset import SITES
from env_adapters.web_sites.source import EmbeddedTasks
from env_adapters.web_sites.tasks import site_tasks
from env_adapters.web_sites.tasks.build import templates
from env_adapters.web_sites.world import GeneratedWorld, world
from env_adapters.webarena.tasks.oracle import TARGET
from tests import ROOT

LISTING = "from env_adapters.web_sites.world import GeneratedWorld; print(repr(GeneratedWorld(1).listing()))"
ACTIONS = ("click", "type", "goto", "press", "stop")


def test_a_seed_gives_the_same_world_in_every_process():
    command = [sys.executable, "-c", LISTING]
    outputs = [
        subprocess.run(
            command, cwd=ROOT, env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1] == f"{GeneratedWorld(1).listing()!r}\n"
    assert sha256(repr(GeneratedWorld(2).listing()).encode()).digest() != sha256(outputs[0].encode()).digest()


def test_meetings_are_on_days_after_their_announcement():
    meetups = [topic for topic in world().forum.topics if topic.category == "Meetups"]
    for topic in meetups:
        day = topic.facts["day"]
        assert f"We meet on {day} at " in topic.comments[0].text
        start = topic.comments[0].moment.date()
        following = [start + timedelta(days=number) for number in range(2, 36)]
        assert day in [f"{date:%A} {date.day} {date:%B}" for date in following]
    assert len(meetups) > 10


def test_upc_does_not_reveal_the_key_of_the_product():
    """The key is in the URL of the product's page, so it would replace the search in the dashboard."""
    products = world().shop.products
    digits = [one.upc.removeprefix("FH") for one in products]
    assert {len(text) for text in digits} == {7} and len(set(digits)) == len(products)
    for start in range(7):
        for end in range(start + 1, 8):
            equal = sum(int(text[start:end]) == one.pk for text, one in zip(digits, products, strict=True))
            assert equal < 6, (start, end)


def test_there_is_enough_to_look_for():
    made = world()
    assert len(made.shop.products) == 240
    assert len(made.shop.orders) == 300
    assert len(made.shop.reviews) > 400
    assert len(made.forum.topics) > 180
    assert sum(len(topic.comments) for topic in made.forum.topics) > 900
    assert len(made.code.projects) == 8
    assert sum(len(project.tickets) for project in made.code.projects) > 150


@pytest.mark.parametrize(
    "names",
    [
        lambda made: [product.title for product in made.shop.products],
        lambda made: [product.slug for product in made.shop.products],
        lambda made: [customer.email for customer in made.shop.customers],
        lambda made: [order.cents for order in made.shop.orders],
        lambda made: [topic.title for topic in made.forum.topics],
        lambda made: [(project.name, ticket.title) for project in made.code.projects for ticket in project.tickets],
    ],
)
def test_what_tasks_ask_for_by_name_is_there_once(names):
    for seed in (1, 2, 3):
        listed = names(GeneratedWorld(seed))
        assert len(set(listed)) == len(listed)


def test_prices_of_a_category_differ_so_that_one_is_the_lowest():
    prices = defaultdict(list)
    for product in world().shop.products:
        prices[product.category].append(product.cents)
    assert all(len(set(cents)) == len(cents) for cents in prices.values())


def test_there_are_enough_tasks_of_enough_kinds():
    tasks = site_tasks()
    assert len(tasks) >= 300
    assert len({task["intent_template_id"] for task in tasks}) >= 25
    assert {site for task in tasks for site in task["sites"]} == set(SITES)
    assert sum(len(task["sites"]) > 1 for task in tasks) >= 30
    assert {task["split"] for task in tasks} == {"train", "test"}


def test_the_address_of_a_page_cannot_be_formed_from_the_task():
    tokens = defaultdict(list)
    for task in site_tasks():
        for url in task["eval"].get("final_page", {}).get("urls", ()):
            tokens[task["intent_template"]].append((task["intent"].lower(), re.split(r"[/?&=]", url.lower())))
    assert tokens
    for template, listed in tokens.items():
        fixed = set.intersection(*(set(parts) for _, parts in listed))
        for intent, parts in listed:
            given = set(re.findall(r"\w+", intent))
            unknown = [part for part in parts if part not in fixed and set(re.findall(r"\w+", part)) - given]
            assert unknown, (template, intent)


def test_tasks_are_the_same_for_the_same_seed():
    assert json.dumps(site_tasks(1)) == json.dumps(site_tasks.__wrapped__(1))


def test_train_and_test_share_no_template():
    splits = defaultdict(set)
    for task in site_tasks():
        splits[task["intent_template"]].add(task["split"])
    assert all(len(found) == 1 for found in splits.values())


def test_train_and_test_share_no_entity_but_those_that_the_readme_names():
    """Whoever wrote a review or a topic, its title or its category, may be named in both."""
    found = {"train": set(), "test": set()}
    for task in site_tasks():
        found[task["split"]] |= set(task["instantiation_dict"].values())
    shared = found["train"] & found["test"]
    named = {
        "customers": {customer.name for customer in world().shop.customers},
        "members": set(world().forum.members),
        "categories": set(world().forum.categories),
        "titles of reviews": {review.title for review in world().shop.reviews},
    }
    counts = {kind: len(shared & names) for kind, names in named.items()}
    assert counts == {"customers": 3, "members": 11, "categories": 5, "titles of reviews": 4}
    assert not shared.difference(*named.values())


def test_intents_do_not_name_the_subject_that_the_forum_tells():
    """Otherwise such a task would not need the forum; the description must fit one topic only."""
    forum, asked = (
        world().forum,
        [task for task in site_tasks() if "praised" in task["id"] or "mentioned" in task["id"]],
    )
    topics = {str(topic.pk): topic for topic in forum.topics}
    assert len(asked) > 40
    for task in asked:
        topic = topics[task["id"].partition(":")[2]]
        assert topic.title not in task["intent"] and topic.about[-1] not in task["intent"], task["id"]
        other = task["instantiation_dict"].get("other")
        same = [one for one in forum.topics if (one.author, one.category) == (topic.author, topic.category)]
        assert not other or sum(one.replies[0].member == other for one in same) == 1, task["id"]


@pytest.mark.parametrize("place", range(len(templates())), ids=lambda place: templates()[place].name)
def test_the_tasks_of_a_template_are_whole(place):
    tasks = [task for task in site_tasks() if task["intent_template_id"] == place]
    assert len(tasks) >= 2
    for task in tasks:
        check_task(task)


def check_task(task):
    assert "{{" not in task["intent"]
    assert task["oracle"][-1].startswith("stop [")
    assert task["wrong"]
    kinds = task["eval"]["eval_types"]
    assert len(kinds) == 1
    assert task["require_reset"] == (kinds == ["state_change"])
    for script in (task["oracle"], task["corrected"], *task["wrong"].values()):
        assert script[-1].startswith("stop [")
        for line in script:
            assert line.split()[0] in ACTIONS
            assert TARGET.search(line) or not line.startswith(("click", "type"))


def test_the_names_of_tasks_are_unique():
    tasks = site_tasks()
    assert len({task["id"] for task in tasks}) == len({task["task_id"] for task in tasks}) == len(tasks)
    assert len({task["intent"] for task in tasks}) == len(tasks)


def test_categories_are_those_of_webarenas_own_tasks():
    found = {item.category for item in EmbeddedTasks().items("train_all")}
    assert found == {"Shopping", "CMS", "GitLab", "Reddit", "Several sites"}


@pytest.mark.parametrize(
    ("cell", "date"),
    [
        ("<td data-sortkey='0001fa40'>1.5 days</td>", "<td data-sortkey='2025-06-13'>2025-06-13</td>"),
        ('<td data-sortkey="00000031811d6bc4">1.35 years</td>', '<td data-sortkey="00000031811d6bc4">2025-07-18</td>'),
        ('<tr class="a" title="2025-01-19 20:00:00">\n<td>1.84 years</td>', None),
        ("<p>It took 1.5 days</p><td>28.5 days</td>", "<p>It took 1.5 days</p><td>28.5 days</td>"),
    ],
)
def test_ages_on_pages_of_the_code_host_are_dates(cell, date):
    noon_of_june_14 = 1_749_902_400
    wanted = date or cell.replace("1.84 years", "2025-01-19")
    assert dated(cell.encode(), noon_of_june_14) == wanted.encode()
