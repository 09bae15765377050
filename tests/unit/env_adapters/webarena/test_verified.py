"""Tests of the tasks and evaluators of WebArena-Verified, which need its package."""

import asyncio
import json
import unicodedata
from importlib.util import find_spec

import pytest

from env_adapters.webarena.adapter import WebArena
from env_adapters.webarena.grading.verified import plain_response, score
from tests.support.web import needs_chromium, serving_pages
from verl_agent.errors import ConfigError, EnvError

needs_package = pytest.mark.skipif(find_spec("webarena_verified") is None, reason="webarena-verified is not installed")
RETRIEVE, NAVIGATE = "0", "300"
"""Tasks: the best-selling product of 2022; open the page of the last pending order, 189."""
RIGHT = {"task_type": "RETRIEVE", "status": "SUCCESS", "retrieved_data": ["Quest Lumaflex Band"]}
SHOWN = {"task_type": "NAVIGATE", "status": "SUCCESS", "retrieved_data": None}
ORDER = "/sales/order/view/order_id/189/"


@pytest.mark.parametrize(
    "data",
    [
        ["^.*$"],
        [["a", "b"]],
        {"a": ["b", "c"]},
        [{"name": ["a", "b"]}],
        ["\uff3e.*$"],
        [{"name": "^.*$"}],
        [{"a": {"b": {"c": ["d"]}}}],
        ["http://shop.test/?q=%255E.*$"],
    ],
)
@needs_package
def test_answer_that_names_more_than_one_value_is_none(data):
    """The package takes patterns and lists of alternatives for right if one of them is."""
    assert plain_response(json.dumps(RIGHT | {"retrieved_data": data})) is None


@needs_package
def test_no_character_that_the_package_reads_as_a_caret_makes_a_pattern():
    from unidecode import unidecode

    carets = [chr(code) for code in range(0x20000) if not 0xD800 <= code < 0xE000]  # unidecode knows no others
    carets = [c for c in carets if "^" in unidecode(c) or "^" in unidecode(unicodedata.normalize("NFKC", c))]
    assert len(carets) > 30 and "\u2303" in carets
    answers = [json.dumps(RIGHT | {"retrieved_data": [f"{caret}.*$"]}) for caret in carets]
    assert [answer for answer in answers if plain_response(answer) is not None] == []


@pytest.mark.parametrize("answer", ["", "Quest Lumaflex Band", "[]", "5", "null", '{"task_type": '])
def test_answer_that_is_no_json_object_is_none(answer):
    assert plain_response(answer) is None


@needs_package
@pytest.mark.parametrize("name", ["Quest Lumaflex Band", "Caf\u00e9 \u2013 100% wool"])
def test_right_answer_is_kept(name):
    answer = RIGHT | {"retrieved_data": [name]}
    assert plain_response(json.dumps(answer)) == answer


@pytest.mark.skipif(find_spec("webarena_verified") is not None, reason="webarena-verified is installed")
def test_missing_package_raises_config_error_with_the_command():
    with pytest.raises(ConfigError, match=r"needs the package webarena-verified\. Install it: pip install"):
        WebArena(tasks="webarena_verified").tasks("test")


@needs_package
def test_splits_have_the_ids_of_the_original_tasks():
    original, audited = WebArena(), WebArena(tasks="webarena_verified")
    for split in ("train", "test", "reading", "all"):
        ids = [[item.id for item in env.tasks(split)] for env in (original, audited)]
        assert ids[0] == ids[1]
    assert len(audited.tasks("hard")) == 258
    item = next(item for item in audited.tasks("all") if item.id == RETRIEVE)
    assert item.data["intent"] == "Get the top-1 best-selling product name(s) in 2022"


def log(folder, url="http://shop.test/"):
    head = {"httpVersion": "HTTP/1.1", "headers": [], "cookies": [], "headersSize": -1, "bodySize": 0}
    request = {"method": "GET", "url": url, "queryString": [], **head}
    content = {"size": 0, "mimeType": "text/html"}
    response = {"status": 200, "statusText": "OK", "content": content, "redirectURL": "", **head}
    entry = {"startedDateTime": "2025-01-01T00:00:00Z", "time": 1, "request": request, "response": response}
    file = folder / "network.har"
    file.write_text(json.dumps({"log": {"version": "1.2", "entries": [{**entry, "cache": {}, "timings": {}}]}}))
    return file


@needs_package
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 1.0),
        ({"retrieved_data": ["quest lumaflex\u2122 band"]}, 1.0),
        ({"retrieved_data": ["Sprite Yoga Strap"]}, 0.0),
        ({"retrieved_data": ["Quest Lumaflex Band", "Sprite Yoga Strap"]}, 0.0),
        ({"retrieved_data": ["^.*$"]}, 0.0),
        ({"retrieved_data": ["\u2303.*$"]}, 0.0),
        ({"retrieved_data": [["Sprite Yoga Strap", "Quest Lumaflex Band"]]}, 0.0),
        ({"status": "NOT_FOUND_ERROR"}, 0.0),
        ({"task_type": 5}, 0.0),
    ],
)
def test_answers_are_compared_by_the_package(tmp_path, changes, expected):
    sites = {"shopping_admin": "http://shop.test/admin"}
    assert score(int(RETRIEVE), json.dumps(RIGHT | changes), log(tmp_path), sites) == expected


@needs_package
def test_empty_network_log_is_an_error_and_not_a_wrong_answer(tmp_path):
    file = tmp_path / "network.har"
    file.write_text("{}")
    with pytest.raises(EnvError, match="could not evaluate task 0"):
        score(int(RETRIEVE), json.dumps(RIGHT), file, {"shopping_admin": "http://shop.test/admin"})


@needs_package
@needs_chromium
@pytest.mark.parametrize(
    ("task", "actions", "expected"),
    [
        (RETRIEVE, [f"stop [{json.dumps(RIGHT)}]"], 1.0),
        (RETRIEVE, ["stop [Quest Lumaflex Band]"], 0.0),
        (NAVIGATE, [f"goto [SITE{ORDER}]", f"stop [{json.dumps(SHOWN)}]"], 1.0),
        (NAVIGATE, [f"stop [{json.dumps(SHOWN)}]"], 0.0),
    ],
)
def test_episode_is_evaluated_by_its_answer_and_its_requests(task, actions, expected):
    async def play(env, site):
        item = next(item for item in env.tasks("all") if item.id == task)
        messages = await env.reset(item)
        assert "retrieved_data" in messages[0]["content"]
        try:
            for action in actions:
                step = await env.step(action.replace("SITE", site))
            return step
        finally:
            await env.close()

    with serving_pages({"/": "<h1>Shop</h1>", "/admin": "<h1>Admin</h1>", ORDER: "<h1>Order</h1>"}) as port:
        site = f"http://127.0.0.1:{port}"
        sites = {"shopping": site, "shopping_admin": f"{site}/admin"}
        env = WebArena(tasks="webarena_verified", sites=sites, access={"logged_out": True})
        step = asyncio.run(play(env, site))
    assert step.terminated and step.reward == expected


@pytest.mark.parametrize("text", ["[" * 9000, '{"a":' * 1500 + "1" + "}" * 1500])
@needs_package
def test_answer_that_is_nested_too_deeply_is_none(text):
    assert plain_response(text) is None
