"""Test the leaderboard and the page of test-time scaling in a real browser."""

import pytest

from tests.support.evaluated_games import evaluated
from tests.support.viewing import at, chromium, viewing
from tests.support.web import needs_chromium
from verl_agent.results.failures_report import analyze_failures, write_failures

pytestmark = [needs_chromium, pytest.mark.slow]


def test_the_leaderboard_and_its_scaling_pages_show_the_evaluations(tmp_path):
    runs = tmp_path / "runs"
    for model in ("cheap", "expensive"):
        evaluated(runs / model, model)
    evaluated(runs / "sampled", "random", samples=3)
    write_failures(*analyze_failures(runs / "cheap"), runs / "cheap")
    with viewing(runs, tmp_path) as url, chromium() as browser:
        page, errors = browser.new_page(), list[str]()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(at(url, "/leaderboard"))
        page.get_by_text("0.471 [0.262, 0.690] (17)").first.wait_for(timeout=60_000)
        assert page.get_by_text("0.0036 (Pareto)").count() == 1
        assert page.get_by_text("Differences are paired by task.").count() == 1
        page.get_by_role("link", name="sampled").last.click()
        page.wait_for_url("**/run/sampled/scaling")
        page.get_by_text("pass@k: at least one of k samples solves the task").wait_for(timeout=60_000)
        assert page.get_by_text("oracle (upper bound: it knows the outcome)").count() == 1
        assert page.locator("canvas, svg").count() >= 2
        page.goto(at(url, "/run/cheap/failures"))
        page.get_by_text("6 of 7 episodes failed.").wait_for(timeout=60_000)
        page.goto(at(url, "/run/expensive/failures"))
        page.get_by_text("No failures.json yet.").wait_for(timeout=60_000)
        assert errors == []
