"""Test the documentation site: its generated pages, its navigation, and the built site in Chromium."""

import subprocess
import sys
import threading
from contextlib import suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
import yaml
from playwright.sync_api import TimeoutError as BrowserTimeoutError

import verl_agent as va
from tests import ROOT
from tests.support.composing import RECIPES
from tests.support.loading import load_script
from tests.support.viewing import chromium
from tests.support.web import needs_chromium

ZENSICAL = ROOT / ".venv-docs" / "bin" / "zensical"


@pytest.fixture(scope="module")
def build():
    """Return the module docs/build.py."""
    return load_script(ROOT / "docs" / "build.py")


@pytest.fixture(scope="module")
def generated(build) -> dict[str, str]:
    return build.generated()


def pages_of(nav) -> list[str]:
    """Return the pages that a navigation names."""
    if isinstance(nav, str):
        return [nav]
    values = nav if isinstance(nav, list) else nav.values()
    return [page for value in values for page in pages_of(value)]


def test_every_public_name_is_on_the_page_of_the_api(generated):
    page = generated["reference/api.md"]
    assert sorted(line.rpartition(".")[2] for line in page.splitlines() if line.startswith(":::")) == list(va.__all__)


def test_every_recipe_is_in_the_table_with_purpose_and_needs(generated):
    rows = [line for line in generated["reference/recipes.md"].splitlines() if line.startswith("| `")]
    assert len(rows) == len(RECIPES) + 1
    assert [
        row for row in rows if len(row.split(" | ")) != 3 or any(not cell.strip(" |") for cell in row.split(" | "))
    ] == []


def test_every_command_is_on_the_page_of_commands(generated):
    for name in ("train", "eval", "view", "check-env", "what-if", "sites"):
        assert f"`verl-agent {name}`" in generated["reference/commands.md"]


def test_the_navigation_names_every_page_once(generated):
    config = yaml.safe_load((ROOT / "docs" / "mkdocs.yml").read_text(encoding="utf-8"))
    docs = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert sorted(pages_of(config["nav"])) == sorted(docs | {name for name in generated if name.endswith(".md")})


def test_a_part_of_the_site_that_cannot_be_made_is_named_with_the_reason(build):
    """The gallery, for example, needs the data set of TextCraft."""
    command = [sys.executable, "-c", "from verl_agent.commands.cli import app; app()", "eval", "recipes/none.yaml"]
    with pytest.raises(SystemExit, match=r"(?s)eval recipes/none\.yaml ended with status 2:.*does not exist"):
        build.run(command)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Build the site as `make docs` does, and return its folder."""
    folder = tmp_path_factory.mktemp("site")
    subprocess.run([sys.executable, ROOT / "docs" / "build.py", folder / "build" / "docs"], cwd=ROOT, check=True)
    config = folder / "build" / "mkdocs.yml"
    config.write_text(config.read_text(encoding="utf-8").replace("[..]", f"[{ROOT}]"), encoding="utf-8")
    subprocess.run([ZENSICAL, "build", "--strict", "--config-file", config], cwd=folder, check=True)
    return folder / "build" / "site"


class Silent(SimpleHTTPRequestHandler):
    """Handler that serves a folder without a log."""

    def log_message(self, *arguments: object) -> None:
        pass


def search(page, text, found):
    """Type into the search until it finds a page; it listens only once its script has loaded."""
    result = page.locator("a:visible", has_text=found).first
    for _ in range(30):
        page.keyboard.press("/")
        page.keyboard.press("Control+A")
        page.keyboard.type(text)
        with suppress(BrowserTimeoutError):
            return result.wait_for(timeout=2000)
        page.keyboard.press("Escape")
    raise AssertionError(f"the search does not find {found!r}")


@needs_chromium
@pytest.mark.skipif(not ZENSICAL.is_file(), reason="the site's generator is not installed: make docs")
def test_built_site_works_in_chromium_without_a_network(site):
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url, asked, errors = f"http://127.0.0.1:{server.server_port}", [], []
    try:
        with chromium() as browser:
            page = browser.new_page()
            page.on("request", lambda request: asked.append(request.url))
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.goto(f"{url}/index.html")
            page.get_by_role("link", name="Your own environment").first.click()
            page.get_by_role("heading", name="Put your game into").wait_for()
            search(page, "asynchronous", "Asynchronous rollout")
            search(page, "reward hacking", "Debug a run that does not learn")
            search(page, "out of memory", "Out of memory")
            page.goto(f"{url}/results/demo.html")
            before = page.locator("#demo section").first.inner_text()
            page.locator("#demo-step").fill("12")
            assert page.locator("#demo section").first.inner_text() != before
            page.goto(f"{url}/results/gallery.html")
            page.frame_locator("iframe").locator("h2").first.wait_for()
            page.goto(f"{url}/reference/api.html")
            page.get_by_role("heading", name="EnvAdapter").first.wait_for()
    finally:
        server.shutdown()
    assert errors == []
    assert [one for one in asked if not one.startswith((url, "data:", "blob:"))] == []
