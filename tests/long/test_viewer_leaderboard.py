"""Test the leaderboard and the page of test-time scaling in a real browser."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from env_adapters.webarena.browser.chromium import installed_chromiums
from tests.support.web import needs_chromium
from tests.unit.test_leaderboard import evaluated
from verl_agent.evaluation.failures_report import analyze_failures, write_failures

pytestmark = [needs_chromium, pytest.mark.slow]
ROOT = Path(__file__).parents[2]


def test_the_leaderboard_and_its_scaling_pages_show_the_evaluations(tmp_path):
    from playwright.sync_api import sync_playwright

    runs = tmp_path / "runs"
    for model in ("cheap", "expensive"):
        evaluated(runs / model, model)
    evaluated(runs / "sampled", "random", samples=3)
    write_failures(*analyze_failures(runs / "cheap"), runs / "cheap")
    command = [sys.executable, "-c", "from verl_agent.commands.cli import app; app()", "view", str(runs), "--port", "0"]
    environment = os.environ | {"XDG_CONFIG_HOME": str(tmp_path)}
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment)
    try:
        assert server.stdout is not None
        found = re.search(r"http://\S+/", server.stdout.readline())
        assert found is not None
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=str(installed_chromiums()[0]), args=["--no-sandbox"])
            page, errors = browser.new_page(), list[str]()
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.goto(f"{found[0]}leaderboard")
            page.get_by_text("0.471 [0.262, 0.690] (17)").first.wait_for(timeout=60_000)
            assert page.get_by_text("0.0036 (Pareto)").count() == 1
            assert page.get_by_text("Differences are paired by task.").count() == 1
            page.get_by_role("link", name="sampled").last.click()
            page.wait_for_url("**/run/sampled/scaling")
            page.get_by_text("pass@k: at least one of k samples solves the task").wait_for(timeout=60_000)
            assert page.get_by_text("oracle (upper bound: it knows the outcome)").count() == 1
            assert page.locator("canvas, svg").count() >= 2
            page.goto(f"{found[0]}run/cheap/failures")
            page.get_by_text("6 of 7 episodes failed.").wait_for(timeout=60_000)
            page.goto(f"{found[0]}run/expensive/failures")
            page.get_by_text("No failures.json yet.").wait_for(timeout=60_000)
            assert errors == []
            browser.close()
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(20)
