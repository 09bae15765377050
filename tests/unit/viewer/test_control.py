"""Test of the viewer's buttons that control a run, in a real browser."""

import json
import os
import signal
import subprocess
import sys

from tests import ROOT
from tests.support.viewing import at, chromium, viewing
from tests.support.web import needs_chromium
from verl_agent.errors import ConfigError
from verl_agent.oversight.socket import control_socket

RUN = """
import sys, time
from pathlib import Path
from verl_agent.oversight.socket import control_socket
from verl_agent.runs.processes import ending_all_children

answer = {"paused": False, "episodes": []}
try:
    with ending_all_children(), control_socket(Path(sys.argv[1]), lambda command: dict(answer)):
        time.sleep(60)
except KeyboardInterrupt:
    sys.exit(130)
"""
"""Run that does nothing but listen at its control socket, in a process of its own."""

pytestmark = needs_chromium


def test_buttons_send_commands_and_a_refusal_is_shown(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "episodes.jsonl").write_text("")
    episode = {"episode": 7, "task": "buy-a-mug", "turn": 3, "paused": False, "waits": False, "attended_by": "ada"}
    heard: list[str] = []

    def handle(command):
        heard.append(json.dumps({name: command[name] for name in sorted(command)}))
        if command["command"] == "step":
            raise ConfigError("nothing is paused")
        return {"paused": any('"pause"' in line for line in heard), "episodes": [episode]}

    with control_socket(run, handle), viewing(run, tmp_path) as url, chromium() as browser:
        page = browser.new_page()
        page.goto(at(url, "/run/run"))
        page.get_by_role("link", name="Control").click()
        page.get_by_text("7: buy-a-mug, turn 3, playing, attended by ada").wait_for()
        page.get_by_role("button", name="pause", exact=True).click()
        page.get_by_text("Write your name first").first.wait_for()
        page.get_by_label("your name").fill("ada")
        page.get_by_role("button", name="pause", exact=True).click()
        page.get_by_text("The run is paused.").wait_for()
        page.get_by_role("button", name="end-episode 7").click()
        page.get_by_role("button", name="step", exact=True).click()
        page.get_by_text("nothing is paused").first.wait_for()
    assert '{"command": "pause", "name": "ada"}' in heard
    assert '{"command": "end-episode", "episode": 7, "name": "ada"}' in heard


def test_kill_button_ends_the_run_after_it_was_confirmed(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "episodes.jsonl").write_text("")
    game = subprocess.Popen(
        [sys.executable, "-c", RUN, str(run)], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    try:
        with viewing(run, tmp_path) as url, chromium() as browser:
            page = browser.new_page()
            page.goto(at(url, "/run/run/control?name=ada"))
            page.get_by_text("The run goes on.").wait_for()
            page.get_by_role("button", name="end the run").click()
            page.get_by_role("button", name="cancel").click()
            page.get_by_text("Kill all processes of the run?").wait_for(state="hidden")
            assert game.poll() is None
            page.get_by_role("button", name="end the run").click()
            page.get_by_role("button", name="kill", exact=True).click()
            game.wait(20)
            assert game.returncode in (130, -signal.SIGKILL), "killed if it has not ended in four seconds"
    finally:
        game.kill()
        game.wait()
