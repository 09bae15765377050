"""Test that pages follow runs in place: new runs, any metric, the log, the order of a table, in a real browser."""

import json
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.support.episodes import STARTED, played
from tests.support.viewing import at, chromium, viewing
from tests.support.web import needs_chromium
from verl_agent.trace.record import EpisodeMeta

pytestmark = needs_chromium


@pytest.fixture(scope="module")
def browser():
    with chromium() as started:
        yield started


def write_run(folder: Path, episodes: int = 3) -> Path:
    """Write a run of two steps with metrics, a log, and some episodes."""
    for name in ("metrics", "episodes", "logs"):
        (folder / name).mkdir(parents=True)
    lines = [{"step": step, "data": {"actor/grad_norm": step / 2, "own/number": 7.0 + step}} for step in (1, 2)]
    (folder / "metrics/20260101T000000.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    log = "start \x1b[31m\nTraceback (most recent call last):\n  File x\nValueError: the first one\nlast line\n"
    (folder / "logs/20260101T000000.log").write_text(log)
    append(folder, range(episodes))
    return folder


def append(folder: Path, numbers) -> None:
    with (folder / "episodes/a.jsonl").open("a") as file:
        for number in numbers:
            meta = EpisodeMeta("train", "train", 1 + number % 2, f"g{number}", 0, STARTED, seconds=1.0)
            turns = [("north", "hall")] * (1 + number % 5)
            file.write(json.dumps(played(*turns, task=f"task {number}", meta=meta)) + "\n")


def test_a_new_run_appears_on_home(tmp_path: Path, browser: Browser) -> None:
    root = tmp_path / "runs"
    write_run(root / "first")
    with viewing(root, tmp_path) as url:
        page = browser.new_page()
        page.goto(url)
        page.get_by_role("link", name="first").first.wait_for()
        offline = root / "sft/metrics"
        offline.mkdir(parents=True)
        (offline / "20260101T000000.jsonl").write_text('{"step": 1, "data": {"train/loss": 0.5}}\n')
        page.get_by_role("link", name="sft").first.wait_for()
        page.get_by_role("link", name="sft").first.click()
        page.get_by_text("Loss (nats per token; of DPO per pair)").wait_for()
        page.close()


def test_home_shows_the_runs_that_have_all_words_of_a_search(tmp_path: Path, browser: Browser) -> None:
    root = tmp_path / "runs"
    for number in range(6):
        write_run(root / f"r{number}", 1 + number % 2)
    with viewing(root, tmp_path) as url:
        page = browser.new_page()
        page.goto(at(url, "/"))
        cards = page.locator("h2.heading").filter(visible=True)
        field = page.get_by_label("search runs")
        field.fill("R3 train")
        page.wait_for_url("**/?search=R3+train")
        page.wait_for_function("[...document.querySelectorAll('h2.heading')].filter(h => h.offsetParent).length === 1")
        assert cards.all_inner_texts() == ["r3"]
        write_run(root / "r3-again")
        page.get_by_role("link", name="r3-again", exact=True).last.wait_for()
        assert sorted(cards.all_inner_texts()) == ["r3", "r3-again"]
        page.goto(at(url, "/?search=r4"))
        cards.first.wait_for()
        assert (field.input_value(), cards.all_inner_texts()) == ("r4", ["r4"])
        page.close()


def test_any_logged_metric_is_a_chart_and_the_log_has_its_first_error(tmp_path: Path, browser: Browser) -> None:
    run = write_run(tmp_path / "run")
    with viewing(run, tmp_path) as url:
        page = browser.new_page()
        page.goto(at(url, "/run/run?metric=own/number"))
        page.locator(".heading", has_text="own/number").wait_for()
        assert page.locator(".heading", has_text="actor/grad_norm").count() == 0
        page.goto(at(url, "/run/run"))
        page.locator(".heading", has_text="actor/grad_norm").wait_for()
        page.get_by_text("Log", exact=True).click()
        page.get_by_text("First error: ValueError: the first one").wait_for()
        page.get_by_text("last line").last.wait_for()
        page.close()


def test_new_rows_leave_scroll_and_focus_and_headers_sort(tmp_path: Path, browser: Browser) -> None:
    run = write_run(tmp_path / "run", 80)
    with viewing(run, tmp_path) as url:
        page = browser.new_page(viewport={"width": 1200, "height": 700})
        page.goto(at(url, "/run/run/episodes"))
        page.get_by_text("80 episodes").wait_for()
        page.wait_for_function("() => document.activeElement.closest('tbody tr')")  # the first row gets the focus
        second = page.locator("tbody tr a").nth(1).get_attribute("href")
        page.keyboard.press("ArrowDown")
        focused = "document.activeElement.getAttribute('href')"
        page.wait_for_function(f"() => {focused} === '{second}'")
        page.evaluate("scrollTo(0, 900)")
        append(run, range(80, 83))
        page.get_by_text("83 episodes").wait_for()
        assert page.locator("tbody tr").count() == 83
        assert page.evaluate(f"[scrollY, {focused}]") == [900, second]
        first = page.locator("tbody tr").first.locator("[data-name=turns]")
        for sort, least in (("turns", "1"), ("-turns", "5")):
            page.locator("th").get_by_text("turns").click()
            page.wait_for_url(f"**/episodes?*sort={sort}*")
            first.wait_for()
            assert first.text_content() == least
        page.goto(at(url, "/run/run/episodes?columns=task,thought_length"))
        page.locator("th").get_by_text("thought length").wait_for()
        assert page.locator("th").count() == 2
        page.close()
