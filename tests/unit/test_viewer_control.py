"""Test of the viewer's buttons that control a run, in a real browser."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from env_adapters.webarena.browser.chromium import installed_chromiums
from tests.support.web import needs_chromium
from verl_agent.errors import ConfigError
from verl_agent.runs.control.server import control_socket

ROOT = Path(__file__).parents[2]

pytestmark = needs_chromium


@contextmanager
def viewer(run: Path, config: Path) -> Iterator[str]:
    """Run the viewer; yield its URL."""
    command = [sys.executable, "-c", "from verl_agent.commands.cli import app; app()", "view", str(run), "--port", "0"]
    environment = {**os.environ, "XDG_CONFIG_HOME": str(config)}
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment)
    assert server.stdout is not None
    found = re.search(r"http://\S+/", server.stdout.readline())
    assert found is not None
    try:
        yield found[0].rstrip("/")
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(20)


def test_buttons_send_commands_and_a_refusal_is_shown(tmp_path):
    from playwright.sync_api import sync_playwright

    run = tmp_path / "run"
    run.mkdir()
    (run / "episodes.jsonl").write_text("")
    episode = {"episode": 7, "task": "buy-a-mug", "turn": 3, "paused": False, "waits": False, "attended_by": "ada"}
    heard: list[str] = []

    def handle(command):
        heard.append(json.dumps({name: command[name] for name in sorted(command)}))
        if command["command"] == "step":
            raise ConfigError("nothing is paused")
        return {"paused": command["command"] == "pause", "episodes": [episode]}

    with control_socket(run, handle), viewer(run, tmp_path) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(installed_chromiums()[0]), args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(f"{url}/run/run")
        page.get_by_role("link", name="Control").click()
        page.get_by_text("7: buy-a-mug, turn 3, playing, attended by ada").wait_for()
        page.get_by_role("button", name="pause", exact=True).click()
        page.get_by_text("The run is paused.").wait_for()
        page.get_by_role("button", name="end-episode 7").click()
        page.get_by_role("button", name="step", exact=True).click()
        page.get_by_text("nothing is paused").first.wait_for()
        browser.close()
    assert '{"command": "pause"}' in heard
    assert '{"command": "end-episode", "episode": 7}' in heard
