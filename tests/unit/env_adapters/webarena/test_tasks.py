"""Tests of tasks in WebArena's JSON format: validation, splits, and the URLs of their sites."""

import asyncio
import copy
import json
from collections import Counter

import pytest

from env_adapters.webarena.adapter import WebArena
from env_adapters.webarena.grading.evaluators import FinalState, evaluate, reference_texts
from env_adapters.webarena.grading.urls import EXACT_URL, url_match
from env_adapters.webarena.tasks.items import installed_task_file, make_item, read_items
from env_adapters.webarena.tasks.site_urls import UserSites
from env_adapters.webarena.tasks.splits import PAPER_TEST, READ_ONLY_TEMPLATES
from verl_agent.envs.registry import make_env
from verl_agent.envs.tasks import select_tasks
from verl_agent.errors import ConfigError

GOOD = {
    "task_id": 7,
    "sites": ["shopping"],
    "intent": "Buy it.",
    "start_url": "__SHOPPING__",
    "eval": {
        "eval_types": ["string_match", "url_match", "program_html"],
        "reference_answers": {"exact_match": "yes"},
        "reference_url": "__SHOPPING__/cart",
        "program_html": [
            {
                "url": "func:shopping_get_latest_order_url()",
                "locator": "document.body.outerText",
                "required_contents": {"must_include": ["it"]},
            }
        ],
    },
}


def changed(path, value):
    """Return a copy of `GOOD` with another value at a path; the value None removes the field."""
    task = copy.deepcopy(GOOD)
    parent = task
    *keys, last = path
    for key in keys:
        parent = parent[key]
    if value is None:
        del parent[last]
    else:
        parent[last] = value
    return task


def read(tmp_path, tasks):
    file = tmp_path / "tasks.json"
    file.write_text(tasks if isinstance(tasks, str) else json.dumps(tasks))
    return read_items(file)


def test_valid_task_becomes_an_item(tmp_path):
    (item,) = read(tmp_path, [GOOD])
    assert (item.env, item.id, item.category, dict(item.data)) == ("webarena", "7", "Shopping", GOOD)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("intent",), None, "task 7: intent is missing."),
        (("start_url",), 3, "task 7: start_url must be a str, got 3."),
        (("sites",), [], "task 7: sites must be names of sites"),
        (("eval",), None, "task 7: eval is missing."),
        (("eval", "eval_types"), [], "task 7: eval.eval_types is empty"),
        (("eval", "eval_types"), ["string_mach"], "eval.eval_types has 'string_mach'. Did you mean 'string_match'?"),
        (("eval", "reference_answers"), None, "eval: reference_answers is missing."),
        (("eval", "reference_answers"), {"fuzy_match": "x"}, "has 'fuzy_match'. Did you mean 'fuzzy_match'?"),
        (("eval", "reference_answers"), {"must_include": "x"}, "must_include must be a list of strings, got 'x'."),
        (("eval", "reference_url"), "", "eval.reference_url is empty."),
        (("eval", "url_note"), "PRED in GOLD", "eval.url_note is 'PRED in GOLD'. Allowed: 'GOLD in PRED', 'EXACT'."),
        (("eval", "program_html"), [], "eval.program_html is empty."),
        (("eval", "program_html", 0, "locator"), None, "eval.program_html[0]: locator is missing."),
        (("eval", "program_html", 0, "locator"), "h1", "program_html[0].locator='h1' is not allowed"),
        (
            ("eval", "program_html", 0, "url"),
            "func:os.system('x')",
            "calls an unknown helper. Allowed: reddit_get_post",
        ),
        (("eval", "program_html", 0, "url"), "func:reddit_get_post_url(f())", "arguments that are not string literals"),
        (("eval", "program_html", 0, "required_contents"), {}, "must have exact_match or must_include, got []"),
    ],
)
def test_invalid_task_raises_config_error_naming_the_field(tmp_path, path, value, message):
    with pytest.raises(ConfigError) as error:
        read(tmp_path, [changed(path, value)])
    assert message in str(error.value) and "tasks.json: task 7" in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"), [("{", "cannot be read"), ("{}", "must hold a list"), ("[{}]", "has no task_id")]
)
def test_file_without_tasks_raises_config_error(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, text)


