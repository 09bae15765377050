"""Tests of the tasks on MiniWoB's pages and of the server of the pages."""

from importlib.util import find_spec
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from env_adapters.webarena.tasks.miniwob import CORE, LOCATOR, PAGE_HEADER, PageServer, miniwob_tasks, pages_folder
from env_adapters.webarena.tasks.miniwob_pages import CHECKS, EXCLUDED, PAGES, TEST_PAGES
from verl_agent.errors import ConfigError

ALL_PAGES = {*PAGES, *(page for pages in EXCLUDED.values() for page in pages.split())}

needs_pages = pytest.mark.skipif(
    find_spec("miniwob") is None, reason="needs the package miniwob: pip install --no-deps miniwob==1.1.0"
)


@pytest.fixture
def pages(tmp_path):
    folder = tmp_path / "html"
    (folder / "miniwob").mkdir(parents=True)
    (folder / "core").mkdir()
    (folder / "miniwob" / "click.html").write_bytes(b"<head>" + CORE + b"</head>")
    (folder / "core" / "core.js").write_text("var core = {};")
    (tmp_path / "secret").write_text("secret")
    server = PageServer(folder)
    yield server
    server.shutdown()
    server.server_close()


def get(pages, path, task_page="click"):
    host, port = pages.routes["miniwob.test:80"]
    with urlopen(Request(f"http://{host}:{port}{path}", headers={PAGE_HEADER: task_page})) as response:
        return response.read().decode(response.headers.get_content_charset())


def test_train_and_test_have_no_page_in_common():
    train, test, click_all = (miniwob_tasks(split) for split in ("train", "test", "click_all"))
    assert (len(train), len(test), len(click_all)) == (470, 120, 80)
    assert not {task["intent_template_id"] for task in train} & {task["intent_template_id"] for task in test}
    assert len({task["task_id"] for task in (*train, *test)}) == len(train) + len(test)
    assert {task["category"] for task in train} >= {task["category"] for task in test}


def test_task_is_evaluated_on_its_own_page():
    task = miniwob_tasks("train")[0]
    assert task["start_url"] == task["eval"]["reference_url"]
    assert task["eval"]["program_html"][0]["locator"] == LOCATOR


def test_every_page_has_tasks_or_a_reason_for_its_exclusion():
    assert len(ALL_PAGES) == 130 == len(PAGES) + sum(len(pages.split()) for pages in EXCLUDED.values())
    assert set(PAGES) > TEST_PAGES


def test_unknown_split_raises_config_error():
    with pytest.raises(ConfigError, match="Allowed: train, test, click_all"):
        miniwob_tasks("dev")


def test_page_has_the_script_after_the_core(pages):
    page = get(pages, "/miniwob/click.html?seed=3")
    assert page.index("core.js") < page.index("data-reward") < page.index("</head>")
    assert get(pages, "/core/core.js") == "var core = {};"


@pytest.mark.parametrize("path", ["/miniwob/click.html", "/miniwob/%63lick.html?seed=1", "//miniwob//click.html"])
def test_other_pages_are_not_served(pages, path):
    """A page that shows typed text as HTML, for example `terminal`, could solve the tasks of all others."""
    with pytest.raises(HTTPError, match="404"):
        get(pages, path, task_page="other")


@pytest.mark.parametrize("page", CHECKS)
def test_missing_check_is_added_to_its_page(pages, page):
    (pages.folder / "miniwob" / f"{page}.html").write_bytes(CORE)
    assert CHECKS[page] in get(pages, f"/miniwob/{page}.html", page)
    assert "(true)" in get(pages, "/miniwob/click.html")


@pytest.mark.parametrize("path", ["/../secret", "/%2e%2e/secret", "/miniwob/none.html", "/miniwob"])
def test_server_reads_no_other_file(pages, path):
    assert pages.read(path) is None


@needs_pages
def test_pages_are_those_of_the_package():
    folder = pages_folder()
    assert {file.stem for file in (folder / "miniwob").glob("*.html")} == ALL_PAGES
    for page in PAGES:
        assert CORE in Path(folder, "miniwob", f"{page}.html").read_bytes()
