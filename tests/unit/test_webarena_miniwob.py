"""MiniWoB's pages as tasks: those of the package, with what begins and judges them."""

from importlib.util import find_spec
from pathlib import Path
from urllib.request import urlopen

import pytest

from env_adapters.webarena.tasks.miniwob import CORE, LOCATOR, Pages, all_pages, miniwob_tasks, pages_folder
from env_adapters.webarena.tasks.miniwob_pages import LEFT_OUT, PAGES, TEST_PAGES
from verl_agent.errors import ConfigError

needs_pages = pytest.mark.skipif(
    find_spec("miniwob") is None,
    reason="needs the package miniwob: pip install --no-deps miniwob==1.1.0",
)


@pytest.fixture
def pages(tmp_path):
    folder = tmp_path / "html"
    (folder / "miniwob").mkdir(parents=True)
    (folder / "core").mkdir()
    (folder / "miniwob" / "click.html").write_bytes(b"<head>" + CORE + b"</head>")
    (folder / "core" / "core.js").write_text("var core = {};")
    (tmp_path / "secret").write_text("secret")
    server = Pages(folder)
    yield server
    server.shutdown()
    server.server_close()


def get(pages, path):
    host, port = pages.routes["miniwob.test:80"]
    with urlopen(f"http://{host}:{port}{path}") as answer:
        return answer.read().decode(answer.headers.get_content_charset())


def test_train_and_test_share_no_page_and_no_seed():
    train, test = miniwob_tasks("train"), miniwob_tasks("test")
    assert len(train) == 560 and len(test) == 120
    assert not {one["intent_template_id"] for one in train} & {one["intent_template_id"] for one in test}
    assert len({one["task_id"] for one in (*train, *test)}) == len(train) + len(test)
    assert {one["category"] for one in train} >= {one["category"] for one in test}


def test_a_task_is_judged_by_its_own_page():
    task = miniwob_tasks("train")[0]
    assert task["start_url"] == task["eval"]["reference_url"]
    assert task["eval"]["program_html"][0]["locator"] == LOCATOR


def test_every_page_is_played_or_left_out_for_a_reason():
    listed = list(all_pages())
    assert len(listed) == 130 == len(PAGES) + sum(map(len, LEFT_OUT.values()))
    assert set(PAGES) > TEST_PAGES


def test_an_unknown_split_is_refused():
    with pytest.raises(ConfigError, match="Allowed: train, test"):
        miniwob_tasks("dev")


def test_a_page_gets_the_script_behind_the_core(pages):
    page = get(pages, "/miniwob/click.html?seed=3")
    assert page.index("core.js") < page.index("data-reward") < page.index("</head>")
    assert get(pages, "/core/core.js") == "var core = {};"


@pytest.mark.parametrize("path", ["/../secret", "/%2e%2e/secret", "/miniwob/none.html", "/miniwob"])
def test_nothing_else_is_served(pages, path):
    assert pages.find(path) is None


@needs_pages
def test_the_pages_are_those_of_the_package():
    folder = pages_folder()
    assert {file.stem for file in (folder / "miniwob").glob("*.html")} == set(all_pages())
    for page in PAGES:
        assert CORE in Path(folder, "miniwob", f"{page}.html").read_bytes()