def test_all_812_tasks_are_valid():
    items = read_items(installed_task_file())
    assert len({item.id for item in items}) == 812
    categories = Counter(item.category for item in items)
    assert categories == {
        "Shopping": 187, "CMS": 182, "GitLab": 180, "Reddit": 106, "Maps": 109, "Several sites": 48,
    }  # fmt: skip


def test_splits_follow_the_paper():
    train, test, every = (WebArena().tasks(split) for split in ("train", "test", "all"))
    assert len(every) == 812 and len(test) == 50
    assert Counter(item.category for item in test) == PAPER_TEST
    assert not {item.id for item in train} & {item.id for item in test}
    assert all(item.data["intent_template_id"] in READ_ONLY_TEMPLATES for item in [*train, *test])
    assert abs(len(train) - 372) <= 15


def test_urls_of_some_sites_select_their_tasks():
    sites = {"shopping": "http://shop.test", "map": "http://map.test"}
    adapter = WebArena(**{"sites": sites, "access": {"logged_out": True}})
    assert {item.category for item in adapter.tasks("train")} == {"Shopping", "Maps"}


def test_fill_urls_replaces_placeholders_in_nested_values():
    sites = UserSites({"shopping": "http://shop.test:7770/", "shopping_admin": "http://shop.test:7780/admin"})
    environment = asyncio.run(sites.open(make_item(GOOD)))
    filled = environment.fill_urls({"a": ["__SHOPPING_ADMIN__/x", "__SHOPPING__"], "b": 3})
    assert filled == {"a": ["http://shop.test:7780/admin/x", "http://shop.test:7770"], "b": 3}
    assert list(environment.routes) == ["shop.test:7770"]


def test_note_names_the_sites_that_no_tab_starts_on():
    sites = UserSites({"shopping": "http://shop.test:7770/", "reddit": "http://forum.test"})
    both = GOOD | {"sites": ["shopping", "reddit"], "start_url": "__SHOPPING__/x"}
    for task, note in (
        (GOOD | {"sites": ["shopping"], "start_url": "__SHOPPING__"}, []),
        (both, ["Other sites of this task: reddit: http://forum.test"]),
        (both | {"start_url": "__SHOPPING__ |AND| __REDDIT__"}, []),
    ):
        item = make_item(task)
        assert asyncio.run(sites.open(item)).other_sites_note(item) == note


def test_tasks_that_start_logged_in_need_a_login(tmp_path):
    file, sites = tmp_path / "tasks.json", {"shopping_admin": "http://shop.test/admin", "shopping": "http://shop.test"}
    login = {"require_login": True, "storage_state": "./.auth/shopping_state.json"}
    file.write_text(json.dumps([GOOD | {"task_id": 0, "storage_state": None}, GOOD | {"task_id": 1} | login]))
    options = {"tasks": str(file), "sites": sites}
    for access in (None, {"auth": None}):
        with pytest.raises(
            ConfigError, match=r"access\.auth=null, but 1 tasks start logged in \(for example, task 1 with shopping_"
        ):
            WebArena(**options, access=access).tasks("all")
    for access in ({"logged_out": True}, {"auth": str(tmp_path)}):
        assert len(WebArena(**options, access=access).tasks("all")) == 2
    assert WebArena(**{"tasks": "embedded"}).tasks("test")


