"""Test that pages, exports and notebooks show the same turn, with one more fact."""

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import verl_agent as va
from tests.support.episodes import played
from tests.support.viewing import at, viewing
from tests.support.waiting import wait_until
from verl_agent.viewer import episode_html
from verl_agent.viewer.episode_html import FACTS, MAX_SHOWN
from verl_agent.viewer.export.write import export_episodes

LONG = "<x>" + "y" * MAX_SHOWN
ADDED = """
from verl_agent.viewer.episode_html import FACTS, Fact
FACTS.append(lambda turn: [Fact(f"{len(turn['reply'])} characters & more")])
"""
"""Change that adds a fact of a turn."""
SHOWN = "<span class=''>9 characters &amp; more</span>"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    record = played(("north", LONG), ("east", "hall"))
    for turn in record["turns"]:
        turn["reply"] = turn["reply"].ljust(9)[:9]
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "episodes.jsonl").write_text(json.dumps(record) + "\n")
    return tmp_path / "run"


@contextmanager
def pages(run: Path, before: str = "pass") -> Iterator[Callable[[str], str]]:
    """Serve a run; yield a function that returns the text of a page."""
    with viewing(run, run.parent / "config", before) as url:
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())

        def read(path: str) -> str:
            return browser.open(at(url, path)).read().decode()

        wait_until(lambda: "Turn 2" in read("/run/run/episode/1"))  # the records are read beside
        yield read


def test_a_fact_that_is_added_in_one_place_is_shown_everywhere(run: Path, tmp_path: Path) -> None:
    with pages(run, ADDED) as read:
        found = [read("/run/run/episode/1"), read("/compare?a=run&env=talk&task=1")]
    for name, character in (("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&")):  # NiceGUI escapes them in its JSON
        found = [page.replace(name, character) for page in found]
    assert [page.count(SHOWN) for page in found] == [2, 4], "two turns, and two sides with two turns each"
    before = list(FACTS)
    try:
        exec(ADDED, {})
        export_episodes([run], tmp_path / "page.html")
        (record,) = va.read_records(run)
        found = [(tmp_path / "page.html").read_text(), va.show_episode(record)._repr_html_()]
    finally:
        FACTS[:] = before
    assert [page.count(SHOWN) for page in found] == [2, 2]


def test_no_other_file_of_the_viewer_knows_the_fields_that_a_turn_shows() -> None:
    folder = Path(episode_html.__file__).parent
    fields = ("generate_s", "env_s", '["info"]', '"review"', '"author"', '"usage"')
    texts = {file.name: file.read_text() for file in folder.rglob("*.py")}
    knowing = {name for name, text in texts.items() if any(field in text for field in fields)}
    assert knowing == {"episode_html.py"}


def test_a_page_links_the_rest_of_a_long_text_and_an_export_folds_it(run: Path, tmp_path: Path) -> None:
    export_episodes([run], tmp_path / "page.html")
    assert "<summary>3 more characters</summary>" in (tmp_path / "page.html").read_text()
    with pages(run) as read:
        assert "3 more characters" in read("/run/run/episode/1")
        place = "/run/run/episode/1/text?"
        assert read(f"{place}turn=1&part=observation") == LONG
        for wrong in ("turn=1&part=info", "turn=9&part=reply", "message=9", "turn=x&part=reply"):
            with pytest.raises(urllib.error.HTTPError) as caught:
                read(place + wrong)
            assert caught.value.code == 404