def test_field_split_assigns_the_tasks_of_a_file(tmp_path):
    file = tmp_path / "tasks.json"
    file.write_text(
        json.dumps([GOOD | {"task_id": n, "split": split} for n, split in enumerate(("train", "test", "dev"))])
    )
    adapter = WebArena(tasks=str(file))
    assert [[item.id for item in adapter.tasks(split)] for split in ("train", "test", "all")] == [
        ["0"],
        ["1"],
        ["0", "1", "2"],
    ]
    assert tuple(adapter.splits) == ("train", "test", "all")


def test_file_without_field_split_has_only_the_split_all(tmp_path):
    file = tmp_path / "tasks.json"
    file.write_text(json.dumps([GOOD | {"task_id": n, "intent_template_id": 17} for n in range(3)]))
    adapter = WebArena(tasks=str(file))
    assert len(adapter.tasks("all")) == 3
    for split in ("train", "test"):
        with pytest.raises(ConfigError, match=f"no task of .* has split='{split}'. Add a field `split`"):
            adapter.tasks(split)
    assert tuple(adapter.splits) == ("all",)
    (tmp_path / "ids.txt").write_text("0\n2\n")
    chosen = select_tasks(make_env("webarena", {"tasks": str(file)}), str(tmp_path / "ids.txt"))
    assert [item.id for item in chosen] == ["0", "2"]


def test_exact_urls_pay_no_url_that_contains_all_pages():
    """WebArena's rule pays it in every task that checks only the URL."""
    items = WebArena(access={"exact_urls": True}).tasks("train")
    checked = [item.data["eval"] for item in items if item.data["eval"]["eval_types"] == ["url_match"]]
    joined = {}
    for evaluation in checked:
        for reference in evaluation["reference_url"].split(" |OR| "):
            site, _, path = reference.partition("/")
            joined.setdefault(site, []).append(path.partition("?")[::2])
    wrong = []
    for site, parts in joined.items():
        paths, queries = "/".join(f"{site}/{path}" for path, _ in parts), "&".join(query for _, query in parts if query)
        wrong.append(f"{site}/404/{paths}/?{queries}")
    for evaluation in checked:
        reference = evaluation["reference_url"]
        assert evaluation["url_note"] == EXACT_URL
        assert url_match(reference, f"{reference.split(' |OR| ')[0]}#top", exact=True) == 1.0
        assert any(url_match(reference, url) for url in wrong)
        assert not any(url_match(reference, url, exact=True) for url in wrong)
    assert len(checked) == 58


@pytest.mark.parametrize("option", ["exact_urls", "brief_answers"])
@pytest.mark.parametrize("tasks", ["embedded", "miniwob", "webarena_verified"])
def test_stricter_evaluation_is_refused_where_it_has_no_effect(tasks, option):
    with pytest.raises(ConfigError, match=f"access.{option}=true has no effect"):
        WebArena(tasks=tasks, access={option: True})


def test_brief_answers_pay_no_long_list_and_every_true_answer():
    """WebArena's rule pays a list of answers in each task whose answer it contains."""
    items = [item.data["eval"] for item in WebArena(access={"brief_answers": True}).tasks("all")]
    asked = [evaluation for evaluation in items if evaluation["reference_answers"]]
    texts = [reference_texts(evaluation["reference_answers"]) for evaluation in asked]
    listed = " ".join(dict.fromkeys(text for group in texts for text in group))
    final = FinalState(listed, None, "", {})
    judged = [evaluation | {"eval_types": ["string_match"]} for evaluation in asked]
    paid = {0: 0, 1: 0}
    for evaluation in judged:
        paid[1] += asyncio.run(evaluate(evaluation, final, None))
        paid[0] += asyncio.run(evaluate(evaluation | {"answer_rule": ""}, final, None))
        true = evaluation.get("reference_answer_raw_annotation") or ""
        answered = FinalState(true, None, "", {})
        scores = [asyncio.run(evaluate(evaluation | {"answer_rule": rule}, answered, None)) for rule in ("", "BRIEF")]
        assert scores[0] == scores[1], true
    assert paid[0] > 150 and paid[1] == 0
